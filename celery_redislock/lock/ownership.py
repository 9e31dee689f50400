"""Whose an acquisition of an `AsyncRedisLock` is: the requests that a task made, and those from
which it has its context.

A request is noted when the lock is asked for, not when it is acquired: a context variable that
another task sets does not come back, and in Python 3.10 and 3.11 `asyncio.wait_for` makes such a
task.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Coroutine, Iterator
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

#: A task of asyncio; None outside of tasks.
Task: TypeAlias = "weakref.ref[asyncio.Task[Any]] | None"


class Request:
    """A request for a lock. What was acquired for it is kept as long as a context has it."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.work: Callable[[], Coroutine[Any, Any, Any] | None] = lambda: None
        self.acquired: Callable[[], Any] = lambda: None

    @property
    def held(self) -> Any:
        """What was acquired for it and not released, even if it was lost."""
        acquired = self.acquired()
        return None if acquired is None or acquired._is_ended else acquired

    @property
    def is_open(self) -> bool:
        """Whether the coroutine has not ended. It may never have begun."""
        work = self.work()
        return work is not None and getattr(work, "cr_frame", None) is not None

    def is_of_another(self, task: Task) -> bool:
        """Whether another task asked, and runs."""
        return self.task is not task and runs(self.task)


class _Requests(dict[weakref.ref[Any], tuple[Request, ...]]):
    """By lock, the last request first. Never changed, only replaced: contexts share it."""


#: These requests, or a weak reference to them. See `out_of_sight`.
_requests: Final[ContextVar[_Requests | weakref.ref[_Requests]]] = ContextVar("redislock_requests")


def _known() -> _Requests:
    """The requests that this context knows."""
    known = _requests.get(None)
    return (known() if isinstance(known, weakref.ref) else known) or _Requests()


def this_task() -> Task:
    """The task that runs. The same task is the same object, as long as somebody has it."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        return None
    return None if task is None else weakref.ref(task)


def runs(task: Task) -> bool:
    """Whether this task has not ended."""
    found = None if task is None else task()
    return found is not None and not found.done()


def note_request(lock: weakref.ref[Any]) -> tuple[Request, list[Request]]:
    """Note in this context that its task asks for this lock from now on. The answer is the request,
    and what the task asked for earlier and holds or may get.
    """
    task = this_task()
    known = {each: requests for each, requests in _known().items() if each() is not None}
    kept = [
        each
        for each in known.get(lock, ())
        if each.held or each.is_open or each.is_of_another(task)
    ]
    request = Request(task)
    _requests.set(_Requests({**known, lock: (request, *kept)}))
    return request, [each for each in kept if each.task is task]


def requests_here(lock: weakref.ref[Any]) -> list[Request]:
    """The requests for this lock that the task made; if it has made none, those of the task that
    gave it its context. The last request comes first.

    A task that has ended and holds nothing does not count: a test and its set-up share a context.
    """
    requests, task = _known().get(lock, ()), this_task()
    if not any(each.task is task for each in requests):
        task = next((each.task for each in requests if runs(each.task) or each.held), None)
    return [each for each in requests if each.task is task]


@contextlib.contextmanager
def out_of_sight() -> Iterator[None]:
    """A context that does not keep its requests: connections and timers that are made here would.

    Tasks may share a context (`create_task(..., context=)`): they see the requests all the same,
    and what they ask for meanwhile stays known.
    """
    known = _known()
    unkept = weakref.ref(known)
    _requests.set(unkept)
    try:
        yield
    finally:
        if _requests.get(None) is unkept:  # else another task has asked; or the collector ends this
            _requests.set(known)
