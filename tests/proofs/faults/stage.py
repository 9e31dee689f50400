"""One running set-up of a case: servers, proxies, workers, the load, an operator, and who watches
them.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.proofs.history import Event, History
from tests.support.servers import Proxy, RedisServer
from tests.support.waiting import eventually
from tests.support.workers import Worker, is_running, make_app

from .checker import FINAL
from .kinds import TASKS
from .load import APART, KEYS, Load
from .operator import Operator
from .watch import LOCKS, Watcher

#: Workers, and what each runs at a time.
WORKERS = 2
CONCURRENCY = {"prefork": 2, "threads": 3, "solo": 1, "gevent": 3}
#: Messages that may be open at a time, before the load stops sending.
ROOM = {"prefork": 9, "threads": 10, "solo": 5, "gevent": 10}
#: The load lasts for so many seconds, and longer if the fault does.
AT_LEAST = 3.0
#: Seconds until everything that was sent must have ended.
DRAIN = 45.0
#: Seconds after which another worker stores the result of a replaced task, if nobody has.
ENDED_AGAIN = 5.0
#: Seconds without news after which what cannot come any more is not waited for. Celery may take
#: five to notice that a child is dead.
HOPELESS = 6.0
#: The Redis broker gives an unacknowledged message back after three seconds.
IMPATIENT = {
    "visibility_timeout": 3,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
    # A worker that is killed while it looks keeps the others from looking for so long.
    "unacked_mutex_expire": 2,
}


#: How long a fault lasts, as parts of the ttl.
Span = tuple[float, float]
SHORT: Span = (0.1, 0.6)
LONG: Span = (1.3, 2.0)

#: What a fault allows: see `Fault.allows`.
LOSES_DATA = frozenset({"overlap"})
FORGETS = frozenset({"again"})
LOSES_MESSAGES = frozenset({"vanished"})


class Address(NamedTuple):
    """Where a running RabbitMQ is."""

    url: str
    port: int


POOLS = ("prefork", "threads", "solo", "gevent")
BROKERS = ("redis", "rabbitmq")
ACKS = ("early", "late")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that goes wrong while the load runs.

    Attributes:
        name: for people, and for the id of a case.
        inject: does it and heals it. Called once or several times in one case, in a thread of its
            own, while the load goes on. Writes what it does with `stage.during`.
        allows: what is unavoidable under it: "overlap": the lock server lost its data. "again": it
            came back empty, and forgot which attempts have run; its locks are taken again by their
            holders. "vanished": messages that were acknowledged early, or that a connection took
            along as it broke: kombu's Redis transport may have popped one and not yet told.
        pools, brokers, acks: where it makes sense.
        locks: makes the lock server. A `RedisServer` is put behind `lock_proxy`; anything else (a
            `SentinelSet`) has `url` and `transport_options` of its own.
        conf: settings of the workers, over those of the stage.
        load: how often each task is sent, relative to the others.
        apart: seconds between two messages of the load, at least and at most.
        room: messages that may be open at a time; None for what suits the pool.
        times: how often it is injected in one case.
        ttl: of every lock, in seconds.
        drain: seconds until everything that was sent must have ended.
    """

    name: str
    inject: Callable[[Stage], None]
    allows: frozenset[str] = frozenset()
    pools: tuple[str, ...] = POOLS
    brokers: tuple[str, ...] = BROKERS
    acks: tuple[str, ...] = ACKS
    locks: Callable[[], Any] = RedisServer
    conf: Mapping[str, Any] = field(default_factory=dict)
    load: Mapping[str, int] = field(default_factory=lambda: TASKS)
    apart: tuple[float, float] = APART
    room: int | None = None
    times: int = 1
    ttl: float = 2.0
    drain: float = DRAIN


class Stage:
    """A case's set-up, from the first server to the last drained message.

    Args:
        fault: what will be injected.
        history: what happens is written there.
        pool, broker, acks: of the workers.
        seed: all that is random comes from it.
        rabbitmq: a running RabbitMQ, if that is the broker.
        busy: whether there is a load. Without it the fault sends what it needs, and is injected
            at once.
        broken: Lua code by script, which breaks locks on purpose; see `broken`.
        concurrency: how much each worker runs at a time; None for what suits the pool.

    Attributes:
        rng: the faults' random choices.
        locks: the lock server.
        lock_proxy: between the workers and the lock server (unused with sentinels).
        broker_proxy: between the workers and the broker.
        steady: a Redis that nothing happens to: results, and behind `broker_proxy` the broker.
        workers: the running `celery worker`s.
        ttl: of every lock, in seconds.
    """

    def __init__(
        self,
        fault: Fault,
        history: History,
        *,
        pool: str,
        broker: str,
        acks: str,
        seed: str,
        rabbitmq: Address | None = None,
        busy: bool = True,
        broken: Mapping[str, str] | None = None,
        concurrency: int | None = None,
    ) -> None:
        self.fault, self.ttl = fault, fault.ttl
        self.pool, self.broker, self.acks_late = pool, broker, acks == "late"
        self.rng = random.Random(f"{seed}:fault")
        self.history = history
        self.queue = f"bench-{uuid.uuid4().hex}"
        self.workers: list[Worker] = []
        self.logs: list[str] = []
        self._rabbitmq = rabbitmq
        self._busy = busy
        self._broken = dict(broken or {})
        self._concurrency = concurrency or CONCURRENCY[pool]
        self._seed = seed
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Stage:
        with contextlib.ExitStack() as stack:
            self._open(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def _open(self, stack: contextlib.ExitStack) -> None:
        self.steady = stack.enter_context(RedisServer())
        self.locks = stack.enter_context(self.fault.locks())
        self.results = stack.enter_context(self.steady.client(db=2))
        direct, target = self._broker()
        self.broker_proxy = stack.enter_context(Proxy(target))
        if isinstance(self.locks, RedisServer):
            self.lock_proxy = stack.enter_context(Proxy(self.locks.port))
            self._locks_url = f"{self.lock_proxy.url}/0"
        else:
            self._locks_url = self.locks.url
        self.history.write(
            "case",
            fault=self.fault.name,
            pool=self.pool,
            broker=self.broker,
            acks_late=self.acks_late,
            seed=self._seed,
            ttl=self.ttl,
            allows=sorted(self.fault.allows),
            visibility=self._conf().get("broker_transport_options", {}).get("visibility_timeout"),
        )
        stack.callback(self._close_workers)
        # Its end comes first: what ends with the stage is no death.
        self.watcher = stack.enter_context(Watcher(self.history, self.locks, self.ttl))
        self.workers = [self._new_worker() for _ in range(WORKERS)]
        for worker in self.workers:
            worker.ready()
        #: The sender, which has a way of its own to the broker.
        self.app = make_app({**self._conf(), "broker_url": direct})
        stack.callback(self.app.close)
        rng = random.Random(f"{self._seed}:load")
        fault = self.fault
        self.load = Load(
            *(rng, self.app, self.queue, self.ttl, self.history, self._has_room),
            tasks=fault.load,
            apart=fault.apart,
        )
        rng = random.Random(f"{self._seed}:operator")
        self.operator = Operator(rng, self.app, self.history, list(fault.load), KEYS)

    def _broker(self) -> tuple[str, int]:
        """The broker's URL, and the port that the proxy stands in front of."""
        if self.broker == "redis":
            return f"{self.steady.url}/1", self.steady.port
        assert self._rabbitmq is not None
        return self._rabbitmq.url, self._rabbitmq.port

    def _conf(self) -> dict[str, Any]:
        direct, _ = self._broker()
        conf = {
            "broker_url": self.broker_proxy.in_front_of(direct),
            "result_backend": f"{self.steady.url}/2",
            "redislock_url": self._locks_url,
            "redislock_transport_options": dict(self.locks.transport_options),
            "redislock_ttl": self.ttl,
            "task_acks_late": self.acks_late,
            "task_reject_on_worker_lost": self.acks_late,
            "worker_prefetch_multiplier": 1,
            "worker_hijack_root_logger": True,
            "broker_connection_retry_on_startup": True,
            "result_expires": 600,
        }
        if self.broker == "redis":
            conf["broker_transport_options"] = IMPATIENT
        return {**conf, **self.fault.conf}

    def _new_worker(self) -> Worker:
        bench = {
            "bench_history": str(self.history.path),
            "bench_broken": self._broken,
            "bench_pool": self.pool,
        }
        worker = Worker(
            conf={**self._conf(), **bench},
            pool=self.pool,
            concurrency=self._concurrency,
            queues=self.queue,
            app="tests.proofs.faults.tasks",
        )
        self.history.write("worker", main=worker.pid)
        return worker

    def _close_workers(self) -> None:
        for worker in self.workers:
            self._close(worker)

    def _close(self, worker: Worker) -> None:
        self.logs.append(worker.log())
        worker.close()

    def _has_room(self, times: int) -> bool:
        return len(self.watcher.open()) < times * (self.fault.room or ROOM[self.pool])

    # -- the play -------------------------------------------------------------------------

    def play(self) -> None:
        """Let the load run, inject the fault, wait until all is quiet, and write down the rest.

        Raises:
            Exception: what the injection raised.
        """
        if self._busy:
            self._inject_under_load()
        else:
            self.fault.inject(self)
        self._await_quiet()
        self._write_results()

    def _inject_under_load(self) -> None:
        began = time.monotonic()
        with self.operator, self.load:
            for _ in range(self.fault.times):
                self.pause(0.7, 1.8)
                self.fault.inject(self)
            self.load.short = True
            self.pause(0.5, 1.0)
            while time.monotonic() < began + AT_LEAST:
                self.pause(0.1, 0.2)

    def _await_quiet(self) -> None:
        give_up = self._punctual() + self.fault.drain
        while not self._is_drained() and self._punctual() < give_up:
            time.sleep(0.1)
        self.history.write("drained", fences=self._fences_left())
        # The locks of dead workers lapse, and those that are kept for a retry that vanished. Who
        # looks after the rooms looks at each once more when its last run could have died, or when
        # a replaced task was to have its result.
        give_up = self._punctual() + max(self.ttl, ENDED_AGAIN) + 2.5
        while (self.locks_left() or self._rooms_left()) and self._punctual() < give_up:
            time.sleep(0.05)
        self.history.write("quiet", keys=self.locks_left(), rooms=self._rooms_left())

    def _punctual(self) -> float:
        """A clock that stands still while the machine is late."""
        return time.monotonic() - self.watcher.late

    def _is_drained(self) -> bool:
        """Whether nothing more will happen."""
        if self.watcher.inside() or self.watcher.graves():
            return False
        rooms = self._rooms_left()
        if any(kind in key for key in rooms for kind in (":room:", ":entries:", ":ended:")):
            # Somebody waits there, and others look after the room every second or so.
            return self.watcher.idle() > 2 * HOPELESS
        pending = [each for each, result in self._results().items() if not _is_final(result)]
        idle = self.watcher.idle()
        if self.broker == "redis":
            # What a worker has and has not acknowledged is there too, also while it sleeps.
            with self.steady.client(db=1) as broker:
                left = broker.llen(self.queue) + broker.hlen("unacked")
            return left == 0 and idle > (HOPELESS if pending else 0.2)
        if all(self.watcher.holder_died(each) or self.watcher.waits(each) for each in pending):
            return idle > (HOPELESS if pending else 1.5)
        return False

    def _results(self) -> dict[str, dict[str, Any]]:
        ids = list(self.load.sent)
        values = self.results.mget([f"celery-task-meta-{each}" for each in ids]) if ids else []
        return {each: json.loads(v) if v else {} for each, v in zip(ids, values, strict=True)}

    def locks_left(self) -> dict[str, str]:
        with self.locks.client(timeout=5) as client:
            found = {key: client.get(key) for key in client.scan_iter(LOCKS, count=1000)}
        return {key: value for key, value in found.items() if value is not None}

    def _rooms_left(self) -> dict[str, Any]:
        """What there is of waiting rooms, by its key."""
        left: dict[str, Any] = {}
        with self.locks.client(timeout=5) as client:
            for key in client.scan_iter("redislock:*", count=1000):
                _, _, kind, *_ = f"{key}:".split(":")
                if kind == "room":
                    left[key] = client.lrange(key, 0, -1)
                elif kind in ("entries", "ended"):
                    left[key] = list(client.hgetall(key))
                elif kind in ("rooms", "deadlines", "sent"):
                    left[key] = client.zrange(key, 0, -1)
        return {key: value for key, value in left.items() if value}

    def _fences_left(self) -> dict[str, int]:
        """The fences of the locks that are held."""
        left = {key: json.loads(value) for key, value in self.locks_left().items()}
        return {key: v["fence"] for key, v in left.items() if v.get("token") and "fence" in v}

    def _write_results(self) -> None:
        for task_id, result in self._results().items():
            value = result.get("result")
            self.history.write(
                "result",
                id=task_id,
                state=result.get("status", "PENDING"),
                value=value if isinstance(value, str) else None,
                error=value.get("exc_type") if isinstance(value, dict) else None,
                about=json.dumps(value.get("exc_message")) if isinstance(value, dict) else None,
            )
        for worker in self.workers:
            if worker.popen.poll() is not None:
                error = re.search("Unrecoverable error: (.*)", worker.log())
                self.history.write(
                    "crashed",
                    pid=worker.pid,
                    status=worker.popen.returncode,
                    error=error and error.group(1),
                )

    # -- for faults -----------------------------------------------------------------------

    @contextlib.contextmanager
    def during(self, name: str, *, unreachable: bool = False, **fields: Any) -> Iterator[None]:
        """Write down that a fault begins, and that it is healed.

        Args:
            name: the fault's.
            unreachable: whether the workers may be unable to ask the lock server meanwhile. The
                checker then allows a holder the time until its right ends.
            fields: more for a reader of the history.
        """
        self.history.write("fault", name=name, phase="begin", unreachable=unreachable, **fields)
        try:
            yield
        finally:
            self.history.write("fault", name=name, phase="end", unreachable=unreachable)

    def inside(self) -> list[Event]:
        """The bodies that are inside now, by their `start` events: `run`, `id`, `key`, `attempt`,
        `token`, `fence`, `pid` (of the process it runs in), `main` (of the worker).
        """
        return self.watcher.inside()

    def await_inside(self, timeout: float = 15.0) -> Event:
        """One of the bodies that are inside, at random; waits until there is one."""
        found = eventually(self.inside, "a body is inside", timeout)
        return self.rng.choice(found)

    def body_of(self, task_id: str) -> Event:
        """The body of this task, once it is inside."""

        def starts() -> list[Event]:
            return [start for start in self.inside() if start.id == task_id]

        return eventually(starts, "a long body is inside", 60)[0]

    def holder(self, span: Span) -> Event:
        """A body that is inside. For what lasts longer than the ttl it is one that does so too."""
        if span != LONG:
            return self.await_inside()
        # Woken when it can have the lock, so it soon starts; and others soon want its lock.
        seconds = round(self.rng.uniform(2.0, 2.5) * self.ttl, 3)
        kwargs = {"seconds": seconds, "how": "return"}
        return self.body_of(self.send("wait_then_defer", kwargs=kwargs))

    def last(self, span: Span) -> None:
        """Let the fault last for a random part of the ttl."""
        low, high = span
        self.pause(low * self.ttl, high * self.ttl)

    def worker_of(self, start: Event) -> Worker:
        """The worker in which this body runs."""
        return next(worker for worker in self.workers if worker.pid == start.main)

    def dead(self, pids: Iterable[int]) -> None:
        """Wait until these processes are gone, and see it written down."""
        pids = set(pids)
        for pid in pids:
            self.watcher.watch(pid)
        eventually(lambda: pids <= self.watcher.dead, f"{pids} are gone")

    @contextlib.contextmanager
    def standing_still(self, pids: Iterable[int]) -> Iterator[None]:
        """These processes do nothing meanwhile, as far as they live, and it is written down."""
        pids = [pid for pid in pids if is_running(pid)]
        self.history.write("stopped", pids=pids)
        try:
            send_signal(pids, signal.SIGSTOP)
            yield
        finally:
            send_signal(pids, signal.SIGCONT)
            self.history.write("continued", pids=pids)

    def replace(self, worker: Worker) -> Worker:
        """Start a new worker in place of one that ended, and wait until it is ready."""
        new = self._new_worker()
        self.workers[self.workers.index(worker)] = new
        self._close(worker)
        return new.ready()

    def pause(self, low: float, high: float) -> None:
        """Let the load run for a random time, in seconds."""
        time.sleep(self.rng.uniform(low, high))

    def send(self, task: str | None = None, **options: Any) -> str:
        """Send one message more than the load does; random where nothing is said.

        Args:
            task: which one: a name in `tests/proofs/faults/tasks.py`.
            options: for `send_task`, such as `soft_time_limit` and `time_limit`; `kwargs` are put
                over random ones.

        Returns:
            The task's id.
        """
        return self.load.one(task, **options)


def send_signal(pids: Iterable[int], signum: int) -> None:
    """Send a signal to those of these processes that live."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


def _is_final(result: Mapping[str, Any]) -> bool:
    return result.get("status") in FINAL
