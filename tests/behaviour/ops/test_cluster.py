"""What operators see and do where the locks are spread over the nodes of a Redis Cluster."""

from __future__ import annotations

import json
import time

import pytest

from celery_redislock import LockUnavailable, RedisLock
from celery_redislock.operations import list_locks
from tests.support.clusters import ClusterSet
from tests.support.looking import client_of, end, lock_of, make_app, park, run, take, told
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


def test_while_a_node_is_away_what_the_others_have_is_shown_and_the_node_is_named(label):
    with ClusterSet(primaries=3, replicas=0) as own:
        app = make_app(own.url, label, redislock_history=50)
        held = {each: take(app, "sync", each).key for each in LABELS}
        hour = int(time.time() // 3600)
        for each in LABELS:
            run_of_it = take(app, "report", each, history=True, turned_away=1)
            end(app, run_of_it)
            client_of(app).hset(f"{run_of_it.bucket}:turned", "report", f"{hour}:1;")
        keys = {each: lock_of(app, "report", each).key for each in LABELS}
        dead = own.primary_of(keys[LABELS[0]])
        there = [each for each in LABELS if own.primary_of(keys[each]) is not dead]
        locks = {key for key in held.values() if own.primary_of(key) is not dead}
        dead.kill()
        listed = run(app, "list", "--json")
        runs = run(app, "history", "report", "--json")
        skips = run(app, "history", "--skips", "--json")
        assert {each["key"] for each in json.loads(listed.stdout)} == locks
        shown = json.loads(runs.stdout)
        assert {each["task_id"] for each in shown} == {f"id-of-{each}" for each in there}
        assert {each["how"] for each in shown} == {"succeeded"}
        (counted,) = json.loads(skips.stdout)
        assert counted["turned_away"] == len(there)
        for result in (listed, runs, skips):
            assert result.exit_code == 1
            assert f"127.0.0.1:{dead.port} does not answer: " in result.stderr

        broken = run(app, "break", "--all", "--force", "--json")
        assert {each["key"] for each in json.loads(broken.stdout)["broken"]} == locks
        assert broken.exit_code == 1
        left_out = f"what some nodes have is not broken or dropped: 127.0.0.1:{dead.port} does not"
        assert left_out in broken.stderr
        nothing = run(app, "break", "--all", "--force")
        assert f"no such lock: none matches; {left_out}" in nothing.stderr

        for node in own.nodes:
            node.kill()
        assert "the lock server does not answer" in run(app, "history").stderr


def test_a_cluster_with_slots_that_no_node_has_is_not_shown_as_empty(label):
    with ClusterSet(primaries=3, replicas=0) as own:
        app = make_app(own.url, label, redislock_history=50)
        keys = {take(app, "sync", each).key for each in LABELS}
        node = own.primary_of(next(iter(keys)))
        there = {key for key in keys if own.primary_of(key) is not node}
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
            assert f"{last + 1 - first} hash slots have no node" in shown.stderr
            if command == "list":
                assert {each["key"] for each in json.loads(shown.stdout)} == there
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
