"""The command `export`: the backlog as metrics for Prometheus, without a worker."""

from __future__ import annotations

import collections
import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from typing import Any

import click

from ..command import BETWEEN_LOOKS, problem, with_app


@click.command(short_help="Serve figures of locks and waiting tasks.")
@click.option(
    "-p",
    "--port",
    type=click.IntRange(0, 65535),
    required=True,
    help="Where to listen; 0 takes a free port.",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="The address to listen on; 0.0.0.0: all."
)
@click.option(
    "--every",
    type=BETWEEN_LOOKS,
    default=10.0,
    show_default=True,
    help="Seconds from one look at the lock server to the next, at least.",
)
@with_app
def export(app: Any, port: int, host: str, every: float) -> None:
    """Serve what waits and who holds, for each task, as metrics for Prometheus.

    It runs until SIGTERM or Ctrl-C, and needs no worker.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server

        from ...servers.urls import host_port
        from ..collector import Collector
    except ModuleNotFoundError as exc:
        if exc.name != "prometheus_client":
            raise
        raise problem(
            "export needs prometheus-client: pip install 'celery-redislock[prometheus]'"
        ) from None

    # Shows errors while it runs. Does nothing if the project has configured its log.
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    registry, collector = CollectorRegistry(), Collector(app, every=every)
    registry.register(collector)
    with _told_to_end() as ended:
        try:
            server, _ = start_http_server(port, addr=host, registry=registry)
        except OSError as exc:
            raise problem(f"cannot listen on {host}:{port}: {exc.strerror or exc}") from exc
        click.echo(f"Metrics: http://{host_port(host, server.server_port)}/metrics")
        # Not only a scraper, also whoever starts it hears that the server is away or denies it.
        collections.deque(collector.collect(), maxlen=0)
        ended.wait()
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def _told_to_end() -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set."""
    ended = threading.Event()
    signals = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(each, lambda *_: ended.set()) for each in signals]
    try:
        yield ended
    finally:
        for each, handler in zip(signals, before, strict=True):
            signal.signal(each, handler)
