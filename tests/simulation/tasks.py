"""The tasks of a simulated world: each policy with each option, and a body that does what its call
says and takes simulated time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from celery import Celery

from celery_redislock import (
    Coalesce,
    Debounce,
    Defer,
    Queue,
    Raise,
    Replace,
    SingletonTask,
    Skip,
    Wait,
)

from . import baton

#: Seconds of the policies below, which properties ask for.
MAX_WAIT, TIMEOUT, QUIET, GRACE, DELAY, LIMIT = 5.0, 3.0, 2.0, 3.0, 1.0, 2
#: Seconds of the options below.
PAUSE, MIN_HOLD = 2.0, 3.0

#: Every policy, also with what gives up.
POLICIES: dict[str, Callable[[], Any]] = {
    "none": Skip,  # for a task of which nothing is locked when it runs
    "skip": Skip,
    "skip_result": lambda: Skip(result="skipped"),
    "raise": Raise,
    "defer": lambda: Defer(delay=DELAY, backoff=2, max_delay=8),
    "defer_bounded": lambda: Defer(delay=DELAY, max_wait=MAX_WAIT, then=Raise()),
    "wait": Wait,
    "wait_bounded": lambda: Wait(timeout=TIMEOUT, then=Queue()),
    "queue": Queue,
    "queue_bounded": lambda: Queue(max_wait=MAX_WAIT, then=Raise()),
    "queue_limited": lambda: Queue(limit=LIMIT, then=Skip()),
    "coalesce": Coalesce,
    "coalesce_result": lambda: Coalesce(result="replaced"),
    "debounce": lambda: Debounce(quiet=QUIET, max_wait=3 * QUIET),
    "replace": lambda: Replace(grace=GRACE),
}
#: Options that go with every policy.
OPTIONS: dict[str, dict[str, Any]] = {
    "": {},
    "late": {"acks_late": True, "reject_on_worker_lost": True},
    "held": {"lock_across_retries": "hold"},
    "queued": {"lock_scope": "queued"},
    "both": {"lock_scope": "queued+running"},
    "publish": {"lock_scope": "queued+running", "on_queued_conflict": "publish"},
    "pause": {"lock_pause": PAUSE},
    "min_hold": {"lock_min_hold": MIN_HOLD},
    "abort": {"on_lock_lost": "abort"},
    "soft": {"soft_time_limit": 4.0},
    "hard": {"time_limit": 5.0},
    "label": {"lock_label": "key {key}"},
}


@dataclasses.dataclass(frozen=True)
class Spec:
    """A task: a policy and an option, by their names."""

    policy: str
    option: str

    @property
    def name(self) -> str:
        return f"{self.policy}+{self.option}" if self.option else self.policy


@dataclasses.dataclass(frozen=True)
class Version:
    """What a release makes of a task.

    Attributes:
        limit: of its lock: a number, or "callable".
        lock_key: "" for a task that takes no lock.
    """

    name: str
    spec: Spec
    ttl: float
    limit: int | str
    lock_key: str = "{key}"

    @property
    def most(self) -> int:
        """How many runs it lets in at once."""
        return self.limit if isinstance(self.limit, int) else 2


def specs(limit: int | str) -> list[Spec]:
    """All pairs of a policy and an option that the package takes."""
    alone = ("coalesce", "debounce", "replace")
    return [
        Spec(policy, option)
        for policy in POLICIES
        for option in OPTIONS
        if (policy == "none") == (option == "queued")
        and not (policy == "debounce" and "lock_scope" in OPTIONS[option])
        and not (limit != 1 and policy.partition("_")[0] in alone)
    ]


def limit_of(key: str, seconds: float, does: list[Any], more: str = "") -> int:
    """A callable limit, which gets the call's arguments."""
    return int(baton.world.limit_now)


def no_key(key: str, seconds: float, does: list[Any], more: str = "") -> None:
    """A callable key, of a call that takes no lock."""


def add_task(app: Celery, version: Version) -> None:
    """Give the app this task."""
    spec = version.spec

    def body(self: Any, key: str, seconds: float, does: list[Any], more: str = "") -> Any:
        return baton.world.body(self, spec, key, seconds, does)

    options = {**OPTIONS[spec.option], "lock_ttl": version.ttl}
    if spec.policy != "none":
        options["on_conflict"] = POLICIES[spec.policy]()
    if version.limit != 1:
        options["lock_limit"] = limit_of if version.limit == "callable" else version.limit
    app.task(
        base=SingletonTask, bind=True, shared=False, name=version.name,
        lock_key=version.lock_key or no_key, **options,
    )(body)  # fmt: skip


def make_app(
    versions: Iterable[Version], visibility: float | None, ttl: float, **settings: Any
) -> Celery:
    """An app with these tasks. Each process that is not forked from another has its own."""
    app = Celery("sim", set_as_current=False)
    app.conf.update(
        broker_url=f"{'simrabbit' if visibility is None else 'simredis'}://broker",
        broker_pool_limit=None,
        broker_transport_options={} if visibility is None else {"visibility_timeout": visibility},
        result_backend="tests.simulation.backend:Backend",
        task_default_queue="celery",
        worker_hijack_root_logger=False,
        redislock_url="redis://locks",
        redislock_ttl=ttl,
        **settings,
    )
    for version in versions:
        add_task(app, version)
    app.finalize()
    return app
