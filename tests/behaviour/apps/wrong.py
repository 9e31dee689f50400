"""Shared tasks of which some have wrong options, in every way, and an unlocked one beside them."""

from __future__ import annotations

from typing import Any

from celery import shared_task

from celery_redislock import SingletonTask
from celery_redislock.compat.celery_singleton import Singleton

from .bodies import CONF, new_app, run

app = new_app("wrong", CONF)
app.conf.redislock_tasks = {"theirs": {"lock_tll": 5}, "fits.not": {"lock_key": ["account"]}}


def job(self: Any, label: str, how: str | float = 0.0) -> str:
    return run(self, label, how)


OPTIONS: dict[str, dict[str, Any]] = {
    "negative": {"base": SingletonTask, "lock_ttl": -1},
    "no_argument": {"base": SingletonTask, "lock_key": ["account"]},
    "singleton": {"base": Singleton, "unique_on": "account"},
    "theirs": {},
    "fits.not": {},
    "plain": {},
    "locked": {"base": SingletonTask},
}

for number in range(3):  # Celery makes shared tasks in any order
    for name, options in OPTIONS.items():
        more = "" if name in app.conf.redislock_tasks else str(number)
        shared_task(name=name + more, bind=True, **options)(job)
