"""The page as an ASGI app: its files, the locks as JSON, and one order: to break a lock."""

from __future__ import annotations

import asyncio
import functools
import hmac
import json
import time
from collections.abc import Sequence
from importlib import resources
from typing import Any, Final, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ...app.internals import real_app
from ...app.settings import app_locks
from ...errors import ConfigError, LockUnavailable
from ...protocol.keys import name_of
from ...protocol.log import get_logger
from ..orders import break_slot
from ..survey import Found, one_lock
from ..table import in_order
from .guard import Guard, checked_token, has_token
from .hub import Hub, TooManyViewers
from .look import mark
from .stream import Stream

logger = get_logger()

#: The page's files, and their media types.
FILES: Final = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "format.js": "text/javascript",
    "model.js": "text/javascript",
    "rows.js": "text/javascript",
    "timeline.js": "text/javascript",
    "lock.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
#: The largest body of an order, in bytes.
LARGEST: Final = 65536
#: Seconds between two lines in the log about wrong tokens.
QUIET: Final = 60.0


class Plain(JSONResponse):
    """JSON in ASCII: a label may be a text that UTF-8 cannot encode."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":")).encode("ascii")


class Web:
    """The ASGI app.

    Args:
        app: the Celery app.
        token: the secret that breaking a lock needs; None for a page that only reads.
        hosts: the hosts at which the app answers.
        every: seconds between two looks at the locks.

    Raises:
        ConfigError: an argument, or a setting of the app, is wrong.
    """

    def __init__(self, app: Any, token: str | None, hosts: Sequence[str], every: float) -> None:
        self._app = app = real_app(app)
        app.finalize()
        app_locks(app).require_address()
        if not every > 0:
            raise ConfigError(f"every={every!r} is not accepted; it must be seconds above 0")
        self._token = None if token is None else checked_token(token)
        self._wrong_tokens, self._quiet_until = 0, float("-inf")
        self._hub = Hub(app, every, may_break=token is not None)
        routes = [
            Route("/", self._page),
            Route("/static/{name}", _file),
            Route("/api/locks", self._locks),
            Route("/api/lock", self._lock),
            Route("/api/stream", self._stream),
            Route("/api/locks/break", self._break, methods=["POST"]),
        ]
        handlers: Any = {LockUnavailable: _unavailable, HTTPException: _refused}
        self._asgi = Guard(Starlette(routes=routes, exception_handlers=handlers), hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._asgi(scope, receive, send)

    def close(self) -> None:
        """End all streams."""
        self._hub.close()

    # -- the pages and data -------------------------------------------------------------------

    async def _page(self, request: Request) -> Response:
        return _read("index.html", "text/html")

    async def _locks(self, request: Request) -> Response:
        found = in_order(await self._hub.found(), "held")
        return Plain([each.to_dict() for each in found])

    async def _lock(self, request: Request) -> Response:
        key, name = (request.query_params.get(what) for what in ("key", "name"))
        if key is not None:
            name = name_of(self._hub.locks.prefix, key)
        if name is None:
            raise HTTPException(400, "which lock? give key=..., or name=...")
        return Plain(await self._hub.detail(name))

    async def _stream(self, request: Request) -> ASGIApp:
        if request.method == "HEAD":  # a response without a body has no viewer
            return Response(media_type="text/event-stream")
        try:
            return Stream(self._hub, self._hub.join())
        except TooManyViewers as exc:
            raise HTTPException(503, str(exc)) from exc

    # -- the order ----------------------------------------------------------------------------

    async def _break(self, request: Request) -> Response:
        if self._token is None:
            raise HTTPException(403, "this page only reads: start it with --allow-break")
        where = request.client.host if request.client else "an unknown address"
        if not has_token(request.headers.getlist("authorization"), self._token):
            self._tell_wrong_token(where)
            wanted = {"WWW-Authenticate": "Bearer"}
            raise HTTPException(401, "the token is missing or wrong", wanted)
        key, holder = await _order(request)
        name = name_of(self._hub.locks.prefix, key)
        if name is None:
            raise HTTPException(404, "this is not the key of a lock")
        by = f"the page's user at {where}"
        broken = await asyncio.to_thread(_break_if, self._app, name, key, holder, by)
        self._hub.forget()
        if broken is None:
            raise HTTPException(409, "not broken: another run holds it now, or it is free")
        logger.warning(
            "redislock: %s, held by %s, was broken by %s",
            broken.key, broken.holder or "nobody yet", by,
        )  # fmt: skip
        return Plain({"broken": [broken.to_dict()]})

    def _tell_wrong_token(self, where: str) -> None:
        """Log wrong tokens now and then: somebody may be guessing the token."""
        self._wrong_tokens += 1
        if time.monotonic() < self._quiet_until:
            return
        logger.warning(
            "redislock: the page refused orders whose token is missing or wrong: %d, the last from"
            " %s", self._wrong_tokens, where,
        )  # fmt: skip
        self._wrong_tokens, self._quiet_until = 0, time.monotonic() + QUIET


def _break_if(app: Any, name: str, key: str, holder: str, by: str) -> Found | None:
    """Break the slot if its holder is still the one that was shown. Returns the slot as it was."""
    locks = app_locks(app)
    for each in one_lock(locks, name):
        shown = mark(each)
        if each.key == key and shown is not None and hmac.compare_digest(shown, holder):
            return each if break_slot(locks, each, by) else None
    return None


async def _order(request: Request) -> tuple[str, str]:
    """The key and the holder's mark in the request's body."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "the body must be application/json")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST:
            raise HTTPException(413, "the body is too large")
    try:
        given = json.loads(body)
        key, holder = given["key"], given["holder"]
    except (ValueError, TypeError, KeyError, RecursionError):
        key = holder = None
    if not isinstance(key, str) or not isinstance(holder, str) or not holder.isascii():
        raise HTTPException(
            400, 'the body must be {"key": "...", "holder": "..."}, as /api/lock gives them'
        )
    return key, holder


# -- answers --------------------------------------------------------------------------------------


async def _file(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in FILES:
        raise HTTPException(404, "no such file")
    return _read(name, FILES[name])


@functools.cache
def _text(name: str) -> bytes:
    return (resources.files(__package__) / "static" / name).read_bytes()


def _read(name: str, media_type: str) -> Response:
    return Response(_text(name), media_type=media_type)


async def _unavailable(request: Request, exc: Exception) -> Response:
    reason = cast(LockUnavailable, exc).reason
    return Plain({"error": f"the lock server does not answer: {reason}"}, 503)


async def _refused(request: Request, exc: Exception) -> Response:
    refused = cast(HTTPException, exc)
    return Plain({"error": refused.detail}, refused.status_code, refused.headers)
