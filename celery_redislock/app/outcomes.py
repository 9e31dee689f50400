"""The outcomes of a task and its lock, reported as a log line, a signal, and a Celery event. The
package `lock` only logs what a lease finds out: the lease's owner reports the rest.
"""

from __future__ import annotations

import enum
import logging
from mmap import mmap
from struct import Struct
from typing import Any, Final, NamedTuple

from .. import signals
from ..protocol.clock import clock
from ..protocol.log import fields, logger
from .events import events

#: An outage of the lock server ends tasks by the dozen. One line in so many seconds is an ERROR,
#: and the others are WARNINGs.
BURST: Final = 60.0
_TIME: Final = Struct("d")


class Burst:
    """Whose line is the ERROR, among this process and those that are forked from it."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin a group of processes: this one, and those that it forks from here on."""
        self._said_at = mmap(-1, _TIME.size)

    def take(self) -> bool:
        """Whether it is the caller's. Two that ask in the same microsecond may both have it."""
        (said_at,), now = _TIME.unpack(self._said_at), clock()
        if said_at and now < said_at + BURST:
            return False
        self._said_at[:] = _TIME.pack(now)
        return True


burst: Final = Burst()

_CONFLICT: Final = (signals.lock_conflict, signals.ConflictDetails)
_OMITTED: Final = (signals.lock_omitted, signals.OmittedDetails)


class Outcome(enum.Enum):
    """An outcome that is reported."""

    # How a conflict ended.
    SKIPPED = "skipped", "skipped", logging.INFO, *_CONFLICT
    SKIPPED_WITH_RESULT = "skipped with a result", "skipped", logging.INFO, *_CONFLICT
    DEFERRED = "deferred", "deferred", logging.INFO, *_CONFLICT
    QUEUED = "queued", "queued", logging.INFO, *_CONFLICT
    COALESCED = "coalesced", "coalesced", logging.INFO, *_CONFLICT
    DEBOUNCED = "debounced", "debounced", logging.INFO, *_CONFLICT
    REPLACING = "replacing", "replacing", logging.INFO, *_CONFLICT
    REPLACED = "replaced", "replaced", logging.INFO, *_CONFLICT
    RAISED = "raised", "raised", logging.INFO, *_CONFLICT
    WAITED = "waited", None, logging.INFO, *_CONFLICT
    REDELIVERED = "redelivered", None, logging.INFO, *_CONFLICT
    RETRIED_EARLY = "retried early", None, logging.INFO, *_CONFLICT
    ALREADY_DONE = "already done", None, logging.INFO, *_CONFLICT
    RUNS_ELSEWHERE = "runs elsewhere", None, logging.INFO, *_CONFLICT
    NOT_SENT = "not sent", None, logging.INFO, *_CONFLICT
    # What happened to a run and its lock.
    ACQUIRED = (
        *("acquired", "acquired", logging.DEBUG),
        *(signals.lock_acquired, signals.AcquiredDetails),
    )
    RELEASED = (
        *("released", None, logging.DEBUG),
        *(signals.lock_released, signals.ReleasedDetails),
    )
    LOST = "lost", "lost", logging.ERROR, signals.lock_lost, signals.LostDetails
    RECOVERED = (
        *("recovered", "recovered", logging.WARNING),
        *(signals.lock_recovered, signals.RecoveredDetails),
    )
    EXTENDED = "extended", None, logging.DEBUG, signals.lock_extended, signals.ExtendedDetails
    WAITING = "waiting", None, logging.DEBUG, signals.lock_waiting, signals.WaitingDetails
    # The lock server cannot be asked.
    UNAVAILABLE = "unavailable", "deferred", logging.ERROR
    RUN_UNLOCKED = "run unlocked", None, logging.ERROR, *_OMITTED
    # The call needs no lock.
    NO_LOCK = "no lock", None, logging.INFO, *_OMITTED
    # What happened to a task in a waiting room, or what an operator did.
    EXPIRED = "expired", "revoked"
    DROPPED = "dropped", None, logging.WARNING
    UNTAKEN = "not taken", None, logging.WARNING
    BROKEN = "broken", None, logging.WARNING

    def __init__(
        self,
        label: str,
        event: str | None = None,
        level: int = logging.INFO,
        signal: Any = None,
        details: Any = None,
    ) -> None:
        self.label = label  # in the log, in events, and in `ConflictDetails`
        #: The type of its event, after "task-lock-", or None. Celery's monitors show it as the
        #: task's state, in capitals. A copy of a message whose task runs or has run sends none:
        #: monitors would take its state for that of the run.
        self.event = event
        self.level = level  # of its log line, unless the caller gives another
        self.signal = signal
        self.details = details  # the class of the signal's details


#: The outcomes of a duplicate that is skipped or refused. The scripts, the history
#: and the page count these, and not those that are replaced.
TURNED_AWAY: Final = (Outcome.SKIPPED, Outcome.SKIPPED_WITH_RESULT, Outcome.RAISED)


class Whose(NamedTuple):
    """The lock and the run that a report is about, as far as they are known. If the app does not
    know the task, `task` is only the task's name.
    """

    key: str
    task: Any = None
    task_id: str | None = None
    attempt: int | None = None
    label: str | None = None

    @property
    def run(self) -> dict[str, Any]:
        """The run, for log lines, signals and events."""
        name = self.task if isinstance(self.task, str) else getattr(self.task, "name", None)
        return {
            "task": name,
            "task_id": self.task_id,
            "attempt": self.attempt,
            "label": self.label,
        }


def is_heard(outcome: Outcome) -> bool:
    """Whether anybody would get a report of this outcome. Most are not made, which saves time."""
    is_logged = logger.isEnabledFor(outcome.level)
    return is_logged or events.wanted or bool(outcome.signal.receivers)


def report(
    outcome: Outcome,
    whose: Whose,
    text: str = "",
    *arguments: Any,
    level: int | None = None,
    logged: dict[str, Any] | None = None,
    details: dict[str, Any] | None = None,
    emits: bool = True,
    **facts: Any,
) -> None:
    """Report an outcome: log line, signal and event.

    `text` is the line, "" for none, and `logged` are fields of the line only. `details` are further
    fields of the signal: without them none is sent. `facts` are fields of the line and of the
    event, as `log.fields` takes them; for a conflict also of the signal: the holder, the countdown
    if the task is deferred, the suspension if there is one. Unless `emits`, the outcome's event is
    not sent.
    """
    if details is not None and outcome.signal is signals.lock_conflict:
        facts = {"countdown": None, "suspension": None, **facts}
        holder, because = facts["holder"], "run"
        if facts["suspension"] is not None:
            because = "suspension"
        elif holder is not None and holder.cooling_down:
            because = "pause"
        details = {**facts, "outcome": outcome.label, "because": because}
    level = outcome.level if level is None else level
    if text and logger.isEnabledFor(level):
        extra = fields(outcome.label, whose.key, **whose.run, **facts, **(logged or {}))
        logger.log(level, text, *arguments, extra=extra)
    if emits and events.wanted and outcome.event is not None:
        events.emit(outcome.event, outcome.label, whose.key, whose.task, **whose.run, **facts)
    if details is not None and outcome.signal.receivers:
        report = outcome.details(key=whose.key, **whose.run, **details)
        outcome.signal.send(sender=whose.task, details=report)


def level_in_burst() -> int:
    """The level of a line that names work which was not done, and whose cause is an operator's."""
    return logging.ERROR if burst.take() else logging.WARNING


def report_expired(whose: Whose, why: object, reason: str, *, emits: bool = True) -> None:
    """Report that a task ends as expired for a cause that operators must know, not for a holder."""
    report(
        Outcome.EXPIRED, whose, "redislock: %s[%s] ends as expired without a run: %s",
        whose.run["task"], whose.task_id, why,
        level=level_in_burst(), logged={"reason": reason}, emits=emits,
    )  # fmt: skip
