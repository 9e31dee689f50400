"""What not every platform has: code that would fail at its import asks here instead.

`clock` is in a module of its own, and whether a process has ended is in `app/processes.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


def at_fork(**hooks: Callable[[], Any]) -> None:
    """Call these around each fork of this process, as `os.register_at_fork` does. Where a process
    cannot fork, such as on Windows, nothing is to be done.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**hooks)
