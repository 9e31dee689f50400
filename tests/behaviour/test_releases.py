"""A new release changes a task while messages of the old one wait in its room."""

from __future__ import annotations

import re
import signal
import time

import pytest
from celery.exceptions import NotRegistered

from tests.behaviour.apps.releases import release
from tests.behaviour.looking import Room, listed, redislock, starts, untaken
from tests.support.waiting import eventually, never

ONE = "tests.behaviour.apps.release_one"
TWO = "tests.behaviour.apps.release_two"


@pytest.fixture(params=["warm", "killed"])
def waiting(request, start_worker, sender, conf, lock_conf, lock_client, journal, label, queue):
    """Leaves two tasks in the room of the old release, whose worker ends.

    Warm: it publishes the first of them when the holder has ended. Killed: nobody does, and the
    holder's lock lapses.
    """

    def waiting(change):
        settings = {**lock_conf, "test_change": change}
        old = start_worker(app=ONE, conf=settings, queues=queue)
        with release(1, change, {**conf, **lock_conf}) as app:
            room = Room(lock_client, app.tasks["job"].lock_key_for(label))
        holder = sender.send_task("job", [label, "stand"], queue=queue)
        eventually(lambda: starts(journal, label, holder.id), "the holder runs")
        results = []
        for number in (1, 2):
            results.append(sender.send_task("job", [label, 0.1], queue=queue))
            eventually(lambda number=number: len(room.ids()) == number, "it waits")
        if request.param == "warm":
            old.signal(signal.SIGTERM)
            eventually(lambda: "Warm shutdown" in old.log(), "it ends")
            journal.let_go(holder.id)
            old.wait(60)
        else:
            old.kill()
            journal.killed(journal.read(label, "start")[0])
        return start_worker(app=TWO, conf=settings, queues=queue), results, room

    return waiting


# The longest first: pytest-xdist gives whoever has two tests left its next file.
@pytest.mark.timeout(240)
def test_what_waits_under_a_name_that_nobody_knows_is_said_and_runs_if_all_know_it_again(
    waiting, start_worker, sender, conf, lock_conf, journal, label, queue
):
    new, results, room = waiting("name")
    settings = {**conf, **lock_conf, "test_change": "name"}

    def is_said(each):
        return each.ready() or untaken(new.log(), each.id)

    eventually(lambda: all(map(is_said, results)), "both have ended, or it is said", 120)
    fresh = sender.send_task("renamed_job", [label, 0.1], queue=queue)
    assert fresh.get(timeout=15) == label, "they do not block it"
    waits = [each for each in results if not each.ready()]
    for each in results:
        assert each in waits or isinstance(each.result, NotRegistered), each.result
        assert starts(journal, label, each.id) == 0
    for each in waits:
        assert (
            f"no worker has taken job[{each.id}], which waits for" in untaken(new.log(), each.id)[0]
        )
        assert "this worker does not know the task" in untaken(new.log(), each.id)[0]
    assert sorted(room.ids()) == sorted(each.id for each in waits)
    rows = listed(TWO, settings)
    (row,) = [row for row in rows if label in row["key"] and row["waiting"]] if waits else [{}]
    assert row.get("untaken", 0) == len(waits)
    new.signal(signal.SIGTERM)
    start_worker(app=TWO, conf={**lock_conf, "test_change": "alias"}, queues=queue)
    eventually(lambda: all(each.state == "SUCCESS" for each in waits), "they have run", 60)
    eventually(room.is_empty, "the room is empty", 60)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("waiting", ["killed"], indirect=True)
def test_what_is_said_of_a_task_that_no_worker_knows_is_so_behind_a_living_holder(
    waiting, sender, conf, lock_conf, journal, label, queue
):
    new, results, _ = waiting("name")
    settings = {**conf, **lock_conf, "test_change": "name"}
    holder = sender.send_task("renamed_job", [label, 200.0], queue=queue)
    eventually(lambda: starts(journal, label, holder.id), "they do not block it")
    began = time.monotonic()
    eventually(lambda: all(untaken(new.log(), each.id) for each in results), "it is said", 90)
    for each in results:
        lines = untaken(new.log(), each.id)
        ages = [int(re.search(r"for (\d+) s since it came", line)[1]) for line in lines]
        assert len(set(ages)) == len(ages), "it is said once, not twice in a row"
        assert ages[0] < time.monotonic() - began + 60
        assert not any("published" in line for line in lines), "nobody has published it"
    (row,) = [row for row in listed(TWO, settings) if label in row["key"]]
    assert (row["state"], row["untaken"]) == ("held", len(results))
    shown = redislock(TWO, settings, "show", row["key"]).stdout
    assert "published again" not in shown
    assert "can publish 2" in " ".join(shown.split())
    assert "published" not in redislock(TWO, settings, "doctor").stdout


@pytest.mark.timeout(240)
@pytest.mark.parametrize("change", ["lock_key", "date", "base", "disabled", "alias"])
def test_what_waits_runs_once_in_a_release_with_another_key_or_without_a_lock(
    waiting, sender, journal, label, queue, change
):
    _, results, room = waiting(change)
    eventually(lambda: all(each.ready() for each in results), "both have run", 60)
    assert [each.state for each in results] == ["SUCCESS", "SUCCESS"]
    eventually(room.is_empty, "the room is empty", 60)
    fresh = sender.send_task("job", [label, 0.1], queue=queue)
    assert fresh.get(timeout=15) == label
    again = lambda: any(starts(journal, label, each.id) > 1 for each in results)  # noqa: E731
    never(again, "one of them ran again", 6)
    if change in ("lock_key", "date", "alias"):
        assert journal.overlaps(label) == []


@pytest.mark.timeout(240)
def test_what_waits_with_arguments_that_do_not_bind_any_more_ends_with_its_error(
    waiting, sender, journal, label, queue
):
    _, results, room = waiting("signature")
    eventually(lambda: all(each.ready() for each in results), "both have ended", 60)
    for each in results:
        with pytest.raises(TypeError):
            each.get(timeout=1)
        assert each.state == "FAILURE"
    eventually(room.is_empty, "the room is empty", 60)
    fresh = sender.send_task("job", [label, 0.1, 5], queue=queue)
    assert fresh.get(timeout=15) == label
    assert not any(starts(journal, label, each.id) for each in results)
