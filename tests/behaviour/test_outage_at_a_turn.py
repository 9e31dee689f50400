"""A parked task has its turn while a worker cannot reach the lock server, or the broker."""

from __future__ import annotations

import os
import signal

import pytest

from celery_redislock import LockUnavailable
from celery_redislock.servers.scripts import sha_of, text_of
from tests.behaviour.looking import starts
from tests.support.servers import Proxy
from tests.support.waiting import eventually, never
from tests.support.workers import make_app


@pytest.fixture
def turn_comes(start_house, sender, own_redis, journal, tasks, room, label, queue, hold):
    """Lets a parked task have its turn at a worker that is cut off from the locks meanwhile.

    The holder and who passes on the turn are on a worker that reaches them all the time.
    """
    elsewhere = f"{queue}-holder"
    with Proxy(own_redis.port) as way:

        def turn_comes(name, has_had_it):
            start_house(queues=elsewhere)
            worker = start_house(concurrency=1, conf={"redislock_url": f"{way.url}/0"})
            holder = hold(name, queue=elsewhere)
            result = sender.send_task(name, [label, 0.1], queue=queue)
            here = room(tasks[name], label)
            eventually(lambda: here.ids() == [result.id], "it waits")
            eventually(lambda: f"[{result.id}] queued" in worker.log(), "its worker has heard so")
            way.cut_off()
            journal.let_go(holder.id)
            eventually(lambda: has_had_it(result), "its turn came while the locks were away")
            way.reconnect()
            return result, here

        yield turn_comes


def test_what_ran_without_its_lock_in_an_outage_has_had_its_turn(turn_comes, journal, label):
    result, here = turn_comes("runs_unlocked", lambda result: result.ready())
    assert result.get() == label
    never(lambda: starts(journal, label, result.id) > 1, "it ran again", 20)
    eventually(here.is_empty, "the room is empty", 40)
    assert starts(journal, label, result.id) == 1


def test_what_failed_for_an_outage_at_its_turn_does_not_run_later(turn_comes, journal, label):
    result, here = turn_comes("raises_unlocked", lambda result: result.ready())
    with pytest.raises(LockUnavailable):
        result.get()
    never(lambda: starts(journal, label, result.id), "it ran after it had failed", 20)
    eventually(here.is_empty, "the room is empty", 40)
    assert result.state == "FAILURE"
    assert starts(journal, label, result.id) == 0


@pytest.mark.parametrize(("name", "runs"), [("runs_unlocked", 1), ("raises_unlocked", 0)])
def test_what_was_parked_without_an_answer_ends_once(
    start_house, sender, own_redis, journal, tasks, room, label, queue, hold, name, runs
):
    elsewhere = f"{queue}-holder"
    with Proxy(own_redis.port) as way:
        start_house(queues=elsewhere)
        start_house(concurrency=1, conf={"redislock_url": f"{way.url}/0"})
        holder = hold(name, queue=elsewhere)
        with own_redis.client() as to_load:  # else it would be sent as a text
            to_load.script_load(text_of("park"))
        way.lose_replies(to=sha_of("park").encode())
        result = sender.send_task(name, [label, 0.1], queue=queue)
        eventually(result.ready, "it has ended")
        assert way.lost
        way.heal()
        here = room(tasks[name], label)
        eventually(here.is_empty, "it does not wait")
        journal.let_go(holder.id)
        holder.get(timeout=20)
        after = sender.send_task(name, [label, 0.1], queue=queue)
        after.get(timeout=30)
        never(lambda: starts(journal, label, result.id) > runs, "it ran from the room", 3)
    assert result.state == ("SUCCESS" if runs else "FAILURE")


def test_the_lock_of_a_dead_child_does_not_wait_for_a_broker_that_hangs(
    start_house, own_redis, conf, journal, tasks, room, label, queue
):
    broker_url = f"{own_redis.url}/1"
    one, two, job = f"{label}-1", f"{label}-2", tasks["job"]
    with Proxy(own_redis.port) as way, make_app({**conf, "broker_url": broker_url}) as app:
        start_house(concurrency=3, conf={"broker_url": way.in_front_of(broker_url)})
        holders = [app.send_task("job", [name, "stand"], queue=queue) for name in (one, two)]
        runs = [
            eventually(lambda name=name: journal.read(name, "start"), "it runs")[0]
            for name in (one, two)
        ]
        waiting = app.send_task("job", [one, 0.1], queue=queue)
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
        eventually(lambda: job.lock_holder(two) is None, "it is free, long before its ttl", 3)
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
