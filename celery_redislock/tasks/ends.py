"""How a delivery ends, and the exceptions by which it ends without its body."""

from __future__ import annotations

import enum
from datetime import timedelta
from typing import Any, Final

from celery.exceptions import Ignore

from ..protocol.checks import SECONDS, checked


class End(enum.Enum):
    """How a delivery ends: docs/inside/deliveries.md has the table, and a test walks its rows."""

    RAN = ("ran", False)
    TURNED_AWAY = ("turned away", False)
    PUT_OFF = ("put off", True)
    CANNOT_RUN = ("cannot run", False)
    ENDED_BY_CELERY = ("ended by Celery", False)
    COMES_BACK = ("comes back", True)
    UNLOCKED = ("runs without its lock", False)

    def __init__(self, label: str, passes_on: bool) -> None:
        self.label = label
        self.passes_on = passes_on  # its reservation or place moves to the next message


class Skipped(Ignore):
    """Ends a skipped task. Its argument is the result, a `TaskSkipped`, which is stored already."""


class Deferred(Ignore):
    """Ends a delivery whose task was published again."""


class Expired(Ignore):
    """Ends a task that expired before it could be published again. Its result is stored."""


class Waiting(Ignore):
    """Ends a delivery whose task was put into a waiting room. Its argument is the lock's id."""


class AlreadyDone(Ignore):
    """Ends a copy of a message whose task has run, or runs."""


class Unlocked:
    """The value of `self.lock` where no lock was taken. It is never lost, and its fence is 0."""

    key = None
    label = None
    token = None
    ttl = 0.0
    fence = 0
    lost = False

    def ensure(self) -> None:
        """Nothing was locked, so nothing is lost."""

    def describe(self, text: str) -> None:
        """Nothing was locked, so nobody asks what the run is at."""

    def pause(self, seconds: float | timedelta) -> None:
        """Nothing was locked, so nobody is kept waiting. It refuses what a lease refuses."""
        checked("lock.pause", "seconds", seconds, SECONDS)

    def __repr__(self) -> str:
        return "<no lock>"


UNLOCKED: Final = Unlocked()
#: Where the request keeps the lease while the body runs.
LEASE: Final = "_redislock_lease"
#: Where the request keeps the error of its retry, and that error's traceback, until that is sent.
RETRIES: Final = "_redislock_retries"
#: The key in the request's stamp (see `delivery.stamp`) under which is the run that our tracer has
#: begun, until the body is called.
RUN: Final = "run"


class EndInfo:
    """Tells the main process of an end without a body. Celery's own class has a picklable
    traceback, with every code position of Celery's longest function.
    """

    tb = None

    def __init__(self, exception: BaseException, traceback: str = "") -> None:
        self.exception = exception
        self.type = type(exception)
        self.traceback = traceback
        self.internal = not traceback

    @property
    def exc_info(self) -> tuple[Any, Any, Any]:
        """As an `ExceptionInfo` has it."""
        return self.type, self.exception, None

    def __str__(self) -> str:
        return repr(self.exception)
