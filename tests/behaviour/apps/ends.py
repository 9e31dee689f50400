"""Tasks whose deliveries end in every way, in the release that sends and parks them, and in the one
after it, where they end so. All of one label share a lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Celery, Task
from celery.exceptions import Ignore, Reject

from celery_redislock import SingletonTask

from .bodies import CONF, journal, new_app, run

KEY = "ends:{label}"


def body(self: Any, label: str, how: str | float = 0.0) -> Any:
    """One run. `how` is seconds, "stand", one of `ENDS`, or "stand, <one of them>"."""
    stands, _, end = str(how).rpartition(", ")
    if self.request.retries or end not in ENDS:
        return run(self, label, 0.0 if end in ENDS else how)
    run(self, label, stands or 0.0)
    return ENDS[end](self, label)


def raises(self: Any, label: str) -> None:
    raise LookupError(label)


def ignores(self: Any, label: str) -> None:
    raise Ignore


def rejects(self: Any, label: str) -> None:
    raise Reject("as it was told", requeue=False)


def requeues(self: Any, label: str) -> None:
    # Not by the broker's flag: a copy that comes while the next one is published waits in the room,
    # and comes back as a message of its own.
    starts = [each.task_id for each in journal.read(label, "start")]
    if starts.count(self.request.id) == 1:
        raise Reject("once more", requeue=True)


ENDS: dict[str, Any] = {
    "raise": raises, "ignore": ignores, "reject": rejects, "requeue": requeues,
}  # fmt: skip


def no_key(label: str, how: str | float = 0.0) -> str:
    raise LookupError(f"no account of {label}")


#: Options of tasks that are the same in both releases.
SAME: dict[str, dict[str, Any]] = {
    "job": {},
    "late": {"acks_late": True, "reject_on_worker_lost": True},
    "lost": {"retry_on_worker_lost": True, "default_retry_delay": 2},
    "lost_and_holds": {
        "retry_on_worker_lost": True,
        "default_retry_delay": 2,
        "lock_across_retries": "hold",
        "acks_late": True,
    },
    "lost_for_good": {"retry_on_worker_lost": True, "max_retries": 0},
    "not_acked": {"acks_late": True, "acks_on_failure_or_timeout": False},
    "runs_unlocked": {"on_redis_error": "run", "lock_ttl": 3},
    "raises_unlocked": {"on_redis_error": "raise", "lock_ttl": 3},
}
#: What the newer release has of tasks that were like "job" before. None: nothing.
CHANGED: dict[str, dict[str, Any] | None] = {
    "three_parameters": {},
    "keyless": {"lock_key": no_key},
    "gone": None,
    "unlocked": {"base": Task},
    "until_it_starts": {"lock_scope": "queued"},
}
#: Of what is reserved when it is sent.
RESERVED: dict[str, Any] = {"lock_scope": "queued+running", "lock_queued_ttl": 30}


def ends(release: int, conf: Mapping[str, Any]) -> Celery:
    """The app of the release before (1) or after (2). Each task is there also as one that is
    reserved when it is sent, as "reserved_<name>".
    """
    app = new_app("ends", conf)
    changed = CHANGED if release == 2 else {name: {} for name in CHANGED}
    for name, options in {**SAME, **changed}.items():
        if options is None:
            continue
        defaults = {
            "base": SingletonTask, "bind": True, "lock_key": KEY, "lock_ttl": 6,
            "on_conflict": "queue", "shared": False,
        }  # fmt: skip
        for prefix, more in (("", {}), ("reserved_", RESERVED)):
            every = {**defaults, **more, **options}
            if every["base"] is Task:
                every = {"base": Task, "bind": True, "shared": False}
            if every.get("lock_scope") == "queued":
                del every["on_conflict"], every["lock_ttl"]
            if every.get("lock_across_retries"):
                every.pop("lock_scope", None), every.pop("lock_queued_ttl", None)
            has_three = release == 2 and name == "three_parameters"

            def plain(self: Any, label: str, how: str | float = 0.0) -> Any:
                return body(self, label, how)

            def changed_body(self: Any, label: str, how: str | float, account: int) -> Any:
                return body(self, label, how)

            app.task(name=prefix + name, **every)(changed_body if has_three else plain)

    return app


if CONF:
    app = ends(CONF.get("test_release", 1), CONF)
