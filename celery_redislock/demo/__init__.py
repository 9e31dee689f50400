"""`python -m celery_redislock.demo`: the locks at work, on real workers, in half a minute."""
