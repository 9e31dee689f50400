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

import redis
from celery import Celery
from celery.result import AsyncResult

from celery_redislock import Holder
from celery_redislock.protocol.keys import lock_keys
from tests.behaviour.looking import Room
from tests.support.journal import Entry, Journal
from tests.support.lateness import elapsed
from tests.support.servers import Proxy
from tests.support.waiting import eventually
from tests.support.workers import Worker, is_running

#: Seconds from the end of the one before within which the next in the room must start. One that
#: is forgotten is published after 5.
NEXT = 3.0
#: Seconds until a message that does not come is published again.
AGAIN = 5.0
#: The broker gives back what a lost connection left, after so many seconds.
IMPATIENT = {
    "visibility_timeout": 5,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
    "unacked_mutex_expire": 2,
}


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

    def worker(self, which: str, **options: Any) -> Worker:
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
            queue = self.base if which == "old" else f"{self.base}-{which}"
            concurrency = 4 if which == "old" else 1
            self._workers[which] = self.start(queues=queue, concurrency=concurrency, conf=conf)
        return self._workers[which]

    def workers(self) -> list[Worker]:
        return list(self._workers.values())

    def consume(self, which: str, queue: str) -> None:
        self._tell("add_consumer", which, queue)

    def leave(self, which: str, queue: str) -> None:
        """Let a worker consume it no more, and wait until it does not."""
        self._tell("cancel_consumer", which, queue)
        # What it asked the broker for before this may still bring a message of that queue.
        own = self.base if which == "old" else f"{self.base}-{which}"
        self.app.tasks["ping"].apply_async(queue=own).get(timeout=20)

    def _tell(self, command: str, which: str, queue: str) -> None:
        node = self.worker(which).node
        tell = getattr(self.app.control, command)

        # A worker that is just ready may not listen yet.
        def told() -> Any:
            return tell(queue, destination=[node], reply=True, timeout=2.0)

        eventually(told, f"{which} answers")


class Scene:
    """One lock, a queue of the task that is to end, and what waits behind it."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.app, self.journal = stage, stage.app, stage.journal
        self.label, self.queue = uuid.uuid4().hex, f"x{uuid.uuid4().hex}"
        stage.worker("old")
        self.published_at: float | None = None
        self.keys = lock_keys("redislock", f"ends:{self.label}")
        assert self.app.tasks["job"].lock_key_for(self.label) == self.keys.lock
        self.room = Room(stage.locks, self.keys.lock)

    # -- sending --------------------------------------------------------------------------

    def send(
        self, name: str, how: str | float = 0.0, *, here: bool = False, **options: Any
    ) -> AsyncResult[Any]:
        """To the old worker, or to the scene's own queue: `here`."""
        queue = self.queue if here else self.stage.base
        return self.app.tasks[name].apply_async(
            (self.label, how), **{"queue": queue, **options}
        )  # fmt: skip

    def hold(self, name: str = "job") -> AsyncResult[Any]:
        """A run that stands and has the lock."""
        result = self.app.send_task(name, [self.label, "stand"], queue=self.stage.base)
        self.started(result)
        return result

    def let_go(self, result: AsyncResult[Any]) -> None:
        self.journal.let_go(result.id)

    def park(
        self, name: str, how: str | float = 0.0, behind: str | float = 0.0, **options: Any
    ) -> tuple[AsyncResult[Any], AsyncResult[Any]]:
        """Put X of that name, and Y behind it, into the room of a lock that is held. X's message
        will come to the scene's queue, which nobody consumes any more.
        """
        holder = self.hold()
        self.stage.consume("old", self.queue)
        x = self.send(name, how, here=True, **options)
        eventually(lambda: self.room.ids() == [x.id], "X waits")
        y = self.send("job", behind)
        eventually(lambda: self.room.ids() == [x.id, y.id], "Y waits behind it")
        self.stage.leave("old", self.queue)
        self._holder = holder
        return x, y

    def publish_next(self, comes: bool = True) -> None:
        """The holder ends. X's message is in its queue then."""
        self.published_at = time.monotonic()
        self.let_go(self._holder)
        if comes:
            eventually(self.messages, "X's message is published")

    def place(self, name: str, how: str | float = 0.0, by: str = "old", **options: Any) -> Any:
        """Park X and Y, and let X be published to that worker."""
        self.stage.worker(by)  # it may take longer to start than the lock is kept for X
        x, y = self.park(name, how, **options)
        self.publish_next()
        self.hand_to(by)
        return x, y

    def hand_to(self, which: str) -> None:
        self.stage.consume(which, self.queue)

    def messages(self) -> list[str]:
        return self.stage.broker.lrange(self.queue, 0, -1)

    def copy_message(self) -> None:
        """Put a copy of the one message beside it, as a broker that delivers twice."""
        (message,) = self.messages()
        self.stage.broker.lpush(self.queue, as_redelivered(message))

    def delay_message(self, seconds: float) -> None:
        """Give the one message an eta, as what is put off has it."""
        eta = datetime.now(timezone.utc) + timedelta(seconds=seconds)
        self.change_message(eta=eta.isoformat())

    def change_message(self, **headers: Any) -> None:
        """Give the one message other headers."""
        (message,) = self.messages()
        told = json.loads(message)
        told["headers"].update(headers)
        self.stage.broker.lset(self.queue, 0, json.dumps(told))

    # -- looking --------------------------------------------------------------------------

    @property
    def holder(self) -> Holder | None:
        return self.app.tasks["job"].lock_holder(self.label)

    def holds(self, result: AsyncResult[Any], queued: bool = False) -> bool:
        holder = self.holder
        return holder is not None and (holder.task_id, holder.queued) == (result.id, queued)

    def held_for_retry(self, result: AsyncResult[Any]) -> bool:
        holder = self.holder
        return self.holds(result) and holder is not None and holder.held_for_retry

    def entries(self, event: str, result: AsyncResult[Any]) -> list[Entry]:
        return [e for e in self.journal.read(self.label, event) if e.task_id == result.id]

    def started(self, result: AsyncResult[Any]) -> Entry:
        return self.journal.await_start(self.label, result.id)

    def ended(self, result: AsyncResult[Any], state: str = "") -> float:
        """When the body of this task, or the task itself, has ended."""
        if not state:
            return eventually(lambda: self.entries("end", result), "its body ends")[0].at
        eventually(result.ready, f"{result.id} has ended")
        at = time.monotonic()
        assert result.state == state, (result.state, result.result)
        return at

    def runs_under_lock(self, x: AsyncResult[Any], *room: AsyncResult[Any]) -> Entry:
        """X stands in its body: it had its place or reservation until then."""
        entry = self.started(x)
        assert self.holds(x)
        assert self.room.ids() == [each.id for each in room]
        return entry

    def said(self, which: str, *words: str) -> str:
        """The worker's log has a line with these words."""

        def lines() -> list[str]:
            log = self.stage.worker(which).log().splitlines()
            return [line for line in log if all(word in line for word in words)]

        return eventually(lines, f"{which} says {words}")[0]

    # -- what is promised -----------------------------------------------------------------

    def follows(self, y: AsyncResult[Any], since: float, within: float = NEXT) -> None:
        """Y starts soon after that, and nothing is left of the lock then."""
        in_time(within, since, self.started(y).at)
        self.ended(y)

    def nothing_left(self) -> None:
        keys = self.keys
        names = (keys.lock, keys.room, keys.entries, keys.deadlines, keys.sent, keys.ended)
        left = lambda: [key for key in names if self.stage.locks.exists(key)]  # noqa: E731
        eventually(lambda: not left(), f"nothing is left of {keys.name}", 10)
        assert self.stage.locks.zscore(keys.rooms, keys.lock_id) is None

    def freed(self, name: str, x: AsyncResult[Any], since: float, within: float = 2.0) -> None:
        """The lock is free, and the next call is sent."""
        eventually(lambda: self.holder is None, "the lock is free")
        in_time(within, since)
        # Where nobody takes it.
        other = self.app.tasks[name].apply_async((self.label,), queue=f"{self.queue}-nobody")
        assert other.id != x.id
        assert self.holds(other, queued=True)
        again = self.app.tasks[name].apply_async((self.label,), queue=f"{self.queue}-nobody")
        assert again.id == other.id, "and stands for those after it"

    def reserve(self, name: str, how: str | float = 0.0, **options: Any) -> AsyncResult[Any]:
        """Send X, which is reserved from then on. Nobody consumes its queue yet."""
        x = self.send(name, how, here=True, **options)
        assert self.holds(x, queued=True)
        return x

    def starts(self, result: AsyncResult[Any]) -> int:
        return len(self.entries("start", result))

    def ran_once(self, result: AsyncResult[Any]) -> bool:
        """Whether it did; or it started so late that it was published again:
        where no lock is taken, nothing keeps the second message from running.
        """
        late = self.started(result).at - (self.published_at or self.started(result).at)
        return self.starts(result) == 1 or late > AGAIN


def in_time(seconds: float, since: float, until: float | None = None) -> None:
    """What was to come came soon."""
    took = elapsed(since, until)
    assert took <= seconds, f"{took:.2f} s, not {seconds:g}"


def as_redelivered(message: str) -> str:
    """The message as the broker gives it once more."""
    told = json.loads(message)
    told["headers"]["redelivered"] = told["properties"]["delivery_info"]["redelivered"] = True
    return json.dumps(told)


def kill(worker: Worker) -> None:
    """With all of its processes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


__all__ = ["NEXT", "Scene", "Stage", "as_redelivered", "in_time", "is_running", "kill"]
