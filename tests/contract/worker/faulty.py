"""A worker in which this package has bugs: steps of it raise where a task's label asks for that."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from celery import Celery

from celery_redislock import SingletonTask
from celery_redislock.servers.server import Server
from celery_redislock.worker import request
from celery_redislock.worker.child_lease import ChildLease
from celery_redislock.worker.request import LockRequest
from tests.behaviour.apps.bodies import CONF, new_app, run


class Fault(Exception):
    """A bug of ours."""


def fails_if_told(owner: Any, name: str, asks: Callable[..., Any]) -> None:
    """Let this function raise if its name is in the text that `asks` finds in its arguments."""
    inner = getattr(owner, name)

    @functools.wraps(inner)
    def step(*args: Any, **kwargs: Any) -> Any:
        if f"<{name}>" in str(asks(*args)):
            raise Fault(name)
        return inner(*args, **kwargs)

    setattr(owner, name, step)


def scripts_fail_if_told() -> None:
    """Let a call raise if the name of its script is in its lock's key."""
    inner = Server.run

    @functools.wraps(inner)
    def run(server: Server, call: Any, **options: Any) -> Any:
        if f"<{call.script}>" in call.keys[0]:
            raise Fault(call.script)
        return inner(server, call, **options)

    Server.run = run  # type: ignore[method-assign]


if CONF:
    scripts_fail_if_told()
    fails_if_told(request, "stamp", lambda raw, *args: raw["args"])
    fails_if_told(LockRequest, "finished_note", lambda own: own.args)
    fails_if_told(ChildLease, "__init__", lambda own, pid, request, token: request.args)
    fails_if_told(request, "ends_message", lambda task, flag: task.name)


def faulty(conf: Any) -> Celery:
    app = new_app("faulty", conf)
    for name, options in (
        ("job", {}),
        ("late", {"acks_late": True}),
        ("<ends_message>", {"time_limit": 1}),
        ("reserved", {"lock_scope": "queued+running"}),
    ):
        defaults = {"base": SingletonTask, "bind": True, "shared": False, "lock_ttl": 2}

        @app.task(name=name, lock_key="faulty:{label}", **{**defaults, **options})
        def task(self: Any, label: str, how: Any = 0.0) -> Any:
            return run(self, label, how)

    return app


if CONF:
    app = faulty(CONF)
