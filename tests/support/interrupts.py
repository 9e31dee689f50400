"""Signals that come at a known place: one that comes at a time may come anywhere."""

from __future__ import annotations

import contextlib
import dis
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

#: After these bytecodes Python looks whether a signal's handler is to be called.
CHECKED = ("CALL", "RESUME", "JUMP_BACKWARD", "JUMP_ABSOLUTE")
#: Seconds between looks at where the main thread is.
EVERY = 0.2


@contextlib.contextmanager
def interrupted(error: type[BaseException], within: str) -> Iterator[None]:
    """Raise an error in the main thread, once, when it waits for a server's answer: in redis-py's
    parsers, of which each has other names. pytest-timeout is off meanwhile.

    Args:
        error: what a handler of a signal raises.
        within: a function that it must have been called from.
    """

    def look(signum: int, frame: FrameType | None) -> None:
        frames = [each for each, _ in traceback.walk_stack(frame)]
        calls = [each.f_code.co_name for each in frames]
        waits = frames[0].f_globals["__name__"].startswith("redis._parsers")
        if (waits and within in calls) or time.monotonic() > give_up:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise error if waits else AssertionError(f"it waits elsewhere: {calls}")

    give_up = time.monotonic() + 60
    handler = signal.signal(signal.SIGALRM, look)
    left, _ = signal.setitimer(signal.ITIMER_REAL, EVERY, EVERY)  # pytest-timeout's
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)
        signal.signal(signal.SIGALRM, handler)


class Interrupt(Exception):
    """What a handler of a signal raises, such as a soft time limit's."""


def each_place(
    call: Callable[[], Any],
    modules: tuple[str, ...],
    error: type[BaseException] = Interrupt,
    step: int = 1,
) -> Iterator[tuple[str, Any]]:
    """Make a call again and again, and raise an error in it once each time: at the first place
    where Python may call a signal's handler, at the second, and so on, until there is none more.

    These places are the beginning of a function, the end of a call, and a jump back. Elsewhere no
    handler is called: not between the body of a `with` and the call of its `__exit__`, say.

    Args:
        call: the call.
        modules: the modules whose places count, by the beginning of their names.
        error: what is raised.
        step: try only each so manieth place.

    Yields:
        Where it was raised, and what the call returned or raised.
    """
    number = 0
    while True:
        where, ended = _interrupted_at(number, call, modules, error)
        if where is None and sys.version_info >= (3, 12):
            # Python 3.12 and later may tell of what a function does only as of its second trace.
            where, ended = _interrupted_at(number, call, modules, error)
        if where is None:
            assert number, "none of it was reached"
            return
        yield where, ended
        number += step


def _interrupted_at(
    number: int, call: Callable[[], Any], modules: tuple[str, ...], error: type[BaseException]
) -> tuple[str | None, Any]:
    left, where = number, None

    def begin(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_globals.get("__name__", "").startswith(modules):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        before = "RESUME"

        def count(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal left, where, before
            if event == "opcode" and where is None:
                is_place = before.startswith(CHECKED)
                before = dis.opname[frame.f_code.co_code[frame.f_lasti]]
                if is_place and not left:
                    where = f"{frame.f_code.co_name}, line {frame.f_lineno}, {before}"
                    raise error(where)
                left -= is_place
            return count

        return count

    before = sys.gettrace()
    sys.settrace(begin)
    try:
        ended = call()
    except Exception as exc:
        ended = exc
    finally:
        sys.settrace(before)
    return where, ended


class CutShort(BaseException):
    """As a soft time limit is, raised from the outside at any place."""


def cut_short_at(step: int, call: Callable[[], Any]) -> bool:
    """Raise in the call where Python would look for a signal for the nth time.

    Returns whether there were that many.
    """
    steps = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal steps
        if event in ("call", "c_return"):
            steps += 1
            if steps == step:
                sys.setprofile(None)
                raise CutShort

    sys.setprofile(count)
    try:  # no context manager: it would make calls of its own
        call()
    except CutShort:
        pass
    finally:
        sys.setprofile(None)
    return steps >= step


def in_a_child(check: Callable[[], None]) -> None:
    """Make this check in a process of its own: what it interrupts may leave threads that stand."""
    if not (pid := os.fork()):
        status = 1
        try:
            check()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
