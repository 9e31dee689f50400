"""Where deliveries end in a test's way: workers of two releases, and queues that change hands."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import kombu.transport.redis
import pytest
import redis
from celery import Celery
from celery.result import AsyncResult as Result

from celery_redislock import Holder
from tests.behaviour.looking import Keys, Room, received
from tests.support.journal import Entry, Journal
from tests.support.servers import Proxy
from tests.support.waiting import eventually
from tests.support.workers import Worker

#: Seconds from the end of the one before within which the next in the room must start, and a
#: reservation be freed. One that is forgotten is published after 5.
SOON = 4.0
#: Seconds until a message that does not come is published again.
AGAIN = 5.0
#: The broker gives back what a lost connection left, after so many seconds.
IMPATIENT = {
    "visibility_timeout": 5,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
    "unacked_mutex_expire": 2,
    "unacked_mutex_key": "of-the-impatient",  # a killed one has the others' for five minutes
}
needs_impatience = pytest.mark.skipif(
    not hasattr(kombu.transport.redis.Channel, "unacked_restore_throttle"),
    reason="this kombu looks for unacknowledged messages only every 100 s",
)


class Late(AssertionError):
    """What was to come soon came late: the product is slow, or this machine is."""


class Stage:
    """Workers that the scenes of a module share. Each starts when it is first asked for.

    Args:
        start: starts a worker.
        app: the release that sends.
        broker: a client of the broker's database.
        locks: a client of the lock server's.
        way: by which the worker "away" reaches the lock server.
        way_to_broker: by which the worker "cut" reaches the broker.
    """

    def __init__(
        self,
        start: Callable[..., Worker],
        app: Celery,
        journal: Journal,
        broker: redis.Redis,
        locks: redis.Redis,
        way: Proxy,
        way_to_broker: Proxy,
    ) -> None:
        self.start, self.app, self.journal, self.broker = start, app, journal, broker
        self.locks, self.way, self.way_to_broker = locks, way, way_to_broker
        self.base = f"q{uuid.uuid4().hex}"
        self._workers: dict[str, Worker] = {}

    def worker(self, which: str) -> Worker:
        """ "old", which parks and runs all that is not the scene's; "new", of the next release;
        "disabled"; "away", by whose way to the lock server faults come; or "cut", which ends its
        late-acknowledged tasks when it loses the broker.
        """
        if which not in self._workers:
            conf: dict[str, Any] = {"task_default_queue": self.base}
            if which == "new":
                conf["test_release"] = 2
            elif which == "disabled":
                conf["redislock_enabled"] = False
            elif which == "away":
                conf["redislock_url"] = f"{self.way.url}/0"
            elif which == "cut":
                conf["broker_url"] = self.way_to_broker.in_front_of(self.app.conf.broker_url)
                conf["broker_transport_options"] = IMPATIENT
                conf["worker_cancel_long_running_tasks_on_connection_loss"] = True
            slots = 4 if which == "old" else 1
            started = self.start(queues=self._queue_of(which), concurrency=slots, conf=conf)
            self._workers[which] = started
        return self._workers[which]

    def workers(self) -> list[Worker]:
        return list(self._workers.values())

    def consume(self, which: str, queue: str) -> None:
        self._tell("add_consumer", which, queue)

    def _queue_of(self, which: str) -> str:
        return self.base if which == "old" else f"{self.base}-{which}"

    def _tell(self, command: str, which: str, queue: str) -> None:
        node = self.worker(which).node
        tell = getattr(self.app.control, command)

        # A worker that is just ready may not listen yet.
        def told() -> Any:
            return tell(queue, destination=[node], reply=True, timeout=2.0)

        eventually(told, f"{which} answers")


class Scene:
    """One lock, and a queue for the message of X, the task that is to end."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.app, self.journal = stage, stage.app, stage.journal
        self.label, self.queue = uuid.uuid4().hex, f"x{uuid.uuid4().hex}"
        stage.worker("old")
        self.keys = Keys(self.app.tasks["job"].lock_key_for(self.label))
        self.room = Room(stage.locks, self.keys.lock)
        self.published_at = float("inf")

    # -- sending --------------------------------------------------------------------------

    def send(
        self, name: str, how: str | float = 0.0, *, here: bool = False, **options: Any
    ) -> Result[Any]:
        """To the old worker, or to the scene's own queue: `here`."""
        queue = self.queue if here else self.stage.base
        return self.app.tasks[name].apply_async(
            (self.label, how), **{"queue": queue, **options}
        )  # fmt: skip

    def hold(self, name: str = "job") -> Result[Any]:
        """A run that stands and has the lock."""
        result = self.app.send_task(name, [self.label, "stand"], queue=self.stage.base)
        self.started(result)
        return result

    def let_go(self, result: Result[Any]) -> None:
        self.journal.let_go(result.id)

    def hand_to(self, which: str) -> None:
        """That worker takes X's message."""
        self.stage.consume(which, self.queue)

    def comes_to_old(self, x: Result[Any]) -> None:
        """The old worker takes X's message, and has received it."""
        log = self.stage.worker("old").log
        before = received(log(), x.id)
        self.hand_to("old")
        eventually(lambda: received(log(), x.id) > before, "its message comes")

    def messages(self) -> list[str]:
        return self.stage.broker.lrange(self.queue, 0, -1)

    def change_message(self, **headers: Any) -> None:
        """Give the one message other headers. Times are seconds from now."""
        (message,) = self.messages()
        told, now = json.loads(message), datetime.now(timezone.utc)
        for name, value in headers.items():
            is_time = isinstance(value, int)
            told["headers"][name] = (
                (now + timedelta(seconds=value)).isoformat() if is_time else value
            )
        self.stage.broker.lset(self.queue, 0, json.dumps(told))

    # -- looking --------------------------------------------------------------------------

    @property
    def holder(self) -> Holder | None:
        return self.app.tasks["job"].lock_holder(self.label)

    def holds(self, result: Result[Any], queued: bool = False) -> bool:
        holder = self.holder
        return holder is not None and (holder.task_id, holder.queued) == (result.id, queued)

    def held_for_retry(self, result: Result[Any]) -> bool:
        holder = self.holder
        return self.holds(result) and holder is not None and holder.held_for_retry

    def entries(self, event: str, result: Result[Any]) -> list[Entry]:
        return [e for e in self.journal.read(self.label, event) if e.task_id == result.id]

    def starts(self, result: Result[Any]) -> int:
        return len(self.entries("start", result))

    def started(self, result: Result[Any]) -> Entry:
        return self.journal.await_start(self.label, result.id)

    def last_end(self, result: Result[Any]) -> float:
        return self.entries("end", result)[-1].at

    def ended(self, result: Result[Any], state: str = "") -> float:
        """When the body of this task, or the task itself, has ended."""
        if not state:
            return eventually(lambda: self.entries("end", result), "its body ends")[0].at
        eventually(result.ready, f"{result.id} has ended")
        at = time.monotonic()
        assert result.state == state, (result.state, result.result)
        return at

    def runs_under_lock(self, x: Result[Any], *room: Result[Any]) -> Entry:
        """X stands in its body: it had what it held until then."""
        entry = self.started(x)
        assert self.holds(x)
        assert self.room.ids() == [each.id for each in room]
        return entry

    def follows(self, y: Result[Any], since: float, within: float = SOON) -> None:
        """Y starts soon after that, and ends."""
        in_time(within, since, self.started(y).at)
        self.ended(y)


class Kept(Scene):
    """A scene in which X holds something while its message is in its queue, and nobody takes it.

    Attributes:
        others: those that wait in the room beside X.
        other: the one that has the lock when X is over.
    """

    is_place = False

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.others: list[Result[Any]] = []
        self.other: Result[Any] | None = None

    def bring(
        self, name: str, how: str | float = 0.0, behind: str | float = 0.0, **options: Any
    ) -> Result[Any]:
        """Let X hold it. `behind` is what the one behind X does."""
        raise NotImplementedError

    def runs(self, x: Result[Any]) -> Entry:
        return self.runs_under_lock(x, *self.others)

    def over(self, x: Result[Any], since: float, within: float = SOON) -> None:
        """What X held is somebody else's soon after that."""
        raise NotImplementedError

    def ran_once(self, x: Result[Any]) -> bool:
        return self.starts(x) == 1


class Placed(Kept):
    """X has the first place in the room, and Y the next."""

    is_place = True

    def bring(
        self, name: str, how: str | float = 0.0, behind: str | float = 0.0, **options: Any
    ) -> Result[Any]:
        holder = self.hold()
        x = self.send(name, how, here=True, **options)
        self.stage.broker.rpoplpush(self.queue, self.stage.base)  # the old worker parks it
        eventually(lambda: self.room.ids() == [x.id], "X waits")
        self.others = [self.send("job", behind)]
        eventually(lambda: self.room.ids() == [x.id, self.others[0].id], "Y waits behind it")
        self.published_at = time.monotonic()
        self.let_go(holder)
        eventually(self.messages, "X's message is published")
        return x

    def runs(self, x: Result[Any]) -> Entry:
        try:
            return super().runs(x)
        except AssertionError as exc:
            if self.started(x).at - self.published_at > AGAIN:
                raise Late("so late that Y had its chance too") from exc
            raise

    def over(self, x: Result[Any], since: float, within: float = SOON) -> None:
        (self.other,) = self.others
        in_time(within, since, self.started(self.other).at)

    def nothing_left(self) -> None:
        for each in self.others:
            self.let_go(each)
            self.ended(each)
        keys = self.keys
        names = (keys.lock, keys.room, keys.entries, keys.deadlines, keys.sent, keys.ended)
        left = lambda: [key for key in names if self.stage.locks.exists(key)]  # noqa: E731
        eventually(lambda: not left(), f"nothing is left of {keys.name}", 10)
        assert self.stage.locks.zscore(keys.rooms, keys.lock_id) is None

    def ran_once(self, x: Result[Any]) -> bool:
        """Whether it did; or it started so late that it was published again:
        where no lock is taken, nothing keeps the second message from running.
        """
        return self.starts(x) == 1 or self.started(x).at - self.published_at > AGAIN


class Reserved(Kept):
    """X's lock is reserved since it was sent."""

    def bring(
        self, name: str, how: str | float = 0.0, behind: str | float = 0.0, **options: Any
    ) -> Result[Any]:
        self._name = f"reserved_{name}"
        x = self.send(self._name, how, here=True, **options)
        assert self.holds(x, queued=True)
        return x

    def over(self, x: Result[Any], since: float, within: float = SOON) -> None:
        """The lock is free, and the next call is sent. Nobody takes its message."""
        eventually(lambda: self.holder is None, "the lock is free")
        in_time(within, since)
        there = f"{self.queue}-nobody"
        self.other = self.app.tasks[self._name].apply_async((self.label,), queue=there)
        assert self.other.id != x.id
        assert self.holds(self.other, queued=True)
        again = self.app.tasks[self._name].apply_async((self.label,), queue=there)
        assert again.id == self.other.id, "and stands for those after it"


def in_time(seconds: float, since: float, until: float | None = None) -> None:
    """What was to come came soon."""
    took = (time.monotonic() if until is None else until) - since
    if took > seconds:
        raise Late(f"{took:.2f} s, not {seconds:g}")


def kill(worker: Worker) -> None:
    """With all of its processes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
