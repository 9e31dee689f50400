"""Workers: what Celery's consumer and its prefork pool do, without a loop and without processes.
The requests, the tracers and the canvas are Celery's own, and so is all that the package does.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import inspect
import itertools
import pickle
import time
import types
from collections import deque
from collections.abc import Callable
from functools import cache
from queue import Empty
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import Celery
from celery.app import trace
from celery.app.trace import build_tracer
from celery.concurrency.prefork import TaskPool
from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError
from celery.utils import imports
from celery.worker import state as worker_state
from celery.worker.request import Request, TaskRevokedError

from celery_redislock.worker import start

from . import baton, broker, once, tasks
from .interpreter import Event

#: The least and the most seconds that something is on its way to a child, or from it.
PIPE = (0.0001, 0.001)
#: The least and the most seconds until the pool notices that a child has died.
NOTICES = (0.02, 4.0)
#: Seconds from the hard time limit, when the child gets TERM, until it gets KILL.
KILLED_AFTER = 0.1
#: Whether a worker that cancels a run says if that is to be called a retry: Celery 5.6 and later.
SAYS_RETRY = "emit_retry" in inspect.signature(Request.cancel).parameters


def draw(between: tuple[float, float]) -> float:
    return baton.world.delays.uniform(*between)


class Job:
    """A task that the pool has, as billiard's `ApplyResult`."""

    def __init__(self, target: Any, args: bytes, calls: dict[str, Any], limits: Any) -> None:
        self.target, self.args, self.calls, self.limits = target, args, calls, limits
        self.task_id, request = pickle.loads(args)[1:3]
        self.attempt = int(request.get("retries") or 0)
        self.child: Child | None = None
        self.is_over = False

    def terminate(self, signum: Any) -> None:
        """billiard's: of a child that `terminate_job` has ended already."""


class Child:
    """A process of the pool. It runs one task at a time.

    Attributes:
        gets_killed: a time limit is over: the main process gives it no other task.
    """

    gets_killed = False

    def __init__(self, worker: Worker, number: int) -> None:
        world = baton.world
        self.worker, self.job = worker, None
        self._wakes = Event()
        name, clock = f"{worker.process.name}.{number}", worker.process.clock
        self.process = baton.Process(world, name, clock)
        self.main = world.spawn(self.process, "main", self._run)
        worker.process.at_death.append(lambda: world.kill(self.process))  # PDEATHSIG

    job: Job | None

    def give(self, job: Job) -> None:
        self.job, job.child = job, self
        baton.world.after(draw(PIPE), self._wakes.set)

    def _run(self) -> None:
        self.worker.app.set_current()
        try:
            while True:
                self._wakes.wait()
                self._wakes.clear()
                assert self.job is not None
                self._do(self.job)
        # As in billiard, whose main process may send a soft time limit after the task's end.
        except (SystemExit, KeyboardInterrupt, SoftTimeLimitExceeded):
            once.run_exits()
            baton.world.kill(self.process)
            self.worker.pool.died(self)
            baton.world.wait(None)

    def _do(self, job: Job) -> None:
        args = pickle.loads(job.args)
        baton.world.child_takes(job.task_id, args[2]["retries"])
        self._say(self.worker.pool.accepted, job, self.process.pid)
        try:
            result, ok = job.target(*args), True
        except Exception:
            result, ok = ExceptionInfo(), False
        self._say(self.worker.pool.ended, job, ok, pickle.dumps(result))

    def _say(self, what: Any, *args: Any) -> None:
        """Tell the main process, in order, by the pipe."""
        baton.world.after(draw(PIPE), lambda: self.worker.post(what, *args))
        baton.world.sleep(PIPE[1])


class Pool(TaskPool):  # type: ignore[misc]
    """Celery's prefork pool, as far as a consumer and the package know it."""

    def __init__(self, worker: Worker, size: int) -> None:
        self.worker, self.size, self.made = worker, size, 0
        self.waiting: deque[Job] = deque()
        self.children: list[Child] = []

    def fill(self) -> None:
        while len(self.children) < self.size and not self.worker.ends:
            self.made += 1
            self.children.append(Child(self.worker, self.made))

    def apply_async(
        self,
        target: Any,
        args: Any = (),
        accept_callback: Any = None,
        timeout_callback: Any = None,
        callback: Any = None,
        error_callback: Any = None,
        soft_timeout: float | None = None,
        timeout: float | None = None,
        **more: Any,
    ) -> Job:
        calls = {
            "accepted": accept_callback, "timeout": timeout_callback,
            "success": callback, "failure": error_callback,
        }  # fmt: skip
        job = Job(target, pickle.dumps(args), calls, (soft_timeout, timeout))
        self.waiting.append(job)
        self.give()
        return job

    def give(self) -> None:
        for child in self.children:
            is_free = child.job is None and child.process.is_alive and not child.gets_killed
            if is_free and self.waiting:
                child.give(self.waiting.popleft())

    # -- what children say, in the main process -------------------------------------------

    def accepted(self, job: Job, pid: int) -> None:
        if job.is_over:
            return
        job.calls["accepted"](pid, time.time())
        soft, hard = job.limits
        if soft is not None:
            baton.world.after(soft, lambda: self.worker.post(self._soft_limit, job, soft))
        if hard is not None:
            baton.world.after(hard, lambda: self.worker.post(self._hard_limit, job, hard))

    def ended(self, job: Job, ok: bool, result: bytes) -> None:
        if job.child is not None and job.child.job is job:
            job.child.job = None
        if not job.is_over:
            job.is_over = True
            job.calls["success" if ok else "failure"](pickle.loads(result))
        self.give()

    def _soft_limit(self, job: Job, seconds: float) -> None:
        if not job.is_over and job.child is not None and job.child.job is job:
            baton.world.note(f"SOFT TIME LIMIT of {baton.world.named(job.task_id)}")
            job.calls["timeout"](True, seconds)
            baton.world.raise_in(job.child.main, SoftTimeLimitExceeded())

    def _hard_limit(self, job: Job, seconds: float) -> None:
        child = job.child
        if job.is_over or child is None or child.job is not job:
            return
        baton.world.note(f"HARD TIME LIMIT of {baton.world.named(job.task_id)}")
        job.is_over = child.gets_killed = True
        try:
            raise TimeLimitExceeded(seconds)
        except TimeLimitExceeded:
            job.calls["failure"](ExceptionInfo())
        job.calls["timeout"](False, seconds)
        baton.world.raise_in(child.main, SystemExit())
        baton.world.after(KILLED_AFTER, lambda: baton.world.kill_child(child))

    def terminate_job(self, pid: int, signum: Any = None) -> None:
        for child in self.children:
            if child.process.pid == pid:
                baton.world.note(f"TERMINATED: {child.process}")
                baton.world.kill_child(child)

    # -- children that died ---------------------------------------------------------------

    def died(self, child: Child) -> None:
        """A child has died. The pool notices that later."""
        baton.world.after(draw(NOTICES), lambda: self.worker.post(self._reap, child))

    def _reap(self, child: Child) -> None:
        if child not in self.children:
            return
        self.children.remove(child)
        self.fill()
        job = child.job
        if job is not None and not job.is_over:
            job.is_over = True
            try:
                raise WorkerLostError("simulated: the child died")
            except WorkerLostError:
                job.calls["failure"](ExceptionInfo())
        self.give()

    def flush(self) -> None:
        """Forget what no child has, as billiard does when the broker's connection was lost."""
        self.waiting.clear()


class Timer:
    """What the consumer does at a given time. Timers are late, a little."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def call_at(
        self, eta: float, do: Any, args: Any = (), kwargs: Any = None, priority: int = 0
    ) -> Any:
        entry = types.SimpleNamespace(is_cancelled=False)

        def call() -> None:
            if not entry.is_cancelled:
                do(*args)

        # Celery gives `eta` in seconds of the day's clock, or of `monotonic`: see `to_timestamp`.
        at = eta - baton.EPOCH if eta > baton.EPOCH / 2 else eta
        baton.world.at(at + draw(PIPE), lambda: self._worker.post(call))
        return entry

    def cancel(self, entry: Any) -> None:
        entry.is_cancelled = True


class Prefetch:
    """Celery's prefetch count. A message with an eta raises it until it is due."""

    def __init__(self, most: int) -> None:
        self.most = most

    def increment_eventually(self, n: int = 1) -> None:
        self.most += n

    def decrement_eventually(self, n: int = 1) -> None:
        self.most -= n


class Consumer:
    """kombu's consumer of the tasks' queues."""

    def __init__(self, queues: list[Any], channel: Any) -> None:
        self.queues, self.channel = queues, channel
        self._active_tags = {queue.name: f"tag{i}" for i, queue in enumerate(queues)}


class Connection:
    """The consumer's connection, as the package asks for it."""

    connected = True


class Worker:
    """A worker: its main process, with the names that a consumer has for Celery and the package.

    Args:
        app: the Celery app, this worker's own.
        name: its name.
        size: how many children it has.
        prefetch: how many messages it takes beyond those that are due later.

    Attributes:
        ends: it takes no more messages, and ends when its tasks have ended.
        is_cold: it ends at once.
        met: called with the id of each task of which a message arrives.
    """

    connection_errors = ()
    event_dispatcher = None
    disable_rate_limits = True
    task_buckets: dict[str, Any] = {}  # noqa: RUF012  Celery's name
    _limit_task = _limit_post_eta = None
    blueprint = channel = None

    def __init__(
        self, app: Celery, name: str, size: int, prefetch: int, met: Callable[[str], None]
    ) -> None:
        self.app, self.met, self.prefetch = app, met, prefetch
        self.hostname = f"{name}@host"
        self.process = baton.Process(baton.world, name)
        self.pool = Pool(self, size)
        self.ends = self.is_cold = False
        self.restart_count = 0
        self._inbox: deque[tuple[Any, Any]] = deque()
        self._wakes = Event()
        self._numbers = itertools.count()
        baton.world.spawn(self.process, "main", self._run)

    def post(self, do: Any, *args: Any) -> None:
        """Have the main process do this, in its loop."""
        self._inbox.append((do, args))
        self._wakes.set()

    call_soon = post

    def ring(self) -> None:
        """There may be a message."""
        self._wakes.set()

    # -- Celery's part of a consumer ------------------------------------------------------

    def apply_eta_task(self, request: Any) -> None:
        worker_state.task_reserved(request)
        self.on_task_request(request)
        self.qos.decrement_eventually()

    def on_task_request(self, request: Any) -> None:
        with contextlib.suppress(TaskRevokedError):
            request.execute_using_pool(self.pool)

    # -- the main process -----------------------------------------------------------------

    def _run(self) -> None:
        app = self.app
        app.set_current()
        self.timer = Timer(self)
        self.controller = types.SimpleNamespace(state=worker_state, app=app, blueprint=None)
        start._on_worker_init(self)
        self._connect()
        broker.broker.workers.append(self)
        self.process.at_death.append(self._gone)
        self.pool.fill()
        self._strategies = {}
        for name, task in app.tasks.items():  # as Celery's `update_strategies`
            if not name.startswith("celery.") or name in ("celery.backend_cleanup",):
                task.__trace__ = build_tracer(name, task, app.loader, self.hostname, app=app)
                self._strategies[name] = task.start_strategy(app, self)
        while not (self.ends and (self.is_cold or self._is_idle)):
            while self._inbox:
                do, args = self._inbox.popleft()
                do(*args)
            message = None if self.ends else self._receive()
            if message is not None:
                baton.world.sleep(draw(broker.TAKES))
                self.met(message.headers["id"])
                strategy = self._strategies[message.headers["task"]]
                strategy(message, None, message.ack_log_error, message.reject_log_error, [])
            elif not self._inbox:
                self._wakes.wait(30.0)
                self._wakes.clear()
        self._end()

    @property
    def _is_idle(self) -> bool:
        return not self._inbox and all(each.job is None for each in self.pool.children)

    def _connect(self) -> None:
        self.restart_count += 1
        self.qos = Prefetch(self.prefetch)
        self.connection: Any = Connection()
        self.channel = self.app.connection_for_read().default_channel
        queues = list(self.app.amqp.queues.consume_from.values())
        for queue in queues:
            queue(self.channel).declare()
        self.task_consumer = Consumer(queues, self.channel)

    def _receive(self) -> Any:
        qos = self.channel.qos
        if len(qos._delivered) - len(qos._dirty) >= self.qos.most:
            return None
        for queue in self.task_consumer.queues:
            try:
                message = self.channel.Message(self.channel._get(queue.name), channel=self.channel)
            except Empty:
                continue
            qos.append(message, message.delivery_tag)
            message.number = next(self._numbers)
            return message
        return None

    def _mine(self, requests: Any) -> list[Any]:
        """Those of this worker, in the order of arrival: Celery's sets have that of addresses."""
        mine = [each for each in requests if each._app is self.app]
        return sorted(mine, key=lambda each: each.message.number)

    def lose_connection(self) -> None:
        """The connection to the broker breaks: what Celery's consumer does then."""
        self.post(self._lose_connection)

    def _lose_connection(self) -> None:
        if self.ends:
            return
        broker.broker.connection_ended(self.channel)
        self.connection = None
        if self.app.conf.worker_cancel_long_running_tasks_on_connection_loss:
            for request in self._mine(list(worker_state.active_requests)):
                if request.task.acks_late and not request.acknowledged:
                    request.cancel(self.pool)
        active = worker_state.active_requests
        for request in self._mine(list(worker_state.reserved_requests)):
            if request not in active:
                worker_state.requests.pop(request.id, None)
                worker_state.reserved_requests.discard(request)
        # Celery 5.5 knows of none.
        for request in self._mine(list(getattr(worker_state, "scheduled_requests", ()))):
            self.timer.cancel(request._eta_timer_entry)
            worker_state.scheduled_requests.discard(request)
            if request not in active and request not in worker_state.reserved_requests:
                worker_state.requests.pop(request.id, None)
        self.pool.flush()
        baton.world.sleep(baton.world.delays.uniform(0.01, 1.0))
        self._connect()

    def shut_down(self) -> None:
        """End it warm: by TERM."""
        self.ends = True
        self._wakes.set()

    def shut_down_cold(self, soft: float) -> None:
        """End it by QUIT: what runs is cancelled, after the seconds of a soft shutdown."""
        self.shut_down()
        baton.world.after(soft, lambda: self.post(self._cancel))

    def _cancel(self) -> None:
        """Celery's `cancel_active_requests`."""
        for request in self._mine(list(worker_state.active_requests)):
            if not (request.task.acks_late and request.acknowledged):
                more = {"emit_retry": not request.task.acks_late} if SAYS_RETRY else {}
                request.cancel(self.pool, **more)
        self.is_cold = True

    def _end(self) -> None:
        for child in list(self.pool.children):
            baton.world.kill_child(child)  # what it has may have begun after all was cancelled
        self.channel.ended_well = True
        broker.broker.connection_ended(self.channel)
        once.run_exits()
        baton.world.note("ENDED: the worker")
        baton.world.kill(self.process)

    def _gone(self) -> None:
        if self in broker.broker.workers:
            broker.broker.workers.remove(self)
        self.ends = True
        broker.broker.connection_ended(self.channel)


#: What Celery and the package import when they need it first.
LATER = (
    "celery.app.amqp", "celery.app.events", "celery.apps.worker", "celery.backends.rpc",
    "celery.events.receiver", "celery.fixups.django", "celery.loaders.app",
    "celery.worker.strategy",
    "celery_redislock.app.neighbours", "celery_redislock.tasks.reserve",
    "celery_redislock.tasks.tracer", "celery_redislock.worker.request",
    "celery_redislock.worker.sweeper",
)  # fmt: skip


def prepare() -> None:
    """What a worker does once for the interpreter: imports, and Celery's stack protection."""
    for name in LATER:
        importlib.import_module(name)
    # Else they read what is installed for each app, and for each thread.
    imports.entry_points = cache(imports.entry_points)
    importlib.metadata.version = cache(importlib.metadata.version)
    tasks.make_app([], None, 1.0).backend  # noqa: B018  which warms these
    trace._install_stack_protection()
