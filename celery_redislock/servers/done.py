"""The done notes in a server: what a copy of a message must do. `notes` has their format."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from ..protocol import notes
from ..protocol.claims import Claim, to_ms
from ..protocol.keys import head_of
from . import lua
from .server import UNKNOWN_TTL, Server

#: The most notes deleted in one round trip. The server does nothing else meanwhile.
AT_ONCE: Final = 500


class DoneNotes:
    """The done notes of one server, beside those that scripts leave."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def mark_done(self, claim: Claim, kind: str = notes.EXPECTS_RESULT) -> None:
        """Leave the done note of an attempt that ends without the lock.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        self._note(claim, notes.encode(kind, claim.sent))

    def _note(self, claim: Claim, text: str, seconds: float = 0.0) -> None:
        command = ("SET", claim.done_key, text, "PX", to_ms(seconds + claim.done_ttl))
        self._server.ask([command], claim.keys.lock, claim.ttl)

    def note_replaced(self, claim: Claim, attempt: int, by: str, seconds: float) -> None:
        """Tell a later attempt of this task, which is on its way, not to run.

        Args:
            claim: the claim of this attempt.
            attempt: the later one.
            by: the task that replaces it, as `holders.successor_text`.
            seconds: until it arrives.

        Raises:
            LockUnavailable: the server did not answer.
        """
        later = dataclasses.replace(claim, attempt=attempt)
        self._note(later, notes.encode_replaced(by), seconds)

    def forget(self, keys: Sequence[str], most: float) -> None:
        """Delete these notes: the broker will not deliver a copy of their messages. Notes that are
        lasting, or that tell of a replaced task, stay: see `notes`.

        Args:
            keys: their keys.
            most: seconds to live; a note that has more was left later, and stays.

        Raises:
            LockUnavailable: the server did not answer.
        """
        for begin in range(0, len(keys), AT_ONCE):
            buckets: dict[str, list[str]] = {}
            for key in keys[begin : begin + AT_ONCE]:
                buckets.setdefault(head_of(key), []).append(key)
            calls = [(tuple(each), (to_ms(most),)) for each in buckets.values()]
            with self._server.connection("", UNKNOWN_TTL) as connection:
                for reply in self._server.call_all(connection, lua.FORGET, calls):
                    if isinstance(reply, Exception):
                        raise reply
