"""The tasks of a simulated world: each policy with each option, and a body that does what its call
says and takes simulated time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
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
MAX_WAIT, TIMEOUT, QUIET, GRACE, DELAY = 5.0, 3.0, 2.0, 3.0, 1.0
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
    "queue_limited": lambda: Queue(limit=2, then=Skip()),
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


def limit_of(key: str, seconds: float, does: list[Any]) -> int:
    """A callable limit, which gets the call's arguments."""
    return 2


def add_task(app: Celery, spec: Spec, ttl: float, limit: Any) -> None:
    """Give the app the task of this spec."""

    def body(self: Any, key: str, seconds: float, does: list[Any]) -> Any:
        return baton.world.body(self, spec, key, seconds, does)

    options = {**OPTIONS[spec.option], "lock_ttl": ttl}
    if spec.policy != "none":
        options["on_conflict"] = POLICIES[spec.policy]()
    if limit != 1:
        options["lock_limit"] = limit
    app.task(
        base=SingletonTask, bind=True, shared=False, name=spec.name, lock_key="{key}",
        **options,
    )(body)  # fmt: skip


def make_app(specs: list[Spec], visibility: float | None, ttl: float, limit: Any) -> Celery:
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
    )
    for spec in specs:
        add_task(app, spec, ttl, limit)
    app.finalize()
    return app
