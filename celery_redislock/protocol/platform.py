"""What not every platform has: code that would fail at its import asks here instead."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Final

#: What a forked child does first, in this order.
_in_child: Final[list[Callable[[], Any]]] = []
#: The process that did this last.
_here = os.getpid()
#: By process: a child has its own, and never waits for one that a thread of its parent had locked.
_mutexes: Final[dict[int, threading.RLock]] = {}


def at_fork(after_in_child: Callable[[], Any], **hooks: Callable[[], Any]) -> None:
    """Call these around each fork of this process, as `os.register_at_fork` does; what is for the
    child also if Python did not notice the fork. Where nothing forks, nothing is to be done.
    """
    _in_child.append(after_in_child)
    if hooks and hasattr(os, "register_at_fork"):
        os.register_at_fork(**hooks)


def notice_fork() -> None:
    """Whoever starts a thread of ours, or relies on one or on a connection, calls this first: some
    programs, such as uWSGI, fork without Python's hooks. A child has none of its parent's threads.
    """
    if os.getpid() != _here:
        _reset_after_fork()


def _reset_after_fork() -> None:
    global _here
    pid = os.getpid()
    with _mutexes.setdefault(pid, threading.RLock()):
        if pid != _here:
            for begin_again in _in_child:
                begin_again()
            _here = pid


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=notice_fork)
