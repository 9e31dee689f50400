"""`celery redislock export`: a real process, scraped as Prometheus scrapes it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.behaviour.looking import starts
from tests.support.exporter import Exporter
from tests.support.looking import ROOT, make_app, run
from tests.support.promtool import promtool
from tests.support.rights import as_user, denials, grant
from tests.support.servers import Proxy, RedisServer
from tests.support.waiting import eventually

pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families

#: How many tasks wait in the test of a long room.
LONG = 1500


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        with server.client() as client:
            grant(client, "watchers")
        yield server


@pytest.fixture(scope="module")
def way(server: RedisServer) -> Iterator[Proxy]:
    """Between the exporter and the server."""
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def exporter(conf: dict[str, Any], server: RedisServer, way: Proxy) -> Iterator[Exporter]:
    """One for the module, with the rights of those who only look."""
    url = as_user(way.in_front_of(server.url), "watchers")
    with Exporter("--every", "0.1", conf={**conf, "redislock_url": f"{url}/0"}) as exporter:
        yield exporter


def test_the_queue_behind_a_dead_holder_is_seen(
    exporter, server, start_worker, sender, queue, journal, label
):
    assert f"redis://127.0.0.1:{exporter_port(exporter)}/0" in exporter.log()
    scraped = exporter.scrape()
    assert scraped["up",] == 1
    assert scraped["room_tasks", "queued"] == 0, "it is there before the first"
    worker = start_worker(queues=queue, concurrency=4, conf={"redislock_url": f"{server.url}/0"})
    holder = sender.send_task("queued", [label, 600.0], queue=queue)
    eventually(lambda: starts(journal, label, holder.id), "it runs")
    for _ in range(10):
        sender.send_task("queued", [label], queue=queue)
    eventually(lambda: exporter.scrape()["room_tasks", "queued"] == 10, "they wait")
    fill_room(server, label, LONG - 10)
    eventually(lambda: exporter.scrape()["room_tasks", "queued"] == LONG, "all wait")
    scraped = exporter.scrape()
    assert scraped["locks", "held", "queued"] == 1
    # The one came by the worker's clock, the other by the server's.
    waits, holds = (scraped[f"oldest_{who}_seconds", "queued"] for who in ("waiter", "holder"))
    assert 0 < waits < holds + 1
    worker.kill()
    eventually(lambda: exporter.scrape().get(("locks", "free", "queued")) == 1, "nobody holds it")
    scraped = exporter.scrape()
    assert scraped["room_tasks", "queued"] == LONG
    assert scraped["locks", "held", "queued"] == scraped["oldest_holder_seconds", "queued"] == 0
    waited = scraped["oldest_waiter_seconds", "queued"]
    eventually(lambda: exporter.scrape()["oldest_waiter_seconds", "queued"] > waited, "it waits on")
    text = exporter.text()
    assert label not in text, "no label is a key"
    assert {
        name
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        for name in sample.labels
    } == {"task", "state"}
    with server.client() as client:
        assert denials(client, "watchers") == []


def fill_room(server: RedisServer, label: str, count: int) -> None:
    """Let so many more calls wait in the only room, as its last one: of them all, that would take
    a worker ten seconds and more.
    """
    with server.client() as client, client.pipeline() as pipeline:
        (room,) = client.scan_iter("redislock:*:room:*")
        entries = room.replace(":room:", ":entries:", 1)
        entry_id = client.lindex(room, -1)
        task_id, entry = entry_id.rpartition(":")[0], client.hget(entries, entry_id)
        for number in range(count):
            other = f"{label}-{number}"
            pipeline.rpush(room, f"{other}:0.0")
            pipeline.hset(entries, f"{other}:0.0", entry.replace(task_id, other))
        pipeline.execute()


def exporter_port(exporter: Exporter) -> str:
    """The port of the Redis server that it says it looks at."""
    return exporter.log().partition("redis://127.0.0.1:")[2].partition("/")[0]


def test_a_server_that_goes_away_and_comes_back(exporter, way):
    assert exporter.scrape()["room_tasks", "queued"] >= 0
    way.cut_off()
    eventually(lambda: exporter.scrape()["up",] == 0, "it is away")
    scraped = exporter.scrape()
    assert {name for name, *_ in scraped} == {
        *("up", "survey_timestamp_seconds", "survey_duration_seconds")
    }, "no figure is frozen"
    away_since = scraped["survey_timestamp_seconds",]
    way.reconnect()
    eventually(lambda: exporter.scrape()["up",] == 1, "it is back")
    scraped = exporter.scrape()
    assert scraped["room_tasks", "queued"] >= 0
    assert scraped["survey_timestamp_seconds",] > away_since
    way.to_client.block()
    eventually(lambda: exporter.scrape()["up",] == 0, "it does not answer", 60)
    way.heal()
    eventually(lambda: exporter.scrape()["up",] == 1, "it answers again", 60)
    assert exporter.log().count("nothing to export") == 2
    assert exporter.log().count("surveyed again") == 2


def test_a_port_in_use_is_an_error_in_one_line(exporter, redis_server, label):
    app = make_app(redis_server.url, label)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run(app, "export", "--port", str(port))
    assert result.exit_code == 1
    said = f"Error: cannot listen on 127.0.0.1:{port}: Address already in use\n"
    assert result.output == said
    result = run(app, "export", "--port", "0", "--host", "no such host")
    assert result.exit_code == 1
    assert result.output.startswith("Error: cannot listen on no such host:0: ")
    assert len(result.output.splitlines()) == 1


def test_without_prometheus_client_it_says_what_to_install(redis_server, label):
    script = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from tests.support.looking import make_app, run\n"
        "print(run(make_app(*sys.argv[1:]), 'export', '--port', '0').output, end='')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, redis_server.url, label],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == (
        "Error: export needs prometheus-client: pip install 'celery-redislock[prometheus]'\n"
    )


def test_who_starts_it_is_warned_before_anybody_scrapes(conf, server):
    refused = server.url.replace("://", "://watchers:wrong@")
    with Exporter(conf={**conf, "redislock_url": f"{refused}/0"}) as exporter:
        said = "WARNING redislock: nothing to export: the lock server refuses this user or password"
        eventually(lambda: said in exporter.log(), "it warns", 30)


def test_promtool_finds_no_fault_in_the_names(exporter):
    assert promtool("check", "metrics", text=exporter.text()) == ""


def test_it_ends_at_sigterm(exporter):
    """The last of the module: it ends what the others use."""
    os.kill(exporter.pid, signal.SIGTERM)
    assert exporter.wait() == 0
    assert "Traceback" not in exporter.log()
    with pytest.raises(OSError, match="refused"):
        exporter.text()
