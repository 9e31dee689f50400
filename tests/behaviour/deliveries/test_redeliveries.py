"""A message that comes back: what is to run once more runs, and what was replaced does not."""

from __future__ import annotations

import signal

import pytest
from celery import chain, chord, signature

from tests.behaviour.deliveries.conftest import APP, await_line, lines_of
from tests.support.waiting import eventually, never


@pytest.fixture(scope="module")
def shared(start_module_worker):
    """The queue of a worker that goes on when its children die."""
    start_module_worker(app=APP, queues="redeliveries", concurrency=3)
    return "redeliveries"


def test_a_child_that_dies_while_it_publishes_the_next_link_loses_nothing(
    shared, sender, journal, label
):
    """As Celery alone does it: the first link runs again, and the chain goes on."""

    def link(name):
        return signature(name, (label,), app=sender, immutable=True).set(queue=shared)

    chain(link("first_link"), link("next_link"))()
    eventually(lambda: journal.count(label, "last"), "the next link runs")
    ran = [entry.task_id for entry in journal.read(label, "start")]
    assert len(ran) == 2, "the first time its child died"
    assert journal.overlaps(label) == []


def test_a_child_that_dies_as_its_task_is_skipped_loses_nothing_that_follows(
    shared, sender, journal, label
):
    """Its copy does not take what was noted for what was done."""

    def sig(name, label, *more):
        return signature(name, (label, *more), app=sender, immutable=True).set(queue=shared)

    link, member = f"{label}-link", f"{label}-member"
    holders = [
        sig("skipped_link", link, None).apply_async(),
        sig("skipped_member", member, None).apply_async(),
    ]
    for each in (link, member):
        eventually(lambda each=each: journal.count(each, "start") == 1, "it is held")
    chain(sig("skipped_link", link), sig("next_link", link))()
    chord([sig("skipped_member", member), sig("late", label)], sig("next_link", member))()
    for each in (link, member):
        eventually(lambda each=each: journal.count(each, "dies"), "its child has died")
    for each in holders:
        journal.let_go(each.id)
    for each in (link, member):
        eventually(lambda each=each: journal.count(each, "last"), "what follows runs", 30)
    never(lambda: journal.count(link, "last") + journal.count(member, "last") > 2, "again", 1)
    assert journal.overlaps(link) + journal.overlaps(member) == []


def test_a_task_that_is_sent_again_under_its_id_runs_though_a_restart_redelivers_it(
    start, send_here, journal, label
):
    """It is no copy of the message of its last run."""
    old = start(concurrency=1, conf={"worker_prefetch_multiplier": 4})
    assert send_here("late", label, task_id=label).get(timeout=20) == label
    long = send_here("occupies", f"{label}-long")
    eventually(lambda: journal.count(f"{label}-long", "start"), "the only slot is taken")
    send_here("late", label, task_id=label)
    eventually(lambda: len(lines_of(old, label, "received")) == 2, "it is prefetched")
    old.signal(signal.SIGTERM)
    await_line(old, "Warm shutdown")
    journal.let_go(long.id)
    assert old.wait() == 0
    assert journal.count(label, "start") == 1
    start(concurrency=1)
    eventually(lambda: journal.count(label, "end") == 2, "it runs")
    never(lambda: journal.count(label, "start") > 2, "it runs once more", 1)
