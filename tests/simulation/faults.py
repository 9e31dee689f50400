"""The faults of a world: what begins at a given time, and what ends it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from . import broker, lock_server
from .lock_server import FULL, READ_ONLY

if TYPE_CHECKING:
    from .course import Course
    from .plan import Event


def begin(course: Course, event: Event) -> None:
    """Begin a fault. It is noted in the course, with its end: properties allow for it."""
    which, waits, seconds, share = event.args
    _FAULTS[event.kind](course, event.kind, which, waits, seconds, share)


def _for_a_while(
    course: Course, kind: str, seconds: float, begin: Callable[[], Any], end: Callable[[], Any]
) -> None:
    course.note(f"FAULT: {kind}, for {seconds} s")
    course.happened.append((course.now, course.now + seconds, kind))
    begin()

    def over() -> None:
        course.note(f"OVER: {kind}")
        end()

    course.after(seconds, over)


def _network(name: str) -> Callable[..., None]:
    def fault(
        course: Course, kind: str, which: int, waits: int, seconds: float, share: float
    ) -> None:
        put = partial(setattr, course.network, name)
        _for_a_while(course, kind, seconds, lambda: put(share), lambda: put(0.0))

    return fault


def _busy_children(course: Course) -> list[Any]:
    return [
        child
        for worker in course.workers
        if worker is not None
        for child in worker.pool.children
        if child.job is not None and child.process.is_alive
    ]


def _kill_child(course: Course, kind: str, which: int, waits: int, *more: Any) -> None:
    busy = _busy_children(course)
    if busy:
        child = busy[which % len(busy)]
        course.happened.append((course.now, course.now, kind))
        child.process.dies_after = waits
        child.process.state["kill"] = partial(course.kill_child, child)


def _stop_child(
    course: Course, kind: str, which: int, waits: int, seconds: float, *more: Any
) -> None:
    busy = _busy_children(course)
    if busy:
        child = busy[which % len(busy)]
        course.note(f"FAULT: {child.process} is stopped for {seconds} s")
        course.happened.append((course.now, course.now + seconds, kind))
        course.stop(child.process, seconds)


def _kill_worker(
    course: Course, kind: str, which: int, waits: int, seconds: float, *more: Any
) -> None:
    number = which % len(course.workers)
    course.happened.append((course.now, course.now + seconds, kind))
    course.kill_worker(number)
    course.after(seconds, partial(_start_again, course, number))


def _shut_down(
    course: Course, kind: str, which: int, waits: int, seconds: float, *more: Any
) -> None:
    number = which % len(course.workers)
    worker = course.workers[number]
    assert worker is not None
    course.note(f"FAULT: {worker.process} is shut down{', for a deploy' * (kind == 'deploy')}")
    course.happened.append((course.now, course.now + seconds, kind))
    worker.shut_down()
    course.after(seconds, partial(_start_again, course, number))


def _deploy(
    course: Course, kind: str, which: int, waits: int, seconds: float, share: float
) -> None:
    """A worker ends, and begins again with the new release; or, with some, with the old one. With
    some, what sends has it, too.
    """
    number = which % len(course.workers)
    _shut_down(course, kind, which, waits, seconds)
    course.runs_deployed[number] = waits % 5 > 0
    if which >= 60:
        course.app = course.sends_deployed


def _shut_down_cold(
    course: Course, kind: str, which: int, waits: int, seconds: float, share: float
) -> None:
    number = which % len(course.workers)
    worker = course.workers[number]
    if worker is None or not worker.process.is_alive or worker.ends:
        return
    soft = seconds if share == 0.4 else 0.0
    course.note(f"FAULT: {worker.process} is shut down cold, in {soft} s")
    course.happened.append((course.now, course.now + soft + seconds, kind))
    worker.shut_down_cold(soft)
    course.after(soft + seconds, partial(_start_again, course, number))


def _set_clock(
    course: Course, kind: str, which: int, waits: int, seconds: float, share: float
) -> None:
    """A wall clock is set: the lock server's, or that of a worker's machine."""
    worker = course.workers[which % len(course.workers)]
    is_server = kind == "server's clock"
    assert worker is not None
    clock = course.server.clock if is_server else worker.process.clock
    step = seconds if share == 0.02 or waits % 2 else -seconds
    clock.step += step
    course.note(
        f"FAULT: the clock of {'the lock server' if is_server else worker.process} {step:+} s"
    )
    course.happened.append((course.now, course.now, kind))


def _replica(course: Course, kind: str, which: int, waits: int, seconds: float, *more: Any) -> None:
    """The replica is late, or there is none that answers."""
    put = partial(setattr, course.server, "lag")
    lag = None if kind == "no replica" else (0.02, 0.4)
    _for_a_while(course, kind, seconds, lambda: put(lag), lambda: put(lock_server.LAG))


def _start_again(course: Course, number: int) -> None:
    worker = course.workers[number]
    assert worker is not None
    if worker.process.is_alive:
        if worker.ends:  # it has not ended yet
            course.after(1.0, partial(_start_again, course, number))
        return
    course.start_worker(number)


def _lose_broker(course: Course, kind: str, which: int, *more: Any) -> None:
    worker = course.workers[which % len(course.workers)]
    if worker is not None and worker.process.is_alive:
        course.note(f"FAULT: {worker.process} loses its connection to the broker")
        course.happened.append((course.now, course.now, kind))
        worker.lose_connection()


def _double(course: Course, kind: str, which: int, *more: Any) -> None:
    course.happened.append((course.now, course.now, kind))
    broker.broker.doubles += 1 + which % 3


def _restart(course: Course, kind: str, which: int, waits: int, seconds: float, *more: Any) -> None:
    server = course.server

    def down() -> None:
        server.is_down = True
        server.cut_all()

    def up() -> None:
        server.is_down = False
        server.restart(empty=kind == "restart empty")

    _for_a_while(course, kind, seconds, down, up)


def _fail_over(
    course: Course, kind: str, which: int, waits: int, seconds: float, share: float
) -> None:
    """The last writes do not reach the replica, then the server dies, and the replica leads; with
    some, it answers before it leads.
    """
    server, since = course.server, course.now
    if server.dies is not None or server.is_down:
        return
    server.leave_behind()
    course.note("FAULT: the replica of the lock server gets no more writes")

    def die() -> None:
        if server.dies is None:
            return
        server.dies = None
        course.forgotten.append((since, course.now))
        _for_a_while(course, kind, seconds, down, up)

    def down() -> None:
        server.is_down = True
        server.cut_all()
        if share == 0.4:
            course.after(seconds / 2, answers)

    def answers() -> None:
        if server.is_down:
            server.is_down = False
            server.fail_over()
            server.refuse(READ_ONLY)

    def up() -> None:
        if server.is_down:
            server.is_down = False
            server.fail_over()
        if server.refuses == READ_ONLY:  # also for one before that this one has outlived
            server.refuse(None)

    server.dies = (waits, die)
    course.after(LAG, die)


#: The most seconds of writes that a failover loses.
LAG = 0.3


def _refuses(why: str) -> Callable[..., None]:
    def fault(
        course: Course, kind: str, which: int, waits: int, seconds: float, *more: Any
    ) -> None:
        refuse = course.server.refuse
        _for_a_while(course, kind, seconds, lambda: refuse(why), lambda: refuse(None))

    return fault


def _stop_server(
    course: Course, kind: str, which: int, waits: int, seconds: float, *more: Any
) -> None:
    def stop() -> None:
        course.server.stopped_until = course.now + seconds

    _for_a_while(course, kind, seconds, stop, lambda: None)


def _broker_away(
    course: Course, kind: str, which: int, waits: int, seconds: float, *more: Any
) -> None:
    put = partial(setattr, broker.broker, "is_away")
    _for_a_while(course, kind, seconds, lambda: put(True), lambda: put(False))


_FAULTS: dict[str, Callable[..., None]] = {
    "kill child": _kill_child,
    "stop child": _stop_child,
    "kill worker": _kill_worker,
    "shut down": _shut_down,
    "lose broker": _lose_broker,
    "lose requests": _network("loses_request"),
    "lose replies": _network("loses_reply"),
    "late": _network("delays"),
    "cut": _network("cuts"),
    "double": _double,
    "restart": _restart,
    "restart empty": _restart,
    "fail over": _fail_over,
    "shut down cold": _shut_down_cold,
    "deploy": _deploy,
    "worker's clock": _set_clock,
    "server's clock": _set_clock,
    "no replica": _replica,
    "late replica": _replica,
    "full": _refuses(FULL),
    "read only": _refuses(READ_ONLY),
    "stop server": _stop_server,
    "broker away": _broker_away,
}
