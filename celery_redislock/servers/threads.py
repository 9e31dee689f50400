"""Threads for what would block an event loop."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from ..errors import LockUnavailable
from ..protocol.clock import clock
from ..protocol.exchange import Call
from ..protocol.platform import at_fork, notice_fork
from .server import Server, Tries

T = TypeVar("T")

#: The most threads that look up hosts and give back.
THREADS: Final = 32
#: More threads than are ever needed.
ANY_NUMBER: Final = 2**31
#: The most calls that are sent to a server together: well below a millisecond of its time each.
AT_ONCE: Final = 500


async def in_thread(ask: Callable[[], T]) -> T:
    """Call this function in a thread of ours, and return its result."""
    return await asyncio.wrap_future(threads.submit(ask))


class _Threads:
    """At most so many threads; the interpreter waits for them when it exits."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._executor: ThreadPoolExecutor | None = None
        at_fork(after_in_child=self._reset_after_fork)

    def _reset_after_fork(self) -> None:
        self._executor = None
        _to_give_back.clear()

    @property
    def is_ending(self) -> bool:
        """Whether the interpreter exits, and waits for the threads."""
        try:
            if self._executor is not None:
                self._executor.submit(int)
        except RuntimeError:
            return True
        return False

    def submit(self, ask: Callable[[], T]) -> Future[T]:
        """Call this in a thread. When the interpreter exits, it is called at once."""
        notice_fork()
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._most, "redislock-async")
        try:
            return self._executor.submit(ask)
        except RuntimeError:  # "cannot schedule new futures after shutdown"
            done: Future[T] = Future()
            try:
                done.set_result(ask())
            except Exception as exc:
                done.set_exception(exc)
            return done


# -- giving back ------------------------------------------------------------------------------


class _Return(NamedTuple):
    """A call that gives something back. See `release_in_background`."""

    call: Call[Any]
    patient: bool
    unheard: Callable[[LockUnavailable], object]


class _Returns:
    """What is to be given back to a server, and the turn of the thread that does so."""

    def __init__(self) -> None:
        self.queue: deque[_Return] = deque()
        self.failure: LockUnavailable | None = None  # of the last time; None if it was answered
        # No mutex: one that another thread holds at a fork stays locked in the child.
        self.turn = ["to give back"]


_to_give_back: Final[weakref.WeakKeyDictionary[Server, _Returns]] = weakref.WeakKeyDictionary()


def release_in_background(
    server: Server,
    *calls: Call[Any],
    patient: bool = False,
    unheard: Callable[[LockUnavailable], object] = lambda failure: None,
) -> None:
    """Have a thread make these calls of one script, which give something back. Thousands that are
    cancelled at a time give back in a few exchanges, and a server that is away costs them one
    timeout together: the interpreter waits for them at its end. So give them together.

    Those that are `patient` are tried for as long as `Server.run`, others once, with all that wait
    by then. `unheard` is called for each call without an answer.
    """
    notice_fork()
    returns = _to_give_back.setdefault(server, _Returns())
    returns.queue.extend(_Return(call, patient, unheard) for call in calls)
    threads.submit(partial(_give_back_all, server, returns))


def _give_back_all(server: Server, returns: _Returns) -> None:
    """Give back all that is there, unless another thread is doing so: it then finds this, too."""
    while returns.queue:
        try:
            turn = returns.turn.pop()
        except IndexError:
            return
        try:
            # The interpreter waits: what comes one by one must not cost a timeout each.
            if returns.failure is None or not threads.is_ending:
                returns.failure = _give_back(server, _taken(returns.queue, AT_ONCE))
            if returns.failure is None:
                continue
            # They came while the server was tried, so they have been tried.
            for each in _taken(returns.queue, len(returns.queue)):
                if each.patient and not threads.is_ending:
                    returns.queue.append(each)
                else:
                    each.unheard(returns.failure)
        finally:
            returns.turn.append(turn)


def _taken(queue: deque[_Return], most: int) -> list[_Return]:
    return [queue.popleft() for _ in range(min(most, len(queue)))]


def _give_back(server: Server, batch: list[_Return]) -> LockUnavailable | None:
    """Give this batch back, to all nodes at a time; the failure if no server answered."""
    by_key: dict[str, list[_Return]] = {}
    for each in batch:
        by_key.setdefault(each.call.keys[0], []).append(each)
    try:
        groups = server.together([*by_key], min(each.call.ttl for each in batch))
    except LockUnavailable as exc:
        groups = []
        for each in batch:
            each.unheard(exc)
        return exc
    parts = [[each for key in group for each in by_key[key]] for group in groups]
    others = [askers.submit(partial(_send, server, part)) for part in parts[1:]]
    failures = [_send(server, parts[0]), *(other.result() for other in others)]
    return failures[-1] if None not in failures else None


def _send(server: Server, part: list[_Return]) -> LockUnavailable | None:
    """Send these calls to the server that has their keys; the failure, if none was answered."""
    began, ttl = clock(), min(each.call.ttl for each in part)
    tries, was_answered = None, False
    while True:
        try:
            answers = server.run_all([each.call for each in part], ttl=ttl)
        except LockUnavailable as exc:
            answers = [exc] * len(part)
        failed = [
            (each, answer)
            for each, answer in zip(part, answers, strict=True)
            if isinstance(answer, LockUnavailable)
        ]
        was_answered = was_answered or len(failed) < len(part)
        part = []
        for each, failure in failed:
            if each.patient:
                part.append(each)
            else:
                each.unheard(failure)
        if not part:
            break
        try:
            if threads.is_ending:
                raise failed[-1][1]
            tries = tries or Tries(server, part[0].call.keys[0], ttl, False, 0.0, began)
            time.sleep(tries.pause_after(failed[-1][1]))
        except LockUnavailable:
            for each in part:
                each.unheard(failed[-1][1])
            break
    return None if was_answered or not failed else failed[-1][1]


threads: Final = _Threads(THREADS)
#: Those that ask lock servers for coroutines: each `InThreads` has only so many of them at a time.
askers: Final = _Threads(ANY_NUMBER)
