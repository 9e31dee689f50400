"""The done note: it tells other copies of a message that an attempt has ended. Does no I/O.

It is a kind and the identity of the message, so that a task that is sent again under the same id is
not taken for a copy. A lasting note stays after the message is acknowledged, for other copies.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from . import holders
from .holders import Holder

#: Seconds for which a done note is kept: copies of the message may have been delivered before the
#: attempt ended.
DONE_TTL: Final = 600.0
#: The attempt has ended. A copy need not look for a result.
ENDED: Final = "0"
#: The task's body has ended. A stored result proves the whole end.
EXPECTS_RESULT: Final = "1"
#: The task's body has ended. Celery publishes what follows, which no stored result will prove.
PUBLISHING: Final = "c"
#: The attempt was replaced before it began, or before its run ended: the copy that meets this note
#: ends it. Once it has ended, or another process stores its result, the note is of a kind above.
REPLACED: Final = "r"
LASTING: Final = "+"
#: In the place of a message's identity: that of none.
NO_MESSAGE: Final = "*"


class Note(NamedTuple):
    """A done note."""

    kind: str  # `ENDED`, `EXPECTS_RESULT` or `PUBLISHING`; or `REPLACED`
    sent: str = ""  # the identity of the attempt's message, "" if it has none
    replaced_by: Holder | None = None  # it replaced the attempt, which must not run

    def is_of_another_message(self, sent: str) -> bool:
        """Whether the note is about another message than the one with this identity."""
        return bool(sent and self.sent and sent != self.sent)

    def is_of(self, sent: str) -> bool:
        """Whether the note is about the message with this identity."""
        return bool(sent) and sent == self.sent


def encode(kind: str, sent: str) -> str:
    """The note's text; "", for no note, if `kind` is ""."""
    return f"{kind}{sent}" if kind else ""


def lasting(kind: str) -> str:
    """The kind for a lasting note of the same kind; "", for no note, if `kind` is ""."""
    return f"{LASTING}{kind}" if kind else ""


def encode_replaced(by: str) -> str:
    """The note that an attempt was replaced by the task in this `holders.successor_text`."""
    return f"{REPLACED}{by}"


def decode(text: bytes) -> Note:
    text = text.removeprefix(LASTING.encode())
    kind, rest = text[:1].decode(errors="replace"), text[1:]
    if kind != REPLACED:
        return Note(kind, rest.decode(errors="replace"))
    by = rest.lstrip(f"{ENDED}{EXPECTS_RESULT}{PUBLISHING}".encode())
    kind = rest.removesuffix(by).decode() or REPLACED
    return Note(kind, replaced_by=holders.successor_of(by) or Holder())
