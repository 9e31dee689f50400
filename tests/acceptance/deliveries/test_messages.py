"""A duplicate that is published again is the message that it was: its serializer and all."""

from __future__ import annotations

import pytest
from celery import signature

from tests.acceptance.deliveries.conftest import await_line, lines_of
from tests.support.waiting import never

POLICIES = ["defer", "queue", "coalesce"]
#: What JSON cannot carry.
WHAT = {3, 1, 2}


@pytest.fixture
def worker(start, monkeypatch):
    monkeypatch.setenv("C_FORCE_ROOT", "1")  # Celery refuses pickle to root
    return start(conf={"accept_content": ["json", "pickle"]}, concurrency=2)


@pytest.mark.parametrize("late", ["", "_late"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_pickled_duplicate_runs_in_the_end_with_its_argument(
    worker, send_here, journal, label, started, policy, late
):
    name = f"describe_{policy}{late}"
    holder = send_here(name, label, None)
    started()
    pickled = send_here(name, label, 0.1, WHAT, serializer="pickle")
    await_line(worker, pickled.id, "received")
    never(pickled.ready, "it ended while the lock was held", 1.0)
    # Once each try; a message that is given back to the broker comes a hundred times a second.
    assert len(lines_of(worker, pickled.id, "received")) < 10
    journal.let_go(holder.id)
    assert pickled.get(timeout=20)["what"] == sorted(WHAT)
    assert holder.get(timeout=5)["what"] == []
    assert journal.count(label, "start") == 2
    assert journal.overlaps(label) == []


@pytest.mark.parametrize("policy", POLICIES)
def test_what_a_message_says_beside_its_arguments_is_kept(
    worker, sender, journal, label, queue, started, policy
):
    """The duplicate's last message says what the holder's, which ran at once, said."""

    def send(seconds):
        sent = signature(f"describe_{policy}", (label, seconds), app=sender).stamp(tenant="blue")
        more = {"argsrepr": "<secret>", "kwargsrepr": "<hidden>", "priority": 6}
        return sent.apply_async(queue=queue, **more)

    holder = send(None)
    started()
    duplicate = send(0.1)
    await_line(worker, duplicate.id, "received")
    never(duplicate.ready, "it ended while the lock was held", 1.0)
    journal.let_go(holder.id)
    said = holder.get(timeout=10)
    assert (said["argsrepr"], said["kwargsrepr"]) == ("<secret>", "<hidden>")
    assert (said["stamped_headers"], said["stamps"]["tenant"]) == (["tenant"], "blue")
    assert said["priority"] == 6
    assert duplicate.get(timeout=20) == said
