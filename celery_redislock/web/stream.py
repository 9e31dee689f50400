"""Server-sent events: a response that goes on until the viewer leaves or the server ends."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from typing import Final

from starlette.types import Receive, Scope, Send

from .hub import Hub, Viewer

#: Seconds of silence after which something is sent, for proxies that close silent connections.
PING: Final = 15.0
#: Seconds for which a message may be on its way. A viewer that does not take it, such as a machine
#: that sleeps, has left; it joins again when it wakes.
STALLED: Final = 30.0
#: The last header is for nginx, which otherwise buffers the stream.
HEADERS: Final = [(b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no")]
COMPRESSED: Final = [*HEADERS, (b"content-encoding", b"gzip"), (b"vary", b"accept-encoding")]


class Stream:
    """The response to one viewer, which has joined the hub already.

    Args:
        hub: the hub.
        viewer: the viewer.
        compressed: compress it by gzip.
    """

    def __init__(self, hub: Hub, viewer: Viewer, *, compressed: bool = False) -> None:
        self._hub = hub
        self._viewer = viewer
        self._gzip = zlib.compressobj(level=1, wbits=31) if compressed else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        telling = asyncio.ensure_future(self._tell(send))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait((telling, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._hub.leave(self._viewer)
            for each in (telling, leaving):
                each.cancel()
            for each in (telling, leaving):
                # It is no error if the viewer left in the middle of a message.
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await each

    async def _tell(self, send: Send) -> None:
        headers = HEADERS if self._gzip is None else COMPRESSED
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        with contextlib.suppress(asyncio.TimeoutError):  # the viewer takes nothing
            while (body := await self._next()) is not None:
                if self._gzip is not None:
                    body = self._gzip.compress(body) + self._gzip.flush(zlib.Z_SYNC_FLUSH)
                message = {"type": "http.response.body", "body": body, "more_body": True}
                await asyncio.wait_for(send(message), STALLED)
        self._hub.leave(self._viewer)
        rest = b"" if self._gzip is None else self._gzip.flush()
        await send({"type": "http.response.body", "body": rest})

    async def _next(self) -> bytes | None:
        """The bytes to send next; None at the end."""
        try:
            text = await asyncio.wait_for(self._viewer.get(), PING)
        except asyncio.TimeoutError:
            return b": nothing new\n\n"
        return None if text is None else f"data: {text}\n\n".encode()


async def _left(receive: Receive) -> None:
    """Return when the viewer has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
