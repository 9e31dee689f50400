"""One running set-up of a case: servers, proxies, workers, the load, and who watches them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.servers import Proxy, RedisServer
from tests.support.workers import Worker

from .history import Event, History

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
        allows: what is unavoidable under it: "overlap" (the lock server lost its data), "vanished"
            (messages that were acknowledged early; or that the broker's transport loses).
        pools, brokers, acks: where it makes sense.
        locks: makes the lock server. A `RedisServer` is put behind `lock_proxy`; anything else (a
            `SentinelSet`) has `url` and `transport_options` of its own.
        conf: settings of the workers, over those of the stage.
        times: how often it is injected in one case.
    """

    name: str
    inject: Callable[[Stage], None]
    allows: frozenset[str] = frozenset()
    pools: tuple[str, ...] = POOLS
    brokers: tuple[str, ...] = BROKERS
    acks: tuple[str, ...] = ACKS
    locks: Callable[[], Any] = RedisServer
    conf: Mapping[str, Any] = field(default_factory=dict)
    times: int = 1


class Stage:
    """A case's set-up, from the first server to the last drained message.

    Attributes:
        rng: the case's random choices.
        history: what happened.
        locks: the lock server.
        lock_proxy: between the workers and the lock server (unused with sentinels).
        broker_proxy: between the workers and the broker.
        steady: a Redis that nothing happens to: results, and behind `broker_proxy` the broker.
        workers: the running `celery worker`s.
        ttl: of every lock, in seconds.
    """

    rng: random.Random
    history: History
    locks: Any
    lock_proxy: Proxy
    broker_proxy: Proxy
    steady: RedisServer
    workers: list[Worker]
    pool: str
    broker: str
    acks_late: bool
    ttl: float

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
        raise NotImplementedError

    def await_inside(self, timeout: float = 15.0) -> Event:
        """One of the bodies that are inside, at random; waits until there is one."""
        raise NotImplementedError

    def worker_of(self, start: Event) -> Worker:
        """The worker in which this body runs."""
        raise NotImplementedError

    def dead(self, pids: Iterable[int]) -> None:
        """Wait until these processes are gone, and see it written down."""
        raise NotImplementedError

    def stopped(self, pids: Iterable[int]) -> None:
        """Write that these processes were stopped. Call it before the signal is sent."""
        self.history.write("stopped", pids=list(pids))

    def continued(self, pids: Iterable[int]) -> None:
        """Write that these processes go on. Call it after the signal was sent."""
        self.history.write("continued", pids=list(pids))

    def replace(self, worker: Worker) -> Worker:
        """Start a new worker in place of one that ended, and wait until it is ready."""
        raise NotImplementedError

    def pause(self, low: float, high: float) -> None:
        """Let the load run for a random time, in seconds."""
        raise NotImplementedError

    def send(self, task: str | None = None, **options: Any) -> str:
        """Send one message more than the load does; random where nothing is said.

        Args:
            task: which one: a name in `tests/faults/tasks.py`.
            options: for `send_task`, such as `soft_time_limit` and `time_limit`.

        Returns:
            The task's id.
        """
        raise NotImplementedError
