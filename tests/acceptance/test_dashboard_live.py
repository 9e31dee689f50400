"""The dashboard's queries, answered by a real Prometheus that scrapes a worker and the exporter."""

from __future__ import annotations

import json
import os
from functools import partial

import pytest

pytest.importorskip("prometheus_client")

from celery_redislock import prometheus
from tests.support.exporter import Exporter
from tests.support.looking import installed
from tests.support.prometheus_server import Prometheus
from tests.support.servers import free_port
from tests.support.waiting import eventually
from tests.support.workers import ROOT

DASHBOARD = ROOT / "examples/grafana/redislock-dashboard.json"
#: The panels that show nothing while all is well.
EMPTY = {"Not taken"}


def queries():
    """The title of each panel with its queries, with the variables as Grafana fills them in."""
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$__rate_interval", "30s").replace("$__range", "1m")
            yield panel["title"], query.replace("$task", ".*")


@pytest.fixture
def scraped(start_worker, redis_server, conf, queue, tmp_path, monkeypatch):
    """A Prometheus that scrapes a worker and the exporter of its Redis."""
    monkeypatch.setenv(prometheus.DIRECTORY, str(tmp_path))
    port = free_port()
    worker = start_worker(queues=queue, concurrency=3, conf={"test_metrics_port": port})
    eventually(lambda: f"{port}/metrics" in worker.log(), "it serves")
    folder = tmp_path / "installed"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", f"{installed(folder)}{os.pathsep}{ROOT}")
    exporter = Exporter("--every", "0.5", conf={**conf, "redislock_url": f"{redis_server.url}/0"})
    address = exporter.url.removeprefix("http://").partition("/")[0]
    with Prometheus(redislock=[address], worker=[f"127.0.0.1:{port}"]) as server:
        yield server
    exporter.close()


def test_every_panel_shows_what_goes_on(scraped, sender, journal, label, queue):
    def send(name, seconds, which=label):
        return sender.send_task(name, [which, seconds], queue=queue)

    send("queued", 60.0)
    eventually(lambda: journal.read(label, "start"), "it holds")
    for _ in range(2):
        send("queued", 0.0)
    scraped.finds('redislock_room_tasks{task="queued"}', 2)
    # The server and the workers say the same.
    scraped.finds('redislock_locks{task="queued", state="held"}', 1)
    scraped.finds('sum(redislock_holding{task="queued"})', 1)
    scraped.finds("min(redislock_up)", 1)
    for number in range(3):
        send("short_ttl", 0.5, f"{label}-{number}").get(timeout=30)
    held = send("warns", 20.0, f"{label}-held")
    eventually(lambda: journal.read(f"{label}-held", "start"), "it holds")
    for _ in range(3):
        send("warns", 0.0, f"{label}-held").get(timeout=30, propagate=False)
    scraped.finds('sum(redislock_conflicts_total{task="warns"})', 3)
    told = 'max by (task) (redislock_lock_warn_after_seconds{job="%s", task="warns"})'
    scraped.finds(f"{told % 'redislock'} - on (task) {told % 'worker'}", 0)
    held.revoke(terminate=True)
    held = send("wait", 60.0, f"{label}-awaited")
    eventually(lambda: journal.read(f"{label}-awaited", "start"), "it holds")
    waiting = send("wait", 0.0, f"{label}-awaited")
    scraped.finds('sum(redislock_waiting{task="wait"})', 1)
    held.revoke(terminate=True)
    waiting.get(timeout=30)

    for title, query in queries():
        if title not in EMPTY:
            eventually(partial(scraped.ask, query), f"{title} shows {query}", 30)
