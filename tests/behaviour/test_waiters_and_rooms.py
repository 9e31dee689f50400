"""Tasks that hold their slot while they wait, beside tasks that wait in a room, on one lock."""

from __future__ import annotations

import pytest

from celery_redislock import ConfigError
from tests.behaviour.conftest import HOUSE
from tests.behaviour.looking import received
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

QUEUE = "waiters-and-rooms"


@pytest.fixture(scope="module")
def own_redis():
    """A lock server of this module's own."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def worker(start_module_worker, own_redis):
    conf = {"redislock_url": f"{own_redis.url}/0"}
    return start_module_worker(app=HOUSE, queues=QUEUE, concurrency=2, conf=conf)


@pytest.fixture
def queue():
    return QUEUE


@pytest.mark.parametrize(
    ("parked", "others"),
    [("queues_one", ["queues_one"] * 4), ("queues", ["waits"] * 3 + ["queues", "waits"])],
    ids=["a-full-room-then-wait", "wait-and-queue-share-a-lock"],
)
def test_waiters_in_all_slots_do_not_stop_what_waits_in_the_room(
    worker, sender, tasks, room, hold, journal, label, queue, parked, others
):
    holder = hold(parked)
    first = sender.send_task(parked, [label, 0.1], queue=queue)
    eventually(lambda: room(tasks[parked], label).ids() == [first.id], "it waits in the room")
    waiting = [sender.send_task(name, [label, 0.1], queue=queue) for name in others]
    eventually(lambda: received(worker.log(), waiting[0].id), "one waits in the other slot")
    journal.let_go(holder.id)
    results = [holder, first, *waiting]
    eventually(lambda: all(each.ready() for each in results), "all of them have run", 60)
    assert [each.state for each in results] == ["SUCCESS"] * len(results)
    ran = [entry.task_id for entry in journal.read(label, "start")]
    assert sorted(ran) == sorted(each.id for each in results), "each once"
    assert journal.overlaps(label) == []


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


def test_a_waiter_does_not_keep_its_slot_from_the_retry_that_has_the_lock(
    start_house, sender, journal, label
):
    start_house(queues=label, concurrency=1)
    results = [
        sender.send_task("retries_and_waits", [label, how], queue=label) for how in ("retry", 0.0)
    ]
    eventually(lambda: all(each.ready() for each in results), "both have run", 30)
    ran = [entry.task_id for entry in journal.read(label, "start")]
    assert ran == [results[0].id, results[0].id, results[1].id]


def test_a_policy_that_ends_nothing_fails_its_task(sender, hold, journal, label, queue):
    holder = hold("forgets")
    result = sender.send_task("forgets", [label], queue=queue)
    with pytest.raises(ConfigError, match=r"Forgetful.* did not end the conflict: its act"):
        result.get(timeout=20)
    journal.let_go(holder.id)
