"""All PromQL of the examples and the documents, answered by a real Prometheus with the documented
configuration: it scrapes workers and the exporter, and evaluates the alert rules.
"""

from __future__ import annotations

import re
from functools import partial

import pytest
import yaml

pytest.importorskip("prometheus_client")

from celery_redislock import prometheus
from tests.project.test_dashboard import RULES, exported, filled_in, panels, rules
from tests.support.exporter import Exporter
from tests.support.pages import PAGES, blocks
from tests.support.prometheus_server import Prometheus
from tests.support.servers import apart, free_port
from tests.support.waiting import eventually
from tests.support.workers import make_app

#: The panels that show nothing while all is well.
EMPTY = {"Not taken"}
#: What tells two series of one thing apart that two processes export.
OF_PROCESSES = {"job", "instance"}


def documented():
    """The PromQL in the documents' lines, without the bare names of metrics."""
    for page in PAGES:
        for code in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")):
            if set(re.findall(r"\w+", code)) & set(exported()) and not re.fullmatch(r"\w+", code):
                yield code


def configuration(exporter, workers):
    """The documented configuration, for these addresses."""
    (page,) = (each for each in PAGES if each.name == "monitoring.md")
    (text,) = (each.text for each in blocks(page) if "scrape_configs" in each.text)
    config = yaml.safe_load(text)
    assert config["rule_files"] == [RULES.name]
    config["rule_files"] = [str(RULES)]
    of_exporter, of_workers = config["scrape_configs"]
    del of_exporter["scrape_interval"]  # the test's is shorter
    for job, addresses in ((of_exporter, [exporter]), (of_workers, workers)):
        (group,) = job["static_configs"]
        assert len(group["targets"]) == len(addresses)
        group["targets"] = addresses
    return config


@pytest.fixture
def own(conf, own_redis):
    """What is exported are the figures of all locks that are there."""
    return apart(conf, own_redis)


@pytest.fixture
def scraped(start_worker, own, queue, tmp_path, monkeypatch):
    """A Prometheus that scrapes the exporter and two workers, of the queues `queue` and
    `queue`-2.
    """
    workers = []
    for queues in (queue, f"{queue}-2"):
        folder = tmp_path / queues
        folder.mkdir()
        monkeypatch.setenv(prometheus.DIRECTORY, str(folder))
        workers.append(f"127.0.0.1:{free_port()}")
        port = int(workers[-1].rpartition(":")[2])
        worker = start_worker(queues=queues, concurrency=3, conf={**own, "test_metrics_port": port})
        eventually(lambda worker=worker: "/metrics" in worker.log(), "it serves")
    with Exporter("--every", "0.5", conf=own) as exporter:
        address = exporter.url.removeprefix("http://").partition("/")[0]
        with Prometheus(configuration(address, workers)) as server:
            yield server


def ambiguous(found):
    """The series of an answer that tell one thing twice: only their process is another."""
    seen = [frozenset(each["metric"].items()) for each in found]
    things = [frozenset(pair for pair in each if pair[0] not in OF_PROCESSES) for each in seen]
    return [dict(each) for each in things if things.count(each) > 1]


def test_every_query_has_one_right_answer(scraped, own, journal, label, queue):
    sender = make_app({k: v for k, v in own.items() if not k.startswith("test_")})

    def send(name, seconds, which=label, **options):
        return sender.send_task(name, [which, seconds], **{"queue": queue, **options})

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
    held = send("warns", 60.0, f"{label}-held")
    eventually(lambda: journal.read(f"{label}-held", "start"), "it holds")
    for number in range(3):
        where = queue if number else f"{queue}-2"
        send("warns", 0.0, f"{label}-held", queue=where).get(timeout=30, propagate=False)
    scraped.finds('sum(redislock_conflicts_total{task="warns"})', 3)
    awaited = send("wait", 60.0, f"{label}-awaited")
    eventually(lambda: journal.read(f"{label}-awaited", "start"), "it holds")
    waiting = send("wait", 0.0, f"{label}-awaited", queue=f"{queue}-2")
    scraped.finds('sum(redislock_waiting{task="wait"})', 1)
    awaited.revoke(terminate=True)
    waiting.get(timeout=30)

    # The exporter and both workers tell each threshold: it is one all the same.
    scraped.finds('count(redislock_lock_warn_after_seconds{task="warns"})', 3)
    (longer,) = [each for each in documented() if "redislock_lock_warn_after_seconds" in each]
    told = eventually(lambda: scraped.ask(longer), "a run takes longer than it should", 30)
    assert [each["metric"] for each in told] == [{"task": "warns"}]
    held.revoke(terminate=True)
    eventually(lambda: scraped.ask(longer) == [], "it is over", 30)

    for panel in panels:
        for target in panel.get("targets", ()):
            query = filled_in(target["expr"].replace("[$__rate_interval]", "[30s]"))
            if panel["title"] not in EMPTY:
                eventually(partial(scraped.ask, query), f"{panel['title']} shows {query}", 30)
            assert ambiguous(scraped.ask(query)) == [], query
    for query in (*documented(), *(rule["expr"] for rule in rules)):
        assert ambiguous(scraped.ask(query)) == [], query
    evaluated = eventually(
        lambda: all(each["health"] != "unknown" for each in scraped.rules()) and scraped.rules(),
        "all rules are evaluated",
    )
    assert {each["name"] for each in evaluated} == {rule["alert"] for rule in rules}
    assert [each for each in evaluated if each["health"] != "ok"] == []
