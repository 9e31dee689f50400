"""The page's timeline as a real worker makes it: runs, duplicates, those that wait."""

from __future__ import annotations

import contextlib
import threading

import httpx
import pytest

from tests.support.site import Site, messages
from tests.support.waiting import eventually
from tests.support.workers import make_app

QUEUE = "web"


class Viewer:
    """One who watches: what it was told of the past, by the task's id."""

    def __init__(self, site):
        self.items = {}
        self._told = messages(site)
        next(self._told)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self):
        with contextlib.suppress(httpx.TransportError):  # at the end
            for message in self._told:
                self.items.update({item["id"]: item for item in message.get("past", ())})

    def of(self, result, **wanted):
        """What it was told of that task."""
        found = [item for item in list(self.items.values()) if item.get("task_id") == result.id]
        return [item for item in found if wanted.items() <= item.items()]


@pytest.fixture(scope="module")
def viewer(conf, redis_server):
    # As somebody who may look: workers may not.
    url = {"redislock_url": f"{redis_server.url}/0"}
    app = make_app({**conf, **url})
    with Site(app) as site:
        yield Viewer(site)


@pytest.fixture(scope="module", autouse=True)
def worker(start_module_worker, viewer):
    return start_module_worker("-E", queues=QUEUE, concurrency=2)


@pytest.fixture
def hold(send, journal, label):
    def hold(name, seconds=6.0):
        result = send(name, label, seconds)
        eventually(lambda: journal.read(label, "start"), "it runs")
        return result

    return hold


def test_a_run_and_the_duplicate_that_was_turned_away(viewer, hold, send, label):
    first = hold("skip")
    twin = send("skip", label)
    mark = eventually(lambda: viewer.of(twin, kind="mark"), "the mark is there")[0]
    assert (mark["what"], mark["by"], mark["task"]) == ("skipped", first.id, "skip")
    run = eventually(lambda: viewer.of(first, kind="run", how="succeeded"), "it has ended")[0]
    assert run["lock"] == mark["lock"]
    assert run["began"] < mark["began"] < run["ended"]
    assert viewer.of(twin, kind="run") == []


def test_one_that_waits_and_then_runs_overlaps_nothing(viewer, hold, send, label):
    first, second = hold("queued"), send("queued", label, 1.5)
    wait = eventually(lambda: viewer.of(second, kind="wait"), "it is seen to wait")[0]
    assert wait["what"] == "queued"

    def have_run():
        ran = [viewer.of(each, kind="run", how="succeeded") for each in (first, second)]
        # When the first ended is known exactly once a look has seen the second.
        return all(ran) and ran[0][0]["ended"] <= ran[1][0]["began"] and [run for (run,) in ran]

    runs = eventually(have_run, "both have run, one after the other")
    wait = eventually(lambda: [w for w in viewer.of(second, kind="wait") if "ended" in w], "over")
    assert wait[0]["began"] < runs[0]["ended"] <= wait[0]["ended"] < runs[1]["ended"]


def test_runs_before_anybody_watched_come_from_the_history(
    conf, redis_server, start_worker, sender, journal, queue, label
):
    start_worker(queues=queue, pool="solo")  # without -E
    result = sender.send_task("skip", [label, 0.1, "raise"], queue=queue)
    eventually(lambda: result.ready() and journal.read(label, "end"), "it has ended")
    url = {"redislock_url": f"{redis_server.url}/0"}
    app = make_app({**conf, **url})
    with Site(app) as site:
        told = messages(site)
        items = [item for message in (next(told), next(told)) for item in message["past"]]
        (run,) = [item for item in items if item.get("task_id") == result.id]
        assert (run["kind"], run["task"], run["how"]) == ("run", "skip", "failed")
        assert 0 < run["ended"] - run["began"] < 30
        told.close()
