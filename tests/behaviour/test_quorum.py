"""Tasks whose locks a majority of independent servers keeps, while one of these is killed."""

from __future__ import annotations

import pytest

from celery_redislock import LockConflict, TaskSkipped
from tests.support.clusters import url_of_quorum
from tests.support.waiting import eventually


@pytest.mark.parametrize("policy", ["skip", "refuse", "defer", "wait"])
def test_each_policy_keeps_its_word_while_a_server_dies(
    three_servers, start_worker, sender, queue, journal, label, policy
):
    start_worker(
        queues=queue,
        concurrency=3,
        app="tests.behaviour.apps.majority",
        conf={"redislock_url": url_of_quorum(three_servers)},
    )

    def send(seconds: float):
        return sender.send_task(f"majority.{policy}", (label, seconds), queue=queue)

    first = send(3.0)
    eventually(lambda: journal.count(label, "start") == 1, "the holder runs")
    three_servers[0].kill()
    second = send(0.0)
    if policy in ("skip", "refuse"):
        with pytest.raises(TaskSkipped if policy == "skip" else LockConflict):
            second.get(timeout=20)
        assert first.get(timeout=20)
        second = send(0.0)
    assert second.get(timeout=30) > first.get(timeout=30), "the fence is higher"
    assert journal.count(label, "start") == 2
    assert journal.overlaps(label) == []
