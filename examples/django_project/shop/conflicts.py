"""What Django REST framework's views answer when a lock is held."""

from rest_framework import views
from rest_framework.response import Response

from celery_redislock import LockConflict


def conflict_is_409(exc, context):
    if isinstance(exc, LockConflict):
        views.set_rollback()  # or ATOMIC_REQUESTS commits
        return Response({"task_id": exc.holder and exc.holder.task_id}, status=409)
    return views.exception_handler(exc, context)
