"""What an outage of the lock server costs is named in the log, and an alert comes once."""

from __future__ import annotations

import pytest

from tests.support.waiting import eventually


@pytest.fixture
def start(start_worker, queue):
    """Starts a worker whose locks, and nothing else, are on this server."""

    def start(server, **options):
        conf = {"redislock_url": f"{server.url}/0"}
        return start_worker(queues=queue, conf=conf, **options)

    return start


@pytest.fixture
def send(sender, queue):
    def send(name, *args, **options):
        return sender.send_task(name, args, queue=queue, **options)

    return send


def lines_of(worker, text):
    return [line for line in worker.log().splitlines() if text in line]


@pytest.fixture
def wait_behind(send, journal, label):
    """A run that holds the label's lock, and two tasks that wait for it."""

    def wait_behind(worker, seconds, **options):
        holder = send("queued", label, seconds)
        journal.await_start(label, holder.id)
        waiting = [send("queued", label, 0.1, **options) for _ in range(2)]
        for each in waiting:
            eventually(lambda each=each: lines_of(worker, f"[{each.id}] queued"), "it waits")
        return holder, waiting

    return wait_behind


def test_what_an_empty_restart_forgets_in_a_room_is_named_once(
    start, own_redis, wait_behind, journal, label
):
    worker = start(own_redis, concurrency=2)
    holder, waiting = wait_behind(worker, "stand")

    own_redis.restart_empty()

    eventually(lambda: lines_of(worker, "has forgotten 2 tasks"), "it says so")
    journal.let_go(holder.id)
    assert holder.get(timeout=30)
    (line,) = lines_of(worker, "has forgotten")
    assert "ERROR/" in line
    assert all(f"queued[{each.id}]" in line for each in waiting)
    assert journal.count(label, "start") == 1


def test_of_what_expires_in_all_processes_of_a_worker_one_line_is_an_error(start, own_redis, send):
    worker = start(own_redis, concurrency=3)
    own_redis.kill()

    expired = [send("skip", f"{number}", 0.1, expires=1.5) for number in range(3)]

    eventually(lambda: len(lines_of(worker, "ends as expired")) == 3, "all are named")
    lines = lines_of(worker, "ends as expired without a run")
    assert all(any(each.id in line for line in lines) for each in expired)
    assert sum("ERROR/" in line for line in lines) == 1
    assert sum("WARNING/" in line for line in lines) == 2
