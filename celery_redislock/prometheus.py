"""Metrics for Prometheus. Needs the extra `prometheus`.

    from celery_redislock import prometheus
    prometheus.instrument(app, port=9000)              # each worker's main process serves /metrics
    own_registry.register(prometheus.Collector(app))   # the backlog, in an exporter of your own

Each pool process counts for itself. With the prefork pool, give each worker its own empty directory
in `PROMETHEUS_MULTIPROC_DIR` before it starts: the counts are joined there.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from celery import signals as celery_signals
from celery.concurrency.prefork import TaskPool as PreforkPool
from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    start_http_server,
)
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector as BaseCollector

from .app.internals import real_app
from .app.metrics import LOST, METRICS, RECOVERED, WARN_AFTER, Metric, measure
from .app.processes import is_alive
from .ops.collector import Collector
from .protocol.log import logger
from .tasks.task import SingletonTask

__all__ = ["Collector", "instrument", "registry"]

#: The variable that names prometheus-client's directory for the counts of all processes.
DIRECTORY: Final = "PROMETHEUS_MULTIPROC_DIR"


def instrument(
    app: Any, *, port: int | None = None, addr: str = "127.0.0.1", registry: Any = REGISTRY
) -> None:
    """Measure the locks of this app's tasks. A second call has no effect.

    Args:
        app: the Celery app.
        port: where each worker's main process serves /metrics; None if an exporter of your own
            serves `prometheus.registry()`.
        addr: the address to serve at; "0.0.0.0" for all.
        registry: the prometheus-client registry for the metrics.
    """
    app = real_app(app)
    measured = _measured.setdefault(app, weakref.WeakSet())
    if registry not in measured:
        _recorders[registry] = _recorders.get(registry) or _Recorder(registry)
        measured.add(registry)
        measure(app, _recorders[registry])
    if port is not None:
        _ports.setdefault(app, (port, addr, registry))
    celery_signals.worker_ready.connect(_serve, dispatch_uid="celery_redislock.prometheus")


def registry(own: Any = REGISTRY) -> Any:
    """The registry to serve: of all processes if `PROMETHEUS_MULTIPROC_DIR` is set, else `own`.

    Args:
        own: the prometheus-client registry of this process.
    """
    directory = os.environ.get(DIRECTORY)
    if not directory:
        return own
    joined = CollectorRegistry()
    joined.register(_AllProcesses(directory))
    return joined


class _AllProcesses(BaseCollector):
    """The metrics of all processes, as prometheus-client joins them, which are on one host."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)

    def collect(self) -> Iterable[Any]:
        """The metrics, at a scrape. It must not fail because processes come and go meanwhile."""
        files = []
        for file in self._directory.glob("*.db"):
            pid = file.stem.rpartition("_")[2]
            with contextlib.suppress(FileNotFoundError):  # another scrape has removed it
                if file.match("gauge_live*") and pid.isdecimal() and not is_alive(int(pid)):
                    file.unlink()  # a killed process could tell nobody of its end
                elif file.stat().st_size:  # else a process is just making it
                    files.append(str(file))
        return MultiProcessCollector.merge(files)  # type: ignore[no-any-return, unused-ignore]


class _Recorder:
    """The metrics in one registry. Two apps share them."""

    def __init__(self, registry: Any) -> None:
        self._made = {metric: _make(metric, registry) for metric in (*METRICS, WARN_AFTER)}

    def declare(self, task: SingletonTask) -> None:
        """Record what never changes, and zeros: a series' first sample is no increase."""
        self._made[LOST].labels(task=task.name)
        for how in ("retaken", "freed"):
            self._made[RECOVERED].labels(task=task.name, how=how)
        if task.lock_options is not None:
            self.record(WARN_AFTER, task.lock_options.warn_after, task=task.name)

    def record(self, metric: Metric, value: float, **labels: str) -> None:
        child = self._made[metric].labels(**labels)
        if metric.kind == "histogram":
            child.observe(value)
        elif metric.kind == "level":
            child.set(value)
        else:
            child.inc(value)


#: How the values of several processes are combined, by the kind of the gauge.
_MODES: Final[dict[str, Any]] = {"gauge": "livesum", "level": "max"}


def _make(metric: Metric, registry: Any) -> Any:
    name = "_".join(filter(None, ("redislock", metric.name, metric.unit)))
    common: dict[str, Any] = {"labelnames": metric.labels, "registry": registry}
    if metric.kind == "histogram":
        return Histogram(name, metric.text, buckets=metric.buckets, **common)
    if metric.kind in _MODES:
        return Gauge(name, metric.text, multiprocess_mode=_MODES[metric.kind], **common)
    return Counter(name, metric.text, **common)


#: By the registry, and the registries by the app; not by ids, which are used again.
_recorders: Final[weakref.WeakKeyDictionary[Any, _Recorder]] = weakref.WeakKeyDictionary()
_measured: Final[weakref.WeakKeyDictionary[Any, weakref.WeakSet[Any]]] = weakref.WeakKeyDictionary()
_ports: Final[weakref.WeakKeyDictionary[Any, Any]] = weakref.WeakKeyDictionary()


def _serve(sender: Any, **kwargs: Any) -> None:
    """Serve the metrics, in a worker's main process when it is ready."""
    app: Any = sender.app
    if app not in _measured:
        return
    if isinstance(getattr(sender, "pool", None), PreforkPool) and not os.environ.get(DIRECTORY):
        logger.warning(
            "redislock: metrics of pool processes are missing: set %s to an empty directory before"
            " the worker starts", DIRECTORY,
        )  # fmt: skip
    for task in app.tasks.values():
        if isinstance(task, SingletonTask):
            for each in list(_measured[app]):
                _recorders[each].declare(task)
    if app not in _ports:
        return
    port, addr, own = _ports[app]
    try:
        start_http_server(port, addr=addr, registry=registry(own))
    except OSError as exc:
        logger.error("redislock: cannot serve metrics at %s:%d: %s", addr, port, exc)
        return
    logger.info("redislock: metrics are at http://%s:%d/metrics", addr, port)
