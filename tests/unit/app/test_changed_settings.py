"""Settings that change once the app is complete act at once, or are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_redislock import ConfigError, Queue, RedisLock, SingletonTask, Skip
from celery_redislock.app.settings import app_locks
from celery_redislock.tasks.locked import LockedTask

ELSEWHERE = "redis://127.0.0.1:2/0"


def body(number: int) -> None:
    """Never run."""


#: What the app is configured with. What is set before that would go before it.
GIVEN = {"broker_url": "memory://", "redislock_url": "redis://127.0.0.1:1/0", "redislock_ttl": 20}


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("changes", set_as_current=False)
    app.config_from_object(GIVEN)
    app.task(name="first", base=SingletonTask, shared=False)(body)
    app.finalize()
    yield app
    app.close()


@pytest.fixture
def task(app) -> Any:
    return app.tasks["first"]


def by_attribute(app: Celery, name: str, value: Any) -> None:
    setattr(app.conf, name, value)


def by_item(app: Celery, name: str, value: Any) -> None:
    app.conf[name] = value


def by_update(app: Celery, name: str, value: Any) -> None:
    app.conf.update({name: value})


def by_object(app: Celery, name: str, value: Any) -> None:
    given = {
        key: app.conf[key]
        for key in (*GIVEN, "redislock_enabled", "redislock_eager")
        if key in app.conf
    }
    app.config_from_object({**given, name: value})


WAYS = [by_attribute, by_item, by_update, by_object]


@pytest.mark.parametrize("change", WAYS)
def test_the_server_is_another_one_at_once(app, task, change):
    before = app_locks(app).server
    change(app, "redislock_url", ELSEWHERE)
    assert task.app_locks.server is not before
    assert "127.0.0.1:2" in task.app_locks.describe_server()
    assert "127.0.0.1:2" in app_locks(app).describe_server()


@pytest.mark.parametrize("change", WAYS)
def test_options_that_settings_are_the_defaults_of_are_others_at_once(app, task, change):
    assert task.lock_options.lock_ttl == 20
    change(app, "redislock_ttl", 5)
    assert task.app_locks.settings["redislock_ttl"] == 5
    assert task.lock_options.lock_ttl == 5
    change(app, "redislock_on_conflict", "queue")
    assert task.app_locks
    assert task.lock_options.on_conflict == Queue()


@pytest.mark.parametrize("change", WAYS)
def test_the_prefix_and_what_switches_locks_act_at_once(app, task, change):
    lock = RedisLock(app, "a name")
    change(app, "redislock_prefix", "other")
    assert task.lock_key_for(1).startswith("other:")
    assert lock.key.startswith("other:")
    assert task._takes_lock(task.app_locks, is_eager=False)
    change(app, "redislock_enabled", False)
    assert not task._takes_lock(task.app_locks, is_eager=False)
    change(app, "redislock_eager", True)
    change(app, "redislock_enabled", True)
    assert task._takes_lock(task.app_locks, is_eager=True)


@pytest.mark.parametrize("name", ["CELERY_REDISLOCK_TTL", "redislock_ttl"])
def test_with_a_namespace(make_app, name):
    app = make_app()
    settings = {"CELERY_REDISLOCK_TTL": 20, "CELERY_REDISLOCK_URL": "redis://127.0.0.1:1/0"}
    app.config_from_object(settings, namespace="CELERY")
    task = app.task(name="first", base=SingletonTask, shared=False)(body)
    app.finalize()
    assert task.lock_options.lock_ttl == 20
    app.conf.update({name: 5})
    if app.conf.redislock_ttl == 20:
        pytest.skip("this Celery looks for the namespace's name first")
    assert task.lock_options.lock_ttl == 5


@pytest.mark.parametrize("change", [by_attribute, by_item, by_update])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("redislock_ttl", -1),
        ("redislock_tll", 5),
        ("redislock_url", "http://nowhere"),
        ("redislock_enabled", "perhaps"),
        ("redislock_on_conflict", "skipp"),
    ],
)
def test_what_is_wrong_is_refused_and_changes_nothing(app, task, change, name, value):
    before, options = dict(app.conf.changes), task.lock_options
    with pytest.raises(ConfigError, match="redislock_"):
        change(app, name, value)
    assert dict(app.conf.changes) == before
    assert task.lock_options == options
    assert task._redislock_error is None
    task._refuse_use({})


def test_what_a_task_would_be_wrong_by_is_refused(app):
    app.task(name="queues", base=SingletonTask, on_conflict="queue", shared=False)(body)
    with pytest.raises(ConfigError, match="queues"):
        app.conf.redislock_url = "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"
    assert not app_locks(app).is_quorum


def test_a_task_that_was_wrong_before_harms_no_change(app, task):
    with pytest.raises(ConfigError):
        app.task(name="wrong", base=SingletonTask, lock_ttl=-1, shared=False)(body)
    app.conf.redislock_ttl = 5
    assert task.lock_options.lock_ttl == 5


def test_what_redislock_tasks_names_later_is_locked_and_what_it_locks_stays_so(app):
    plain = app.task(name="plain", shared=False)(body)
    assert not isinstance(app.tasks["plain"], SingletonTask)
    app.conf.redislock_tasks = {"plain": {"lock_ttl": 7}}
    assert plain.lock_options.lock_ttl == 7
    app.conf.update(redislock_tasks={"plain": {"lock_ttl": 7}, "others": {}})
    for other in ({"plain": {"lock_ttl": 8}}, {"plain": None}, {}):
        with pytest.raises(ConfigError, match="plain by now"):
            app.conf.redislock_tasks = other
    with pytest.raises(ConfigError, match="lock_tll"):
        app.conf.redislock_tasks = {"plain": {"lock_ttl": 7}, "others": {"lock_tll": 1}}
    assert app.conf.redislock_tasks == {"plain": {"lock_ttl": 7}, "others": {}}
    assert plain.lock_options.lock_ttl == 7


def test_a_setting_that_is_taken_back_is_what_it_was(app, task):
    app.conf.redislock_ttl = 5
    del app.conf["redislock_ttl"]
    assert task.lock_options.lock_ttl == 20
    app.conf.redislock_ttl = 5
    app.conf.pop("redislock_ttl")
    assert task.lock_options.lock_ttl == 20
    app.conf.redislock_ttl = 5
    app.conf.clear()
    assert task.lock_options.lock_ttl == 20


def test_a_new_object_with_a_wrong_setting_is_refused_at_each_use(app, task):
    app.config_from_object({**GIVEN, "redislock_ttl": -1})
    for _ in range(2):
        with pytest.raises(ConfigError, match="redislock_ttl"):
            task.lock_key_for(1)


def test_other_settings_of_celerys_are_not_looked_at(app, task, monkeypatch):
    monkeypatch.setattr(LockedTask, "_redislock_resolve", None, raising=False)
    before = task.app_locks
    app.conf.task_always_eager = True
    app.conf.update(broker_url="memory://", worker_concurrency=2)
    assert task.app_locks is before
    assert task.lock_options.on_conflict == Skip()


def test_a_server_that_stays_the_same_keeps_its_connections(app, task):
    before = task.app_locks.server
    app.conf.redislock_ttl = 5
    assert task.app_locks.server is before
