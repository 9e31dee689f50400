"""For how long a lock is kept after its run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Retry

from celery_redislock import Holder, SingletonTask
from celery_redislock.protocol import past
from celery_redislock.tasks.body import how_to_release
from celery_redislock.tasks.state import Ran, State

OPTIONS: Any = {"lock_min_hold": 50.0, "lock_pause": {"success": 7.0, "failure": 5.0}}


def body() -> None:
    """It is never run."""


def released(ran: Ran, **lease: Any) -> tuple[float, float]:
    """For how many seconds from the begin, and from the end of a run that a newer one replaces."""
    app = Celery("releases", broker="memory://", set_as_current=False)
    app.conf.redislock_url = "redis://nobody.invalid"
    task = app.task(base=SingletonTask, name="t", **OPTIONS)(body)
    facts: Any = SimpleNamespace(task=task, options=task.lock_options, key="k")
    state = State(SimpleNamespace(copied=False, fanout=False))  # type: ignore[arg-type]
    of: Any = SimpleNamespace(heir=None, ttl=30.0, replaced_by=Holder(task_id="newer"), **lease)
    release: Any = how_to_release(facts, state, of, ran)
    return release.min_hold, release.pause


@pytest.mark.parametrize("retry", [None, Retry()], ids=["ends", "is retried"])
@pytest.mark.parametrize("how", [past.SUCCEEDED, past.FAILED, past.REPLACED, past.TERMINATED])
def test_a_run_that_asks_for_a_pause_gets_it_though_a_newer_one_replaces_it(how, retry):
    assert released(Ran(how, retry=retry), pause_for=60.0)[1] == 60


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        (past.SUCCEEDED, (50.0, 7.0)), (past.FAILED, (0.0, 5.0)),
        (past.REPLACED, (0.0, 0.0)), (past.RETRIED, (0.0, 0.0)),
    ],
)  # fmt: skip
def test_a_run_that_is_replaced_pauses_by_its_own_end(how, kept):
    assert released(Ran(how), pause_for=None) == kept
