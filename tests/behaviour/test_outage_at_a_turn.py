"""Tasks wait in a room while a worker cannot reach the lock server, or the broker."""

from __future__ import annotations

import os
import signal

import pytest
from celery.exceptions import WorkerLostError

from celery_redislock import LockUnavailable
from tests.behaviour.looking import starts
from tests.support.servers import Proxy
from tests.support.waiting import eventually, never
from tests.support.workers import make_app

#: Each task, and how often it runs if its turn comes while its worker cannot reach the locks.
RUNS = {"runs_unlocked": 1, "raises_unlocked": 0}
#: In a request that parks a task, and in no other: its message.
MESSAGE = b'"content_type"'


@pytest.fixture
def elsewhere(start_house, queue):
    """The queue of a worker that reaches the locks all the time."""
    start_house(queues=f"{queue}-elsewhere", concurrency=4)
    return f"{queue}-elsewhere"


@pytest.fixture
def way(own_redis):
    """The way to the locks of the worker that consumes the test's own queue."""
    with Proxy(own_redis.port) as way:
        yield way


@pytest.fixture
def worker(start_house, way):
    return start_house(concurrency=1, conf={"redislock_url": f"{way.url}/0"})


def test_a_turn_that_came_in_an_outage_is_not_taken_again(
    elsewhere, worker, way, sender, journal, tasks, room, label, queue, hold
):
    """The holders, and who passes on the turns, are on a worker that reaches the locks."""
    holders = [hold(name, queue=elsewhere) for name in RUNS]
    sent = {name: sender.send_task(name, [label, 0.1], queue=queue) for name in RUNS}
    rooms = {name: room(tasks[name], label) for name in RUNS}
    for name, result in sent.items():
        eventually(lambda n=name, r=result: rooms[n].ids() == [r.id], "it waits")
        eventually(lambda r=result: f"[{r.id}] queued" in worker.log(), "its worker has heard so")
    way.cut_off()
    for holder in holders:
        journal.let_go(holder.id)
    eventually(lambda: all(each.ready() for each in sent.values()), "they had their turns")
    way.reconnect()

    assert sent["runs_unlocked"].get() == label, "it ran without its lock"
    with pytest.raises(LockUnavailable):
        sent["raises_unlocked"].get()

    def have_run():
        return {name: starts(journal, label, each.id) for name, each in sent.items()}

    never(lambda: have_run() != RUNS, "one ran later", 7)  # it would come again after five
    eventually(lambda: all(here.is_empty() for here in rooms.values()), "the rooms are empty")
    assert have_run() == RUNS
    assert sent["raises_unlocked"].state == "FAILURE"


def test_what_was_parked_without_an_answer_ends_once(
    elsewhere, worker, way, sender, journal, tasks, room, label, queue, hold
):
    holders = [hold(name, queue=elsewhere) for name in ("job", *RUNS)]
    # Once a script is known to the server, it is called by its name: what is lost is an answer.
    known = sender.send_task("job", [label, 0.0], queue=elsewhere)
    eventually(lambda: room(tasks["job"], label).ids() == [known.id], "it waits")
    way.lose_replies(to=MESSAGE)
    sent = {name: sender.send_task(name, [label, 0.1], queue=queue) for name in RUNS}
    eventually(lambda: all(each.ready() for each in sent.values()), "both have ended")
    assert way.lost
    way.heal()
    for name in RUNS:
        eventually(room(tasks[name], label).is_empty, "it does not wait")
    for holder in holders:
        journal.let_go(holder.id)
        holder.get(timeout=20)
    for name in RUNS:
        assert sender.send_task(name, [label, 0.1], queue=queue).get(timeout=30) == label

    never(lambda: starts(journal, label, sent["raises_unlocked"].id), "it ran from the room", 3)
    assert starts(journal, label, sent["runs_unlocked"].id) == 1
    states = {name: each.state for name, each in sent.items()}
    assert states == {"runs_unlocked": "SUCCESS", "raises_unlocked": "FAILURE"}


def test_the_lock_of_a_dead_child_does_not_wait_for_a_broker_that_hangs(
    start_house, own_redis, conf, journal, tasks, room, label, queue
):
    broker_url = f"{own_redis.url}/1"
    one, two, job = f"{label}-1", f"{label}-2", tasks["long_job"]
    with Proxy(own_redis.port) as way, make_app({**conf, "broker_url": broker_url}) as app:
        start_house(concurrency=3, conf={"broker_url": way.in_front_of(broker_url)})
        holders = [app.send_task("long_job", [name, "stand"], queue=queue) for name in (one, two)]
        runs = [
            journal.await_start(name, holder.id)
            for name, holder in zip((one, two), holders, strict=True)
        ]
        waiting = app.send_task("long_job", [one, 0.1], queue=queue)
        here = room(job, one)
        eventually(lambda: here.ids() == [waiting.id], "it waits")
        way.to_server.block()
        os.kill(runs[0].pid, signal.SIGKILL)
        first = holders[0].id
        eventually(
            lambda: (held := job.lock_holder(one)) is None or held.task_id != first,
            "the first lock is free, and whoever waits for it is being published",
        )
        os.kill(runs[1].pid, signal.SIGKILL)
        eventually(lambda: job.lock_holder(two) is None, "its ttl is a minute", 30)
        way.to_server.unblock()
        assert waiting.get(timeout=30) == one


def test_a_result_does_not_wait_for_a_broker_that_does_not_answer(
    start_house, own_redis, conf, journal, tasks, room, label, queue
):
    """A copy of the message that found no result would run again."""
    broker_url = f"{own_redis.url}/1"
    with Proxy(own_redis.port) as way, make_app({**conf, "broker_url": broker_url}) as app:
        start_house(conf={"broker_url": way.in_front_of(broker_url)})
        first = app.send_task("quick_job", [label, "stand"], queue=queue)
        eventually(lambda: starts(journal, label, first.id), "it runs")
        second = app.send_task("quick_job", [label, 0.1], queue=queue)
        here = room(tasks["quick_job"], label)
        eventually(lambda: here.ids() == [second.id], "it waits")
        way.to_server.block()
        journal.let_go(first.id)
        assert first.get(timeout=20) == label
        way.to_server.unblock()
        assert second.get(timeout=30) == label


def test_what_may_have_been_parked_is_a_copy_from_then_on(
    start_worker, way, sender, queue, journal, label
):
    """The lock server executes what it cannot answer: the task is in the room, and is deferred."""
    conf = {"redislock_url": f"{way.url}/0"}
    worker = start_worker(queues=queue, concurrency=2, conf=conf)

    def send(seconds):
        return sender.send_task("queued_named", [label, seconds], queue=queue)

    first = send(3.0)
    journal.await_start(label, first.id)
    second = send(0.1)
    eventually(lambda: f"[{second.id}] queued" in worker.log(), "its script is known from now on")
    way.lose_replies(to=MESSAGE)
    third = send(0.1)
    eventually(lambda: "is deferred for" in worker.log(), "its parking is not answered")
    way.heal()

    assert all(each.get(timeout=30) for each in (first, second, third))

    copy_met = (f"[{third.id}] already done", f"[{third.id}] queued")
    eventually(lambda: any(said in worker.log() for said in copy_met), "both of it have come")
    ran = [entry.task_id for entry in journal.read(label, "start")]
    assert ran == [first.id, second.id, third.id]


def test_a_worker_is_not_held_up_by_each_dead_child_while_the_lock_server_hangs(
    start_worker, sender, own_redis, journal, label, queue
):
    worker = start_worker(queues=queue, concurrency=4, conf={"redislock_url": own_redis.url})
    labels = [f"{label}-{number}" for number in range(4)]
    results = [sender.send_task("queued_long", [each, 60.0], queue=queue) for each in labels]
    pids = [
        journal.await_start(each, result.id).pid
        for each, result in zip(labels, results, strict=True)
    ]
    own_redis.stop()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for result in results:
        with pytest.raises(WorkerLostError):
            result.get(timeout=60)
    assert worker.log().count("cannot find out whether") == 1, "its main loop waits for each answer"
