"""The page for an ASGI project, served in a thread by uvicorn."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import httpx
import uvicorn

from celery_redislock.web import asgi_app
from tests.support.waiting import eventually

TOKEN = "the-token-of-the-tests"


def _server_of(web: Any) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(web, log_level="critical", server_header=False, timeout_graceful_shutdown=1)
    )


class Site:
    """Serves an app's locks.

    Args:
        app: the Celery app.
        token: what orders need; None: the page only reads.
        every: seconds between two looks.
        more: see `asgi_app`.
    """

    #: What serves it.
    server: Callable[[Any], uvicorn.Server] = staticmethod(_server_of)

    def __init__(self, app: Any, token: str | None = None, every: float = 0.2, **more: Any) -> None:
        allow = {"allow_break": True, "token": token} if token else {}
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self.address = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.address}/"
        self._server = self.server(asgi_app(app, every=every, **allow, **more))
        self._thread = threading.Thread(target=self._server.run, args=([self._listening],))

    def __enter__(self) -> Site:
        # One for all: each makes a context for TLS, which takes longer than the answer.
        self.http = httpx.Client(base_url=self.url, timeout=20)
        self._thread.start()
        eventually(lambda: self._server.started, "the page is served")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        self.http.close()
        assert not self._thread.is_alive(), "it ends, whoever watches"

    def get(self, path: str, **headers: str) -> httpx.Response:
        """What it answers, with these headers: `sec_fetch_site` is `sec-fetch-site`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.http.get(f"/{path}", headers=named)

    def lock(self, **which: str) -> Any:
        """All about the lock with this key or name."""
        answer = self.http.get("/api/lock", params=which)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def order(
        self, body: Any, token: str | None = None, what: str = "break", **headers: str
    ) -> Any:
        """What it answers to an order, to break a lock say."""
        allowed = {} if token is None else {"authorization": f"Bearer {token}"}
        given = {"content-type": "application/json", **allowed, **headers}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.http.post(f"/api/locks/{what}", headers=given, content=content)


def messages(site: Site) -> Iterator[dict[str, Any]]:
    """What a viewer is told, one change after another; of each, what its answer says beside it."""
    number = 0
    while True:
        answer = site.http.get("/api/changes", params={"since": number})
        assert answer.status_code == 200
        told = answer.json()
        number, changes = told["number"], told.pop("changes")
        yield from ({**told, **change} for change in changes)
        time.sleep(0.1)
