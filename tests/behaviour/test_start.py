"""What a worker says at its start, in its logfile."""

from __future__ import annotations

import re

import pytest

from tests.support.clusters import ClusterSet
from tests.support.rights import as_user, denials, grant
from tests.support.servers import free_port
from tests.support.waiting import eventually


@pytest.fixture
def log_of(start_worker, queue, tmp_path):
    """What is in the logfile of a worker that has started."""

    def log_of(pool, **conf):
        path = tmp_path / "worker.log"
        start_worker("--logfile", str(path), pool=pool, queues=queue, conf=conf, wait=False)
        eventually(lambda: path.exists() and "@test ready." in path.read_text(), "it is ready", 60)
        return path.read_text()

    return log_of


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_it_says_where_the_locks_are_and_what_is_wrong_with_that(log_of, own_redis, pool):
    with own_redis.client() as client:
        client.acl_setuser(
            "locker", enabled=True, passwords="+secret", keys=["*"], commands=["+@all"]
        )
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("maxmemory", "1gb")
    log = log_of(
        pool,
        redislock_url=f"redis://locker:secret@127.0.0.1:{own_redis.port}/3",
        redislock_prefix="shop",
        redislock_tasks={"no.such.task": {}, "plain": {}},
    )
    said = re.findall(r": (\w+)/MainProcess\] redislock: (.*)$", log, re.M)
    assert [level for level, _ in said] == ["WARNING", "WARNING", "INFO"]
    unmatched, evicts, where = [text for _, text in said]
    assert unmatched == "redislock_tasks['no.such.task'] matches no task of this app"
    assert "maxmemory-policy allkeys-lru: it may evict locks" in evicts
    expected = rf"locks of (\d+) tasks on redis://127\.0\.0\.1:{own_redis.port}/3, prefix 'shop'"
    found = re.fullmatch(expected, where)
    assert found, where
    assert int(found[1]) > 50, "all that tests/support/tasks.py has"
    assert "secret" not in log


@pytest.mark.parametrize("user", ["default", "workers"])
def test_that_others_may_flush_the_database_is_said_if_the_user_may_look(log_of, own_redis, user):
    with own_redis.client() as client:
        client.set("views:17", "4")
        client.config_set("maxmemory", "1gb")  # and it evicts nothing, of which nothing is said
        grant(client, "workers")
        is_workers = user == "workers"
        url = as_user(own_redis.url, user) if is_workers else own_redis.url
        said = re.findall(
            r"WARNING/MainProcess\] redislock: (.*)", log_of("solo", redislock_url=url)
        )
        assert denials(client, "workers") == []
    assert len(said) == (0 if is_workers else 1)
    for each in said:
        assert "neither ours nor Celery's, such as 'views:17': if their program flushes" in each


def test_a_server_that_is_away_is_said_and_so_is_where_it_should_be(log_of):
    port = free_port()
    log = log_of("threads", redislock_url=f"redis://127.0.0.1:{port}/0")
    assert re.search(r"WARNING/MainProcess\] redislock: the lock server does not answer yet", log)
    assert f"tasks on redis://127.0.0.1:{port}/0, prefix 'redislock'" in log


def test_of_a_cluster_the_node_that_is_away_is_named(log_of):
    with ClusterSet(primaries=2, replicas=0) as servers:
        away, there = servers.nodes
        away.kill()
        log = log_of("threads", redislock_url=servers.url)
        assert f"the lock server 127.0.0.1:{away.port} does not answer yet" in log
        assert f"the lock server 127.0.0.1:{there.port}" not in log


def test_that_locks_are_switched_off_is_said(log_of):
    assert re.search(
        r"INFO/\w+\] redislock: redislock_enabled is False: \d+ tasks without locks",
        log_of("solo", redislock_enabled=False),
    )


def test_a_worker_with_wrong_options_does_not_start_and_names_all_of_them(start_worker, queue):
    worker = start_worker(queues=queue, app="tests.behaviour.apps.wrong", wait=False)
    assert worker.wait(60) != 0
    log = worker.log()
    for what in (
        *("task negative0: lock_ttl=-1 is not accepted", "task negative2: lock_ttl=-1"),
        "task no_argument1: lock_key names 'account', which is not an argument of the task",
        "task singleton0: lock_key names 'account'",
        "redislock_tasks['theirs']: unknown option 'lock_tll'; did you mean lock_ttl?",
        "task fits.not: lock_key names 'account'",
    ):
        assert log.count(what) == 1, log
    assert "Traceback" not in log
    assert "plain" not in log
    assert "locked" not in log
