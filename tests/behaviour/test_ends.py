"""The rows of the table of docs/inside/deliveries.md that only real workers show."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from celery import Task
from celery.exceptions import NotRegistered

from celery_redislock import LockUnavailable
from tests.behaviour.apps.ends import ends
from tests.behaviour.ends_stage import (
    AGAIN,
    SOON,
    Kept,
    Late,
    Placed,
    Reserved,
    Scene,
    Stage,
    needs_impatience,
)
from tests.support.servers import Proxy, RedisServer
from tests.support.waiting import eventually, never
from tests.support.workers import ROOT, is_running

APP = "tests.behaviour.apps.ends"
needs_retry = pytest.mark.skipif(
    not hasattr(Task, "retry_on_worker_lost"), reason="this Celery sends no such retry"
)


@pytest.fixture(scope="module")
def stage(start_module_worker, conf, redis_server, journal) -> Iterator[Stage]:
    """With a lock server of its own."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(RedisServer())
        locks = stack.enter_context(server.client())
        way = stack.enter_context(Proxy(server.port))
        way_to_broker = stack.enter_context(Proxy(redis_server.port))
        settings = {**conf, "redislock_url": f"{server.url}/0"}
        with ends(1, settings) as app, redis_server.client(db=1) as broker:

            def start(**options: Any) -> Any:
                more = {"redislock_url": settings["redislock_url"], **options.pop("conf", {})}
                return start_module_worker(app=APP, conf=more, **options)

            stage = Stage(start, app, journal, broker, locks, way, way_to_broker)
            yield stage
            assert "Pool callback raised" not in "".join(each.log() for each in stage.workers())
            gc.collect()  # results that nobody asked for, while there is a server to tell


# -- it ran ---------------------------------------------------------------------------------


class Ran(NamedTuple):
    """Its body ends so."""

    how: str
    state: str
    name: str = "job"

    def __call__(self, scene: Kept) -> None:
        x = scene.bring(self.name, self.how)
        scene.hand_to("old")
        scene.runs(x)
        scene.let_go(x)
        scene.over(x, scene.ended(x))
        self._comes_back(scene, x)
        if self.state:
            scene.ended(x, self.state)

    def _comes_back(self, scene: Kept, x: Any) -> None:
        if "requeue" in self.how:
            eventually(lambda: scene.starts(x) == 2, "it runs again")
            scene.let_go(x)
            eventually(lambda: len(scene.entries("end", x)) == 2, "it ends again")


def is_kept_for_the_retry_of_a_dead_child(scene: Scene) -> None:
    """Celery sends it from the worker's main process."""
    for signum in (signal.SIGKILL, signal.SIGTERM):
        kept_for_the_retry_after(Scene(scene.stage), signum)


def kept_for_the_retry_after(scene: Scene, signum: int) -> None:
    x = scene.send("lost_and_holds", "stand")
    entry = scene.runs_under_lock(x)
    y = scene.send("job")
    eventually(lambda: scene.room.ids() == [y.id], "Y waits")
    os.kill(entry.pid, signum)
    eventually(lambda: not is_running(entry.pid), "it is dead")
    eventually(lambda: scene.held_for_retry(x), "the lock is kept for the retry")
    never(lambda: not scene.held_for_retry(x) and scene.starts(x) == 1, "it is free", 1)
    assert not scene.entries("start", y)
    eventually(lambda: scene.starts(x) == 2, "it runs again")
    assert scene.holds(x)
    scene.let_go(x)
    scene.ended(x, "SUCCESS")
    scene.follows(y, scene.last_end(x))
    assert scene.starts(x) == 2


@contextlib.contextmanager
def cut_off(scene: Scene) -> Iterator[None]:
    """The worker "away" does not reach the lock server meanwhile."""
    scene.stage.worker("away")
    scene.stage.way.cut_off()
    try:
        yield
    finally:
        scene.stage.way.reconnect()


# -- it cannot run, or runs without its lock --------------------------------------------------


class Elsewhere(NamedTuple):
    """It is next, or is reserved, at a worker that cannot run it, or takes no lock for it."""

    name: str
    by: str
    error: type[Exception] | None = None

    def __call__(self, scene: Kept) -> None:
        scene.stage.worker(self.by)
        x = scene.bring(self.name)
        scene.hand_to(self.by)
        at = scene.ended(x, "SUCCESS" if self.error is None else "FAILURE")
        if self.error is not None:
            assert isinstance(x.result, self.error)
        assert scene.ran_once(x) if self.error is None else scene.starts(x) == 0
        scene.over(x, at)


def not_valid(scene: Kept) -> None:
    x = scene.bring("job")
    scene.change_message(eta="no time")
    scene.hand_to("old")
    scene.over(x, time.monotonic())
    assert not scene.starts(x)


class Outage(NamedTuple):
    """The lock server is away as it comes to run."""

    name: str
    runs: bool

    def __call__(self, scene: Kept) -> None:
        scene.stage.worker("away")
        x = scene.bring(self.name)
        with cut_off(scene):
            scene.hand_to("away")
            scene.ended(x, "SUCCESS" if self.runs else "FAILURE")
            if not self.runs:
                assert isinstance(x.result, LockUnavailable)
            if not scene.is_place:
                assert scene.holds(x, queued=True)
        scene.over(x, time.monotonic())
        assert scene.ran_once(x) if self.runs else scene.starts(x) == 0


# -- Celery ends it ---------------------------------------------------------------------------


def revoke(scene: Scene, x: Any, **options: Any) -> float:
    node = scene.stage.worker("old").node
    assert scene.app.control.revoke(x.id, destination=[node], reply=True, timeout=10, **options)
    return time.monotonic()


def revoked(scene: Kept) -> None:
    x = scene.bring("job")
    revoke(scene, x)
    scene.hand_to("old")
    scene.over(x, scene.ended(x, "REVOKED"))
    assert not scene.starts(x)


def revoked_before_its_eta(scene: Kept) -> None:
    x = scene.bring("job")
    scene.change_message(eta=60)  # as one that is put off in an outage
    scene.comes_to_old(x)
    scene.over(x, revoke(scene, x))


class Killed(NamedTuple):
    """Its process is ended while it runs."""

    how: Callable[[Scene, Any, int], Any]
    state: str
    options: dict[str, Any]
    name: str = "job"
    by: str = "old"
    within: float = SOON

    def __call__(self, scene: Kept) -> None:
        scene.stage.worker(self.by)
        x = scene.bring(self.name, "stand", **self.options)
        scene.hand_to(self.by)
        pid = scene.runs(x).pid
        self.how(scene, x, pid)
        if self.state:
            at = scene.ended(x, self.state)
        else:
            eventually(lambda: not is_running(pid), "it is dead")
            at = time.monotonic()
        scene.over(x, at, self.within)
        assert scene.other is not None
        began = scene.started(scene.other).at
        # SIGTERM, which comes before SIGKILL, is an exception in the body.
        unwound = any(end.at <= began for end in scene.entries("end", x))
        assert unwound or not is_running(pid)
        if not self.state:
            eventually(lambda: scene.starts(x) >= 2, "it runs again")
            scene.let_go(x)
            # A state that is final may have been stored already, before it came back.
            eventually(lambda: scene.app.AsyncResult(x.id).state == "SUCCESS", "it has run")


def terminate(scene: Scene, x: Any, pid: int) -> None:
    revoke(scene, x, terminate=True, signal="SIGKILL")


def wait_for_time_limit(scene: Scene, x: Any, pid: int) -> None:
    pass


#: A tenth of a second after its SIGTERM the child is killed: perhaps when the server has named the
#: next one, and its message is not yet published. Then it is published again.
AFTER_TIME_LIMIT = SOON + AGAIN


def kill_child(scene: Scene, x: Any, pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def lose_connection(scene: Scene, x: Any, pid: int) -> None:
    """The worker loses the broker, and is told to end then what it cannot acknowledge any more."""
    scene.stage.way_to_broker.cut_off()
    try:
        eventually(lambda: not is_running(pid), "the worker has ended it")
    finally:
        scene.stage.way_to_broker.reconnect()


# -- the table --------------------------------------------------------------------------------

CONNECTION_LOST = ("comes back", "broker connection lost, and its run cancelled")
RETRIED = ("comes back", "child died, `retry_on_worker_lost`")
#: How each row is brought about.
ACTS: dict[tuple[str, str], Callable[[Kept], None]] = {
    ("ran", "ignored"): Ran("stand, ignore", ""),
    ("ran", "raised, and is not acknowledged for that"): Ran(
        "stand, raise", "FAILURE", "not_acked"
    ),
    ("ran", "rejected"): Ran("stand, reject", ""),
    ("ran", "rejected, to be queued again"): Ran("stand, requeue", "SUCCESS", "late"),
    ("cannot run", "bad arguments"): Elsewhere("three_parameters", "new", TypeError),
    ("cannot run", "its `lock_key` fails"): Elsewhere("keyless", "new", LookupError),
    ("cannot run", "Celery cannot read its message"): not_valid,
    ("cannot run", "unregistered"): Elsewhere("gone", "new", NotRegistered),
    ("ended by Celery", "revoked"): revoked,
    ("ended by Celery", "revoked before its eta"): revoked_before_its_eta,
    ("ended by Celery", "terminated"): Killed(terminate, "REVOKED", {}),
    ("ended by Celery", "child died, and its retries are used up"): Killed(
        kill_child, "FAILURE", {}, "lost_for_good"
    ),
    ("comes back", "time limit, `acks_on_failure_or_timeout=False`"): Killed(
        wait_for_time_limit, "", {"time_limit": 1}, "not_acked", within=AFTER_TIME_LIMIT
    ),
    RETRIED: Killed(kill_child, "", {}, "lost"),
    CONNECTION_LOST: Killed(lose_connection, "", {}, "late", "cut"),
    ("runs without its lock", "no lock in this release"): Elsewhere("unlocked", "new"),
    ("runs without its lock", "locked only until it starts"): Elsewhere("until_it_starts", "new"),
    ("runs without its lock", "`redislock_enabled` is False"): Elsewhere("job", "disabled"),
    ("runs without its lock", '`on_redis_error="run"`'): Outage("runs_unlocked", True),
    ("runs without its lock", '`on_redis_error="raise"`'): Outage("raises_unlocked", False),
}
#: Rows that properties of `tests/simulation` have for every policy and option: `nothing_is_left`,
#: `what_may_run_runs`, `every_call_ends`, `a_lock_that_is_kept_lets_nobody_in`.
SIMULATED = {
    *(("ran", how) for how in ("returned", "raised", "replaced itself", "retried")),
    *(("turned away", how) for how in ("skipped", "refused", "replaced", "a copy of what has run")),
    *(
        ("put off", how)
        for how in (
            "deferred by its policy",
            "parked",
            "redelivered while it runs",
            "lock server away",
        )
    ),
    *(("ended by Celery", how) for how in ("expired", "time limit", "child died")),
    *(("comes back", how) for how in ("child died, `reject_on_worker_lost`", "worker died")),
}
MARKS = {CONNECTION_LOST: needs_impatience, RETRIED: needs_retry}


def rows() -> list[list[str]]:
    """The cells of the table's rows."""
    page = (ROOT / "docs/inside/deliveries.md").read_text(encoding="utf-8")
    _, _, text = page.partition("<!-- ends:begin -->")
    lines = text.partition("<!-- ends:end -->")[0].strip().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["end", "how", "its lock", "its place", "its reservation"]
    assert all(re.fullmatch("-+", cell) for cell in cells[1])
    return cells[2:]


def test_each_row_of_the_table_has_its_act_or_is_simulated():
    found = [(row[0], row[1]) for row in rows()]
    assert len(found) == len(set(found))
    assert sorted(found) == sorted([*ACTS, *SIMULATED])


def play(stage: Stage, scene: type[Any], act: Callable[[Any], None]) -> Any:
    """Let it end so. What is forgotten is late each time; who waits for a core is not."""
    for tries in range(3):
        here = scene(stage)
        try:
            act(here)
            return here
        except Late:
            if tries == 2:
                raise
    raise AssertionError


def rows_of(acts: dict[tuple[str, str], Any]) -> Any:
    found = [
        pytest.param(act, id=" - ".join(key), marks=MARKS.get(key, ())) for key, act in acts.items()
    ]
    return pytest.mark.parametrize("act", found)


@rows_of(ACTS)
def test_what_has_a_place_and_ends_so_lets_the_next_one_start(stage, act):
    play(stage, Placed, act).nothing_left()


#: Once a run has the lock, what was reserved is its lock.
BEFORE_IT_RUNS = {key: act for key, act in ACTS.items() if not isinstance(act, Ran | Killed)}


@rows_of(BEFORE_IT_RUNS)
def test_what_is_reserved_and_ends_so_leaves_no_reservation(stage, act):
    play(stage, Reserved, act)


@needs_retry
def test_a_lock_that_stands_on_for_the_retry_of_a_dead_child_goes_to_that(stage):
    play(stage, Reserved, is_kept_for_the_retry_of_a_dead_child)
