"""The tasks of the end-to-end tests. Their workers get this file alone."""

import time

from celery import shared_task

from celery_redislock import Queue, SingletonTask


@shared_task(
    base=SingletonTask, name="e2e.skip", lock_key="{label}", lock_ttl=5, track_started=True
)
def skip(label: str, seconds: float = 0.0) -> list[float]:
    return _run(seconds)


@shared_task(base=SingletonTask, name="e2e.queue", lock_key=["label"], on_conflict=Queue())
def queue(label: str, seconds: float = 0.0) -> list[float]:
    return _run(seconds)


def _run(seconds: float) -> list[float]:
    """When it began and ended: Unix times."""
    began = time.time()
    time.sleep(seconds)
    return [began, time.time()]
