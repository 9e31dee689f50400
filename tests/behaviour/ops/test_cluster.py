"""What operators see and do where the locks are spread over the nodes of a Redis Cluster."""

from __future__ import annotations

import json

import pytest

from celery_redislock import LockUnavailable, RedisLock
from celery_redislock.operations import list_locks
from tests.support.clusters import ClusterSet
from tests.support.looking import end, make_app, park, run, take, told
from tests.support.waiting import eventually

#: So many locks are on all nodes.
LABELS = [f"label-{number}" for number in range(12)]


@pytest.fixture
def app(cluster, label):
    return make_app(cluster.url, label, redislock_history=50)


def test_all_locks_are_listed_and_can_be_broken(app, cluster):
    keys = {take(app, "sync", each).key for each in LABELS}
    assert len({cluster.primary_of(key).port for key in keys}) == 3
    assert {each["key"] for each in told(app, "list")} == keys
    broken = told(app, "break", "--force", "--all", "sync")["broken"]
    assert {each["task_id"] for each in broken} == {f"id-of-{each}" for each in LABELS}
    assert {each["state"] for each in told(app, "list")} <= {"broken"}


def test_waiting_tasks_of_all_locks_are_seen_and_dropped(app):
    for each in LABELS:
        take(app, "report", each)
        park(app, "report", each, f"waits-{each}")
    assert [each["waiting"] for each in told(app, "list")] == [1] * len(LABELS)
    told(app, "drop-waiting", "--force", "--all", "report")
    assert [each["waiting"] for each in told(app, "list")] == [0] * len(LABELS)


def test_runs_of_all_locks_are_in_the_history(app):
    for each in LABELS:
        end(app, take(app, "sync", each, history=True))
    result = run(app, "history", "sync")
    assert result.output.count("succeeded") == len(LABELS)


def test_while_a_node_is_away_it_is_named_and_each_lock_of_the_others_is_shown(label):
    with ClusterSet(primaries=3, replicas=0) as own:
        app = make_app(own.url, label, redislock_history=50)
        keys = {take(app, "sync", each).key for each in LABELS}
        dead = own.primary_of(next(iter(keys)))
        there = next(key for key in keys if own.primary_of(key) is not dead)
        dead.kill()
        for command in (["list"], ["history"], ["history", "--skips"], ["break", "--all"]):
            result = run(app, *command)
            assert result.exit_code == 1
            assert result.stdout == ""
            assert "the lock server does not answer" in result.stderr
            assert f"127.0.0.1:{dead.port}" in result.stderr
        assert run(app, "show", there).exit_code == 0
        assert run(app, "break", "--force", there).exit_code == 0


def test_a_cluster_with_slots_that_no_node_has_is_not_shown_as_empty(label):
    with ClusterSet(primaries=3, replicas=0) as own:
        app = make_app(own.url, label, redislock_history=50)
        keys = {take(app, "sync", each).key for each in LABELS}
        node = own.primary_of(next(iter(keys)))
        ((first, last, _),) = [each for each in own.ranges(node) if each[2] == node.port]
        # The owner first: else it tells the others again that it has them.
        for each in sorted(own.nodes, key=lambda each: each is not node):
            with each.client() as client:
                client.execute_command("CLUSTER", "DELSLOTSRANGE", first, last)

        def assigned(each):
            with each.client() as client:
                return int(client.cluster("INFO")["cluster_slots_assigned"])

        left = 16384 - (last + 1 - first)
        eventually(lambda: all(assigned(each) == left for each in own.nodes), "all say so")
        app = make_app(own.url, label)  # it has not seen the slots before
        for command in ("list", "history"):
            shown = run(app, command, "--json")
            assert shown.exit_code == 1
            assert "no node" in shown.stderr
        with pytest.raises(LockUnavailable, match="hash slots have no node"):
            list_locks(app)


def test_one_node_of_a_cluster_behind_a_url_for_one_server_is_called_that(cluster, label):
    for node in cluster.nodes:
        app = make_app(node.url, label)
        for arguments in (["list"], ["doctor"], ["show", "no-matter"]):
            shown = run(app, *arguments)
            assert shown.exit_code != 0, arguments
            assert "one node of a Redis Cluster" in shown.output
            assert "redis+cluster://" in shown.output
            assert "does not answer" not in shown.output
        with pytest.raises(LockUnavailable, match=r"redis\+cluster://"):
            RedisLock(app, label).acquire(timeout=5)


def test_a_node_that_has_all_slots_of_a_cluster_or_none(label):
    with ClusterSet(primaries=1, replicas=0) as whole:
        app = make_app(whole.nodes[0].url, label)
        with RedisLock(app, label):
            assert run(app, "list").exit_code == 0, "one node has it all"
            replication = [
                (each["level"], each["what"])
                for each in json.loads(run(app, "doctor", "--json").stdout)
                if each["check"] == "replication"
            ]
            assert ("error", "the server is a node of a Redis Cluster") in replication

        app = make_app(whole.url, label)
        with whole.nodes[0].client() as client:
            client.flushall()
            client.execute_command("CLUSTER", "FLUSHSLOTS")
        shown = run(app, "list")
        assert shown.exit_code == 1
        assert "16384 hash slots have no node" in shown.stderr
