"""The compared ways to keep a Celery task from overlapping itself.

Each is set up as its own documentation says, and imported only where it is used: some add
receivers to Celery's signals, which would slow the others down. Locks are in database 0.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import time
from collections.abc import Callable
from typing import Any

import redis
from celery import Celery

from .locks import FLOOR_CHECKED, Least

Body = Callable[..., Any]
#: Where bodies leave their notes: lists in this database of the broker's server.
NOTES_DB = 3


@dataclasses.dataclass(frozen=True)
class Contender:
    """One way.

    Attributes:
        options: the options of `app.task`, for this app and the URL of the locks.
        wrap: what is put around the body, for those that have no task class.
    """

    options: Callable[[Celery, str], dict[str, Any]] = lambda app, url: {}
    wrap: Callable[[Body, str], Body] = lambda body, url: body

    def define(self, app: Celery, url: str, name: str, body: Body) -> Any:
        """Make a task with this body."""
        return app.task(name=name, **self.options(app, url))(self.wrap(body, url))


# -- ours -------------------------------------------------------------------------------------


def _ours(**options: Any) -> Contender:
    def singleton(app: Celery, url: str) -> dict[str, Any]:
        from celery_redislock import SingletonTask

        app.conf.redislock_url = url
        policy = options.get("on_conflict")
        more = {"on_conflict": _policy(policy)} if policy else {}
        return {"base": SingletonTask, **options, **more}

    return Contender(singleton)


def _policy(text: str) -> Any:
    """The policy that is written like this."""
    import celery_redislock

    return eval(text, {"__builtins__": {}}, vars(celery_redislock))


# -- by hand ----------------------------------------------------------------------------------


def _lock_id(body: Body, args: tuple[Any, ...]) -> str:
    # The module is the same for all: the cookbook uses the name and a digest of the argument.
    return f"{body.__name__}-lock-{hashlib.md5(repr(args).encode()).hexdigest()}"


def _cookbook(body: Body, url: str) -> Body:
    """Celery's cookbook, "Ensuring a task is only executed one at a time".

    Its `cache.add` and `cache.delete` are one command each to Redis.
    """
    cache = redis.Redis.from_url(url)
    expire = 60 * 10

    @functools.wraps(body)
    def only_one(*args: Any) -> Any:
        timeout_at = time.monotonic() + expire - 3
        lock_id = _lock_id(body, args)
        if not cache.set(lock_id, "1", nx=True, ex=expire):
            return None
        try:
            return body(*args)
        finally:
            if time.monotonic() < timeout_at:
                cache.delete(lock_id)

    return only_one


def _least(body: Body, url: str) -> Body:
    """The simplest lock that is safe, on one socket, without a client library."""
    lock = functools.cache(lambda: Least(url))  # connected at first use: after the fork

    @functools.wraps(body)
    def only_one(*args: Any) -> Any:
        lock_id = _lock_id(body, args)
        if not lock().acquire(lock_id):
            return None
        try:
            return body(*args)
        finally:
            lock().release(lock_id)

    return only_one


def _redis_py(body: Body, url: str) -> Body:
    """redis-py's `Lock` in the body; a run that does not get it ends."""
    client = redis.Redis.from_url(url)

    @functools.wraps(body)
    def only_one(*args: Any) -> Any:
        lock = client.lock(_lock_id(body, args), timeout=600)
        if not lock.acquire(blocking=False):
            return None
        try:
            return body(*args)
        finally:
            lock.release()

    return only_one


# -- packages ---------------------------------------------------------------------------------


def _celery_singleton(app: Celery, url: str) -> dict[str, Any]:
    from celery_singleton import Singleton

    app.conf.singleton_backend_url = url
    return {"base": Singleton}


def _celery_once(app: Celery, url: str) -> dict[str, Any]:
    from celery_once import QueueOnce

    app.conf.ONCE = {
        "backend": "celery_once.backends.Redis",
        "settings": {"url": url, "default_timeout": 60 * 60},
    }
    return {"base": QueueOnce}


def _celery_once_task(app: Celery, url: str) -> dict[str, Any]:
    from celery_once_task import (
        OnceTask,
        OnceTaskUnlockBootStep,
        configure,
        setup_once_task_signals,
    )

    configure(redis_url=url)
    setup_once_task_signals()
    app.steps["worker"].add(OnceTaskUnlockBootStep)
    return {"base": OnceTask}


def _celery_heimdall(app: Celery, url: str, **more: Any) -> dict[str, Any]:
    from celery_heimdall import HeimdallTask

    class Task(HeimdallTask):
        abstract = True

        def setup_redis(self) -> redis.Redis:
            return redis.Redis.from_url(url)

    return {"base": Task, "heimdall": {"unique": True, **more}}


def _celery_heimdall_at_once(app: Celery, url: str) -> dict[str, Any]:
    return _celery_heimdall(app, url, unique_lock_blocking=False)


PLAIN = "plain task"
OURS = "celery-redislock"
#: With its defaults each task waits a second for the lock that its own sending took.
HEIMDALL_AT_ONCE = "celery-heimdall, not blocking"
#: By the name that people read.
CONTENDERS = {
    PLAIN: Contender(),
    FLOOR_CHECKED: Contender(wrap=_least),
    OURS: _ours(),
    f"{OURS}, queued+running": _ours(lock_scope="queued+running"),
    "Celery's cookbook lock": Contender(wrap=_cookbook),
    "redis-py Lock in the body": Contender(wrap=_redis_py),
    "celery-singleton": Contender(_celery_singleton),
    "celery-once": Contender(_celery_once),
    "celery-once-task": Contender(_celery_once_task),
    "celery-heimdall": Contender(_celery_heimdall),
    HEIMDALL_AT_ONCE: Contender(_celery_heimdall_at_once),
}


def contender(name: str) -> Contender:
    """One of `CONTENDERS`, or ours with this policy and one lock for all calls."""
    if name in CONTENDERS:
        return CONTENDERS[name]
    return _ours(on_conflict=name, lock_key="one-lock-for-all")
