"""Whether a process has ended. A killed child remains as a zombie until the pool reaps it, which
Celery may do only after seconds: so the kernel is asked, without reaping it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys


def is_alive(pid: int) -> bool:
    """Whether any code of the process may still run. True if that cannot be told."""
    if sys.platform == "win32":
        return True  # there `os.kill(pid, 0)` would send Ctrl-C, and pools have no processes
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with contextlib.suppress(OSError, AttributeError):  # not our child, or reaped; no such call
        return not _waits_to_be_reaped(pid)
    return True


def _waits_to_be_reaped(pid: int) -> bool:
    """Whether this child has ended. Its status stays for the pool, which reaps it.

    Raises:
        OSError: it is no child of this process, or this system cannot tell.
    """
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return _waits_by_libc(pid)


def _waits_by_libc(pid: int) -> bool:
    """The same with the C function: Python has none for macOS before 3.13. The constants that it
    does not give there are macOS's.
    """
    p_pid, exited, no_wait = 1, getattr(os, "WEXITED", 0x4), getattr(os, "WNOWAIT", 0x20)
    libc = ctypes.CDLL(None, use_errno=True)
    # A siginfo_t takes at most 128 bytes. It begins with an int, which stays 0 if nothing ended.
    info = (ctypes.c_int * 64)()
    if libc.waitid(p_pid, pid, info, exited | os.WNOHANG | no_wait):
        raise OSError(ctypes.get_errno(), "waitid")
    return info[0] != 0
