"""Metrics: a real prefork worker that is scraped, and OpenTelemetry's SDK."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import threading
import time
import urllib.request
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from celery_redislock import SingletonTask, Skip, current_lock
from tests.support.servers import free_port
from tests.support.waiting import eventually
from tests.support.workers import ROOT, make_app

pytest.importorskip("prometheus_client")
pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from celery_redislock import otel, prometheus


def read(text):
    """The samples of a scrape: name and labels to value."""
    found = defaultdict(float)
    for name, labels, value in re.findall(r"^(redislock_\w+)(?:\{(.*?)\})? (\S+)$", text, re.M):
        labels = tuple(sorted(re.findall(r'(\w+)="(.*?)"', labels)))
        found[name, labels] += float(value)
    return found


@pytest.fixture
def app(conf):
    app = make_app(conf)
    app.conf.update(redislock_eager=True, task_always_eager=True)
    return app


def make_task(app, body=lambda: None, called="measured", **options):
    options = {"lock_key": "{name}", **options}

    @app.task(base=SingletonTask, shared=False, name=called, **options)
    def measured(name):
        return body()

    return measured


# -- a worker ---------------------------------------------------------------------------------


QUEUE = "metrics"


class Exporting:
    """A prefork worker that serves its metrics."""

    def __init__(self, start, folder, **conf):
        self.folder, self._port = folder, free_port()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(prometheus.DIRECTORY, str(folder))
            worker = start(concurrency=3, conf={"test_metrics_port": self._port, **conf})
        eventually(lambda: f"{self._port}/metrics" in worker.log(), "it serves")

    def scrape(self):
        url = f"http://127.0.0.1:{self._port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as response:
            return response.read().decode()

    def value(self, name, **labels):
        return read(self.scrape())[f"redislock_{name}", tuple(sorted(labels.items()))]


@pytest.fixture(scope="module")
def worker(start_module_worker, tmp_path_factory):
    start = partial(start_module_worker, queues=QUEUE)
    return Exporting(start, tmp_path_factory.mktemp("metrics"))


def test_a_prefork_worker_is_scraped_as_one(worker, send, journal, label):
    value = worker.value
    send = partial(send, "short_ttl")
    entry = journal.await_start(label, send(label, 60.0).id)
    eventually(lambda: value("holding", task="short_ttl") == 1, "it holds")
    for _ in range(5):
        send(label).get(timeout=20, propagate=False)
    assert value("conflicts_total", task="short_ttl", outcome="skipped", because="run") == 5
    eventually(lambda: value("heartbeat_late_seconds_count", task="short_ttl"), "it is extended")
    send(f"{label}2", 0.01).get(timeout=20)
    assert value("acquire_seconds_count", task="short_ttl") == 2
    assert value("held_seconds_count", task="short_ttl") == 1
    succeeded = value("last_success_timestamp_seconds", task="short_ttl")
    assert time.time() - 60 < succeeded < time.time()
    assert value("lock_warn_after_seconds", task="short_ttl") == 10
    os.kill(entry.pid, signal.SIGKILL)
    eventually(lambda: value("recovered_total", task="short_ttl", how="freed") == 1, "it is freed")
    eventually(lambda: value("holding", task="short_ttl") == 0, "the dead hold nothing")
    assert value("conflicts_total", task="short_ttl", outcome="skipped", because="run") == 5, (
        "they still count"
    )
    assert value("last_success_timestamp_seconds", task="short_ttl") == succeeded, (
        "not by a failure"
    )
    assert value("lost_total", task="watches_lock") == 0, "it is there before the first"
    assert ("redislock_lost_total", (("task", "watches_lock"),)) in read(worker.scrape())
    text = worker.scrape()
    assert label not in text
    assert {name for key in read(text) for name, _ in key[1]} == {
        *("task", "outcome", "because", "how", "le")
    }


def test_no_scrape_fails_while_pool_processes_come_and_are_killed(
    start_worker, sender, journal, tmp_path, queue, label
):
    worker = Exporting(partial(start_worker, queues=queue), tmp_path, worker_max_tasks_per_child=1)

    def value():
        return worker.value("acquire_seconds_count", task="short_ttl")

    def send(name, seconds=0.0):
        return sender.send_task("short_ttl", [name, seconds], queue=queue)

    done, counts = threading.Event(), [[], []]

    def scrape_often(counts):
        while not done.wait(0.005):
            counts.append(value())  # raises if it is answered with a 500

    with ThreadPoolExecutor(len(counts)) as pool:
        scraping = [pool.submit(scrape_often, each) for each in counts]
        try:
            os.kill(journal.await_start(label, send(label, 60.0).id).pid, signal.SIGKILL)
            sent = 1
            while sent < 4 or sum(map(len, counts)) < 60:
                send(f"{label}{sent}").get(timeout=30)
                sent += 1
                assert not any(each.done() and each.result() for each in scraping)
            eventually(lambda: value() == sent, "its counts are there")
        finally:
            done.set()
    for each in counts:
        assert each == sorted(each), "it never goes back"


def test_who_waits_is_seen_and_what_became_of_a_lost_lock(
    worker, send, journal, client, locks_of, label
):
    value = worker.value
    journal.await_start(label, send("wait", label, 3.0).id)
    second = send("wait", label, 0.0)
    eventually(lambda: value("waiting", task="wait") == 1, "it waits")
    second.get(timeout=20)
    assert value("waiting", task="wait") == 0
    assert value("waited_seconds_count", task="wait") == 1
    lost = send("watches_lock", f"{label}l", 60.0)
    journal.await_start(f"{label}l", lost.id)
    client.set(*locks_of(lost.id), "another's", px=3000)
    lost.get(timeout=50)
    eventually(lambda: value("lost_total", task="watches_lock") == 1, "it is counted")


def test_a_prefork_worker_that_cannot_put_its_counts_together_says_so(
    start_worker, queue, monkeypatch
):
    monkeypatch.delenv(prometheus.DIRECTORY, raising=False)
    worker = start_worker(queues=queue, concurrency=1, conf={"test_metrics_port": free_port()})
    eventually(lambda: f"set {prometheus.DIRECTORY}" in worker.log(), "it warns")


# -- in one process ---------------------------------------------------------------------------


def test_each_app_counts_its_own(app, conf, label):
    registry = CollectorRegistry()
    other = make_app({"redislock_url": conf["redislock_url"], "redislock_eager": True})
    prometheus.instrument(other, registry=registry)
    make_task(app).apply((label,))
    assert (
        registry.get_sample_value("redislock_acquire_seconds_count", {"task": "measured"}) is None
    )
    make_task(other).apply((label,))
    assert registry.get_sample_value("redislock_acquire_seconds_count", {"task": "measured"}) == 1


# -- OpenTelemetry ----------------------------------------------------------------------------


def test_opentelemetry_has_the_same_metrics_and_tells_the_tasks_span(app, label, client):
    reader, spans = InMemoryMetricReader(), InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    tracer = tracers.get_tracer("test")
    meters = MeterProvider([reader])
    for _ in range(2):
        otel.instrument(app, meter_provider=meters)

    def lose():
        client.set(current_lock.key, "another's", px=5000)
        span = trace.get_current_span()
        eventually(lambda: "redislock.lost" in [e.name for e in span.events], "its span is told")
        assert current_lock.lost

    options = {"on_conflict": Skip(), "lock_label": "order {name}"}
    measured = make_task(app, lambda: measured.apply((label,)).state, **options)
    with tracer.start_as_current_span("run/outer"):
        measured.apply((label,))
    with tracer.start_as_current_span("run/loses"):
        make_task(app, lose, "loses", lock_ttl=0.5).apply((f"{label}2",))
    make_task(app, called="needs_none", lock_key=lambda name: None).apply((label,))

    outer, loses = spans.get_finished_spans()
    assert (outer.name, loses.name) == ("run/outer", "run/loses"), "it made no spans"
    assert outer.attributes["redislock.fence"] > 0
    assert outer.attributes["redislock.held"] > 0
    (conflict,) = outer.events
    assert conflict.name == "redislock.conflict"
    assert conflict.attributes["redislock.outcome"] == "skipped"
    for each in (outer, conflict):
        assert each.attributes["redislock.label"] == f"order {label}"
    assert "redislock.label" not in loses.attributes
    assert "redislock.lost" in [event.name for event in loses.events]
    assert loses.attributes["redislock.owned"] is False

    scope = reader.get_metrics_data().resource_metrics[0].scope_metrics[0]
    points = {metric.name: metric.data.data_points[0] for metric in scope.metrics}
    assert points["redislock.acquire"].count == 1
    assert points["redislock.lost"].value == 1
    assert dict(points["redislock.unlocked"].attributes) == {
        "celery.task_name": "needs_none",
        "redislock.because": "no key",
    }
    assert points["redislock.holding"].value == 0
    assert time.time() - 60 < points["redislock.last_success_timestamp"].value < time.time()
    assert dict(points["redislock.conflicts"].attributes) == {
        "celery.task_name": "measured",
        "redislock.outcome": "skipped",
        "redislock.because": "run",
    }
    assert not any(label in str(point.attributes) for point in points.values())


# -- the document -----------------------------------------------------------------------------


def test_the_documents_examples_run(app, label, redis_server, monkeypatch):
    monkeypatch.delenv(prometheus.DIRECTORY, raising=False)
    # Not as a worker: who exports the backlog may scan.
    app.conf.redislock_url = f"{redis_server.url}/0"
    document = (ROOT / "docs/monitoring.md").read_text(encoding="utf-8")
    names = {"app": app}
    for block in re.findall(r"```python\n(.*?)```", document, re.S):
        exec(block, names)
    names["prometheus"].instrument(app)  # twice
    make_task(app).apply((label,))
    text = names["generate_latest"](prometheus.registry())
    assert b'redislock_held_seconds_count{task="measured"}' in text
    assert b"redislock_up 1.0" in names["text"]
    record = logging.getLogger("celery_redislock").makeRecord(
        "celery_redislock", logging.INFO, "p", 1, "%s", ("x",), None, extra={"redislock_key": "k"}
    )
    told = json.loads(names["JsonLines"]().format(record))
    assert told == {"level": "INFO", "message": "x", "redislock_key": "k"}
