"""What is wrong with a set-up, and what to do about it: `celery redislock doctor`."""
