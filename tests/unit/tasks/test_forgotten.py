"""Tasks with options of ours and not our base: which are told of, and which have their own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, Task

from celery_redislock import ConfigError, Queue, SingletonTask
from celery_redislock.tasks.forgotten import forgotten

ROOT = Path(__file__).parents[3]


def define(app: Celery, name: str = "shop.sync", **options: Any) -> Any:
    def body(a: Any = None) -> None: ...

    return app.task(name=name, shared=False, **options)(body)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"lock_key": ["a"], "on_conflict": Queue()}, "lock_key and on_conflict"),
        ({"lock_ttl": 60}, "lock_ttl"),
        ({"lock_key": lambda a: "name"}, "lock_key"),
        ({"lock_keys": ["a"]}, "lock_keys"),
        ({"Lock_Key": ["a"]}, "Lock_Key"),
        ({"redislock_ttl": 60}, "redislock_ttl"),
        ({"if_busy": Queue()}, "if_busy"),
    ],
)
def test_a_task_with_options_and_without_the_base_is_found(make_app, options, named) -> None:
    app = make_app()
    define(app, **options)
    define(app, "shop.plain", max_retries=1)
    define(app, "shop.locked", base=SingletonTask, lock_ttl=5)
    app.finalize()
    assert list(forgotten(app)) == [("shop.sync", named)]


def test_a_class_that_forgot_its_base_is_found_and_so_is_a_base_that_did(make_app) -> None:
    app = make_app()

    class Report(Task):
        name = "shop.report"
        lock_key = "report"

        def run(self) -> None: ...

    class House(Task):
        abstract = True
        on_conflict = "queue"

    app.register_task(Report())
    define(app, base=House)
    app.finalize()
    assert list(forgotten(app)) == [("shop.report", "lock_key"), ("shop.sync", "on_conflict")]


def test_what_belongs_to_a_users_own_base_is_not_taken_for_ours(make_app) -> None:
    app = make_app()

    class Base(Task):
        abstract = True

        def on_conflict(self) -> None: ...

        @property
        def on_lock_lost(self) -> str:
            return "mine"

    define(app, base=Base, on_conflict="mine", on_lock_lost="mine")
    define(app, "shop.timed", lock_timeout=5, block_size=5, clock=5, conflict_free=True)
    define(app, "shop.watch", clock_ttl=5, block_key="a", blocked_label="b")
    app.finalize()
    assert list(forgotten(app)) == []


# -- options that our own would hide ----------------------------------------------------------


def test_a_tasks_own_options_count_where_redislock_tasks_protects_it(make_app) -> None:
    app = make_app(redislock_tasks={"shop.*": {"lock_ttl": 60}})
    define(app, lock_key=lambda a: f"account:{a}", lock_ttl=5, lock_limit=2)
    app.finalize()
    task = app.tasks["shop.sync"]
    assert list(forgotten(app)) == []
    assert (task.lock_options.lock_limit, task.lock_options.lock_ttl) == (2, 60)
    assert task.lock_key_for(5).endswith(":lock:account:5")


def test_a_near_miss_of_a_protected_task_is_refused(make_app) -> None:
    app = make_app(redislock_tasks={"shop.*": {}})
    task = define(app, lock_keys=["a"])
    app.finalize()
    with pytest.raises(ConfigError, match=r"shop\.sync: unknown option 'lock_keys'; did you mean"):
        task.delay()


# -- when it is said --------------------------------------------------------------------------

LINE = (
    "redislock: task shop.sync sets lock_key and on_conflict, and takes no lock: its base is not"
    " SingletonTask, and redislock_tasks does not name it. Write base=SingletonTask"
)


def test_a_worker_says_what_came_after_the_app_was_complete_and_nothing_twice(
    make_app, start_worker_of, caplog, monkeypatch
) -> None:
    monkeypatch.delitem(sys.modules, "celery.bin.celery", raising=False)
    app = make_app(redislock_enabled=False)
    define(app, lock_key=["a"], on_conflict="queue")
    app.finalize()
    assert [record.getMessage() for record in caplog.records] == [LINE]
    define(app, "shop.late", lock_ttl=5)
    for _ in range(2):
        start_worker_of(app)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "task shop.late sets lock_ttl, and takes no lock" in said[1]
