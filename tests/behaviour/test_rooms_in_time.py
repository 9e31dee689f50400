"""A room in which several times, or several slots, come together; and those who wait in slots."""

from __future__ import annotations

import pytest

from celery_redislock import ConfigError, TaskSkipped
from tests.behaviour.conftest import HOUSE
from tests.behaviour.looking import received, starts
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

QUEUE = "rooms-in-time"


@pytest.fixture(scope="module")
def own_redis():
    """A lock server of this module's own."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def worker(start_module_worker, own_redis):
    conf = {"redislock_url": f"{own_redis.url}/0"}
    return start_module_worker(
        "--prefetch-multiplier", "4", app=HOUSE, queues=QUEUE, concurrency=4, conf=conf
    )


@pytest.fixture
def queue():
    return QUEUE


def test_max_wait_ends_also_what_waits_behind_another(
    sender, tasks, room, hold, journal, label, queue
):
    here = room(tasks["queues"], label)
    holder = hold("queues")
    patient = sender.send_task("queues", [label, 0.1], queue=queue)
    eventually(lambda: here.ids() == [patient.id], "the first waits")
    brief = sender.send_task("queues_briefly", [label, 0.1], queue=queue)
    eventually(lambda: brief.id in here.ids(), "the second waits")
    eventually(brief.ready, "it has waited long enough")
    with pytest.raises(TaskSkipped):
        brief.get()
    assert brief.state == "REVOKED"
    assert here.ids() == [patient.id]
    assert tasks["queues"].lock_holder(label).task_id == holder.id
    journal.let_go(holder.id)
    assert patient.get(timeout=20) == label
    eventually(here.is_empty, "the room is empty")
    assert starts(journal, label, brief.id) == 0


def test_many_that_have_waited_long_enough_give_up_together(
    sender, tasks, room, hold, journal, label, queue
):
    here = room(tasks["queues"], label)
    holder = hold("queues")
    many = [sender.send_task("queues_briefly", [label, 0.1], queue=queue) for _ in range(30)]
    eventually(lambda: all(each.ready() for each in many), "none of them waits")
    assert {each.state for each in many} == {"REVOKED"}
    eventually(here.is_empty, "the room is empty")
    journal.let_go(holder.id)


def test_two_releases_at_once_publish_each_waiting_task_once(
    worker, sender, tasks, room, hold, journal, label, queue
):
    here = room(tasks["two_queue"], label)
    holders = [hold("two_queue") for _ in range(2)]
    waiting = [sender.send_task("two_queue", [label, 0.0], queue=queue) for _ in range(60)]
    eventually(lambda: len(here.ids()) == len(waiting), "all wait")
    for holder in holders:
        journal.let_go(holder.id)
    for result in waiting:
        assert result.get(timeout=60) == label
    eventually(here.is_empty, "the room is empty")
    assert {starts(journal, label, each.id) for each in waiting} == {1}
    # As it was sent, and when its turn came.
    more = {each.id: count for each in waiting if (count := received(worker.log(), each.id)) != 2}
    assert more == {}, "published another number of times than once"
    assert "already done" not in worker.log()


def test_tasks_that_wait_in_their_slots_run_in_the_order_in_which_they_came(
    start_house, sender, own_redis, journal, label
):
    """While all are blocked: one that looks again, after five seconds, goes to the end."""
    conf = {"redislock_url": f"{own_redis.url}/0"}
    start_house(queues=label, concurrency=5, pool="threads", conf=conf)
    holder = sender.send_task("waits_long", [label, "stand"], queue=label)
    eventually(lambda: journal.read(label, "start"), "the holder runs")
    sent = [holder]
    with own_redis.client() as client:
        for number in range(4):
            sent.append(sender.send_task("waits_long", [label, 0.0], queue=label))
            eventually(
                lambda blocked=number + 1: client.info("clients")["blocked_clients"] == blocked,
                "it waits",
            )
    journal.let_go(holder.id)
    assert [each.get(timeout=20) for each in sent] == [label] * 5
    ran = [entry.task_id for entry in journal.read(label, "start")]
    assert ran == [each.id for each in sent]


def test_a_policy_that_ends_nothing_fails_its_task(sender, hold, journal, label, queue):
    holder = hold("forgets")
    result = sender.send_task("forgets", [label], queue=queue)
    with pytest.raises(ConfigError, match=r"Forgetful.* did not end the conflict: its act"):
        result.get(timeout=20)
    journal.let_go(holder.id)
