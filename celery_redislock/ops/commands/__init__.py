"""The commands of `celery redislock`, by subject. Light: Celery imports them at each start."""
