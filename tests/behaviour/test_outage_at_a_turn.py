"""Tasks wait in a room while a worker cannot reach the lock server, or the broker."""

from __future__ import annotations

import os
import signal

import pytest
from celery.exceptions import WorkerLostError

from tests.behaviour.looking import starts
from tests.support.servers import Proxy
from tests.support.waiting import eventually
from tests.support.workers import make_app


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
