"""Tasks whose locks a majority of independent servers keeps, while one of these is killed."""

from __future__ import annotations

import pytest

from celery_redislock import LockConflict, TaskSkipped
from tests.support.clusters import url_of_quorum

QUEUE = "quorum"


def test_each_policy_keeps_its_word_while_a_server_dies(
    three_servers, start_worker, send, journal, label
):
    conf = {"redislock_url": url_of_quorum(three_servers)}
    start_worker(queues=QUEUE, concurrency=8, app="tests.behaviour.apps.majority", conf=conf)
    policies = ("skip", "refuse", "defer", "wait")

    def run(policy: str, seconds: float):
        return send(f"majority.{policy}", f"{label}-{policy}", seconds)

    first = {policy: run(policy, 5.0) for policy in policies}
    for policy, holder in first.items():
        journal.await_start(f"{label}-{policy}", holder.id)
    three_servers[0].kill()
    second = {policy: run(policy, 0.0) for policy in policies}
    for policy, error in (("skip", TaskSkipped), ("refuse", LockConflict)):
        with pytest.raises(error):
            second[policy].get(timeout=20)
        assert first[policy].get(timeout=20)
        second[policy] = run(policy, 0.0)
    for policy in policies:
        fences = [results[policy].get(timeout=30) for results in (first, second)]
        assert fences == sorted(set(fences)), "the fence is higher"
        assert journal.count(f"{label}-{policy}", "start") == 2
        assert journal.overlaps(f"{label}-{policy}") == []
