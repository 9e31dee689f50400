"""A lock in Redis. Nothing here knows Celery."""
