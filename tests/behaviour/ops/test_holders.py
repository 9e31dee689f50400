"""`operations.holders`: the holders of many calls, for a list."""

from __future__ import annotations

import contextlib

import pytest

from celery_redislock import ConfigError, SingletonTask
from celery_redislock.operations import holders
from celery_redislock.testing import hold_lock
from tests.support.looking import make_app as make_looked_at
from tests.support.servers import Proxy


@pytest.fixture(params=["redis_server", "cluster"])
def app(request, make_app, label):
    url = request.getfixturevalue(request.param).url
    app = make_app(redislock_url=url, redislock_prefix=label)

    @app.task(base=SingletonTask, lock_key=["account"], lock_label="account {account}", name="sync")
    def sync(account: int) -> None: ...

    @app.task(base=SingletonTask, lock_limit=2, name="two")
    def two(account: int) -> None: ...

    @app.task(name="plain")
    def plain() -> None: ...

    return app


def test_the_holders_of_a_list_are_told_in_its_order(app):
    sync, two = app.tasks["sync"], app.tasks["two"]
    with contextlib.ExitStack() as held:
        for number in range(0, 100, 2):
            held.enter_context(hold_lock(sync, number))
        held.enter_context(hold_lock(two, 1))
        calls = [(sync, (number,)) for number in range(100)]
        calls += [("sync", [4]), ("two", (1,)), ("two", (2,)), (sync, (), {"account": 6})]
        found = holders(app, calls)
    expected = [f"account {n}" if n % 2 == 0 else None for n in range(100)]
    assert [each and each.label for each in found[:100]] == expected
    assert [each and each.task for each in found[100:]] == ["sync", "two", None, "sync"]


def test_they_are_asked_for_in_one_round_trip(redis_server, label):
    with Proxy(redis_server.port) as proxy:
        app = make_looked_at(proxy.url, label)
        calls = [("sync", (str(number),)) for number in range(100)]
        holders(app, calls)  # now it is connected
        before = proxy.requests
        assert holders(app, calls) == [None] * 100
        assert proxy.requests == before + 1


def test_no_calls_have_no_holders(app):
    assert holders(app, []) == []


@pytest.mark.parametrize("task", ["plain", "unknown", 5])
def test_a_task_without_a_lock_is_refused(app, task):
    with pytest.raises(ConfigError, match=f"holders: {task!r} is no task with a lock"):
        holders(app, [(task, ())])
