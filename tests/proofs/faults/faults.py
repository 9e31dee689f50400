"""Everything that goes wrong, one function each: it does it, waits, and heals it.

What is random comes from `stage.rng`. A fault that strikes a body first waits until there is one.
Then it lets some time pass, so that it also hits what comes before and after the body: taking,
releasing, publishing.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from celery.exceptions import NotRegistered

from celery_redislock import operations
from tests.proofs.history import Event
from tests.support.servers import Proxy, RedisServer, SentinelSet, Way
from tests.support.waiting import eventually
from tests.support.workers import Worker

from . import cluster
from .kinds import OF_FLEETS, OF_RELEASE, OF_ROOMS, TASKS
from .load import KEYS, OWN_KEYS
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
from .witness import STEPS, Step, stop_at

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


def restart_locks(stage: Stage, span: Span, empty: bool = True) -> None:
    """The lock server is killed, is away, and comes back, empty or with its data."""
    stage.holder(span)
    with stage.during("restart_locks", unreachable=True, empty=empty):
        stage.locks.kill()
        stage.last(span)
        if empty:
            stage.locks.restart_empty()
        else:
            stage.locks.start()


def pause_locks(stage: Stage, span: Span) -> None:
    """CLIENT PAUSE: the lock server lives and answers nobody."""
    stage.holder(span)
    with stage.during("pause_locks", unreachable=True):
        stage.locks.pause_clients(stage.rng.uniform(*span) * stage.ttl)
        eventually(stage.locks.answers, "the pause is over")


def flush_scripts(stage: Stage) -> None:
    """SCRIPT FLUSH, again and again: every script may be unknown when it is called."""
    with stage.during("flush_scripts"):
        for _ in range(30):
            stage.locks.flush_scripts()
            stage.pause(0, 0.1)


def evict(stage: Stage, policies: Iterable[str]) -> None:
    """The lock server's memory is full, and it evicts locks."""
    policy = stage.rng.choice(list(policies))
    stage.holder(LONG)
    with stage.during("evict", unreachable=True, policy=policy):
        # Whether there was one to evict is a matter of chance.
        keys = stage.locks.evict(policy, timeout=5.0)
        stage.history.write("evicted", keys=keys)


def step_clock(stage: Stage, part: float) -> None:
    """The lock server's clock steps by this part of the ttl. See `RedisServer.step_clock`."""
    stage.holder(LONG)
    stage.pause(0, 0.3)
    with stage.during("step_clock", seconds=part * stage.ttl):
        stage.locks.step_clock(part * stage.ttl)


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


# -- an operator ------------------------------------------------------------------------------


def suspend(stage: Stage, span: Span, one_lock: bool) -> None:
    """An operator suspends a task or a lock that is in use, and later resumes it or sets an end."""
    start = stage.await_inside()
    what = {"lock": start.key} if one_lock else {"task": start.task}
    stage.pause(0, 0.3)
    with stage.during("suspend", **what):
        operations.suspend(stage.app, **what, seconds=60, why="a fault", unknown=True)
        since = time.monotonic()
        stage.last(span)
        until = time.monotonic()
        if stage.rng.random() < 0.5:
            operations.resume(stage.app, **what)
        else:
            operations.suspend(stage.app, **what, seconds=0.3, why="a fault", unknown=True)
            eventually(lambda: not operations.list_suspensions(stage.app), "it has ended")
        stage.history.write("suspended", since=since, until=until, **what)


# -- the network to the lock server -----------------------------------------------------------


def cut_locks(stage: Stage, span: Span) -> None:
    """Every connection to the lock server breaks, and no new one is to be had."""
    stage.holder(span)
    with stage.during("cut_locks", unreachable=True), _cut(stage.lock_proxy):
        stage.last(span)


def break_locks(stage: Stage) -> None:
    """Connections to the lock server break again and again; new ones are to be had at once."""
    with stage.during("break_locks", unreachable=True):
        for _ in range(10):
            stage.lock_proxy.cut_off()
            stage.lock_proxy.reconnect()
            stage.pause(0, 0.3)


def delay_locks(stage: Stage, low: float, high: float) -> None:
    """Everything takes these seconds longer, each way. Beyond the library's own time limits,
    commands are executed after their client has given up.
    """
    stage.holder(LONG)
    with stage.during("delay_locks", unreachable=True), _healed(stage.lock_proxy):
        for way in (stage.lock_proxy.to_server, stage.lock_proxy.to_client):
            way.delay = stage.rng.uniform(low, high)
        stage.last((0.5, 1.5))


def block_locks(stage: Stage, span: Span, way: Callable[[Proxy], Way]) -> None:
    """One direction lets nothing through. What it held back is delivered late."""
    stage.holder(span)
    with stage.during("block_locks", unreachable=True), _healed(stage.lock_proxy):
        way(stage.lock_proxy).block()
        stage.last(span)


def lose_replies(stage: Stage, script: str | None) -> None:
    """The answers to some calls of one script, or to all commands, are lost after they were
    executed.
    """
    proxy = stage.lock_proxy
    with stage.during("lose_replies", unreachable=True, script=script), _healed(proxy):
        for _ in range(4):
            goal = proxy.lost + stage.rng.randint(1, 3)
            proxy.lose_replies_to(script, goal - proxy.lost)
            with contextlib.suppress(AssertionError):  # perhaps nobody asks just now
                eventually(lambda goal=goal: proxy.lost >= goal, "replies are lost", 2.0)
            stage.pause(0, 0.3)
        stage.history.write("replies_lost", count=proxy.lost)


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


def kill_replaced(stage: Stage) -> None:
    """SIGKILL of the process of a run that is to end for a newer one, and has not ended yet. With
    late acknowledgement its message comes back.
    """
    about = {"key": "r1", "how": "return"}  # which the load does not use
    older = stage.body_of(stage.send("replace", kwargs={**about, "seconds": 5.0}))
    newer = stage.send("replace", kwargs={**about, "seconds": stage.rng.uniform(0.2, 3.0)})

    def is_told() -> bool:
        told = stage.history.events("parked", "told")
        return any(e.get("id") == newer or e.get("fence") == older.fence for e in told)

    with contextlib.suppress(AssertionError):  # another one may have ended it
        eventually(is_told, "the older one is to end", 5.0)
    stage.pause(0, 0.6)
    with stage.during("kill_replaced", pid=older.pid):
        send_signal([older.pid], signal.SIGKILL)
        stage.dead([older.pid])


# -- the tasks themselves ---------------------------------------------------------------------


def new_release(stage: Stage) -> None:
    """All workers end, warmly or killed, while tasks wait in a room. Those that come after them
    define some of these tasks otherwise: with another key or signature, or without a lock.
    """
    key, *_ = OWN_KEYS["moves"]
    waiting = ("moves", "reshaped", "unlocked", "steady", "moves", "reshaped", "unlocked")
    brief = {"key": key, "seconds": 0.1, "how": "return"}
    stage.body_of(stage.send("steady", kwargs={**brief, "seconds": 2.5}))
    ids = {stage.send(task, kwargs=brief) for task in waiting}
    with contextlib.suppress(AssertionError):  # they may be behind others in the queue
        eventually(lambda: {e.id for e in stage.history.events("parked")} & ids, "they wait", 3.0)
    warmly = stage.rng.random() < 0.5
    with stage.during("new_release", warmly=warmly):
        pids = [pid for worker in stage.workers for pid in _processes(worker)]
        signum = signal.SIGTERM if warmly else signal.SIGKILL
        send_signal([worker.pid for worker in stage.workers], signum)
        for worker in stage.workers:
            worker.wait(60)
        stage.dead(pids)
        stage.replace_all(release=2)
    for task in ("steady", "moves", "reshaped", "unlocked"):
        stage.send(task, kwargs=brief)


def two_fleets(stage: Stage) -> None:
    """A worker of the first fleet is killed while its tasks wait in rooms. The second fleet, which
    goes on, cannot publish them.
    """
    (key, *_) = KEYS
    brief = {"key": key, "seconds": 0.1, "how": "return"}
    here = stage.body_of(stage.send("queue", kwargs={**brief, "seconds": 1.5}, expires=None))
    for task in ("queue", "other_queue", "queue", "coalesce", "debounce"):
        stage.send(task, kwargs=brief, expires=None)
    stage.pause(0.1, 1.0)
    _kill_worker_of(stage, here, "two_fleets")


# -- messages of a waiting room ---------------------------------------------------------------


def late_messages(stage: Stage) -> None:
    """For a while no worker takes messages: a room publishes one again, and both copies come."""
    with _nobody_takes_messages(stage) as waiting:
        _await_event(stage, "offered", waiting, lambda offer: offer.since > 0)


def lost_messages(stage: Stage) -> None:
    """The broker loses what a room has published."""
    with _nobody_takes_messages(stage) as waiting:
        _await_event(stage, "published", waiting)
        with stage.app.connection_for_write() as connection:
            connection.default_channel.queue_purge(stage.queue)


def dropped_messages(stage: Stage) -> None:
    """A worker that knows neither the task nor this package takes what a room has published. As
    Celery does, it drops the message, and stores that the task has failed.
    """
    with _nobody_takes_messages(stage), stage.app.connection_for_write() as connection:
        get = partial(connection.default_channel.basic_get, stage.queue, no_ack=True)
        headers = eventually(get, "a message to drop", 15).headers
        stage.app.backend.mark_as_failure(headers["id"], NotRegistered(headers["task"]))


@contextlib.contextmanager
def _nobody_takes_messages(stage: Stage) -> Iterator[set[str]]:
    """Some wait in a room, whose holder then ends. There are no other messages."""
    about = {"key": KEYS[0], "how": "return"}
    with stage.load.held:
        eventually(lambda: stage.watcher.over(set(stage.load.sent)), "what was sent has ended", 60)
        stage.body_of(stage.send("queue", kwargs={**about, "seconds": 2.0}, expires=None))
        waiting = {
            stage.send(task, kwargs={**about, "seconds": 0.1}, expires=None)
            for task in ("queue", stage.rng.choice(("coalesce", "debounce", "queue")), "queue")
        }
        eventually(lambda: all(map(stage.watcher.waits, waiting)), "they wait", 15)
        # Another case may have its workers at the same RabbitMQ.
        nodes = [worker.node for worker in stage.workers]
        to = {"destination": nodes, "reply": True, "timeout": 5, "limit": len(nodes)}
        with stage.during("no_messages"):
            stage.app.control.cancel_consumer(stage.queue, **to)
            try:
                yield waiting
            finally:
                stage.app.control.add_consumer(stage.queue, **to)


def _await_event(
    stage: Stage, kind: str, ids: set[str], is_it: Callable[[Event], bool] = lambda event: True
) -> None:
    def found() -> bool:
        return any(event.id in ids and is_it(event) for event in stage.history.events(kind))

    eventually(found, f"{kind}: one of {ids}", 15)


# -- between two steps of a waiting room ------------------------------------------------------


def strike_at(stage: Stage, name: str, strike: Callable[[Stage, Event, Step], None]) -> None:
    """Strike a process that is just there. See `STEPS`."""
    with stop_at(stage.history, name) as step:
        for _ in range(4):
            _bring_about(stage, name)
            with contextlib.suppress(AssertionError):  # the room may be in another's hands
                strike(stage, step.reached(5.0), step)
                return
        stage.history.write("missed", name=name)


def _bring_about(stage: Stage, step: str) -> None:
    """Have somebody run, and others wait for it."""
    key = stage.rng.choice(("k0", "k1"))
    newest = stage.rng.choice(("coalesce", "debounce"))
    name = {"replacing": newest, "replaced": newest, "gave up": "queue_briefly"}
    tasks = ["queue", *[name.get(step, stage.rng.choice(("queue", "queue", newest)))] * 3]
    holds = 2.0 if step == "gave up" else 1.0
    for seconds, task in zip((holds, 0.1, 0.1, 0.1), tasks, strict=True):
        stage.send(task, kwargs={"key": key, "seconds": seconds, "how": "return"}, expires=None)


def kill_child_at(stage: Stage, here: Event, step: Step) -> None:
    """SIGKILL of the process; of its worker, if it is the main one."""
    if here.pid == here.main:
        kill_worker_at(stage, here, step)
        return
    with stage.during("kill_child_at", step=here.name, pid=here.pid):
        send_signal([here.pid], signal.SIGKILL)
        stage.dead([here.pid])


def kill_worker_at(stage: Stage, here: Event, step: Step) -> None:
    """SIGKILL of the worker's main process. Its children die with it."""
    _kill_worker_of(stage, here, "kill_worker_at")


def soft_limit_at(stage: Stage, here: Event, step: Step) -> None:
    """The signal of a soft time limit."""
    with stage.during("soft_limit_at", step=here.name, pid=here.pid):
        if here.pid != here.main:
            send_signal([here.pid], signal.SIGUSR1)
        stage.pause(0.0, 0.2)


def cut_locks_at(stage: Stage, here: Event, step: Step) -> None:
    """Connections to the lock server break, and there are new ones only later."""
    with stage.during("cut_locks_at", unreachable=True, step=here.name), _cut(stage.lock_proxy):
        step.let_go()
        stage.last(stage.rng.choice((SHORT, LONG)))


def cut_broker_at(stage: Stage, here: Event, step: Step) -> None:
    """The same with the broker."""
    with stage.during("cut_broker_at", step=here.name), _cut(stage.broker_proxy):
        step.let_go()
        stage.pause(0.0, 1.5)


def empty_locks_at(stage: Stage, here: Event, step: Step) -> None:
    """The lock server is killed, and comes back empty."""
    with stage.during("empty_locks_at", unreachable=True, step=here.name):
        stage.locks.restart_empty()


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


def _persistent() -> RedisServer:
    return RedisServer(persistent=True)


ALLKEYS = ("allkeys-random", "allkeys-lru", "allkeys-lfu")
VOLATILE = ("volatile-random", "volatile-ttl", "volatile-lru")
TO_SERVER: Callable[[Proxy], Way] = lambda proxy: proxy.to_server  # noqa: E731
TO_CLIENT: Callable[[Proxy], Way] = lambda proxy: proxy.to_client  # noqa: E731


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
_add("stop_locks_short", stop_locks, SHORT, times=2)
_add("stop_locks_long", stop_locks, LONG)

_add("restart_empty_short", restart_locks, SHORT, allows=FORGETS)
_add("restart_empty_long", restart_locks, LONG, allows=FORGETS)
_add("restart_with_data_short", restart_locks, SHORT, False, locks=_persistent)
_add("restart_with_data_long", restart_locks, LONG, False, locks=_persistent)
_add("pause_locks_short", pause_locks, SHORT, times=2)
_add("pause_locks_long", pause_locks, LONG)
_add("flush_scripts", flush_scripts)
_add("evict_any_key", evict, ALLKEYS, allows=LOSES_DATA, times=2)
_add("evict_key_with_ttl", evict, VOLATILE, allows=LOSES_DATA, times=2)
# A lock has always two thirds of its ttl to live, or its heartbeat is late.
_add("clock_forward_little", step_clock, 0.3, times=3)
_add("clock_forward_much", step_clock, 1.5, allows=LOSES_DATA, times=2)
_add("clock_back", step_clock, -1.0, times=2)
_add("failover", failover, locks=SentinelSet, allows=LOSES_DATA)
_add("lossy_failover", lossy_failover, locks=SentinelSet, allows=LOSES_DATA)

_add("suspend_task", suspend, LONG, False, times=2)
_add("suspend_lock", suspend, LONG, True, times=2)

_add("cut_locks_short", cut_locks, SHORT, times=2)
_add("cut_locks_long", cut_locks, LONG)
_add("break_locks", break_locks)
_add("delay_locks_little", delay_locks, 0.01, 0.06)
_add("delay_locks_much", delay_locks, 0.15, 0.5)
_add("block_to_locks_short", block_locks, SHORT, TO_SERVER, times=2)
_add("block_to_locks_long", block_locks, LONG, TO_SERVER)
_add("block_from_locks_short", block_locks, SHORT, TO_CLIENT, times=2)
_add("block_from_locks_long", block_locks, LONG, TO_CLIENT)
_add("lose_acquire_replies", lose_replies, "acquire")
_add("lose_extend_replies", lose_replies, "extend")
_add("lose_settle_replies", lose_replies, "settle")
_add("lose_park_replies", lose_replies, "park")
_add("lose_look_replies", lose_replies, "look")
_add("lose_any_replies", lose_replies, None)

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

STRIKES: dict[str, tuple[Callable[[Stage, Event, Step], None], dict[str, Any]]] = {
    "kill_child": (kill_child_at, {}),
    "kill_worker": (kill_worker_at, {}),
    "soft_limit": (soft_limit_at, {}),
    "cut_locks": (cut_locks_at, {}),
    "empty_locks": (empty_locks_at, {"allows": FORGETS}),
    # Now and then Celery's worker ends at that with the Redis broker: in its consumer kombu asks a
    # connection that it has just closed for its parameters (AttributeError in `_connparams`).
    "cut_broker": (
        cut_broker_at,
        {
            "conf": _on_connection_loss(False),
            "allows": LOSES_MESSAGES,
            "brokers": ("rabbitmq",),
        },
    ),
}
for _step in STEPS:
    for _name, (_strike, _how) in STRIKES.items():
        _add(
            f"{_name}_at_{_step.replace(' ', '_')}",
            strike_at,
            *(_step, _strike),
            **{"pools": PREFORK, "load": OF_ROOMS, "times": 2, **_how},
        )

_add("new_release", new_release, load=OF_RELEASE)
# What waits for the first fleet is not to wait until the second one gives it up.
_add("two_fleets", two_fleets, load=OF_FLEETS, fleets=2, drain=25.0)
for _inject in (late_messages, lost_messages, dropped_messages):
    _add(_inject.__name__, _inject, pools=("prefork", "threads"), load=OF_ROOMS)
_add("kill_replaced", kill_replaced, pools=PREFORK, acks=("late",), times=2)
_add("several", several)
FAULTS.update(cluster.FAULTS)
