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


def test_of_what_expires_in_all_processes_of_a_worker_one_line_is_an_error(start, own_redis, send):
    worker = start(own_redis, concurrency=3)
    own_redis.kill()

    expired = [send("skip", f"{number}", 0.1, expires=1.5) for number in range(3)]

    eventually(lambda: len(lines_of(worker, "ends as expired")) == 3, "all are named")
    lines = lines_of(worker, "ends as expired without a run")
    assert all(any(each.id in line for line in lines) for each in expired)
    assert sum("ERROR/" in line for line in lines) == 1
    assert sum("WARNING/" in line for line in lines) == 2
