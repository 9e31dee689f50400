"""What is known of a delivery as it goes on: the message, how it ends, how its body ended. Values
only: a method returns the next state, and does nothing.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Final, NamedTuple, TypeAlias

from celery.exceptions import Retry

from ..app.delivery import Delivery
from ..protocol import notes, past
from ..protocol.claims import Busy
from .ends import End

# -- how the delivery goes on in Celery -------------------------------------------------------


class Ends(NamedTuple):
    """The delivery ends without Celery's tracer, by an exception that Celery takes for its own."""

    error: BaseException
    end: End = End.TURNED_AWAY


class Fails(NamedTuple):
    """The task fails with this error where its body would run, as all of Celery's tasks do."""

    error: Exception
    end: End = End.CANNOT_RUN


class Returns(NamedTuple):
    """The task returns this instead of its body's result."""

    value: Any
    end: End = End.TURNED_AWAY


class Runs(NamedTuple):
    """The body runs."""

    end: End = End.RAN


Course: TypeAlias = Ends | Fails | Returns | Runs
RUNS: Final = Runs()


# -- how the body ended -----------------------------------------------------------------------


class Ran(NamedTuple):
    """How the body ended."""

    how: str = past.NOT_RUN  # for the history, see `past`
    note: str = ""  # the done note for copies of the message, see `notes`
    retry: Retry | None = None  # by which the body sent the task's next attempt


NOT_RUN: Final = Ran()
#: While the body runs.
BEGUN: Final = Ran(past.FAILED)


# -- what is known while the lock is asked for ------------------------------------------------


class State(NamedTuple):
    """What is known of a delivery. A later state replaces it."""

    message: Delivery  # with what was learned of it since it came
    may_have_copies: bool = False  # another copy of the message may exist
    copied: bool = False  # the task may have been published again, or put into a waiting room
    again: str = ""  # it runs although this attempt is known to have run before, see `acquire`
    reruns: bool = False  # the task has run before, and its result is missing
    first_busy: Busy | None = None  # the first answer that somebody else has the lock
    parks_as: str = ""  # the member as which the task is being put into the waiting room, or ""
    is_noted: bool = False  # the server has noted that the task ends without a run
    is_counted: bool = False  # the server has counted that, with its answer
    is_too_large: bool = False  # the server did not take the message: it cannot wait in the room

    def learn(self, **known: Any) -> State:
        """With what became known of the message after it came."""
        return self._replace(message=dataclasses.replace(self.message, **known))

    def waits(self) -> State:
        """The task begins to wait, unless it has before."""
        return self if self.message.since is not None else self.learn(since=time.time())

    def arrives(self, began: bool) -> State:
        """With the time at which the task arrived, by the lock server's clock."""
        busy, message = self.first_busy, self.message
        if busy is None or message.received is None or began or message.arrived is not None:
            return self
        # Measure from when we asked: measured from a late reply, this task would look older than
        # it is.
        return self.learn(arrived=busy.at - (busy.sent_at - message.received))

    def parks(self, member: str) -> State:
        """The task is put into the room. From here on it may be published from there, even if the
        answer is lost, or says that it need not wait.
        """
        return self._replace(parks_as=member, copied=True, may_have_copies=True)

    def published(self) -> State:
        """The task is published again. From here on a time limit may end the delivery with that
        message already on its way.
        """
        return self._replace(copied=True, may_have_copies=True)

    def note_of(self, kind: str) -> str:
        """The kind of done note: a lasting one, if another copy of the message may be left."""
        if kind == notes.PUBLISHING and not self.may_have_copies:
            kind = notes.EXPECTS_RESULT  # nobody notes later that what follows is published
        message = self.message
        is_copied = message.copied or self.copied or message.fanout
        return notes.lasting(kind) if is_copied else kind
