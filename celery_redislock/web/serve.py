"""Serves the page by itself, until it is interrupted: `celery redislock web`."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from .app import Web
from .guard import LOCAL

#: Seconds after which a connection that asks for nothing is closed.
SILENT: Final = 20.0
#: Seconds for which the server, when it ends, waits for responses that are on their way.
PATIENCE: Final = 2


class Protocol(H11Protocol):
    """Ends connections that ask for nothing: uvicorn waits for ever for the rest of a request."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._asked_before, self._last = True, self.cycle
        self._look_again()

    def _look_again(self) -> None:
        if self.transport.is_closing():
            return
        is_answered = self.cycle is None or self.cycle.response_complete
        asks, self._last = not is_answered or self.cycle is not self._last, self.cycle
        if not asks and not self._asked_before:
            self.transport.close()
            return
        self._asked_before = asks
        self.loop.call_later(SILENT / 2, self._look_again)


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=128)


def server_of(web: Web) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(
            web,
            http=Protocol,
            log_level="warning",
            access_log=False,  # a log would show the arguments that are in keys
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=PATIENCE,
        )
    )


def serve(web: Web, listening: socket.socket) -> None:
    """Serve until interrupted."""
    with contextlib.suppress(KeyboardInterrupt):
        server_of(web).run(sockets=[listening])


def hosts_of(host: str, allowed: Sequence[str]) -> list[str]:
    """The host names at which a server that listens at `host` answers."""
    own = [] if host in ("", "0.0.0.0", "::") else [host]  # noqa: S104  the addresses of all
    return [*LOCAL, *own, *allowed]
