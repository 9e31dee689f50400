"""Settings that change once the app is complete: what is held stays, what comes is elsewhere."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_redislock import RedisLock, SingletonTask, current_lock
from tests.support.servers import RedisServer


def holds() -> bool:
    """Whether the body has a lock."""
    return bool(current_lock)


@pytest.fixture
def app(redis_server):
    app = Celery("changes", broker="memory://", set_as_current=False)
    app.conf.redislock_url = f"{redis_server.url}/0"
    app.task(name="holds", base=SingletonTask, shared=False)(holds)
    app.finalize()
    yield app
    app.close()


@pytest.fixture
def second():
    with RedisServer() as server:
        yield server


def test_a_lock_that_is_held_is_given_back_where_it_was_taken(app, second, redis_server, label):
    with redis_server.client() as old, second.client() as new:
        held, other = RedisLock(app, label), RedisLock(app, label)
        with held:
            app.conf.redislock_url = f"{second.url}/0"
            assert other.acquire(timeout=0), "nobody has it there"
            assert old.exists(held.key)
            assert new.exists(other.key)
            held.ensure()
            held.extend()
        assert not old.exists(held.key)
        assert other.release()
        assert not new.exists(other.key)
