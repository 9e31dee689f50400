"""Every exchange with a lock server, as values. No I/O, no Redis client, no Celery."""
