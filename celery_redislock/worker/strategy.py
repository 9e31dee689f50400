"""Prepares a locked task in a worker's main process."""

from __future__ import annotations

from typing import Any

from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.concurrency.solo import TaskPool as SoloPool
from celery.utils.imports import symbol_by_name

from ..lock.forks import between_forks
from ..tasks.task import SingletonTask
from .request import lock_request


def prepare(task: SingletonTask, consumer: Any) -> None:
    """Let the task's requests mint tokens, and settle what their messages hold.

    Args:
        task: a locked task.
        consumer: the worker's consumer, which knows the pool.
    """
    assert task.lock_options is not None
    base = symbol_by_name(getattr(task, "Request"))  # noqa: B009  mypy: untyped base
    task.Request = lock_request(base)
    is_locked = task.lock_options.lock_scope != "queued"
    is_prefork = isinstance(consumer.pool, PreforkPool)
    if is_prefork:
        between_forks.use()
    task.runs_in_children = is_locked and is_prefork
    task.acks_after_body = isinstance(consumer.pool, SoloPool)
    task.hears_acks = is_locked and task.app_locks.redelivery.hears_acks
    task.worker_consumer = consumer
