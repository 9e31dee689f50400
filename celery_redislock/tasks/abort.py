"""Raises `LockLost` inside a running body, from the heartbeat's thread.

How depends on where the body runs. In a process's main thread (prefork, solo) a signal does it,
which also ends a blocking call; a thread (threads pool) raises it at its next bytecode, a gevent
greenlet at its next switch. Without such a signal (Windows) the main thread is treated as any other
thread.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from typing import Any, Final

from ..errors import LockLost
from ..lock.greenlets import hub_here, native_lock, patched_by
from ..protocol.log import logger

_SIGNAL: Final[Any] = getattr(signal, "SIGUSR2", None)


class Abort:
    """Raises in the body that the current thread, or greenlet, is about to run."""

    is_over = False  # the body has ended, and nothing will be raised

    def __init__(self) -> None:
        self._mutex = native_lock()
        self._armed = False
        self._fired = False
        self._target: Any = None

    def arm(self) -> None:
        """From here on `fire` raises."""
        self._target = _target(self)
        self._armed = True

    def disarm(self) -> None:
        """From here on `fire` does nothing. An error that is not yet raised is cancelled."""
        with self._mutex:
            self._armed = False
            fired = self._fired
        if fired and self._target is not None:
            try:  # noqa: SIM105  a call to `suppress` may be where it is raised
                self._target.call_off()
            except LockLost:
                pass
        self.is_over = True

    def fire(self) -> None:
        """Raise `LockLost` in the body. Does nothing before `arm` and after `disarm`."""
        with self._mutex:
            if not self._armed or self._fired:
                return
            self._fired = True
            if self._target is not None:
                self._target.throw()
                return
        logger.error("redislock: on_lock_lost='abort' cannot end a body in this pool")


def _target(abort: Abort) -> Any:
    by = patched_by()
    if by == "gevent":
        return _Greenlet()
    if by == "eventlet":
        return None  # it has no way to wake its hub from another thread
    if threading.current_thread() is threading.main_thread() and _install_handler():
        return _MainThread(abort)
    return _Thread()


class _Thread:
    def __init__(self) -> None:
        self._ident = ctypes.c_ulong(threading.get_ident())

    def throw(self) -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(self._ident, ctypes.py_object(LockLost))

    def call_off(self) -> None:
        # Do not set None: Python would believe for ever that an exception is pending, and check at
        # every call; under a profiler Python 3.11 then hangs. A pending one is raised at once, in
        # this loop or before it.
        try:
            for _ in range(10):
                pass
        except LockLost:
            pass


class _Greenlet:
    def __init__(self) -> None:
        import gevent

        self._greenlet = gevent.getcurrent()
        self._hub = hub_here()
        self._pending = False

    def throw(self) -> None:
        self._pending = True
        assert self._hub is not None
        self._hub.call_soon(self._throw)

    def _throw(self) -> None:
        # This runs in the hub, so nothing comes in between. `gevent.kill` would throw a little
        # later, when the body may have ended.
        if self._pending and not self._greenlet.dead:
            self._greenlet.throw(LockLost())

    def call_off(self) -> None:
        self._pending = False


class _MainThread:
    #: The abort that the main thread is to raise next, if any.
    due: Abort | None = None

    def __init__(self, abort: Abort) -> None:
        self._abort = abort

    def throw(self) -> None:
        _MainThread.due = self._abort
        ident = threading.main_thread().ident
        assert ident is not None
        signal.pthread_kill(ident, _SIGNAL)

    def call_off(self) -> None:
        _MainThread.due = None


def _handler(signum: int, frame: Any) -> None:
    # Stays installed: the default action of a late signal would end the process.
    due, _MainThread.due = _MainThread.due, None
    if due is not None:
        raise LockLost


def _install_handler() -> bool:
    """Install our handler, unless the user has one. Returns whether ours is installed."""
    if _SIGNAL is None or not hasattr(signal, "pthread_kill"):
        return False
    current = signal.getsignal(_SIGNAL)
    if current is _handler:
        return True
    if current is not signal.SIG_DFL:
        return False
    signal.signal(_SIGNAL, _handler)
    return True
