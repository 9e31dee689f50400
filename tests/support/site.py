"""The page of `celery redislock web`, served in a thread as the command serves it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import httpx

from celery_redislock.ops.web.app import Web
from celery_redislock.ops.web.guard import LOCAL
from celery_redislock.ops.web.serve import Server, listen
from tests.support.waiting import eventually

TOKEN = "the-token-of-the-tests"


class Site:
    """Serves an app's locks.

    Args:
        app: the Celery app.
        token: what breaking needs; None: the page only reads.
        hosts: at which it answers.
        every: seconds between two looks.
        more: see `Web`.
    """

    def __init__(
        self,
        app: Any,
        token: str | None = None,
        hosts: Sequence[str] = LOCAL,
        every: float = 0.2,
        **more: Any,
    ) -> None:
        self._listening = listen("127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.url = f"http://{self.address}/"
        self.web = Web(app, token, hosts, every, **more)
        self._server = Server(self.web)
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

    def order(self, body: Any, **headers: str) -> httpx.Response:
        """What it answers to an order to break a lock."""
        given = {"content-type": "application/json", **headers}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.http.post("/api/locks/break", headers=given, content=content)


def messages(site: Site, accept_encoding: str = "gzip") -> Iterator[dict[str, Any]]:
    """What a viewer is told, one after another."""
    accepts = {"accept-encoding": accept_encoding}
    with site.http.stream("GET", "/api/stream", headers=accepts) as answer:
        assert ("content-encoding" in answer.headers) is (accept_encoding == "gzip")
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))
