"""Options of a lock that are given to one call: refused, wherever a call's options come in."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery, Task, chain, chord, group
from celery.canvas import StampingVisitor

from celery_redislock import ConfigError, SingletonTask
from celery_redislock.compat.celery_once import QueueOnce
from celery_redislock.compat.celery_singleton import Singleton
from celery_redislock.django import LockedTask

WRONG = [
    ("lock_ttl", 5, "lock_ttl=5 is not accepted"),
    ("on_conflict", "queue", "on_conflict='queue' is not accepted"),
    ("lock_kee", ["x"], "unknown option 'lock_kee'; did you mean lock_key?"),
    ("on_conflit", "queue", "unknown option 'on_conflit'; did you mean on_conflict?"),
    ("Lock_Key", ["x"], "unknown option 'Lock_Key'; did you mean lock_key?"),
    ("redislock_ttl", 5, "unknown option 'redislock_ttl'; did you mean lock_ttl?"),
    ("lock_timeout", 5, "'lock_timeout' is not an option of a locked task; use lock_ttl"),
    ("unique_on", ["x"], "'unique_on' is an option of celery-singleton; use lock_key"),
    ("once", {"graceful": True}, "'once' is an option of celery-once"),
]


@pytest.fixture
def app(make_app: Any) -> Celery:
    app = make_app(result_backend="cache+memory://", redislock_tasks={"theirs": {}})

    @app.task(base=SingletonTask, name="calls.sync", shared=False)
    def sync(x: Any = None) -> str:
        return "ran"

    @app.task(name="theirs", shared=False)
    def theirs(x: Any = None) -> str:
        return "ran"

    @app.task(name="plain", shared=False)
    def plain(x: Any = None) -> str:
        return "ran"

    app.finalize()
    return app


CALLS: list[Callable[[Celery, Task, dict[str, Any]], Any]] = [
    lambda app, task, wrong: task.apply_async((5,), **wrong),
    lambda app, task, wrong: task.apply((5,), **wrong),
    lambda app, task, wrong: task.signature((5,), options=wrong),
    lambda app, task, wrong: task.subtask((5,), **wrong),
    lambda app, task, wrong: task.s(5).set(**wrong).delay(),
    lambda app, task, wrong: task.s(5).apply_async(**wrong),
    lambda app, task, wrong: group(task.s(5)).apply_async(**wrong),
    lambda app, task, wrong: group(task.s(5).set(**wrong), task.s(6)).delay(),
    lambda app, task, wrong: chain(task.s(5).set(**wrong), task.s(6)).delay(),
    lambda app, task, wrong: chord([task.s(5).set(**wrong)])(task.s(6)),
    lambda app, task, wrong: app.send_task(task.name, (5,), **wrong),
]


@pytest.mark.parametrize("call", range(len(CALLS)))
@pytest.mark.parametrize("name", ["calls.sync", "theirs"])
def test_an_option_of_a_lock_is_refused_wherever_a_call_can_have_one(app, call, name) -> None:
    with pytest.raises(ConfigError) as caught:
        CALLS[call](app, app.tasks[name], {"lock_ttl": 5})
    assert str(caught.value).startswith(f"a call of task {name}: lock_ttl=5 is not accepted")
    assert "Options belong to the task" in str(caught.value)


@pytest.mark.parametrize(("option", "value", "says"), WRONG)
def test_a_near_miss_and_another_packages_option_are_refused_too(app, option, value, says) -> None:
    with pytest.raises(ConfigError) as caught:
        app.tasks["calls.sync"].apply_async((5,), **{option: value})
    assert f"a call of task calls.sync: {says}" in str(caught.value)
    assert "Options belong to the task" in str(caught.value)


@pytest.mark.parametrize("base", [QueueOnce, Singleton])
def test_the_classes_for_other_packages_refuse_them_too(app, base) -> None:
    task = app.task(base=base, name="calls.compat", shared=False)(app.tasks["plain"].run)
    with pytest.raises(ConfigError, match=r"task calls\.compat: lock_ttl=5"):
        task.apply_async((5,), lock_ttl=5)


def test_what_is_to_be_sent_on_commit_is_refused_before(app) -> None:
    task = app.task(base=LockedTask, name="calls.django", shared=False)(app.tasks["plain"].run)
    with pytest.raises(ConfigError, match=r"task calls\.django: lock_ttl=5"):
        task.apply_async_on_commit((5,), lock_ttl=5)
    wrong = {"name": "calls.wrong", "base": LockedTask, "lock_ttl": 0}
    with pytest.raises(ConfigError):
        app.task(shared=False, **wrong)(task.run)
    task = app.tasks["calls.wrong"]
    for send in (task.apply_async_on_commit, task.delay_on_commit):
        with pytest.raises(ConfigError, match=r"task calls\.wrong: lock_ttl=0"):
            send()


def test_what_celery_kombu_and_users_give_to_a_call_is_left_alone(app) -> None:
    task = app.tasks["calls.sync"]
    sent = task.apply_async(
        (5,), countdown=0, expires=60, priority=3, headers={"lock_ttl": 5}, shadow="x",
        queue="celery", serializer="json", compression="gzip", retry=False, timeout=5,
        delivery_mode=1, time_limit=60, ignore_result=True, link=task.si(6), app_id="shop",
        message_id="5", clock=5, block=True,
    )  # fmt: skip
    assert sent.id
    assert app.send_task("calls.sync", (5,), priority=3, app_id="shop").id
    assert app.send_task("plain", (5,), lock_ttl=5).id, "not ours"
    assert app.send_task("nobody's", lock_ttl=5).id, "nor known"


def test_a_stamp_may_have_any_name(app) -> None:
    class Stamps(StampingVisitor):
        def on_signature(self, sig: Any, **headers: Any) -> dict[str, Any]:
            return {"lock_owner": "me", "stamped_headers": ["lock_owner"]}

    signature = app.tasks["calls.sync"].s(5)
    signature.stamp(Stamps())
    assert signature.delay().id


def test_an_app_that_checks_what_is_sent_is_pickled_as_before(app) -> None:
    assert pickle.loads(pickle.dumps(app)).main == "unconnected"


def test_what_a_tool_has_put_on_the_app_is_called_and_checked(app) -> None:
    traced, send_task = [], Celery.send_task

    def trace(name: str, *args: Any, **kwargs: Any) -> Any:
        traced.append(name)
        return send_task(app, name, *args, **kwargs)

    app.send_task = trace
    task = app.task(base=SingletonTask, name="calls.next", shared=False)(app.tasks["plain"].run)
    for name in (task.name, "calls.sync"):
        with pytest.raises(ConfigError, match=rf"task {name}: lock_ttl=5"):
            app.send_task(name, (5,), lock_ttl=5)
    assert app.send_task(task.name, (5,)).id
    assert traced == [task.name]


def test_a_mock_of_the_class_is_called_as_without_us(app, monkeypatch) -> None:
    sent = Mock()
    monkeypatch.setattr(Celery, "send_task", sent)
    app.send_task("calls.sync", (5,), priority=3)
    sent.assert_called_once_with("calls.sync", (5,), priority=3)
