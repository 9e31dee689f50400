"""Metrics and span attributes for OpenTelemetry: `otel.instrument(app)`. Needs the extra `otel`.

    from celery_redislock import otel
    otel.instrument(app)

It uses the API only; the SDK and its exporters are yours. Their threads do not survive a fork: with
the prefork pool, set them up in each process, in `worker_process_init`.

It creates no spans. If the task has a span, from opentelemetry-instrumentation-celery for example,
that span gets attributes and events.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Final

from celery.signals import task_postrun, task_prerun
from opentelemetry import metrics, trace

from . import signals
from .app.internals import real_app
from .app.metrics import METRICS, Metric, measure

__all__ = ["instrument"]


def instrument(app: Any, *, meter_provider: Any = None) -> None:
    """Measure the locks of this app's tasks, and annotate their spans. A second call has no effect.

    Args:
        app: the Celery app.
        meter_provider: the OpenTelemetry meter provider; None for the global one, which may also
            be set later.
    """
    app = real_app(app)
    if app in _instrumented:
        return
    meter = metrics.get_meter("celery_redislock", meter_provider=meter_provider)
    measure(app, _Recorder(meter))
    _Spans(app).connect()
    _instrumented.add(app)


#: The attribute of each label. The first has its name in opentelemetry-instrumentation-celery.
_ATTRIBUTES: Final = {
    "task": "celery.task_name",
    "outcome": "redislock.outcome",
    "how": "redislock.how",
    "because": "redislock.because",
}

_instrumented: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


class _Recorder:
    def __init__(self, meter: Any) -> None:
        self._record = {metric: _make(metric, meter) for metric in METRICS}

    def record(self, metric: Metric, value: float, **labels: str) -> None:
        attributes = {_ATTRIBUTES[name]: value for name, value in labels.items()}
        self._record[metric](value, attributes)


def _make(metric: Metric, meter: Any) -> Any:
    """A function that records a value with its attributes."""
    name = f"redislock.{metric.name}"
    unit = "s" if metric.unit else "1"
    if metric.kind == "histogram":
        return meter.create_histogram(
            name, unit, metric.text, explicit_bucket_boundaries_advisory=metric.buckets
        ).record
    if metric.kind == "counter":
        return meter.create_counter(name, unit, metric.text).add
    if metric.kind == "level":
        return meter.create_gauge(name, unit, metric.text).set
    return meter.create_up_down_counter(name, unit, metric.text).add


class _Spans:
    """Adds the outcome of a lock to the task's span, if it has one."""

    def __init__(self, app: Any) -> None:
        self._app = weakref.ref(app)
        # The span of each holder: signals from the heartbeat's thread have no current span.
        self._of_holders: dict[tuple[str, str], Any] = {}
        # Conflicts by task id, until the span begins: a worker asks for the lock before that.
        self._untold: dict[str, list[dict[str, Any]]] = {}

    def connect(self) -> None:
        signals.lock_acquired.connect(self._acquired, weak=False, dispatch_uid=id(self))
        signals.lock_released.connect(self._released, weak=False, dispatch_uid=id(self))
        signals.lock_conflict.connect(self._conflict, weak=False, dispatch_uid=id(self))
        signals.lock_lost.connect(self._lost, weak=False, dispatch_uid=id(self))
        signals.lock_recovered.connect(self._recovered, weak=False, dispatch_uid=id(self))
        # At both: the maker of the span connects before us and ends it first, or connects after us.
        task_prerun.connect(self._begins, weak=False, dispatch_uid=id(self))
        task_postrun.connect(self._ends, weak=False, dispatch_uid=id(self))

    def _current(self, sender: Any) -> Any:
        span = trace.get_current_span()
        return span if sender.app is self._app() and span.is_recording() else None

    def _acquired(self, sender: Any, details: Any, **kwargs: Any) -> None:
        span = self._current(sender)
        if span is not None:
            span.set_attribute("redislock.key", details.key)
            if details.label is not None:
                span.set_attribute("redislock.label", details.label)
            span.set_attribute("redislock.fence", details.fence)
            span.set_attribute("redislock.waited", details.waited)
            span.set_attribute("redislock.acquire", details.latency)
            self._of_holders[details.key, details.task_id] = span

    def _released(self, sender: Any, details: Any, **kwargs: Any) -> None:
        span = self._of_holders.pop((details.key, details.task_id), None)
        if span is not None:
            span.set_attribute("redislock.held", details.held)
            span.set_attribute("redislock.owned", details.owned)

    def _conflict(self, sender: Any, details: Any, **kwargs: Any) -> None:
        if sender.app is not self._app():
            return
        attributes = {
            "redislock.key": details.key,
            "redislock.outcome": details.outcome,
            "redislock.holder": str(details.holder or ""),
        }
        if details.label is not None:
            attributes["redislock.label"] = details.label
        is_own = details.task_id == getattr(sender.request, "id", None)
        span = self._current(sender)
        if span is not None and is_own:
            _tell_conflict(span, attributes)
        elif span is not None:
            # Another task's conflict: the span's task sends it, or it waited for the same lock.
            attributes["redislock.task_id"] = details.task_id
            span.add_event("redislock.conflict", attributes)
        elif is_own:
            self._untold.setdefault(details.task_id, []).append(attributes)

    def _begins(self, sender: Any, task_id: str, **kwargs: Any) -> None:
        if task_id in self._untold and (span := self._current(sender)) is not None:
            for attributes in self._untold.pop(task_id):
                _tell_conflict(span, attributes)

    def _ends(self, sender: Any, task_id: str, **kwargs: Any) -> None:
        self._begins(sender, task_id)
        self._untold.pop(task_id, None)

    def _lost(self, sender: Any, details: Any, **kwargs: Any) -> None:
        attributes = {"redislock.reason": details.reason, "redislock.replaced": details.replaced}
        self._tell_holder(details, "redislock.lost", attributes)

    def _recovered(self, sender: Any, details: Any, **kwargs: Any) -> None:
        self._tell_holder(details, "redislock.recovered", {"redislock.how": details.how})

    def _tell_holder(self, details: Any, event: str, attributes: Mapping[str, Any]) -> None:
        span = self._of_holders.get((details.key, details.task_id))
        if span is not None:
            span.add_event(event, attributes)


def _tell_conflict(span: Any, attributes: Mapping[str, Any]) -> None:
    span.set_attributes(attributes)
    span.add_event("redislock.conflict", attributes)
