"""Everything that goes wrong, one function each: it does it, waits, and heals it.

What is random comes from `stage.rng`. A fault that strikes a body first waits until there is one.
Then it lets some time pass, so that it also hits what comes before and after the body: taking,
releasing, publishing.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tests.proofs.history import Event
from tests.support.servers import Proxy, RedisServer, SentinelSet
from tests.support.waiting import eventually
from tests.support.workers import Worker

from . import cluster
from .kinds import TASKS
from .stage import (
    FORGETS,
    LONG,
    LOSES_DATA,
    LOSES_MESSAGES,
    SHORT,
    Fault,
    Span,
    Stage,
    send_signal,
)

PREFORK = ("prefork",)
#: Where a running task can be ended from outside.
CAN_TERMINATE = ("prefork", "gevent")


# -- processes that are killed ----------------------------------------------------------------


def kill_child(stage: Stage) -> None:
    """SIGKILL of a pool process. Its worker puts another in its place."""
    start = stage.await_inside()
    stage.pause(0, 0.3)
    with stage.during("kill_child", pid=start.pid):
        send_signal([start.pid], signal.SIGKILL)
        stage.dead([start.pid])


def kill_worker(stage: Stage) -> None:
    """SIGKILL of a worker's main process. Its children die with it."""
    start = stage.await_inside()
    stage.pause(0, 0.3)
    _kill_worker_of(stage, start, "kill_worker")


def _kill_worker_of(stage: Stage, here: Event, name: str) -> None:
    worker = stage.worker_of(here)
    with stage.during(name, pid=worker.pid):
        pids = _processes(worker)
        send_signal([worker.pid], signal.SIGKILL)
        stage.dead(pids)
        stage.replace(worker)


def kill_everything(stage: Stage, locks: bool = False) -> None:
    """SIGKILL of all workers, and of the lock server, which comes back empty."""
    stage.await_inside()
    stage.pause(0, 0.3)
    with stage.during("kill_everything", unreachable=locks):
        pids = [pid for worker in stage.workers for pid in _processes(worker)]
        send_signal(pids, signal.SIGKILL)
        if locks:
            stage.locks.restart_empty()
        stage.dead(pids)
        for worker in list(stage.workers):
            stage.replace(worker)


# -- processes that stand still ---------------------------------------------------------------


def stop_child(stage: Stage, span: Span) -> None:
    """SIGSTOP of a pool process. Its worker goes on, and keeps its lock."""
    _stop(stage, span, lambda start: [start.pid])


def stop_main(stage: Stage, span: Span) -> None:
    """SIGSTOP of a worker's main process alone. Its children go on."""
    _stop(stage, span, lambda start: [start.main])


def stop_worker(stage: Stage, span: Span) -> None:
    """SIGSTOP of all of a worker's processes."""
    _stop(stage, span, lambda start: _processes(stage.worker_of(start)))


def _stop(stage: Stage, span: Span, whom: Callable[[Event], list[int]]) -> None:
    pids = whom(stage.holder(span))
    with stage.during("stop", pids=pids), stage.standing_still(pids):
        stage.last(span)


def stop_locks(stage: Stage, span: Span) -> None:
    """SIGSTOP of the lock server: connections stand, and nobody answers."""
    stage.holder(span)
    with stage.during("stop_locks", unreachable=True):
        stage.locks.stop()
        try:
            stage.last(span)
        finally:
            stage.locks.resume()


# -- the lock server --------------------------------------------------------------------------


def restart_empty(stage: Stage, span: Span) -> None:
    """The lock server is killed, is away, and comes back empty."""
    stage.holder(span)
    with stage.during("restart_empty", unreachable=True):
        stage.locks.kill()
        stage.last(span)
        stage.locks.restart_empty()


def failover(stage: Stage) -> None:
    """An operator has the replica promoted. The old master does not know for some seconds."""
    stage.holder(LONG)
    with stage.during("failover", unreachable=True):
        stage.locks.failover()
        stage.pause(0, 2 * stage.ttl)
        stage.locks.mend()


def lossy_failover(stage: Stage) -> None:
    """The master dies with locks of which the replica, then promoted, has not heard."""
    stage.holder(LONG)
    with stage.during("lossy_failover", unreachable=True):
        stage.locks.cut_replication()
        cut_at = time.monotonic()
        eventually(
            lambda: any(start.at > cut_at for start in stage.inside()), "a lock is to be lost"
        )
        stage.locks.kill_master()
        stage.locks.mend()


# -- the network to the lock server -----------------------------------------------------------


def cut_locks(stage: Stage, span: Span) -> None:
    """Every connection to the lock server breaks, and no new one is to be had."""
    stage.holder(span)
    with stage.during("cut_locks", unreachable=True), _cut(stage.lock_proxy):
        stage.last(span)


def delay_locks(stage: Stage, low: float, high: float) -> None:
    """Everything takes these seconds longer, each way. Beyond the library's own time limits,
    commands are executed after their client has given up.
    """
    stage.holder(LONG)
    with stage.during("delay_locks", unreachable=True), _healed(stage.lock_proxy):
        for way in (stage.lock_proxy.to_server, stage.lock_proxy.to_client):
            way.delay = stage.rng.uniform(low, high)
        stage.last((0.5, 1.5))


def block_from_locks(stage: Stage, span: Span) -> None:
    """Nothing gets through from the lock server. What it held back is delivered late."""
    stage.holder(span)
    with stage.during("block_from_locks", unreachable=True), _healed(stage.lock_proxy):
        stage.lock_proxy.to_client.block()
        stage.last(span)


# -- the end of a task or of a worker ---------------------------------------------------------


def soft_limit(stage: Stage) -> None:
    """Soft time limits, at any moment: also while the library takes or releases a lock."""
    with stage.during("soft_limit"):
        for _ in range(6):
            limit = round(stage.rng.uniform(0.05, 1.0), 3)
            stage.send(soft_time_limit=limit, kwargs={"seconds": 1.0})
            stage.pause(0, 0.4)


def hard_limit(stage: Stage) -> None:
    """Hard time limits, at any moment: the process is killed."""
    with stage.during("hard_limit"):
        for _ in range(4):
            limit = round(stage.rng.uniform(0.1, 1.0), 3)
            stage.send(time_limit=limit, kwargs={"seconds": 1.2})
            stage.pause(0, 0.6)


def revoke(stage: Stage) -> None:
    """`revoke(terminate=True)` of a running task."""
    start = stage.await_inside()
    stage.pause(0, 0.2)
    signame = stage.rng.choice(("SIGTERM", "SIGKILL"))
    with stage.during("revoke", id=start.id, signal=signame):
        stage.app.control.revoke(start.id, terminate=True, signal=signame)
        stage.pause(0.2, 0.5)


def shut_down(stage: Stage, signum: int) -> None:
    """A worker is told to end, in the middle of its work, and another one is started."""
    worker = stage.worker_of(stage.await_inside())
    stage.pause(0, 0.3)
    with stage.during("shut_down", pid=worker.pid, signal=signal.Signals(signum).name):
        pids = _processes(worker)
        if signum == signal.SIGQUIT:
            worker.end_cold()
        else:
            worker.signal(signum)
            worker.wait(60)
        stage.dead(pids)
        stage.replace(worker)


def cut_broker(stage: Stage, low: float = 0.0, high: float = 1.5) -> None:
    """Every connection to the broker breaks, and there are new ones only some seconds later."""
    stage.await_inside()
    with stage.during("cut_broker"), _cut(stage.broker_proxy):
        stage.pause(low, high)


def several(stage: Stage) -> None:
    """Three of the others, one upon another's ruins."""
    for fault in stage.rng.sample([each for each in _combinable() if stage.pool in each.pools], 3):
        fault.inject(stage)
        stage.pause(0, 0.5)


def _combinable() -> Iterator[Fault]:
    """What needs no setting or server of its own, and allows nothing."""
    for each in FAULTS.values():
        special = (
            each.allows or each.conf or each.load is not TASKS or each.locks is not RedisServer
        )
        if not special and each.inject is not several:
            yield each


# -- how --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _cut(proxy: Proxy) -> Iterator[None]:
    """Connections break, and there are no new ones meanwhile."""
    proxy.cut_off()
    try:
        yield
    finally:
        proxy.reconnect()


@contextlib.contextmanager
def _healed(proxy: Proxy) -> Iterator[None]:
    try:
        yield
    finally:
        proxy.heal()


def _processes(worker: Worker) -> list[int]:
    with contextlib.suppress(FileNotFoundError):
        return [worker.pid, *worker.children()]
    return [worker.pid]


# -- all of them ------------------------------------------------------------------------------

FAULTS: dict[str, Fault] = {}


def _add(name: str, inject: Callable[..., None], *arguments: Any, **how: Any) -> None:
    if arguments:
        FAULTS[name] = Fault(name=name, inject=lambda stage: inject(stage, *arguments), **how)
    else:
        FAULTS[name] = Fault(name=name, inject=inject, **how)


def _on_connection_loss(cancels: bool) -> dict[str, bool]:
    return {
        "worker_cancel_long_running_tasks_on_connection_loss": cancels,
        # Celery raises the prefetch count again in the midst of an acknowledgement. Under gevent
        # with RabbitMQ that fails (two greenlets, one socket), and the task is gone.
        "worker_enable_prefetch_count_reduction": False,
    }


_add("kill_child", kill_child, pools=PREFORK, times=3)
_add("kill_worker", kill_worker)
_add("kill_all_workers", kill_everything)
_add("kill_everything", partial(kill_everything, locks=True), allows=FORGETS)

_add("stop_child_short", stop_child, SHORT, pools=PREFORK, times=2)
_add("stop_child_long", stop_child, LONG, pools=PREFORK)
_add("stop_main_short", stop_main, SHORT, pools=PREFORK, times=2)
_add("stop_main_long", stop_main, LONG, pools=PREFORK)
_add("stop_worker_short", stop_worker, SHORT, times=2)
_add("stop_worker_long", stop_worker, LONG)
# What else happens to one lock server, and to the way to it, is simulated.
_add("stop_locks", stop_locks, LONG)
_add("restart_empty", restart_empty, LONG, allows=FORGETS)
_add("failover", failover, locks=SentinelSet, allows=LOSES_DATA)
_add("lossy_failover", lossy_failover, locks=SentinelSet, allows=LOSES_DATA)
_add("cut_locks", cut_locks, LONG)
_add("delay_locks", delay_locks, 0.15, 0.5)
_add("block_from_locks", block_from_locks, LONG)

_add("soft_limit", soft_limit, pools=PREFORK)
_add("hard_limit", hard_limit, pools=PREFORK)
_add("revoke", revoke, pools=CAN_TERMINATE, times=3)
_add("warm_shutdown", shut_down, signal.SIGTERM)
_add("soft_shutdown", shut_down, signal.SIGQUIT, conf={"worker_soft_shutdown_timeout": 1.5})
_add("cold_shutdown", shut_down, signal.SIGQUIT)
_add("cut_broker", cut_broker, conf=_on_connection_loss(False), allows=LOSES_MESSAGES, times=2)
_add(
    "cut_broker_cancels", cut_broker, conf=_on_connection_loss(True), allows=LOSES_MESSAGES, times=2
)

_add("several", several)
FAULTS.update(cluster.FAULTS)
