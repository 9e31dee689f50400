"""The app of the workers of these tests, configured by the environment.

`label` names a test's own journal and lock. A body whose `seconds` are None stands still until the
test lets it go.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

from celery import current_task
from celery.signals import before_task_publish
from kombu.common import Broadcast

from celery_redislock import Defer, Queue, Replace, SingletonTask, Skip, Wait
from celery_redislock.signals import lock_conflict

from .bodies import CONF, client, journal, new_app
from .contexts import CONTEXTS

app = new_app("deliveries", CONF)
if name := CONF.get("test_broadcast"):
    app.conf.task_queues = (Broadcast(name),)


def stand(request: Any, seconds: float | None) -> None:
    """Sleep, or stand still until the test says so."""
    if seconds is None:
        journal.await_go(request.id)
    else:
        time.sleep(seconds)


def singleton(**options: Any) -> Any:
    defaults = {"base": SingletonTask, "bind": True, "lock_key": ["label"], "lock_ttl": 6}
    return app.task(**{**defaults, **options})


def body(self: Any, label: str, seconds: float | None = 0.1) -> Any:
    try:
        journal.write("start", label, self.request)
        stand(self.request, seconds)
        return label
    finally:
        journal.write("end", label, self.request)


@app.task(name="occupies", bind=True)
def occupies(self: Any, label: str) -> None:
    """Takes a pool slot, and no lock."""
    journal.write("start", label, self.request)
    journal.await_go(self.request.id)


# -- a __call__ that calls self.run -----------------------------------------------------------


@contextlib.contextmanager
def context(task: Any, label: str, where: str = "") -> Iterator[None]:
    """What `__call__` does around `run`. It stands still "before" it or "after" it."""

    def reach(place: str) -> None:
        if place == where:
            journal.write("at", label, task.request, place)
            journal.await_go(task.request.id)

    journal.write("start", label, task.request)
    try:
        reach("before")
        yield
        reach("after")
    finally:
        journal.write("end", label, task.request)


app.context = context


def in_context(self: Any, label: str, where: str = "") -> str:
    if where == "within":
        journal.write("at", label, self.request, where)
        journal.await_go(self.request.id)
    return label


for name, base in CONTEXTS.items():
    singleton(name=name, base=base)(in_context)


# -- replaced by a canvas of its own ----------------------------------------------------------


@app.task(name="last", bind=True)
def last(self: Any, label: str) -> str:
    journal.write("last", label, self.request)
    return "last"


# -- killed, and sent again -------------------------------------------------------------------

#: What only its message can bring back.
LATE: dict[str, Any] = {"acks_late": True, "reject_on_worker_lost": True}

singleton(name="first_link", ignore_result=True, **LATE)(body)
singleton(name="skipped_link", ignore_result=True, on_conflict=Skip(result="x"), **LATE)(body)
singleton(name="skipped_member", on_conflict=Skip(), **LATE)(body)
singleton(name="late", **LATE)(body)


def die_once(label: str) -> None:
    """The child dies here, but for what is delivered again."""
    if client.set(f"died:{label}", "", nx=True, ex=300):
        journal.write("dies", label, current_task.request)
        os.kill(os.getpid(), signal.SIGKILL)


@before_task_publish.connect
def die_as_a_link(sender: str, body: Any, **kwargs: Any) -> None:
    """The child is about to publish the next link."""
    if sender == "next_link" and (request := current_task.request).id and "link" in request.task:
        die_once(body[0][0])


@lock_conflict.connect
def die_as_a_member(sender: Any, details: Any, **kwargs: Any) -> None:
    """The child has noted that this member is skipped, and has not stored that."""
    if sender.name == "skipped_member":
        die_once(sender.request.args[0])


@app.task(name="next_link", bind=True, ignore_result=True)
def next_link(self: Any, label: str) -> None:
    journal.write("last", label, self.request)


# -- duplicates -------------------------------------------------------------------------------


def describe(self: Any, label: str, seconds: float | None = 0.1, what: Any = None) -> Any:
    """What its own message said."""
    journal.write("start", label, self.request)
    stand(self.request, seconds)
    journal.write("end", label, self.request)
    request = self.request
    return {
        "what": sorted(what or ()),
        "argsrepr": request.argsrepr,
        "kwargsrepr": request.kwargsrepr,
        "stamped_headers": request.stamped_headers,
        "stamps": request.stamps,
        "tenant": (request.headers or {}).get("tenant"),
        "priority": (request.delivery_info or {}).get("priority"),
        "route": [request.delivery_info["exchange"], request.delivery_info["routing_key"]],
    }


def show(self: Any, label: str, seconds: float | None = 0.1) -> Any:
    """All that its message said, but for what differs from delivery to delivery."""
    journal.write("start", label, self.request)
    stand(self.request, seconds)
    its_own = ("id", "eta", "args")
    shown = {k: v for k, v in vars(self.request).items() if k not in its_own and k[0] != "_"}
    shown["properties"] = dict(shown["properties"])
    shown["content_type"] = shown["properties"].pop("redislock")["content_type"]
    for name in ("delivery_tag", "delivery_info", "application_headers"):
        shown["properties"].pop(name, None)
    return shown


POLICIES: dict[str, Any] = {
    "defer": Defer(delay=0.3),
    "queue": Queue(),
    "coalesce": "coalesce",
    "wait": Wait(),
    "replace": Replace(grace=60),
}
for policy, on_conflict in POLICIES.items():
    singleton(name=policy, on_conflict=on_conflict)(body)
    singleton(name=f"describe_{policy}", on_conflict=on_conflict)(describe)
    singleton(name=f"show_{policy}", on_conflict=on_conflict)(show)
    singleton(name=f"describe_{policy}_late", on_conflict=on_conflict, acks_late=True)(describe)


singleton(name="defer_half", on_conflict=Defer(delay=0.5))(body)
singleton(name="skip")(body)


def on_this_host(label: str, *args: Any) -> str:
    """As socket.gethostname() would say it."""
    return f"on {CONF.get('test_host')}: {label}"


singleton(name="once_a_host", lock_key=on_this_host)(body)


@singleton(name="retries_elsewhere", lock_across_retries="hold", max_retries=3)
def retries_elsewhere(self: Any, label: str, other: str = "", countdown: float = 60) -> str:
    """Its retry has other arguments, and so another lock."""
    journal.write("start", label, self.request)
    journal.write("end", label, self.request)
    if other:
        raise self.retry(args=(other,), kwargs={}, countdown=countdown)
    return label
