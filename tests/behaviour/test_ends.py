"""Every row of the table of docs/ends.md, on real workers."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import kombu.transport.redis
import pytest
from celery import Task
from celery.exceptions import NotRegistered

from celery_redislock import LockConflict, LockUnavailable, TaskReplaced
from celery_redislock.tasks.settle import End
from tests.behaviour.apps.ends import ends
from tests.behaviour.ends_stage import (
    AGAIN,
    NEXT,
    Scene,
    Stage,
    as_redelivered,
    in_time,
    is_running,
    kill,
)
from tests.behaviour.looking import received
from tests.support.servers import Proxy, RedisServer
from tests.support.waiting import eventually, never
from tests.support.workers import ROOT

APP = "tests.behaviour.apps.ends"

needs_retry = pytest.mark.skipif(
    not hasattr(Task, "retry_on_worker_lost"), reason="this Celery sends no such retry"
)
needs_impatience = pytest.mark.skipif(
    not hasattr(kombu.transport.redis.Channel, "unacked_restore_throttle"),
    reason="this kombu looks for unacknowledged messages only every 100 s",
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

    def place(self, scene: Scene) -> None:
        x, y = scene.place(self.name, self.how)
        scene.runs_under_lock(x, y)
        scene.let_go(x)
        scene.follows(y, scene.ended(x))
        self._comes_back(scene, x)
        if self.state:
            scene.ended(x, self.state)

    def _comes_back(self, scene: Scene, x: Any) -> None:
        if "requeue" in self.how:
            eventually(lambda: scene.starts(x) == 2, "it runs again")
            scene.let_go(x)

    def reservation(self, scene: Scene) -> None:
        name = f"reserved_{self.name}"
        x = scene.reserve(name, self.how)
        scene.hand_to("old")
        scene.runs_under_lock(x)
        scene.let_go(x)
        self._comes_back(scene, x)
        if "retry" in self.how:
            eventually(lambda: scene.holds(x, queued=True), "the lock is kept for the retry")
            scene.ended(x, "SUCCESS")
            assert scene.starts(x) == 2
        scene.ended(x, self.state if "requeue" in self.how else "")
        scene.freed(name, x, scene.entries("end", x)[-1].at)


def cools_down(scene: Scene) -> None:
    x = scene.send("cools")
    scene.ended(x, "SUCCESS")
    assert scene.holder is not None
    assert scene.holder.cooling_down
    eventually(lambda: scene.holder is None, "the pause is over")
    assert time.monotonic() - scene.started(x).at > 2.9


def is_left_to_the_replacement(scene: Scene) -> None:
    x = scene.reserve("reserved_job", "stand, go on")
    scene.hand_to("old")
    scene.runs_under_lock(x)
    scene.stage.leave("old", scene.queue)
    scene.let_go(x)
    eventually(scene.messages, "the replacement is sent")
    eventually(lambda: scene.holds(x, queued=True), "the lock is kept for it", 2)
    scene.hand_to("old")
    eventually(lambda: scene.starts(x) == 2, "it runs")
    assert scene.holds(x)
    scene.let_go(x)
    scene.ended(x, "SUCCESS")
    scene.freed("reserved_job", x, time.monotonic())


def is_kept_for_the_retry(scene: Scene) -> None:
    x = scene.send("holds", "stand, retry")
    scene.runs_under_lock(x)
    y = scene.send("job")
    eventually(lambda: scene.room.ids() == [y.id], "Y waits")
    scene.let_go(x)
    scene.ended(x, "SUCCESS")
    ends = scene.entries("end", x)
    assert len(ends) == 2
    scene.follows(y, ends[1].at)
    assert scene.started(y).at > ends[1].at


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
    scene.follows(y, scene.entries("end", x)[-1].at)
    assert scene.starts(x) == 2


def reservation_of_one_retried_by_the_worker(scene: Scene) -> None:
    x = scene.reserve("reserved_lost", "stand")
    scene.hand_to("old")
    entry = scene.runs_under_lock(x)
    kill_child(scene, x, entry.pid)
    eventually(lambda: scene.held_for_retry(x), "the lock is kept for the retry")
    assert scene.send("reserved_lost").id == x.id
    eventually(lambda: scene.starts(x) == 2, "it runs again")
    assert scene.holds(x)
    scene.let_go(x)
    scene.ended(x, "SUCCESS")
    scene.freed("reserved_lost", x, scene.entries("end", x)[-1].at)


# -- it is turned away ------------------------------------------------------------------------


class TurnedAway(NamedTuple):
    """It comes too late for its place or its reservation, and meets another."""

    name: str
    state: str
    error: type[Exception] | None = None

    def place(self, scene: Scene) -> None:
        x, y = scene.park(self.name)
        other = lapses(scene, scene.send("waits", "stand"))
        scene.hand_to("new")
        scene.ended(x, self.state)
        self._check(x)
        eventually(lambda: x.id not in scene.room.ids(), "X has left the room", 2)
        assert (scene.room.ids(), scene.holds(other)) == ([y.id], True)
        scene.let_go(other)
        scene.follows(y, scene.ended(other))
        assert not scene.starts(x)

    def reservation(self, scene: Scene) -> None:
        x, other = reservation_lapses(scene, f"brief_{self.name}")
        scene.hand_to("new")
        scene.ended(x, self.state)
        self._check(x)
        assert scene.holds(other)
        scene.let_go(other)
        scene.freed(f"reserved_{self.name}", x, scene.ended(other))
        assert not scene.starts(x)

    def _check(self, x: Any) -> None:
        if self.error is not None:
            assert isinstance(x.result, self.error)


def lapses(scene: Scene, waiter: Any) -> Any:
    """Nobody takes X's message for a second: one who waits in its pool slot has the lock then."""
    eventually(
        lambda: scene.stage.locks.exists(scene.keys.waiters), "another one waits in its slot"
    )
    scene.publish_next()
    began = time.monotonic()
    in_time(3, began, scene.started(waiter).at)
    return waiter


def reservation_lapses(scene: Scene, name: str) -> Any:
    x = scene.reserve(name)
    eventually(lambda: scene.holder is None, "its reservation lapses")
    return x, scene.hold()


def place_of_one_replaced(scene: Scene) -> None:
    x, y = scene.park("coalesces")
    scene.publish_next()
    newer = scene.send("coalesces", "stand")
    scene.runs_under_lock(newer, y)
    scene.hand_to("old")
    log = scene.stage.worker("old").log
    eventually(lambda: received(log(), x.id) > 1, "its message comes")
    scene.ended(x, "REVOKED")
    assert isinstance(x.result, TaskReplaced)
    scene.stage.leave("old", scene.queue)  # and has been dealt with
    assert scene.holds(newer)
    assert scene.room.ids() == [y.id]
    scene.let_go(newer)
    scene.follows(y, scene.ended(newer))
    assert not scene.starts(x)


def reservation_of_one_replaced(scene: Scene) -> None:
    x = scene.reserve("reserved_replaces")
    newer = scene.hold("reserved_replaces")
    assert scene.holds(newer)
    scene.hand_to("old")
    scene.ended(x, "REVOKED")
    assert isinstance(x.result, TaskReplaced)
    assert scene.holds(newer)
    scene.let_go(newer)
    scene.freed("reserved_replaces", x, scene.ended(newer))
    assert not scene.starts(x)


def place_of_a_copy(scene: Scene) -> None:
    x, y = scene.park("job", behind="stand")
    scene.publish_next()
    (message,) = scene.messages()
    scene.hand_to("old")
    ended = scene.ended(x)
    scene.started(y)
    scene.stage.broker.lpush(scene.queue, message)
    scene.said("old", x.id, "already done")
    assert scene.holds(y)
    scene.let_go(y)
    scene.follows(y, ended)
    assert scene.starts(x) == 1


def reservation_of_a_copy(scene: Scene) -> None:
    x = scene.reserve("reserved_late")
    (message,) = scene.messages()
    scene.hand_to("old")
    scene.freed("reserved_late", x, scene.ended(x))
    scene.ended(x, "SUCCESS")
    other = scene.holder
    scene.stage.broker.lpush(scene.queue, as_redelivered(message))
    scene.said("old", x.id, "already done")
    assert_still_held(scene, other)
    assert scene.starts(x) == 1


def assert_still_held(scene: Scene, other: Any) -> None:
    """What is kept for another stands."""
    assert scene.holder is not None
    assert scene.holder.task_id == other.task_id


# -- it is put off ----------------------------------------------------------------------------


def place_of_one_deferred(scene: Scene) -> None:
    x, y = scene.park("defers")
    other = lapses(scene, scene.send("waits", "stand"))
    scene.hand_to("new")
    scene.said("new", x.id, "deferred")
    assert scene.room.ids() == [y.id]
    assert scene.holds(other)
    scene.let_go(other)
    scene.follows(y, scene.ended(other))
    scene.ended(x, "SUCCESS")
    assert scene.starts(x) == 1


def reservation_of_one_deferred(scene: Scene) -> None:
    x, other = reservation_lapses(scene, "brief_defers")
    scene.hand_to("new")
    scene.said("new", x.id, "deferred")
    assert scene.holds(other)
    scene.let_go(other)
    scene.freed("reserved_defers", x, scene.ended(other))


def place_of_one_parked(scene: Scene) -> None:
    x, y = scene.park("job", "stand")
    other = lapses(scene, scene.send("waits", "stand"))
    scene.hand_to("old")
    log = scene.stage.worker("old").log
    eventually(lambda: log().count(f"[{x.id}] queued") > 1, "X waits again")
    assert scene.room.ids() == [x.id, y.id]
    scene.let_go(other)
    ended = scene.ended(other)
    in_time(3, ended, scene.started(x).at)
    scene.runs_under_lock(x, y)
    scene.let_go(x)
    scene.follows(y, scene.ended(x))


def reservation_of_one_parked(scene: Scene) -> None:
    x, other = reservation_lapses(scene, "brief_job")
    scene.hand_to("old")
    eventually(lambda: scene.room.ids() == [x.id], "X waits")
    assert scene.holds(other)
    scene.let_go(other)
    scene.freed("reserved_job", x, scene.ended(x))


def place_of_one_redelivered(scene: Scene) -> None:
    x, y = scene.park("late", "stand")
    scene.publish_next()
    redelivered(scene, x, y)
    scene.let_go(x)
    scene.follows(y, scene.ended(x))
    scene.said("old", x.id, "already done")
    assert scene.starts(x) == 1


def reservation_of_one_redelivered(scene: Scene) -> None:
    x = scene.reserve("reserved_late", "stand")
    redelivered(scene, x)
    scene.let_go(x)
    scene.freed("reserved_late", x, scene.ended(x))
    other = scene.holder
    scene.said("old", x.id, "already done")
    assert_still_held(scene, other)
    assert scene.starts(x) == 1


def redelivered(scene: Scene, x: Any, *room: Any) -> None:
    scene.copy_message()
    scene.hand_to("old")
    scene.said("old", x.id, "redelivered")
    scene.runs_under_lock(x, *room)


def place_in_an_outage(scene: Scene) -> None:
    x, y = scene.park("defers_outage", "stand")
    with cut_off(scene):
        scene.publish_next()
        scene.hand_to("away")
        scene.said("away", x.id, "is deferred for")
    scene.runs_under_lock(x, y)
    scene.let_go(x)
    scene.follows(y, scene.ended(x))
    assert scene.starts(x) == 1


def reservation_in_an_outage(scene: Scene) -> None:
    x = scene.reserve("reserved_defers_outage")
    with cut_off(scene):
        scene.hand_to("away")
        scene.said("away", x.id, "is deferred for")
        assert scene.holds(x, queued=True)
        assert scene.send("reserved_defers_outage", here=True).id == x.id
    scene.freed("reserved_defers_outage", x, scene.ended(x))
    assert scene.starts(x) == 1


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

    def place(self, scene: Scene) -> None:
        x, y = scene.place(self.name, by=self.by)
        scene.follows(y, self._ended(scene, x))

    def reservation(self, scene: Scene) -> None:
        x = scene.reserve(f"reserved_{self.name}")
        scene.hand_to(self.by)
        scene.freed(f"reserved_{self.name}", x, self._ended(scene, x))

    def _ended(self, scene: Scene, x: Any) -> float:
        at = scene.ended(x, "SUCCESS" if self.error is None else "FAILURE")
        if self.error is not None:
            assert isinstance(x.result, self.error)
        assert scene.ran_once(x) if self.error is None else scene.starts(x) == 0
        return at


def place_of_one_that_is_not_valid(scene: Scene) -> None:
    x, y = scene.park("job")
    scene.publish_next()
    scene.change_message(eta="no time")
    scene.hand_to("old")
    scene.follows(y, time.monotonic())
    assert not scene.starts(x)


def reservation_of_one_that_is_not_valid(scene: Scene) -> None:
    x = scene.reserve("reserved_job", eta="no time")
    scene.hand_to("old")
    scene.freed("reserved_job", x, time.monotonic(), 4)


class Outage(NamedTuple):
    """The lock server is away as it comes to run."""

    name: str
    runs: bool

    def place(self, scene: Scene) -> None:
        x, y = scene.park(self.name)
        with cut_off(scene):
            scene.publish_next()
            scene.hand_to("away")
            self._ended(scene, x)
        scene.follows(y, time.monotonic())
        assert scene.ran_once(x) if self.runs else scene.starts(x) == 0

    def reservation(self, scene: Scene) -> None:
        x = scene.reserve(f"reserved_{self.name}")
        with cut_off(scene):
            scene.hand_to("away")
            self._ended(scene, x)
            assert scene.holds(x, queued=True)
        scene.freed(f"reserved_{self.name}", x, time.monotonic(), 3)

    def _ended(self, scene: Scene, x: Any) -> None:
        scene.ended(x, "SUCCESS" if self.runs else "FAILURE")
        if not self.runs:
            assert isinstance(x.result, LockUnavailable)


# -- Celery ends it ---------------------------------------------------------------------------


def revoke(scene: Scene, x: Any, **options: Any) -> float:
    node = scene.stage.worker("old").node
    assert scene.app.control.revoke(x.id, destination=[node], reply=True, timeout=10, **options)
    return time.monotonic()


def place_of_one_revoked(scene: Scene) -> None:
    x, y = scene.park("job")
    scene.publish_next()
    revoke(scene, x)
    scene.hand_to("old")
    scene.follows(y, scene.ended(x, "REVOKED"))
    assert not scene.starts(x)


def reservation_of_one_revoked(scene: Scene) -> None:
    x = scene.reserve("reserved_job")
    revoke(scene, x)
    scene.hand_to("old")
    scene.freed("reserved_job", x, scene.ended(x, "REVOKED"))
    assert not scene.starts(x)


def place_of_one_revoked_before_its_eta(scene: Scene) -> None:
    x, y = scene.park("job")
    scene.publish_next()
    scene.delay_message(60)  # as one that is put off in an outage
    scene.hand_to("old")
    log = scene.stage.worker("old").log
    eventually(lambda: received(log(), x.id) > 1, "it sleeps")
    scene.follows(y, revoke(scene, x), 4)


def reservation_of_one_revoked_before_its_eta(scene: Scene) -> None:
    x = scene.reserve("reserved_job", countdown=60)
    scene.hand_to("old")
    scene.said("old", x.id, "received")
    scene.freed("reserved_job", x, revoke(scene, x), 4)


def place_of_one_expired(scene: Scene) -> None:
    x, y = scene.park("job", expires=3)
    expired = time.monotonic() + 3.2
    scene.publish_next()
    time.sleep(max(expired - time.monotonic(), 0.1))
    scene.hand_to("old")
    scene.follows(y, scene.ended(x, "REVOKED"))
    assert not scene.starts(x)


def reservation_of_one_expired(scene: Scene) -> None:
    x = scene.reserve("reserved_job", expires=1)
    time.sleep(1.2)
    scene.hand_to("old")
    scene.freed("reserved_job", x, scene.ended(x, "REVOKED"))


class Killed(NamedTuple):
    """Its process is ended while it runs."""

    how: Callable[[Scene, Any, int], Any]
    state: str
    options: dict[str, Any]
    name: str = "job"
    by: str = "old"
    within: float = NEXT

    def place(self, scene: Scene) -> None:
        x, y = scene.place(self.name, "stand", by=self.by, **self.options)
        entry = scene.runs_under_lock(x, y)
        self.how(scene, x, entry.pid)
        if self.state:
            at = scene.ended(x, self.state)
        else:
            eventually(lambda: not is_running(entry.pid), "it is dead")
            at = time.monotonic()
        began = scene.started(y).at
        # SIGTERM, which comes before SIGKILL, is an exception in the body.
        unwound = any(end.at <= began for end in scene.entries("end", x))
        assert unwound or not is_running(entry.pid)
        scene.follows(y, at, self.within)
        self._comes_back(scene, x)

    def reservation(self, scene: Scene) -> None:
        name = f"reserved_{self.name}"
        x = scene.reserve(name, "stand", **self.options)
        scene.hand_to(self.by)
        entry = scene.runs_under_lock(x)
        self.how(scene, x, entry.pid)
        at = scene.ended(x, self.state) if self.state else self._comes_back(scene, x)
        scene.freed(name, x, at)

    def _comes_back(self, scene: Scene, x: Any) -> float:
        if self.state:
            return 0.0
        eventually(lambda: scene.starts(x) >= 2, "it runs again")
        scene.let_go(x)
        # A state that is final may have been stored already, before it came back.
        eventually(lambda: scene.app.AsyncResult(x.id).state == "SUCCESS", "it has run")
        return scene.entries("end", x)[-1].at


def terminate(scene: Scene, x: Any, pid: int) -> None:
    revoke(scene, x, terminate=True, signal="SIGKILL")


def wait_for_time_limit(scene: Scene, x: Any, pid: int) -> None:
    pass


#: A tenth of a second after its SIGTERM the child is killed: perhaps when the server has named the
#: next one, and its message is not yet published. Then it is published again.
AFTER_TIME_LIMIT = NEXT + AGAIN


def kill_child(scene: Scene, x: Any, pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def lose_connection(scene: Scene, x: Any, pid: int) -> None:
    """The worker loses the broker, and is told to end then what it cannot acknowledge any more."""
    scene.stage.way_to_broker.cut_off()
    try:
        eventually(lambda: not is_running(pid), "the worker has ended it")
    finally:
        scene.stage.way_to_broker.reconnect()


# -- its worker dies --------------------------------------------------------------------------


@contextlib.contextmanager
def has_taken_a_message(scene: Scene) -> Iterator[None]:
    """A worker of the scene's queue takes what is sent meanwhile from the broker, and dies."""
    worker = scene.stage.start(queues=scene.queue, concurrency=1)
    worker.signal(signal.SIGSTOP)
    yield
    time.sleep(0.2)
    scene.stage.broker.delete(scene.queue)  # it asks the broker once a second
    kill(worker)


def place_of_one_whose_worker_died(scene: Scene) -> None:
    x, y = scene.park("job")
    with has_taken_a_message(scene):
        scene.publish_next(comes=False)
        eventually(lambda: scene.stage.locks.exists(scene.keys.sent), "X is published")
    at = time.monotonic()
    scene.hand_to("old")
    in_time(5 + 3, at, scene.started(x).at)
    scene.follows(y, scene.ended(x))
    assert scene.starts(x) == 1


def reservation_of_one_whose_worker_died(scene: Scene) -> None:
    with has_taken_a_message(scene):
        x = scene.reserve("brief_job")
    assert scene.holds(x, queued=True)
    scene.freed("reserved_job", x, time.monotonic(), 3 + 1)


def lock_of_one_whose_worker_died(scene: Scene) -> None:
    worker = scene.stage.start(queues=scene.queue, concurrency=1)
    x = scene.send("short", "stand", here=True)
    scene.runs_under_lock(x)
    y = scene.send("job")
    eventually(lambda: scene.room.ids() == [y.id], "Y waits")
    kill(worker)
    at = time.monotonic()
    assert scene.holds(x)
    scene.follows(y, at, 2 + 3)


# -- the table --------------------------------------------------------------------------------

Act = Callable[[Scene], None]


class Scenario(NamedTuple):
    """How a row of the table is brought about: with a place in the room, and with a reservation."""

    place: Act
    reservation: Act
    lock: Act | None = None


def both(of: Any, lock: Act | None = None) -> Scenario:
    return Scenario(of.place, of.reservation, lock)


CONNECTION_LOST = ("comes back", "broker connection lost, and its run cancelled")
RETRIED = ("comes back", "child died, `retry_on_worker_lost`")
SCENARIOS: dict[tuple[str, str], Scenario] = {
    ("ran", "returned"): both(Ran("stand", "SUCCESS"), cools_down),
    ("ran", "raised"): both(Ran("stand, raise", "FAILURE")),
    ("ran", "ignored"): both(Ran("stand, ignore", "")),
    ("ran", "raised, and is not acknowledged for that"): both(
        Ran("stand, raise", "FAILURE", "not_acked")
    ),
    ("ran", "rejected"): both(Ran("stand, reject", "")),
    ("ran", "rejected, to be queued again"): both(Ran("stand, requeue", "SUCCESS", "late")),
    ("ran", "replaced itself"): both(Ran("stand, replace", ""), is_left_to_the_replacement),
    ("ran", "retried"): both(Ran("stand, retry", "SUCCESS"), is_kept_for_the_retry),
    ("turned away", "skipped"): both(TurnedAway("skips", "REVOKED")),
    ("turned away", "refused"): both(TurnedAway("refuses", "FAILURE", LockConflict)),
    ("turned away", "replaced"): Scenario(place_of_one_replaced, reservation_of_one_replaced),
    ("turned away", "a copy of what has run"): Scenario(place_of_a_copy, reservation_of_a_copy),
    ("put off", "deferred by its policy"): Scenario(
        place_of_one_deferred, reservation_of_one_deferred
    ),
    ("put off", "parked"): Scenario(place_of_one_parked, reservation_of_one_parked),
    ("put off", "redelivered while it runs"): Scenario(
        place_of_one_redelivered, reservation_of_one_redelivered
    ),
    ("put off", "lock server away"): Scenario(place_in_an_outage, reservation_in_an_outage),
    ("cannot run", "bad arguments"): both(Elsewhere("three_parameters", "new", TypeError)),
    ("cannot run", "its `lock_key` fails"): both(Elsewhere("keyless", "new", LookupError)),
    ("cannot run", "Celery cannot read its message"): Scenario(
        place_of_one_that_is_not_valid, reservation_of_one_that_is_not_valid
    ),
    ("cannot run", "unregistered"): both(Elsewhere("gone", "new", NotRegistered)),
    ("ended by Celery", "revoked"): Scenario(place_of_one_revoked, reservation_of_one_revoked),
    ("ended by Celery", "revoked before its eta"): Scenario(
        place_of_one_revoked_before_its_eta, reservation_of_one_revoked_before_its_eta
    ),
    ("ended by Celery", "expired"): Scenario(place_of_one_expired, reservation_of_one_expired),
    ("ended by Celery", "terminated"): both(Killed(terminate, "REVOKED", {})),
    ("ended by Celery", "time limit"): both(
        Killed(wait_for_time_limit, "FAILURE", {"time_limit": 1}, within=AFTER_TIME_LIMIT)
    ),
    ("ended by Celery", "child died"): both(Killed(kill_child, "FAILURE", {})),
    ("ended by Celery", "child died, and its retries are used up"): both(
        Killed(kill_child, "FAILURE", {}, "lost_for_good")
    ),
    ("comes back", "child died, `reject_on_worker_lost`"): both(Killed(kill_child, "", {}, "late")),
    ("comes back", "time limit, `acks_on_failure_or_timeout=False`"): both(
        Killed(wait_for_time_limit, "", {"time_limit": 1}, "not_acked", within=AFTER_TIME_LIMIT)
    ),
    RETRIED: Scenario(
        Killed(kill_child, "", {}, "lost").place,
        reservation_of_one_retried_by_the_worker,
        is_kept_for_the_retry_of_a_dead_child,
    ),
    CONNECTION_LOST: both(Killed(lose_connection, "", {}, "late", "cut")),
    ("comes back", "worker died"): Scenario(
        place_of_one_whose_worker_died,
        reservation_of_one_whose_worker_died,
        lock_of_one_whose_worker_died,
    ),
    ("runs without its lock", "no lock in this release"): both(Elsewhere("unlocked", "new")),
    ("runs without its lock", "locked only until it starts"): both(
        Elsewhere("until_it_starts", "new")
    ),
    ("runs without its lock", "`redislock_enabled` is False"): both(Elsewhere("job", "disabled")),
    ("runs without its lock", '`on_redis_error="run"`'): both(Outage("runs_unlocked", True)),
    ("runs without its lock", '`on_redis_error="raise"`'): both(Outage("raises_unlocked", False)),
}


def rows() -> list[list[str]]:
    """The cells of the table's rows."""
    page = (ROOT / "docs" / "ends.md").read_text(encoding="utf-8")
    _, _, text = page.partition("<!-- ends:begin -->")
    lines = text.partition("<!-- ends:end -->")[0].strip().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["end", "how", "its lock", "its place", "its reservation"]
    assert all(re.fullmatch("-+", cell) for cell in cells[1])
    return cells[2:]


def test_the_table_has_every_end_and_each_row_has_its_scenario():
    assert {row[0] for row in rows()} == {end.label for end in End}
    found = [(row[0], row[1]) for row in rows()]
    assert len(found) == len(set(found))
    assert set(found) == set(SCENARIOS)


def play(stage: Stage, act: Act, leaves_nothing: bool) -> None:
    scene = Scene(stage)
    act(scene)
    if leaves_nothing:
        scene.nothing_left()


def of(kind: str) -> Any:
    """The scenarios that there are of a kind, in the table's order."""
    found = [(key, getattr(each, kind)) for key, each in SCENARIOS.items()]
    return pytest.mark.parametrize(
        "act",
        [
            pytest.param(
                act,
                id=" - ".join(key),
                marks={CONNECTION_LOST: needs_impatience, RETRIED: needs_retry}.get(key, ()),
            )
            for key, act in found
            if act
        ],
    )


@of("place")
def test_what_has_a_place_and_ends_so_lets_the_next_one_start(stage, act):
    play(stage, act, leaves_nothing=True)


@of("reservation")
def test_what_is_reserved_and_ends_so_leaves_no_reservation(stage, act):
    play(stage, act, leaves_nothing=False)


@of("lock")
def test_a_lock_that_stands_on_after_its_run_ends_as_the_row_says(stage, act):
    play(stage, act, leaves_nothing=False)
