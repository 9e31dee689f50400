"""Serves a collector to Prometheus. Needs the extra `prometheus`."""

from __future__ import annotations

import socket
import threading
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app


class Scrapes:
    """An HTTP server with the metrics of one collector. It listens once it is made, and answers
    inside its `with` block.

    prometheus-client's own server cannot be stopped in older versions.

    Args:
        collector: of prometheus-client's kind.
        host: the address to listen on.
        port: 0 takes a free one.

    Attributes:
        url: where the metrics are.

    Raises:
        OSError: it cannot listen there.
    """

    def __init__(self, collector: Any, host: str, port: int) -> None:
        registry = CollectorRegistry()
        registry.register(collector)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = found[0]
        kind = type("Server", (_Server,), {"address_family": family})
        self._server: Any = make_server(
            str(address[0]), port, make_wsgi_app(registry), kind, handler_class=_Handler
        )
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_port}/metrics"

    def __enter__(self) -> Scrapes:
        threading.Thread(
            target=self._server.serve_forever, name="redislock-scrapes", daemon=True
        ).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingMixIn, WSGIServer):
    """Answers each scrape in a thread of its own: one that waits delays no other."""

    daemon_threads = True


class _Handler(WSGIRequestHandler):
    """Does not log each scrape."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base calls it so
        """Log nothing."""
