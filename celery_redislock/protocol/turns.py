"""Whose turn it is to do what one thread does at a time."""

from __future__ import annotations

import os

from .clock import clock


class Turn:
    """A turn that one thread, or greenlet, takes at a time.

    It is no mutex, which would stay locked for ever in a child that was forked while another thread
    held it, or after an exception from outside, such as a soft time limit. A turn ends by itself.
    Begin a `try` before you take it, and give it back in the `finally`. If a thread is late, two
    may have the turn: what they do must bear that. In a forked child it is nobody's.
    """

    def __init__(self) -> None:
        #: By process. Each step is one operation on a dict.
        self._taken: dict[int, tuple[object, float]] = {}

    def take(self, mine: object, seconds: float) -> bool:
        """Take the turn for so many seconds at most. Returns whether it was nobody's."""
        taken = (mine, clock() + seconds)
        known = self._taken.setdefault(os.getpid(), taken)
        if known is not taken and clock() >= known[1]:
            self._taken[os.getpid()] = taken  # nobody gave it back
        return self.is_of(mine)

    def is_of(self, mine: object) -> bool:
        """Whether it is this one's turn."""
        known = self._taken.get(os.getpid())
        return known is not None and known[0] is mine

    def give_back(self, mine: object) -> None:
        """End the turn, if it is this one's."""
        if self.is_of(mine):
            self._taken.pop(os.getpid(), None)
