"""What operators see and do where the locks are spread over the nodes of a Redis Cluster."""

from __future__ import annotations

import dataclasses
import json

import pytest

from celery_redislock import LockUnavailable, RedisLock
from celery_redislock.app.entries import Entry
from celery_redislock.app.settings import app_locks
from celery_redislock.operations import list_locks
from celery_redislock.protocol import calls, past, rooms
from celery_redislock.protocol.claims import Parking
from tests.support.clusters import ClusterSet
from tests.support.looking import claim, make_app, run, take

#: So many locks are on all nodes.
LABELS = [f"label-{number}" for number in range(12)]


@pytest.fixture
def app(cluster, label):
    app = make_app(cluster.url, label, redislock_history=50)
    yield app


def told(app, *arguments):
    result = run(app, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


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
        made = claim(app, "report", each, task_id=f"waits-{each}", token=f"token-{each}")
        entry = Entry.of(app.tasks["report"], [each], {}, {"task_id": made.task_id, "headers": {}})
        app_locks(app).server.run(rooms.park(made, Parking(entry.dump())))
    assert [each["waiting"] for each in told(app, "list")] == [1] * len(LABELS)
    told(app, "drop-waiting", "--force", "--all", "report")
    assert [each["waiting"] for each in told(app, "list")] == [0] * len(LABELS)


def test_runs_of_all_locks_are_in_the_history(app):
    for each in LABELS:
        made = dataclasses.replace(claim(app, "sync", each), task="sync", history=50)
        fence = app_locks(app).server.run(calls.acquire(made)).fence
        end = calls.Release(run_end=past.end_text(fence, 1.0, "succeeded"))
        assert app_locks(app).server.run(calls.settle(made, end)).ours
    result = run(app, "history", "sync")
    assert result.output.count("succeeded") == len(LABELS)


def test_while_a_node_is_away_what_the_others_have_is_shown_and_the_node_is_named(label):
    with ClusterSet(primaries=3, replicas=0) as own:
        app = make_app(own.url, label, redislock_history=50)
        server = app_locks(app).server
        held = {each: take(app, "sync", each).key for each in LABELS}
        for each in LABELS:
            made = dataclasses.replace(claim(app, "report", each), task="report", history=50)
            fence = server.run(calls.acquire(made)).fence
            late = claim(app, "report", each, task_id=f"late-{each}", token=f"late-{each}")
            late = dataclasses.replace(late, task="report", history=50, turned_away=True)
            server.run(calls.acquire(late))
            ended = calls.Release(run_end=past.end_text(fence, 1.0, "succeeded"))
            assert server.run(calls.settle(made, ended)).ours
        keys = {each: lock_of(app, "report", each).key for each in LABELS}
        dead = own.primary_of(keys[LABELS[0]])
        there = [each for each in LABELS if own.primary_of(keys[each]) is not dead]
        locks = {key for key in held.values() if own.primary_of(key) is not dead}
        dead.kill()
        listed = run(app, "list", "--json")
        runs = run(app, "history", "report", "--json")
        skips = run(app, "history", "--skips", "--json")
        assert {each["key"] for each in json.loads(listed.stdout)} == locks
        told = json.loads(runs.stdout)
        assert {each["task_id"] for each in told} == {f"id-of-{each}" for each in there}
        assert {each["how"] for each in told} == {"succeeded"}
        (counted,) = json.loads(skips.stdout)
        assert counted["turned_away"] == len(there)
        for result in (listed, runs, skips):
            assert result.exit_code == 1
            assert f"127.0.0.1:{dead.port} does not answer: " in result.stderr
        for node in own.nodes:
            node.kill()
        assert "the lock server does not answer" in run(app, "history").stderr
        server.close()


def test_a_cluster_with_slots_that_no_node_has_is_not_shown_as_empty(label):
    with ClusterSet(primaries=3, replicas=0) as own:
        app = make_app(own.url, label, redislock_history=50)
        server = app_locks(app).server
        keys = {take(app, "sync", each).key for each in LABELS}
        node = own.primary_of(next(iter(keys)))
        there = {key for key in keys if own.primary_of(key) is not node}
        ((first, last, _),) = [each for each in own.ranges(node) if each[2] == node.port]
        for each in own.nodes:
            with each.client() as client:
                client.execute_command("CLUSTER", "DELSLOTSRANGE", first, last)

        def listed(*arguments: str):
            server.primaries()  # looks at the slots again
            return run(app, *arguments)

        for arguments in (["list", "--json"], ["history", "--json"]):
            told = listed(*arguments)
            assert told.exit_code == 1
            assert f"{last + 1 - first} hash slots have no node" in told.stderr
        assert {each["key"] for each in json.loads(listed("list", "--json").stdout)} == there
        with pytest.raises(LockUnavailable, match="hash slots have no node"):
            list_locks(app)
        server.close()


def test_one_node_of_a_cluster_behind_a_url_for_one_server_is_called_that(label):
    with ClusterSet(primaries=3, replicas=0) as own:
        for node in own.nodes:
            app = make_app(node.url, label)
            for arguments in (["list"], ["doctor"], ["show", "no-matter"]):
                told = run(app, *arguments)
                assert told.exit_code != 0, arguments
                assert "one node of a Redis Cluster" in told.output
                assert "redis+cluster://" in told.output
                assert "does not answer" not in told.output
            with pytest.raises(LockUnavailable, match=r"redis\+cluster://"):
                RedisLock(app, label).acquire(timeout=5)
    with ClusterSet(primaries=1, replicas=0) as whole:
        app = make_app(whole.nodes[0].url, label)
        with RedisLock(app, label):
            assert run(app, "list").exit_code == 0, "one node has it all"
        app = make_app(whole.url, label)
        with whole.nodes[0].client() as client:
            client.flushall()
            client.execute_command("CLUSTER", "FLUSHSLOTS")
        told = run(app, "list")
        assert told.exit_code == 1
        assert "16384 hash slots have no node" in told.stderr
