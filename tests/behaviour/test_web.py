"""The page as a real worker fills it: runs, duplicates, those that wait. All see the same."""

from __future__ import annotations

import pytest

from tests.support.site import Site, messages
from tests.support.waiting import eventually
from tests.support.workers import make_app

QUEUE = "web"
#: How many duplicates are skipped.
TWINS = 43


class Viewer:
    """One who watches: the present rows, and the runs that have ended."""

    def __init__(self, site):
        self._told = messages(site)
        self.rows, self.runs, self.away = {}, {}, None
        self.look()

    def look(self):
        """Hear what is new, once or more often."""
        message = next(self._told)
        self.rows.update({row["id"]: row for row in message.get("rows", ())})
        self.runs.update({run["id"]: run for run in message.get("runs", ())})
        for kind, gone in ((self.rows, "gone"), (self.runs, "dropped")):
            for each in message.get(gone, ()):
                kind.pop(each, None)
        self.away = message.get("away", self.away)
        return self

    def run_of(self, result, how="succeeded"):
        """The run of that task, once it has ended so."""
        of = [run for run in self.runs.values() if run.get("task_id") == result.id]
        return next((run for run in of if run.get("how") == how), None)


@pytest.fixture(scope="module")
def site(conf, redis_server):
    # As somebody who may look: workers may not.
    with Site(make_app({**conf, "redislock_url": f"{redis_server.url}/0"})) as site:
        yield site


@pytest.fixture(scope="module", autouse=True)
def worker(start_module_worker, site):
    return start_module_worker(queues=QUEUE, concurrency=2)  # without -E


@pytest.fixture
def hold(send, journal, label):
    def hold(name, seconds=6.0):
        result = send(name, label, seconds)
        eventually(lambda: journal.read(label, "start"), "it runs")
        return result

    return hold


def test_two_viewers_see_the_same_whenever_they_came(conf, redis_server, site, hold, send, label):
    early = Viewer(site)
    first = hold("skip")
    twins = [send("skip", label) for _ in range(TWINS)]
    eventually(lambda: all(each.ready() for each in twins), "all are skipped")
    run = eventually(lambda: early.look().run_of(first), "it has ended")
    assert run["turned_away"] == TWINS
    assert 0 < run["ended"] - run["began"] < 30
    assert not any(early.run_of(each) for each in twins)
    eventually(lambda: early.look().away["count"] >= TWINS, "all are counted")

    with Site(make_app({**conf, "redislock_url": f"{redis_server.url}/0"})) as other:
        late = Viewer(other)  # its process looks for the first time
        assert late.away == early.away
        assert late.run_of(first) == run


def test_one_that_waits_and_then_runs_overlaps_nothing(site, hold, send, label):
    viewer = Viewer(site)
    first, second = hold("queued"), send("queued", label, 1.5)

    def waits():
        of = [each for row in viewer.look().rows.values() for each in row.get("next", ())]
        return next((each for each in of if each["task_id"] == second.id), None)

    wait = eventually(waits, "it is seen to wait")
    runs = [
        eventually(lambda each=each: viewer.look().run_of(each), "it has run")
        for each in (first, second)
    ]
    assert runs[0]["began"] - 0.1 < wait["since"] < runs[0]["ended"] <= runs[1]["began"]
    assert waits() is None


def test_runs_before_anybody_watched_come_from_the_history(
    conf, redis_server, start_worker, sender, journal, queue, label
):
    start_worker(queues=queue, pool="solo")
    result = sender.send_task("skip", [label, 0.1, "raise"], queue=queue)
    eventually(lambda: result.ready() and journal.read(label, "end"), "it has ended")
    with Site(make_app({**conf, "redislock_url": f"{redis_server.url}/0"})) as site:
        run = Viewer(site).run_of(result, "failed")
        assert run["task"] == "skip"
        assert 0 < run["ended"] - run["began"] < 30
