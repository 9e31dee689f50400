"""The done note: what other copies of a message are told of an attempt that has ended. Pure.

The scripts store and give it as it is. It begins with a kind; the identity of the message follows,
so that a task that is sent again under the same id is not taken for a copy. A `LASTING` note has
that before it all: it stays also when the broker has heard that the message is done, since another
copy of it may be about.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from . import holders
from .holders import Holder

#: The attempt has ended, and nothing of it is to be expected.
ENDED: Final = "0"
#: Its body has ended, and a result is to be expected that proves the rest.
EXPECTS_RESULT: Final = "1"
#: Its body has ended. Celery publishes what comes after it, and stores no result that proves it.
PUBLISHING: Final = "c"
_REPLACED: Final = "r"
LASTING: Final = "+"


class Note(NamedTuple):
    """A done note.

    Attributes:
        kind: `ENDED`, `EXPECTS_RESULT` or `PUBLISHING`.
        sent: the identity of the attempt's message, "" if it has none.
        replaced_by: the attempt is not to run, in favour of this one.
    """

    kind: str
    sent: str = ""
    replaced_by: Holder | None = None

    def is_of_another_message(self, sent: str) -> bool:
        """Whether it tells of another message than the one with this identity."""
        return bool(sent and self.sent and sent != self.sent)


def encode(kind: str, sent: str) -> str:
    """The note's text; "" if `kind` is "", which leaves none."""
    return f"{kind}{sent}" if kind else ""


def lasting(kind: str) -> str:
    """The kind of the same note as a lasting one; "" if it is "", which leaves none."""
    return f"{LASTING}{kind}" if kind else ""


def encode_replaced(by: str) -> str:
    """The text of the note that says by whom an attempt was replaced: `holders.successor_text`."""
    return f"{_REPLACED}{by}"


def decode(text: bytes) -> Note:
    """The note with that text. What an older release wrote has no identity."""
    text = text.removeprefix(LASTING.encode())
    kind, rest = text[:1].decode(errors="replace"), text[1:]
    if kind == _REPLACED:
        return Note(ENDED, replaced_by=holders.successor_of(rest) or Holder())
    return Note(kind, rest.decode(errors="replace"))
