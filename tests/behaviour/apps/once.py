"""A task of celery-once on our locks, with that package's settings too."""

from __future__ import annotations

from celery_redislock.compat.celery_once import QueueOnce

from .bodies import CONF, new_app

app = new_app("once", CONF)


@app.task(base=QueueOnce, name="once", shared=False)
def once(label: str) -> str:
    return label
