"""Tasks under Sentry's and OpenTelemetry's own instrumentation of Celery, which write to a file."""

from __future__ import annotations

import json
import traceback
from typing import Any

import sentry_sdk
from celery import signals
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

from celery_redislock import Coalesce, Defer, Raise, SingletonTask, Skip, lock_conflict, otel

from .bodies import CONF, new_app, run

TASKS: dict[str, Any] = {
    "skips": Skip(),
    "skips_with_result": Skip(result="skipped"),
    "raises": Raise(),
    "queues": "queue",
    "coalesces": "coalesce",
    "coalesces_with_result": Coalesce(result="replaced"),
    "replaces": "replace",
    "defers": Defer(delay=0.3, backoff=1.0),
}


def write(of: Any, kind: str, **said: Any) -> None:
    with open(CONF["test_told"], "a", encoding="utf-8") as file:
        file.write(json.dumps({"of": of, "kind": kind, **said}) + "\n")


class SentrySink(Transport):
    def capture_envelope(self, envelope: Any) -> None:
        for item in envelope.items:
            told = item.payload.json
            if item.type == "check_in":
                write(told["check_in_id"], "check-in", how=told["status"])
                continue
            tags, trace = told.get("tags") or {}, told["contexts"]["trace"]
            said = {"trace": trace["trace_id"], "noted": tags.get("noted")}
            if told.get("type") == "transaction":
                kind, said["how"] = "transaction", trace["status"]
            else:
                error = told["exception"]["values"][-1]
                kind, said["how"], said["frames"] = "error", error["type"], frames_in(error)
            write(tags.get("celery_task_id"), kind, **said)


def frames_in(error: dict[str, Any]) -> list[list[Any]]:
    """By what Sentry's server groups errors."""
    names = ("module", "function", "in_app")
    return [[frame.get(name) for name in names] for frame in error["stacktrace"]["frames"]]


def walk(sender: Any, task_id: str, exception: Any, **kwargs: Any) -> None:
    """What a tool finds that walks the traceback of a task that failed: whose each frame is, and
    whether it asks to be left out.
    """
    frames = [frame for frame, _ in traceback.walk_tb(exception.__traceback__)]
    told = [[f.f_globals["__name__"], bool(f.f_locals.get("__tracebackhide__"))] for f in frames]
    write(task_id, "traceback", how=type(exception).__name__, frames=told)


class OtelSink(SpanExporter):
    def export(self, spans: Any) -> Any:
        for span in spans:
            known = span.attributes
            of = known.get("messaging.message.id") or known.get("messaging.message_id")
            how = [known.get("celery.state"), span.status.status_code.name]
            trace, parent = f"{span.context.trace_id:032x}", span.parent is not None
            said = {"outcome": known.get("redislock.outcome"), "fence": "redislock.fence" in known}
            kind = span.name.partition("/")[0]
            write(of, kind, how=how, trace=trace, parent=parent, **said)
        return SpanExportResult.SUCCESS


def use_sentry(**kwargs: Any) -> None:
    sentry_sdk.init(
        dsn="http://nobody@localhost/1", transport=SentrySink, traces_sample_rate=1.0,
        default_integrations=False,
        integrations=[CeleryIntegration(monitor_beat_tasks=True), LoggingIntegration()],
    )  # fmt: skip
    signals.task_prerun.connect(note)
    lock_conflict.connect(note)


def note(sender: Any, **kwargs: Any) -> None:
    """What a user's receiver may tell of a task."""
    if sender.name != "plain":
        sentry_sdk.set_tag("noted", sender.request.id)


def use_opentelemetry(**kwargs: Any) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OtelSink()))
    CeleryInstrumentor().instrument(tracer_provider=provider)


app = new_app("traced", CONF)
signals.task_failure.connect(walk)
tools = CONF.get("test_tools", ())
if "sentry" in tools:
    # As its documentation says; or as it is often done, where the app is made.
    signals.celeryd_init.connect(use_sentry) if "late" in tools else use_sentry()
if "opentelemetry" in tools:
    otel.instrument(app)
    signals.worker_process_init.connect(use_opentelemetry) if "late" in tools else (
        use_opentelemetry()
    )


def job(self: Any, label: str, how: str | float = 0.0) -> str:
    return run(self, label, how)


app.task(bind=True, name="plain")(job)
for name, policy in TASKS.items():
    options = {"lock_key": "traced:{label}", "lock_ttl": 6, "on_conflict": policy}
    app.task(base=SingletonTask, bind=True, name=name, **options)(job)
