"""Finds out what a server allows this user. Changes nothing there."""

from __future__ import annotations

from collections.abc import Sequence

from redis.exceptions import NoPermissionError

from .scripts import MARK
from .server import Server


class Rights:
    """The rights of this user in one server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def may(self, commands: Sequence[Sequence[str]]) -> list[bool] | None:
        """Whether this user may run each of these commands. Runs no command. None if the server
        cannot say: it is older than Redis 7, or does not allow scripts.
        """
        script = "return redis.acl_check_cmd and redis.acl_check_cmd(unpack(ARGV)) and 1 or 0"
        known = "return redis.acl_check_cmd and 1 or 0"
        (can_say,) = self._server.replies([("EVAL", known, 0)], errors=True)
        if can_say != 1:
            return None
        replies = self._server.replies(
            [("EVAL", script, 0, *command) for command in commands], errors=True
        )
        # An error means that the server does not know the command.
        return [reply == 1 for reply in replies]

    def may_mark(self) -> bool:
        """Whether a restart of the server is noticed though it does not tell its id. See `MARK`."""
        (reply,) = self._server.replies([("EVAL", MARK % "", 0)], errors=True)
        return isinstance(reply, bytes)

    def denied(self, commands: Sequence[Sequence[str]]) -> list[bool]:
        """Whether the server denies this user each of these commands. Runs the commands, so they
        must not change anything.
        """
        replies = self._server.replies(commands, errors=True)
        return [isinstance(reply, NoPermissionError) for reply in replies]
