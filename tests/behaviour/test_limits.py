"""A callable `lock_limit` that gives less later: what has a slot by then keeps it, and gives it
back.
"""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.waiting import eventually, never
from tests.support.workers import is_running


@pytest.fixture
def runs(start_house, sender, queue, journal, redis_server, label):
    """Three runs of a task, which begin in this order. Then the limit is 1."""
    worker = start_house(concurrency=5)

    def runs(name, *hows):
        results, entries = [], []
        for how in hows or ["stand"] * 3:
            results.append(sender.send_task(name, [label, how], queue=queue))
            entries.append(journal.await_start(label, results[-1].id))
        limits.set(f"limit:{label}", 1)
        return worker, results, entries

    with redis_server.client(db=3) as limits:
        yield runs


@pytest.fixture
def third(tasks, lock_client, label):
    """What is in a lock's third slot."""

    def third(name):
        return lock_client.get(tasks[name].lock_key_for(label).replace(":lock:", ":lock3:"))

    return third


def test_the_slot_of_a_killed_child_is_free_long_before_its_ttl(runs, third, journal):
    _, results, entries = runs("fewer_later")
    assert results[2].id in third("fewer_later")
    journal.kill(entries[2])
    eventually(lambda: not third("fewer_later"), "it is free", 20)
    for each in results[:2]:
        journal.let_go(each.id)
        each.get(timeout=20)


def test_the_slot_of_a_stopped_child_is_extended(runs, third, journal):
    _, results, entries = runs("fewer_later_short")
    os.kill(entries[2].pid, signal.SIGSTOP)
    try:
        never(lambda: not third("fewer_later_short"), "its slot, with a ttl of 3 s, lapsed", 4)
    finally:
        if is_running(entries[2].pid):
            os.kill(entries[2].pid, signal.SIGCONT)
    for each in results:
        journal.let_go(each.id)
        each.get(timeout=20)


@pytest.mark.parametrize("name", ["fewer_later", "fewer_later_kept"])
def test_a_retry_takes_over_the_slot_that_is_kept_for_it(runs, third, journal, label, name):
    """By its id; and by the token in its message's header."""
    _, results, _ = runs(name, "stand", "stand", "stand and retry")
    journal.let_go(results[2].id)
    assert results[2].get(timeout=20) == label, "it is not skipped, though two others run"
    assert not third(name)
    for each in results[:2]:
        journal.let_go(each.id)
        each.get(timeout=20)


def test_a_copy_of_what_runs_in_a_slot_does_not_run_beside_it(
    runs, third, sender, queue, journal, label
):
    worker, results, _ = runs("fewer_later")
    for each in results[:2]:
        journal.let_go(each.id)
        each.get(timeout=20)
    mark = {"redislock": {"redelivered": True}}
    own = results[2].id
    sender.send_task("fewer_later", [label, "stand"], queue=queue, task_id=own, headers=mark)
    eventually(lambda: f"fewer_later[{own}] redelivered" in worker.log(), "it is put off")
    assert journal.count(label, "start") == 3
    journal.let_go(own)
    results[2].get(timeout=20)
    never(lambda: journal.count(label, "start") > 3, "the copy ran too", 1)


def test_a_break_reaches_what_has_a_slot(runs, tasks, third, journal, label):
    _, results, _ = runs("fewer_later")
    for each in results[:2]:
        journal.let_go(each.id)
        each.get(timeout=20)
    assert tasks["fewer_later"].break_lock(label)
    assert not third("fewer_later")
    journal.let_go(results[2].id)
    results[2].get(timeout=20)
