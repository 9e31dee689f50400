"""The errors: what they say, and how they travel."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import ImproperlyConfigured, TaskRevokedError

from celery_redislock import (
    ConfigError,
    Holder,
    LockConflict,
    LockError,
    LockLost,
    LockUnavailable,
    TaskReplaced,
    TaskSkipped,
)
from celery_redislock.compat.celery_once import AlreadyQueued
from celery_redislock.compat.celery_singleton import DuplicateTaskError

HOLDER = Holder(
    task="pkg.task",
    task_id="0c1e",
    attempt=2,
    node="w1@host",
    pid=4711,
    acquired_at=1700000000.25,
    fence=1700000000250000,
    ttl=12.5,
    held_for_retry=True,
)


ERRORS = [
    LockError("a key", HOLDER),
    LockConflict("a key", HOLDER),
    LockConflict("a key"),
    LockLost("a key", HOLDER),
    LockLost("a key", HOLDER, "an operator broke it: anna@host"),
    LockLost(),
    LockUnavailable("a key", HOLDER, "TimeoutError: Timeout reading from socket"),
    LockUnavailable("a key", reason="gone"),
    TaskSkipped("a key", HOLDER),
    TaskReplaced("a key", HOLDER),
    TaskSkipped("a key"),
    ConfigError("task a: lock_tll"),
    AlreadyQueued(12.5, "a key", HOLDER),
    AlreadyQueued(12.5),
    DuplicateTaskError("a duplicate", "0c1e", "a key", HOLDER),
    DuplicateTaskError("a duplicate", "0c1e"),
]


def by_pickle(error: Exception) -> Any:
    return pickle.loads(pickle.dumps(error))


def by_result(serializer: str) -> Callable[[Exception], Any]:
    """The way through a result backend: what `get()` raises for what the worker stored."""

    def carry(error: Exception) -> Any:
        app = Celery("errors", broker="memory://", backend="cache+memory://", set_as_current=False)
        app.conf.update(result_serializer=serializer, accept_content=["json", "pickle", "yaml"])
        backend = app.backend
        stored = backend.encode(backend.prepare_exception(error, serializer))
        return backend.exception_to_python(backend.decode(stored))

    return carry


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: f"{type(e).__name__}{len(str(e))}")
@pytest.mark.parametrize("carry", [by_pickle, by_result("json"), by_result("pickle")])
def test_an_error_comes_back_from_its_way_as_it_went(error, carry) -> None:
    again = carry(error)
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.key == error.key
    assert again.holder == error.holder
    for name in ("reason", "countdown", "message", "task_id"):
        assert getattr(again, name, None) == getattr(error, name, None)


def test_a_loss_says_who_had_the_lock_and_why_it_was_lost() -> None:
    text = str(LockLost("a key", HOLDER, "an operator broke it"))
    assert text.startswith("the lock was lost: a key (was held by pkg.task[0c1e]")
    assert text.endswith("): an operator broke it")


def test_an_errors_message_names_key_and_holder() -> None:
    text = str(LockConflict("a key", HOLDER))
    assert "a key" in text
    assert "pkg.task[0c1e] on w1@host pid 4711 since 2023-11-14T22:13:20.250+00:00" in text
    assert "kept for its retry" in text
    assert str(LockUnavailable("a key", None, "why")).endswith("a key: why")


def test_who_was_replaced_is_not_told_that_the_newer_run_holds_the_lock() -> None:
    newer = Holder(task="pkg.task", task_id="0c1e")
    text = str(TaskReplaced("a key", newer))
    assert text == "replaced by a newer run of a key: pkg.task[0c1e]"
    assert str(TaskReplaced("a key", HOLDER)).startswith(
        "replaced by a newer run of a key: pkg.task[0c1e] on w1@host pid 4711 since"
    )
    assert str(TaskReplaced("a key")) == "replaced by a newer run of a key"
    assert str(TaskReplaced()) == "replaced by a newer run"
    assert str(TaskReplaced("two\nlines")) == "replaced by a newer run of two\\nlines"


def test_what_was_dropped_is_not_told_that_another_run_holds_the_lock() -> None:
    assert str(TaskSkipped("a key")) == "skipped without running: a key"
    assert "another run holds the lock: a key" in str(TaskSkipped("a key", HOLDER))


def test_every_error_is_a_lock_error_and_what_celery_takes_it_for() -> None:
    assert all(isinstance(error, LockError) for error in ERRORS)
    assert issubclass(TaskSkipped, TaskRevokedError)
    assert issubclass(ConfigError, ImproperlyConfigured)
