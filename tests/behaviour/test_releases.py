"""A new release changes tasks while messages of the old one wait in their rooms."""

from __future__ import annotations

import signal

import pytest
from celery.exceptions import NotRegistered

from tests.behaviour.apps.releases import release
from tests.behaviour.looking import Room, listed, starts, untaken
from tests.support.waiting import eventually, never

APP = "tests.behaviour.apps.releases"
#: Changes after which what waits runs, or ends, in the new release.
END = ("alias", "signature")


class Waiting:
    """Two tasks of each change that wait in the room of the old release, whose worker ends.

    Args:
        way: warm: the old worker publishes the first of them when the holder has ended. killed:
            nobody does, and the holder's lock lapses.
    """

    def __init__(self, way, changes, start, app, sender, client, journal, queue, label):
        self.changes, self.labels = changes, {change: f"{label}-{change}" for change in changes}
        self._client, self._aged = client, set()
        self.rooms = {
            change: Room(client, app.tasks[change].lock_key_for(own))
            for change, own in self.labels.items()
        }
        old = start(1, queues=queue, concurrency=len(changes) + 1)
        # It is there before the old one ends: what were published twice until it is, a release
        # without locks would run twice.
        self.new = start(2, queues=f"{queue}-none", concurrency=2)
        send = lambda change, how: sender.send_task(change, [self.labels[change], how], queue=queue)  # noqa: E731
        holders = [send(change, "stand") for change in changes]
        began = [
            journal.await_start(self.labels[change], holder.id)
            for change, holder in zip(changes, holders, strict=True)
        ]
        self.results = {change: [] for change in changes}
        for change, results in self.results.items():
            for number in (1, 2):
                results.append(send(change, 0.1))
                eventually(lambda c=change, n=number: len(self.rooms[c].ids()) == n, "it waits")
        if way == "warm":
            old.signal(signal.SIGTERM)
            eventually(lambda: "Warm shutdown" in old.log(), "it ends")
        else:
            old.kill()
            for entry in began:
                journal.killed(entry)
        consume = {"destination": [self.new.node], "reply": True, "timeout": 2.0}
        eventually(lambda: sender.control.add_consumer(queue, **consume), "the new one consumes")
        for holder in holders:
            journal.let_go(holder.id)
        if way == "warm":
            old.wait(60)

    def let_a_minute_pass(self, change):
        """What is published from now on, or is passed over, was so a minute ago."""
        sent = self.rooms[change].key.replace(":room:", ":sent:")
        for member in {*self._client.zrange(sent, 0, -1)} - self._aged:
            self._client.zincrby(sent, -61_000, member)
            self._aged.add(member)

    def have_ended(self):
        return all(each.ready() for results in self.results.values() for each in results)


@pytest.fixture
def start(start_worker, lock_conf):
    """Starts a worker of a release."""

    def start(number, **options):
        settings = {**lock_conf, "test_release": number}
        return start_worker(app=APP, conf=settings, **options)

    return start


@pytest.fixture(params=["warm", "killed"])
def waiting(request, start, sender, conf, lock_conf, lock_client, journal, queue, label):
    """See `Waiting`."""

    def waiting(*changes):
        with release(1, {**conf, **lock_conf}) as app:
            return Waiting(
                request.param, changes, start, app, sender, lock_client, journal, queue, label
            )

    return waiting


# The longest first: pytest-xdist gives whoever has two tests left its next file.
@pytest.mark.timeout(240)
def test_what_waits_under_a_name_that_nobody_knows_is_said_and_runs_if_all_know_it_again(
    waiting, start, sender, conf, lock_conf, journal, queue
):
    waits = waiting("name")
    new, results, label = waits.new, waits.results["name"], waits.labels["name"]

    def is_said(each):
        waits.let_a_minute_pass("name")
        return each.ready() or untaken(new.log(), each.id)

    eventually(lambda: all(map(is_said, results)), "both have ended, or it is said", 120)
    fresh = sender.send_task("new_name", [label, 0.1], queue=queue)
    assert fresh.get(timeout=30) == label, "they do not block it"
    left = [each for each in results if not each.ready()]
    for each in results:
        assert each in left or isinstance(each.result, NotRegistered), each.result
        assert starts(journal, label, each.id) == 0
    for each in left:
        line = untaken(new.log(), each.id)[0]
        assert f"no worker has taken name[{each.id}], which waits for" in line
        assert "this worker does not know the task" in line
    assert sorted(waits.rooms["name"].ids()) == sorted(each.id for each in left)
    rows = listed(APP, {**conf, **lock_conf, "test_release": 2})
    (row,) = [row for row in rows if label in row["key"] and row["waiting"]] if left else [{}]
    assert row.get("untaken", 0) == len(left)

    new.signal(signal.SIGTERM)
    new.wait()  # until then it takes messages, and discards these
    start(3, queues=queue)

    eventually(lambda: all(each.state == "SUCCESS" for each in left), "they have run", 90)
    eventually(waits.rooms["name"].is_empty, "the room is empty")


@pytest.mark.timeout(240)
def test_what_waits_ends_once_in_a_release_with_an_alias_or_another_signature(
    waiting, sender, journal, queue
):
    waits = waiting(*END)

    eventually(waits.have_ended, "all have ended", 90)

    for change, results in waits.results.items():
        label = waits.labels[change]
        eventually(waits.rooms[change].is_empty, "the room is empty")
        account = [5] if change == "signature" else []
        fresh = sender.send_task(change, [label, 0.1, *account], queue=queue)
        assert fresh.get(timeout=30) == label
        for each in results:
            if change != "signature":
                assert each.get() == label
                continue
            assert each.state == "FAILURE"
            assert isinstance(each.result, TypeError), "its arguments do not bind any more"

    def have_run():
        return {
            change: [starts(journal, waits.labels[change], each.id) for each in results]
            for change, results in waits.results.items()
        }

    expected = {change: [0, 0] if change == "signature" else [1, 1] for change in END}
    never(lambda: have_run() != expected, "one ran again", 1.5)
    assert journal.overlaps(waits.labels["alias"]) == []
