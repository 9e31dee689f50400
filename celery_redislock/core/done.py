"""The done notes in a server: what a copy of a message is to do. What they say is in `notes`."""

from __future__ import annotations

import dataclasses

from . import notes
from .claims import Claim, to_ms
from .server import Server


class DoneNotes:
    """The done notes of one server, those that no script leaves."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def mark_done(self, claim: Claim, kind: str = notes.EXPECTS_RESULT) -> None:
        """Leave the done note of an attempt that ends without the lock.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        self._note(claim, notes.encode(kind, claim.sent))

    def _note(self, claim: Claim, text: str, seconds: float = 0.0) -> None:
        with self._server.connection(claim.keys.lock, claim.ttl) as connection:
            ttl = to_ms(seconds + claim.done_ttl)
            connection.send_command("SET", claim.done_key, text, "PX", ttl)
            connection.read_response()

    def note_replaced(self, claim: Claim, attempt: int, by: str, seconds: float) -> None:
        """Say to a later attempt of this task, which is on its way, that it is not to run.

        Args:
            claim: the claim of this attempt.
            attempt: the later one.
            by: in whose favour, as `holders.successor_text`.
            seconds: until it arrives.

        Raises:
            LockUnavailable: the server did not answer.
        """
        later = dataclasses.replace(claim, attempt=attempt)
        self._note(later, notes.encode_replaced(by), seconds)
