"""Broadcast: a fanout exchange gives each worker a copy of the message. What was sent once is
answered once.
"""

from __future__ import annotations

import pytest
from kombu import Exchange
from kombu.common import Broadcast

from celery_redislock import TaskSkipped
from tests.behaviour.deliveries.conftest import APP, await_line, lines_of
from tests.support.waiting import eventually, never
from tests.support.workers import make_app


@pytest.fixture(params=["redis", "rabbitmq"])
def kind(request):
    return request.param


@pytest.fixture
def url(request, conf, kind):
    return conf["broker_url"] if kind == "redis" else request.getfixturevalue("rabbitmq").url


@pytest.fixture
def start(start_worker, broadcast, url, queue):
    """Starts workers, each with a queue of its own for what is broadcast."""

    def start(*hosts, concurrency=2, **settings):
        conf = {"broker_url": url, "test_broadcast": f"all-{queue}", **settings}
        queues = {"app": APP, "queues": f"{queue},all-{queue}", "concurrency": concurrency}
        workers = [start_worker(**queues, conf={**conf, "test_host": host}) for host in hosts]

        def listen():
            """A worker that listens to a channel of Redis' is ready before it does."""
            broadcast("last", "")
            return all(lines_of(worker, "Task last[") for worker in workers)

        eventually(listen, "all listen")
        return workers

    return start


@pytest.fixture
def app(conf, url):
    known = {k: v for k, v in conf.items() if not k.startswith("test_")}
    with make_app({**known, "broker_url": url}) as app:
        yield app


@pytest.fixture
def send(app, queue):
    """Sends to one worker."""
    return lambda name, *args: app.send_task(name, args, queue=queue)


@pytest.fixture
def broadcast(app, queue):
    """Sends to all workers."""
    everywhere = Exchange(f"all-{queue}", type="fanout")
    to = {"queue": Broadcast(f"all-{queue}"), "declare": [everywhere]}
    return lambda name, *args: app.send_task(name, args, **to)


def ends_of_copies(workers, result):
    return [
        line
        for worker in workers
        for line in (*lines_of(worker, result.id, "runs elsewhere"),
                     *lines_of(worker, result.id, "already done"))
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["skip", "wait", "late"])
def test_one_worker_runs_it_and_the_others_end_their_copies(
    start, broadcast, journal, label, started, name
):
    workers = start("one", "one", "one")
    result = broadcast(name, label, None)
    started()
    for worker in workers:
        await_line(worker, result.id, "received")
    eventually(lambda: len(ends_of_copies(workers, result)) == 2, "the others have ended")
    assert not result.ready(), "they store no result"
    journal.let_go(result.id)
    assert result.get(timeout=10) == label
    assert journal.count(label, "start") == 1
    assert sum(len(lines_of(worker, result.id, "received")) for worker in workers) == 3


def test_a_worker_that_is_late_does_not_run_it_again(start, send, broadcast, journal, label):
    workers = start("one", "one", concurrency=1)
    busy = send("occupies", f"busy {label}")
    eventually(lambda: journal.count(f"busy {label}", "start"), "one worker is busy")
    result = broadcast("skip", label)
    assert result.get(timeout=10) == label
    journal.let_go(busy.id)
    (late,) = [worker for worker in workers if lines_of(worker, busy.id, "received")]
    await_line(late, result.id, "already done")
    assert journal.count(label, "start") == 1


@pytest.mark.parametrize("policy", ["defer", "queue", "replace"])
def test_copies_that_meet_another_run_are_put_off_each_to_its_own_queue(
    start, kind, send, broadcast, journal, label, started, policy
):
    """One of them runs then. Redis' fanout queues are channels, to which no worker is given back
    what is its own.
    """
    workers = start("one", "one", "one")
    holder = send(policy, label, None)
    started()
    result = broadcast(policy, label)
    for worker in workers:
        await_line(worker, result.id, "received")
    if kind == "redis":
        with pytest.raises(TaskSkipped):
            result.get(timeout=10)
        warned = [line for each in workers for line in lines_of(each, result.id, "is skipped: it")]
        assert warned
        assert all("WARNING" in line for line in warned)
        never(lambda: received(workers, result) > 3, "it is published again", 1)
        journal.let_go(holder.id)
        assert holder.get(timeout=10) == label
        assert journal.count(label, "start") == 1
        return
    never(result.ready, "it ended while the lock was held", 3)
    assert 3 < received(workers, result) <= 3 * 15
    journal.let_go(holder.id)
    assert result.get(timeout=20) == label
    eventually(lambda: len(ends_of_copies(workers, result)) == 2, "the others have ended")
    assert journal.count(label, "start") == 2
    assert journal.overlaps(label) == []


def received(workers, result):
    return sum(len(lines_of(worker, result.id, "received")) for worker in workers)


def test_an_outage_puts_each_copy_off_or_fails_it(
    start, own_redis, kind, broadcast, journal, label
):
    workers = start("one", "one", redislock_url=f"{own_redis.url}/0")
    own_redis.kill()
    result = broadcast("late", label)
    if kind == "redis":
        eventually(lambda: result.state == "FAILURE", "it failed, and says so")
        assert "not available" in str(result.result)
        return
    for worker in workers:
        await_line(worker, result.id, "is deferred for")
    own_redis.start()
    assert result.get(timeout=40) == label
    eventually(lambda: len(ends_of_copies(workers, result)) == 1, "the other has ended")
    assert journal.count(label, "start") == 1


def test_with_the_host_in_its_key_it_runs_once_on_each_host(start, broadcast, journal, label):
    workers = start("one", "one", "two")
    result = broadcast("once_a_host", label)
    eventually(lambda: journal.count(label, "end") == 2, "it ran on both")
    eventually(lambda: len(ends_of_copies(workers, result)) == 1, "the third has ended its copy")
    assert journal.count(label, "start") == 2
