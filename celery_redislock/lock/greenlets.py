"""Native threads in a process where gevent or eventlet turn threads into greenlets.

Our threads stay native: otherwise a greenlet that computes would stop them. They may talk to Redis,
but have a greenlet log, send a signal or call users' code: for that they would take greenlets'
locks, and a greenlet that waits for one that a native thread has may wait for ever.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final, Protocol

from ..protocol.log import logger
from ..protocol.platform import at_fork, notice_fork

Call = Callable[[], Any]


def patched_by(*modules: str) -> str | None:
    """What has patched threads here, or one of these modules: "gevent", "eventlet", or None."""
    if "gevent.monkey" in sys.modules:
        from gevent import monkey

        if any(map(monkey.is_module_patched, modules or ("threading", "_thread"))):
            return "gevent"
    if "eventlet.patcher" in sys.modules:
        from eventlet import patcher

        if any(map(patcher.is_monkey_patched, modules or ("thread",))):
            return "eventlet"
    return None


# -- native threads ---------------------------------------------------------------------------


@cache
def _native(by: str) -> Any:
    """The interpreter's own `_thread`, where it is patched."""
    if by == "gevent":
        from gevent import monkey

        names = ("allocate_lock", "get_ident", "start_new_thread")
        originals = monkey.get_original("_thread", names)
        return type("native", (), dict(zip(names, map(staticmethod, originals), strict=True)))
    from eventlet import patcher

    return patcher.original("_thread")


#: The idents of our native threads that run beside greenlets. No thread survives a fork.
_beside_greenlets: Final[set[int]] = set()
at_fork(after_in_child=_beside_greenlets.clear)


def native_lock() -> Any:
    """A mutex that native threads and greenlets may share. Its holder must not switch greenlets."""
    by = patched_by()
    return _native(by).allocate_lock() if by else threading.Lock()


def start_native(run: Call, name: str) -> int:
    """Start a native daemon thread, also where threads are patched. Returns its ident."""
    by = patched_by()
    if by:
        native = _native(by)

        def run_beside() -> None:
            _beside_greenlets.add(native.get_ident())
            run()

        return int(native.start_new_thread(run_beside, ()))
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread.ident or 0


def _is_beside_greenlets() -> bool:
    if not _beside_greenlets:
        return False
    by = patched_by()
    return by is not None and _native(by).get_ident() in _beside_greenlets


class Alarm:
    """A sleep that another thread or greenlet can end. It is made of the mutex that it is given."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._lock.acquire()

    def wait(self, seconds: float) -> None:
        """Sleep for this many seconds, or until the alarm rings. Do not sleep if it has rung."""
        self._lock.acquire(timeout=seconds)

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # already rung
            self._lock.release()


# -- hubs -------------------------------------------------------------------------------------


class Hub(Protocol):
    """What runs the greenlets of a thread."""

    def call_soon(self, call: Call) -> bool:
        """Make this call, which must not wait, in the hub's thread. False if the hub is gone."""

    def spawn(self, call: Call) -> None:
        """Make this call in a new greenlet. Only the hub's thread may ask for that."""


class _Gevent:
    def __init__(self) -> None:
        import gevent

        self._hub = gevent.get_hub()
        self._spawn = gevent.spawn

    def call_soon(self, call: Call) -> bool:
        try:
            self._hub.loop.run_callback_threadsafe(call)
        except (AttributeError, ValueError):  # the hub's thread has ended
            return False
        return True

    def spawn(self, call: Call) -> None:
        self._spawn(call)


class _Eventlet:
    """Eventlet has no such method, so a greenlet waits for a pipe, as in `eventlet.tpool`."""

    def __init__(self) -> None:
        import eventlet

        self._spawn = eventlet.spawn_n
        self._calls: deque[Call] = deque()
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self.spawn(self._run)

    def call_soon(self, call: Call) -> bool:
        self._calls.append(call)
        with contextlib.suppress(BlockingIOError):  # the pipe is full: the greenlet will wake
            # Use writev here and readv below: eventlet has made `os.write` wait in its hub.
            os.writev(self._write, [b"."])
        return True

    def spawn(self, call: Call) -> None:
        self._spawn(call)

    def _run(self) -> None:
        from eventlet.hubs import trampoline

        buffer = bytearray(4096)
        while True:
            trampoline(self._read, read=True)
            with contextlib.suppress(BlockingIOError):
                os.readv(self._read, [buffer])
            while self._calls:
                self._calls.popleft()()


#: One `_Eventlet` for each hub of eventlet.
_eventlets: Final[weakref.WeakKeyDictionary[Any, _Eventlet]] = weakref.WeakKeyDictionary()

# A forked child shares the pipe with its parent, which would read what is meant for the child.
at_fork(after_in_child=_eventlets.clear)


def hub_here() -> Hub | None:
    """The hub of this greenlet; None where threads are not patched."""
    by = patched_by()
    if by == "gevent":
        return _Gevent()
    if by == "eventlet":
        from eventlet.hubs import get_hub

        notice_fork()
        hub = get_hub()
        return _eventlets.get(hub) or _eventlets.setdefault(hub, _Eventlet())
    return None


# -- from native threads to greenlets ---------------------------------------------------------


class Teller:
    """Makes calls that log or run users' code, one after another: at once, or, for a native thread
    beside greenlets, in a greenlet, as soon as the running one lets others run.
    """

    def __init__(self, hub: Hub | None) -> None:
        self._hub = hub
        self._calls: deque[Call] = deque()
        self._tells = False

    def tell(self, call: Call) -> None:
        """Make this call, which logs or runs users' code."""
        if self._hub is None or not _is_beside_greenlets():
            call()
            return
        self._calls.append(call)
        if not self._hub.call_soon(self._wake):
            self._run()

    def tell_bug(self, where: str, error: Exception) -> None:
        """Log an unexpected error in a thread, which continues."""
        line = "redislock: unexpected error %s; continuing"
        self.tell(partial(logger.error, line, where, exc_info=error))

    def _wake(self) -> None:
        if not self._tells:
            self._tells = True
            assert self._hub is not None
            self._hub.spawn(self._run)

    def _run(self) -> None:
        try:
            while self._calls:
                try:
                    self._calls.popleft()()
                except Exception:
                    logger.exception(
                        "redislock: unexpected error while reporting a lock; continuing"
                    )
        finally:
            self._tells = False


#: The modules that patch threads. A lock looks for greenlets only if one of them is imported.
PATCHERS: Final = frozenset({"gevent.monkey", "eventlet.patcher"})
AT_ONCE: Final = Teller(None)


def teller_here() -> Teller:
    """A teller that makes its calls in this greenlet's thread."""
    hub = hub_here()
    return AT_ONCE if hub is None else Teller(hub)
