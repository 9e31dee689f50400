"""A `RedisLock` of a Celery app: where it is, and what it shares with the app's tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from celery.local import Proxy

from celery_redislock import ConfigError, LockConflict, RedisLock, SingletonTask
from tests.support.looking import run


@pytest.fixture
def make_app(redis_server: Any, label: str) -> Iterator[Callable[..., Celery]]:
    """Makes apps with a prefix of this test's own, whose eager tasks take locks."""
    made = []

    def make(**settings: Any) -> Celery:
        app = Celery("source", set_as_current=False)
        ours = {"redislock_url": redis_server.url, "redislock_prefix": label}
        app.conf.update(
            {"broker_url": "memory://", "redislock_eager": True, **ours, **settings},
        )
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()


def add_task(app: Celery) -> Any:
    def sync(account_id: int) -> str:
        return "ran"

    return app.task(name="sync", shared=False, base=SingletonTask, lock_key="account:{account_id}")(
        sync
    )


@pytest.mark.parametrize("through", [lambda app: app, lambda app: Proxy(lambda: app)])
def test_a_lock_of_an_app_and_a_task_with_its_key_exclude_each_other(make_app, through) -> None:
    app = make_app()
    task = add_task(app)
    lock = RedisLock(through(app), "account:5", timeout=0)
    assert lock.key == task.lock_key_for(5)
    with lock:
        assert task.apply((5,)).state == "REVOKED"
        assert task.apply((6,)).get() == "ran"
    assert task.apply((5,)).get() == "ran"


def test_an_apps_settings_are_read_when_the_lock_is_used(make_app, label) -> None:
    app = make_app(redislock_url=None, redislock_prefix="not yet")
    lock = RedisLock(app, "account:5")
    with pytest.raises(ConfigError, match="redislock_url is not set"):
        lock.acquire(0)
    other = make_app()
    app.conf.update(redislock_url=other.conf.redislock_url, redislock_prefix=label)
    task = add_task(app)
    app.finalize()
    with lock:
        assert lock.key == task.lock_key_for(5)
        assert task.apply((5,)).state == "REVOKED"


def test_settings_with_a_namespace_are_used(redis_server, label) -> None:
    app = Celery("source", set_as_current=False)
    settings = {"CELERY_REDISLOCK_URL": redis_server.url, "CELERY_REDISLOCK_PREFIX": label}
    app.config_from_object(settings, namespace="CELERY")
    with RedisLock(app, "account:5") as lock:
        assert lock.key.startswith(f"{label}:")


def test_a_complete_app_that_names_no_server_is_refused_at_once(make_app) -> None:
    app = make_app(redislock_url=None)
    app.finalize()
    with pytest.raises(ConfigError, match="set redislock_url to the Redis server"):
        RedisLock(app, "account:5")


def test_an_argument_wins_over_the_apps_setting(make_app, label, client) -> None:
    app = make_app()
    lock = RedisLock(app, "account:5", prefix=f"{label}-own", history=0)
    with lock, RedisLock(app, "account:5"):
        assert lock.key.startswith(f"{label}-own:")
    assert not list(client.scan_iter(f"{label}-own:*:history:*"))
    assert list(client.scan_iter(f"{label}:*:history:*")), "the app's is 50"


def test_a_lock_of_an_app_without_locks_for_its_tasks_is_taken_all_the_same(make_app) -> None:
    app = make_app(redislock_enabled=False)
    task = add_task(app)
    with RedisLock(app, "account:5") as lock:
        assert lock.fence > 0
        assert task.apply((5,)).get() == "ran"


def test_transport_options_are_for_a_url_only(make_app, client) -> None:
    for source in (make_app(), client):
        with pytest.raises(ConfigError, match="transport_options are not accepted beside"):
            RedisLock(source, "account:5", transport_options={})
    with pytest.raises(ConfigError, match="unknown option 'hots'"):
        RedisLock("redis://127.0.0.1:1", "account:5", transport_options={"hots": 1})


# -- its label --------------------------------------------------------------------------------


def test_people_see_a_locks_label_and_not_its_pid(make_app) -> None:
    app = make_app()
    with RedisLock(app, "account:5", label="api: adjust") as lock:
        assert lock.holder().label == "api: adjust"
        with pytest.raises(LockConflict) as caught:
            RedisLock(app, "account:5", timeout=0).__enter__()
        assert "held by RedisLock (api: adjust) on " in str(caught.value)
        assert " pid " not in str(caught.value)
        assert "api: adjust" in run(app, "list").output
        assert "api: adjust" in run(app, "show", "account:5").output


def test_a_label_is_cut_and_in_one_line(make_app) -> None:
    with RedisLock(make_app(), "account:5", label="api:\n\ud800" + "x" * 10**6) as lock:
        label = lock.holder().label
        assert label.startswith("api:\\n\\ud800xxx")
        assert len(label) == 100
