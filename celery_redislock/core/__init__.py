"""A lock in Redis, and nothing of Celery."""
