"""The page as an ASGI app: its files, the locks as JSON, and actions."""

from __future__ import annotations

import asyncio
import json
import mimetypes
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from ..errors import ConfigError, LockUnavailable
from ..inspection import states
from ..inspection.about import about
from ..inspection.history import history
from ..inspection.why import why
from .actions import Actions
from .guard import Guard
from .hub import Hub

#: Where the page's files are.
FILES: Final = Path(__file__).parent / "static"
#: What the page's `states.js` has of `inspection.states`.
STATES_SHOWN: Final = ("STATES", "RUNNING", "KEPT", "GOING_ON", "AWAITED", "NO_LOCK")
#: How many runs of one lock are shown.
KEPT_OF_ONE: Final = 200
#: Bytes from which an answer is compressed.
COMPRESSED: Final = 1000
mimetypes.add_type("text/javascript", ".js")  # Windows may have another for it


class Plain(JSONResponse):
    """JSON in ASCII: a label may be a text that UTF-8 cannot encode."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":")).encode("ascii")


class Web:
    """The ASGI app. See `asgi_app` and `Actions`."""

    def __init__(
        self,
        app: Any,
        token: str | None,
        hosts: Sequence[str],
        every: float,
        user_of: Callable[[Any], str | None] | None = None,
    ) -> None:
        self._known = about(app)
        if not every > 0:
            raise ConfigError(f"every={every!r} is not accepted; it must be seconds above 0")
        self._actions = Actions(self._known, token, user_of)
        self._hub = Hub(self._known, every, self._actions.about)
        small = [Middleware(GZipMiddleware, minimum_size=COMPRESSED)]
        routes = [
            Route("/", self._page, middleware=small),
            Route("/static/states.js", _states),
            Mount("/static", StaticFiles(directory=FILES), middleware=small),
            Route("/api/locks", self._locks, middleware=small),
            Route("/api/lock", self._lock, middleware=small),
            Route("/api/history", self._history, middleware=small),
            Route("/api/changes", self._changes, middleware=small),
            Route("/api/locks/{action}", self._act, methods=["POST"]),
        ]
        handlers: Any = {LockUnavailable: _unavailable, HTTPException: _refused}
        self._asgi = Guard(Starlette(routes=routes, exception_handlers=handlers), hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._asgi(scope, receive, send)

    # -- the pages and data -------------------------------------------------------------------

    async def _page(self, request: Request) -> Response:
        return FileResponse(FILES / "index.html")

    async def _locks(self, request: Request) -> Response:
        found = sorted(await self._hub.found(), key=lambda each: -(each.held_for or 0.0))
        return Plain([each.to_dict() for each in found])

    async def _lock(self, request: Request) -> Response:
        return Plain(await self._hub.detail(self._name(request)))

    async def _history(self, request: Request) -> Response:
        name = self._name(request)
        read = partial(history, self._known.app, name=name, limit=KEPT_OF_ONE, running=True)
        runs = await asyncio.to_thread(read)
        return Plain([run.to_dict() for run in runs])

    def _name(self, request: Request) -> str:
        key, name = (request.query_params.get(what) for what in ("key", "name"))
        if key is not None:
            name = self._known.name_of(key)
        if name is None:
            raise HTTPException(400, "which lock? give key=..., or name=...")
        return name

    async def _changes(self, request: Request) -> Response:
        since = request.query_params.get("since", "")
        return Plain(await self._hub.since(int(since) if since.isdecimal() else 0))

    async def _act(self, request: Request) -> Response:
        done = await self._actions.carry_out(request)
        self._hub.forget()
        return Plain(done)


# -- answers --------------------------------------------------------------------------------------


async def _states(request: Request) -> Response:
    """The one list of states, as a module of the page's."""
    known = ((each, getattr(states, each)) for each in STATES_SHOWN)
    text = "".join(f"export const {k} = {json.dumps(v)};\n" for k, v in known)
    return Response(text, media_type="text/javascript")


async def _unavailable(request: Request, exc: Exception) -> Response:
    return Plain({"error": why(cast(LockUnavailable, exc))}, 503)


async def _refused(request: Request, exc: Exception) -> Response:
    refused = cast(HTTPException, exc)
    return Plain({"error": refused.detail}, refused.status_code, refused.headers)
