"""Describes every exchange with a lock server. Does no I/O; imports neither Redis nor Celery."""
