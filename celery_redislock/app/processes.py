"""Whether a process has ended, and a sleep that its end cuts short, by what the platform has.

Where the kernel has pidfds (Linux 5.3) it wakes the sleeper. Elsewhere the sleeper looks again and
again: a killed child remains as a zombie until the pool reaps it, which Celery may do only after
seconds, so we ask without reaping it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import sys
from collections.abc import Collection
from typing import Any, Final

from ..lock.greenlets import patched_by

#: Seconds between looks at a process for which there is no pidfd.
LOOK_EVERY: Final = 0.1


def can_poll() -> bool:
    """Whether a thread of this process may sleep in `poll`."""
    return patched_by() is None and hasattr(select, "poll")


class Watched:
    """A process whose end is awaited."""

    def __init__(self, pid: int, wakes: bool) -> None:
        self.fd = -1  # a pidfd; -1 if not wanted, not known to this system, or the process is gone
        if wakes:
            with contextlib.suppress(AttributeError, OSError):
                self.fd = os.pidfd_open(pid)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Pollable:
    """A bell whose sleep also ends when a watched process ends that has a pidfd."""

    def __init__(self, watched: dict[int, Watched]) -> None:
        self._watched = watched
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def ring(self) -> None:
        with contextlib.suppress(OSError):  # the pipe is full: it has rung often enough
            os.write(self._write, b".")

    def wait(self, seconds: float) -> Collection[int]:
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        for each in list(self._watched.values()):
            if each.fd >= 0:
                poll.register(each.fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(seconds * 1000)}
        if self._read in ready:
            os.read(self._read, 4096)
        return ready

    def __del__(self) -> None:
        os.close(self._read)
        os.close(self._write)


def is_alive(pid: int) -> bool:
    """Whether any code of the process may still run."""
    if sys.platform == "win32":
        return _runs_on_windows(pid)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    with contextlib.suppress(OSError):  # not our child, or reaped meanwhile
        return _waits_to_be_reaped(pid)
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False  # no /proc here: its parent reaps it soon


def _waits_to_be_reaped(pid: int) -> bool:
    """Whether this child has ended, without reaping it. Raises `OSError` if that is not known."""
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return _waits_by_libc(pid)


def _waits_by_libc(pid: int) -> bool:
    """The same with the C function, which Python has for macOS only from 3.13 on."""
    p_pid, exited, no_wait = 1, getattr(os, "WEXITED", 0x4), getattr(os, "WNOWAIT", 0x20)
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "waitid"):
        raise OSError("no waitid")
    # A siginfo_t takes at most 128 bytes. It begins with an int, which stays 0 if nothing ended.
    info = (ctypes.c_int * 64)()
    if libc.waitid(p_pid, pid, info, exited | os.WNOHANG | no_wait):
        raise OSError(ctypes.get_errno(), "waitid")
    return info[0] != 0


def _runs_on_windows(pid: int) -> bool:
    """There `os.kill(pid, 0)` would send Ctrl-C."""
    kernel: Any = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]
    synchronize, access_denied, wait_timeout = 0x00100000, 5, 0x102
    kernel.OpenProcess.restype = ctypes.c_void_p
    handle = kernel.OpenProcess(synchronize, False, pid)
    if not handle:
        return bool(ctypes.get_last_error() == access_denied)  # type: ignore[attr-defined]
    try:
        return bool(kernel.WaitForSingleObject(ctypes.c_void_p(handle), 0) == wait_timeout)
    finally:
        kernel.CloseHandle(ctypes.c_void_p(handle))
