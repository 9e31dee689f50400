"""`celery redislock doctor`: what it finds, on servers and settings that have just that fault."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time

import pytest
import redis

from celery_redislock import AsyncRedisLock, Defer, LockUnavailable, RedisLock, SingletonTask
from tests.support.clusters import ClusterSet, url_of_quorum
from tests.support.looking import (
    client_of,
    end,
    keep,
    lock_named,
    make_app,
    park,
    run,
    runs_without,
    take,
    untaken,
)
from tests.support.rights import as_user, grant
from tests.support.servers import RedisServer, SentinelSet, free_port, redis_server_binary
from tests.support.waiting import eventually

CHECKS = {
    *("tasks", "server", "version", "memory", "persistence", "replication", "rights"),
    *("round trip", "time-outs", "clock", "prefix", "not taken", "suspended", "runs"),
    *("max hold", "visibility", "limits", "redislock_tasks", "forgotten", "beat"),
}


@pytest.fixture(scope="module")
def sentinels():
    with SentinelSet(sentinels=1) as servers:
        yield servers


@pytest.fixture
def doctor(label):
    """Examines an app on this server, and gives the findings by check."""

    def examine(url, status=0, arguments=(), tasks=None, **conf):
        app = make_app(url, label, **conf)
        for name, options in (tasks or {}).items():

            def body(x=None):
                """Nothing."""

            app.task(name=name, shared=False, **{"base": SingletonTask, **options})(body)
        result = run(app, "doctor", "--json", *arguments)
        assert result.exit_code == status, result.output
        found = json.loads(result.output)
        assert all(each["todo"] for each in found if each["level"] in ("warning", "error"))
        by_check = {}
        for each in found:
            by_check.setdefault(each["check"], []).append((each["level"], each["what"]))
        return by_check

    return examine


def test_a_sound_set_up_has_no_problems(own_redis, label, doctor):
    with own_redis.client() as client:
        client.config_set("save", "60 1")
    found = doctor(own_redis.url, arguments=["--strict"], task_time_limit=60)
    assert set(found) == CHECKS
    assert {level for findings in found.values() for level, _ in findings} == {"ok"}, found
    app = make_app(own_redis.url, label, task_time_limit=60)
    table = run(app, "doctor").output.splitlines()
    assert table[0].split(maxsplit=2) == ["LEVEL", "CHECK", "FOUND, AND WHAT TO DO"]
    assert table[-1] == "no problems"


def test_each_task_with_wrong_options_is_an_error(redis_server, doctor):
    found = doctor(
        redis_server.url,
        status=1,
        task_annotations={"sync": {"lock_ttl": 0}, "report": {"lock_key": ["y"]}},
        redislock_tasks={"plain": {"lock_tll": 5}},
    )
    *wrong, right = found["tasks"]
    assert {level for level, _ in wrong} == {"error"}
    starts = ("redislock_tasks['plain']: ", "task report: lock_key ", "task sync: lock_ttl=0")
    for (_, what), start in zip(wrong, starts, strict=True):
        assert what.startswith(start)
    assert right == ("ok", "3 tasks take locks")


def test_a_task_with_options_and_without_the_base_is_named(redis_server, doctor):
    found = doctor(redis_server.url, tasks={"shop.sync": {"base": None, "lock_key": ["x"]}})
    assert found["forgotten"] == [
        (
            "warning",
            "shop.sync sets lock_key, and takes no lock: its base is not SingletonTask, and"
            " redislock_tasks does not name it",
        )
    ]


def test_a_server_that_is_away_is_an_error_and_settings_are_still_examined(doctor):
    found = doctor(f"redis://127.0.0.1:{free_port()}", status=1)
    assert found["server"][0][0] == "error"
    assert {"max hold", "visibility", "limits"} < set(found)
    assert "memory" not in found


def test_a_server_that_evicts_or_is_full_or_restarts_empty_is_told(own_redis, doctor):
    with own_redis.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        found = doctor(own_redis.url)
        assert found["memory"] == [
            ("warning", "maxmemory-policy allkeys-lru, and no memory limit yet")
        ]
        ((level, what),) = found["persistence"]
        assert level == "warning"
        assert "tasks wait in Redis: report" in what
        client.config_set("maxmemory", "1gb")
        assert doctor(own_redis.url, status=1)["memory"][0][0] == "error"
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", str(int(client.info("memory")["used_memory"] * 1.02)))
        assert "of maxmemory is used" in doctor(own_redis.url)["memory"][0][1]
        client.config_set("maxmemory", "1")
        assert doctor(own_redis.url)["rights"][0][0] == "ok", "a full server denies no right"


def test_a_server_that_cannot_save_refuses_every_lock_and_is_told(tmp_path, doctor, label):
    gone = tmp_path / "gone"
    gone.mkdir()
    with RedisServer("--save", "3600 100000", "--dir", str(gone)) as server:
        assert [level for level, _ in doctor(server.url)["persistence"]] == ["ok"]
        gone.rmdir()
        with server.client() as client:
            client.bgsave()
            eventually(lambda: client.info()["rdb_last_bgsave_status"] == "err", "it failed")
            with pytest.raises(LockUnavailable, match="MISCONF"):
                RedisLock(server.url, label).acquire(timeout=0)

            ((level, what),) = doctor(server.url, status=1)["persistence"]
            assert (level, what) == (
                *("error", "the last snapshot failed: the server refuses every lock (MISCONF)"),
            )
            client.config_set("stop-writes-on-bgsave-error", "no")
            ((level, what),) = doctor(server.url)["persistence"]
            assert (level, what.partition(":")[0]) == ("warning", "the last snapshot failed")
            assert RedisLock(server.url, label).acquire(timeout=0), "it takes locks"

            client.config_set("stop-writes-on-bgsave-error", "yes")
            grant(client, "watchers")
            looks = as_user(server.url, "watchers")
            found = doctor(looks, status=1, redislock_prefix="redislock")["persistence"]
            assert found[0][1].endswith("unless stop-writes-on-bgsave-error is no")


def test_an_append_only_file_that_cannot_be_written_is_told(tmp_path, doctor, label, monkeypatch):
    """As on a full disk: no file of this server's may grow above some blocks."""
    limited = tmp_path / "redis-server"
    limited.write_text(
        f"#!/bin/sh\ntrap '' XFSZ\nulimit -f 128\nexec {redis_server_binary()} \"$@\"\n"
    )
    limited.chmod(0o755)
    monkeypatch.setenv("REDIS_SERVER", str(limited))
    files = ("--appendonly", "yes", "--appendfsync", "everysec")
    with RedisServer(*files) as server, server.client() as client:
        assert doctor(server.url)["persistence"] == [("ok", "appendonly")]
        with contextlib.suppress(redis.ResponseError):  # MISCONF, once it is noticed
            for number in range(100):
                client.set(f"filler-{number}", "x" * 10_000)
        eventually(lambda: client.info()["aof_last_write_status"] == "err", "it is full")
        with pytest.raises(LockUnavailable, match="MISCONF"):
            RedisLock(server.url, label).acquire(timeout=0)
        (level, what), *_ = doctor(server.url, status=1)["persistence"]
        assert (level, "append-only file failed" in what) == ("error", True)


def test_a_replica_is_an_error_and_a_master_with_replicas_a_warning(
    redis_server, own_redis, doctor
):
    with own_redis.client() as client:
        client.replicaof("127.0.0.1", redis_server.port)
        try:
            found = doctor(own_redis.url, status=1)
            assert found["replication"] == [
                ("error", "the server is a replica, which takes no writes")
            ]
        finally:
            client.replicaof("NO", "ONE")


def test_rights_that_are_missing_are_named_and_exactly_those(own_redis, doctor):
    with own_redis.client() as client:
        all_but = ["+@all", "-zadd", "-hrandfield"]
        client.acl_setuser("poor", enabled=True, passwords="+x", keys=["*"], commands=all_but)
        found = doctor(f"redis://poor:x@127.0.0.1:{own_redis.port}", status=1)
        assert "rights" in found, found
        ((level, what),) = found["rights"]
        assert level == "error"
        assert what.endswith("hrandfield, zadd")
        client.acl_setuser(
            "elsewhere", enabled=True, passwords="+x", keys=["other:*"], commands=["+@all"]
        )
        found = doctor(f"redis://elsewhere:x@127.0.0.1:{own_redis.port}", status=1)
        assert found["rights"][0][0] == "error", "the keys are not this user's"
        all_but = ["+@all", "-info", "-config", "-scan"]
        client.acl_setuser("blind", enabled=True, passwords="+x", keys=["*"], commands=all_but)
        found = doctor(f"redis://blind:x@127.0.0.1:{own_redis.port}")
        unknown = {check for check, findings in found.items() if findings[0][0] == "unknown"}
        assert unknown == {"version", "memory", "persistence", "replication"} | {
            *("prefix", "not taken")
        }
        assert found["rights"][0][0] == "warning"


def test_a_user_without_time_or_scripts_is_told_what_is_missing(own_redis, doctor):
    """A server that can say what a user may do says it in a script, or is asked by trying."""

    def denied(*missing):
        with own_redis.client() as client:
            all_but = ["+@all", *(f"-{each}" for each in missing)]
            client.acl_setuser("poor", enabled=True, passwords="+x", keys=["*"], commands=all_but)
        found = doctor(f"redis://poor:x@127.0.0.1:{own_redis.port}", status=1)
        assert found["server"] == [("ok", "answers")]
        ((level, what),) = found["rights"]
        assert level == "error"
        assert what.startswith("denied on ")
        return found, what.rpartition(": ")[2]

    found, what = denied("time")
    assert what == "time"
    assert found["clock"][0][0] == "unknown"
    assert "time" in found["clock"][0][1]
    assert denied("eval")[1] == "eval"
    with own_redis.client() as client:
        before = client.dbsize()
    assert denied("eval", "hget", "pexpire", "time")[1] == "eval, hget, pexpire, time"
    with own_redis.client() as client:
        assert client.dbsize() == before


def test_names_that_protect_no_task_are_told(redis_server, doctor):
    found = doctor(redis_server.url, redislock_tasks={"plain": {}})
    assert found["redislock_tasks"][0][0] == "ok"
    found = doctor(redis_server.url, redislock_tasks={"plian": {}, "other.*": {}, "sync": {}})
    assert found["redislock_tasks"] == [
        ("warning", "redislock_tasks['other.*'] matches no task of this app"),
        ("warning", "redislock_tasks['plian'] matches no task of this app"),
        (
            "warning",
            "redislock_tasks['sync'] is ignored: sync is a SingletonTask and has options of its"
            " own",
        ),
    ]


def test_what_beat_sends_for_a_locked_task_is_to_expire(redis_server, doctor):
    every = {"schedule": 60.0, "args": ["x"]}
    schedule = {
        "fine": {**every, "task": "sync", "options": {"expires": 60}},
        "of the task": {**every, "task": "expires"},
        "not sent twice": {**every, "task": "unique"},
        "no lock": {**every, "task": "plain"},
        "unknown": {**every, "task": "elsewhere"},
    }
    tasks = {"expires": {"expires": 30}}
    found = doctor(redis_server.url, tasks=tasks, beat_schedule=schedule)
    assert found["beat"][0][0] == "ok"
    schedule |= {
        "hourly": {**every, "task": "report"},
        "daily": {**every, "task": "sync", "options": {"queue": "slow"}},
    }
    ((level, what),) = doctor(redis_server.url, tasks=tasks, beat_schedule=schedule)["beat"]
    assert level == "warning"
    assert what.startswith("without expires: daily (sync), hourly (report): ")


def test_a_ttl_above_the_visibility_timeout_is_told(redis_server, doctor):
    found = doctor(
        redis_server.url,
        broker_url=redis_server.url,
        broker_transport_options={"visibility_timeout": 100},
        tasks={
            "long": {"lock_ttl": 101},
            "short": {"lock_ttl": 100},
            "unlocked": {"lock_ttl": 500, "lock_scope": "queued"},
        },
    )
    ((level, what),) = found["visibility"]
    assert level == "warning"
    assert what == (
        "long: lock_ttl=101, and the broker delivers again after visibility_timeout=100: before a"
        " dead worker's lock expires"
    )


@pytest.mark.parametrize(
    ("broker", "said"),
    [
        ("sqs://", "late: acks_late and a run of 2000 s, and the broker delivers again after"
         " visibility_timeout=1800"),
        ("azureservicebus://p:k@ns", "late: acks_late and a run of 2000 s, and the broker delivers"
         " again after peek_lock_seconds=60"),
        ("amqp://", "late: acks_late and a run of 2000 s, and RabbitMQ closes a channel on which a"
         " message is not acknowledged for 1800 s, and delivers all of them again"),
        ("filesystem://", "the broker does not deliver messages again after a time"),
    ],
)  # fmt: skip
def test_long_times_are_compared_with_what_the_broker_allows(doctor, broker, said):
    tasks = {"late": {"acks_late": True, "time_limit": 2000}}
    found = doctor(f"redis://127.0.0.1:{free_port()}", status=1, tasks=tasks, broker_url=broker)
    assert [what for _, what in found["visibility"]] == [said]


def test_a_server_that_closes_idle_connections_or_is_slow_is_told(own_redis, doctor, label):
    with own_redis.client() as client:
        client.config_set("timeout", "5")
        assert doctor(own_redis.url)["time-outs"][0][0] == "warning"
        client.config_set("timeout", "0")
    found = doctor(own_redis.url, redislock_ttl=0.5)
    assert found["time-outs"][0][0] == "warning"


def test_values_and_tasks_of_others_under_the_prefix_are_told(client, redis_server, label, doctor):
    app = make_app(redis_server.url, label)
    take(app, "sync", "x")

    @app.task(name="elsewhere", shared=False, base=SingletonTask)
    def elsewhere(label):
        """Nothing."""

    take(app, "elsewhere", "x")
    assert doctor(redis_server.url)["prefix"] == [
        ("warning", "locks of tasks that this app does not know: elsewhere")
    ]
    client.set(lock_named(label, "theirs").key, "not ours")
    assert "error" in {level for level, _ in doctor(redis_server.url, status=1)["prefix"]}


def test_keys_of_others_in_the_database_are_told_as_somebody_may_flush_it(own_redis, doctor):
    brokers = {
        "broker_transport_options": {"global_keyprefix": "a:", "unacked_key": "taken"},
        "broker_url": own_redis.url,
    }
    with own_redis.client() as client:
        for name in ("b:celery-task-meta-1", "redbeat:nightly", "qo_sync", "b:unacked_mutex"):
            client.set(name, "")
        client.set("other:{5}:lock:sync", "")
        client.set("other:sweep:1:2", "")
        client.hset("a:taken", "1", "")
        client.zadd("unacked_index", {"1": 1})
        client.sadd("b:_kombu.binding.mails", "")
        client.zadd("b:_kombu.binding_deadlines", {"mails": 1})  # kombu 5.7
        client.sadd("b:_kombu.binding_permanent.mails", "")
        client.rpush("mails", "a queue of any name")
        assert "database" not in doctor(own_redis.url, **brokers)
        client.set(":1:page", "")
        ((level, what),) = doctor(own_redis.url, **brokers)["database"]
        assert level == "warning"
        assert "neither ours nor Celery's, such as ':1:page'" in what
        client.delete(":1:page")
        client.zadd("asgi:group", {"1": 1})
        assert "'asgi:group'" in doctor(own_redis.url, **brokers)["database"][0][1]
        assert "database" not in doctor(f"{own_redis.url}/1", **brokers)


def test_tasks_that_no_worker_takes_are_told_with_what_to_do(client, redis_server, label, doctor):
    seconds, _ = client.time()
    for lock, ids in (("report:v1:x", ["a:0.0", "b:0.0"]), ("report:v1:y", ["c:0.0"])):
        keys = lock_named(label, lock)
        for entry_id in ids:
            client.rpush(keys["room"], entry_id)
            client.hset(keys["entries"], entry_id, '|0|{"task":"renamed","task_id":"x"}')
            client.zadd(keys["sent"], {entry_id: (seconds - 120) * 1000})
    ((level, what),) = doctor(redis_server.url)["not taken"]
    assert level == "warning"
    assert what.startswith("3 tasks of 2 locks, such as ")


def test_of_tasks_that_no_worker_has_taken_the_broker_tells_why(redis_server, label, doctor):
    """A long queue is no fault of the workers, and a queue that nobody reads is no long queue."""
    brokers = {"broker_url": f"{redis_server.url}/5"}
    app = make_app(redis_server.url, label, **brokers)
    queue = f"queue-{label}"
    untaken(app, park(app, "report", "x", "next", queue=queue), "next")

    def told():
        ((level, what),) = doctor(redis_server.url, **brokers)["not taken"]
        assert level == "warning"
        assert "no worker takes" not in what
        return what

    assert told().endswith(
        f"the queue {queue} is empty: a busy worker has their messages, or these are lost"
    )
    app.tasks["plain"].apply_async(queue=queue)
    assert told().endswith(f"no worker that answers reads the queue {queue}, which has 1 message")
    with app.connection_for_write() as connection:
        connection.default_channel.queue_purge(queue)
    away = {"broker_url": f"redis://127.0.0.1:{free_port()}"}
    ((_, what),) = doctor(redis_server.url, **away)["not taken"]
    assert "the broker does not tell of their queues" in what


def test_a_task_whose_last_runs_all_lost_their_lock_is_told(redis_server, label, doctor):
    app = make_app(redis_server.url, label)

    def ran(task, how, age):
        lock = take(app, task, f"{how}-{age}", age=age, history=True)
        if how == "lapsed":
            client_of(app).delete(lock.key)
        else:
            end(app, lock, how, took=1.0)

    for task, hows in {
        "sync": ("succeeded", "lost", "lapsed", "lost"),
        "report": ("lost", "lost", "lapsed", "failed"),
        "account": ("lost", "lapsed"),
    }.items():
        for number, how in enumerate(hows):
            ran(task, how, age=100 - number)
    take(app, "sync", "runs", history=True)
    assert doctor(redis_server.url)["runs"] == [
        ("warning", "sync: none of its last 3 runs released its lock (lapsed, lost)")
    ]
    ran("sync", "succeeded", age=1)
    assert doctor(redis_server.url)["runs"][0][0] == "ok"


def test_a_task_that_is_skipped_for_hours_is_told_unless_it_ran_or_waits_on_purpose(
    redis_server, label, doctor
):
    app, hour = make_app(redis_server.url, label), int(time.time() // 3600)
    hangs = take(app, "sync", "x", age=4 * 3600, history=True)
    skips = "".join(f"{hour - ago}:{ago + 10};" for ago in range(4))
    client_of(app).hset(f"{hangs.bucket}:turned", "sync", skips)

    def found(**options):
        return doctor(redis_server.url, tasks={"sync": options} if options else None)["runs"]

    told = "sync: 46 duplicates skipped or refused in 4 hours, and no run released its lock"
    assert found() == [("warning", f"{told} meanwhile")]
    keep(app, hangs, "cooling")
    assert found()[0][0] == "ok", "it is kept for a pause"
    client_of(app).delete(hangs.key)
    assert found()[0][0] == "warning"
    end(app, take(app, "sync", "y", age=2 * 3600 + 90, history=True))
    assert found()[0][0] == "ok", "a run of another lock ended two hours ago"


def test_time_limits_visibility_timeout_and_max_hold_are_compared(redis_server, doctor):
    found = doctor(
        redis_server.url,
        broker_url=redis_server.url,
        broker_transport_options={"visibility_timeout": 100},
        tasks={
            "outlives": {"lock_max_hold": 60, "time_limit": 120},
            "unlimited": {"lock_max_hold": 60},
            "endless": {},
            "fine": {"lock_max_hold": 60, "time_limit": 60},
            "late": {"acks_late": True, "time_limit": 600},
            "deferred": {"on_conflict": Defer(delay=90, max_delay=600, backoff=2), "time_limit": 1},
        },
    )
    held = " / ".join(what for _, what in found["max hold"])
    assert "outlives: lock_max_hold=60 and a time limit of 120 s" in held
    assert "unlimited: lock_max_hold=60 and no time limit" in held
    assert "holds its lock for ever: account, endless" in held
    assert "fine" not in held
    visible = " / ".join(what for _, what in found["visibility"])
    assert "late: acks_late and a run of 600 s" in visible
    assert "deferred: a deferral of 750 s is cut to 50 s" in visible
    assert "endless" not in visible


def test_tasks_that_share_a_lock_with_different_limits_are_an_error(redis_server, doctor):
    tasks = {
        "one": {"lock_key": "shared:{x}", "lock_limit": 2},
        "two": {"lock_key": "shared:{x}", "lock_limit": 3},
    }
    ((level, what),) = doctor(redis_server.url, status=1, tasks=tasks)["limits"]
    assert level == "error"
    assert "one: 2, two: 3" in what


def test_warnings_end_with_an_error_only_if_asked(redis_server, doctor):
    doctor(redis_server.url, redislock_enabled=False)
    found = doctor(redis_server.url, 1, ["--strict"], redislock_enabled=False)
    assert found["tasks"][0][0] == "warning"


def test_doctor_takes_no_lock_and_changes_nothing(own_redis, doctor):
    with own_redis.client() as client:
        client.config_resetstat()
        doctor(own_redis.url)
        assert client.keys("*") == []
        stats = client.info("commandstats")
    writes = {"set", "incr", "hset", "rpush", "lpush", "zadd", "blpop"}
    ran = {name.removeprefix("cmdstat_") for name, each in stats.items() if each["calls"]}
    assert ran.isdisjoint(writes)


def test_a_cluster_is_shown_with_its_nodes(cluster, doctor):
    found = doctor(cluster.url)
    assert [level for level, _ in found["server"]] == ["ok"], "the same of all nodes is said once"
    assert [level for level, _ in found["cluster"]] == ["warning"] * 3, "no replicas"
    hosts = {what.split()[0] for _, what in found["cluster"]}
    assert hosts == {f"127.0.0.1:{node.port}" for node in cluster.nodes}
    assert sum(int(what.split()[2]) for _, what in found["cluster"]) == 16384
    timed = [what for _, what in found["round trip"]]
    # Each has figures of its own; three nodes on one machine may have the same.
    assert len(timed) == 1 or all(host in " ".join(timed) for host in hosts)


def test_while_a_node_of_a_cluster_is_away_it_is_named(doctor):
    with ClusterSet(primaries=2, replicas=0) as own:
        dead, alive = own.nodes
        dead.kill()
        found = doctor(own.url, 1)
        ((level, what),) = [each for each in found["server"] if str(dead.port) in each[1]]
        assert level == "error"
        assert what.startswith(f"127.0.0.1:{dead.port}: does not answer")
        assert any(what.startswith(f"127.0.0.1:{alive.port}") for _, what in found["clock"])
        assert len(found["cluster"]) == 2
        assert "workers" not in found


def test_a_quorum_is_examined_as_long_as_a_majority_answers(three_servers, doctor, label):
    url = url_of_quorum(three_servers)
    apps = [make_app(each.url, label) for each in three_servers]
    lost = take(apps[0], "sync", "a")
    client_of(apps[0]).delete(lost.key)
    for app in apps:
        runs_without(app, lost)
    three_servers[1].kill()
    for arguments in ((), ("--workers",)):
        found = doctor(url, 1, arguments)
        assert "runs on without" in found["workers"][0][1]
        assert {level for level, _ in (*found["prefix"], *found["rights"])} == {"ok"}
    three_servers[0].kill()
    assert "workers" not in doctor(url, 1, ["--workers"])


def test_a_sentinel_that_is_taken_for_a_server_is_called_that(sentinels, label):
    url = sentinels.url.replace("sentinel://", "redis://").split(";")[0]
    app = make_app(url, label)
    for command in ("doctor", "list"):
        told = run(app, command)
        assert told.exit_code != 0
        assert "this is a sentinel" in told.output
        assert "redis+sentinel://" in told.output
        assert "network" not in told.output
    with pytest.raises(LockUnavailable, match="this is a sentinel"):
        RedisLock(app, label).acquire(timeout=5)

    async def main():
        with pytest.raises(LockUnavailable, match="this is a sentinel"):
            await AsyncRedisLock(app, label).acquire(timeout=5)

    asyncio.run(main())


def test_replicas_are_compared_with_what_is_asked_of_them(doctor, sentinels):
    ((level, what),) = doctor(sentinels.master.url)["replication"]
    assert (level, "min-replicas-to-write 0" in what) == ("warning", True)
    assert what.startswith("1 replica, ")
    with sentinels.client() as client:
        client.config_set("min-replicas-to-write", 1)
    ((level, what),) = doctor(sentinels.master.url, redislock_min_replicas=1)["replication"]
    assert (level, "min-replicas-to-write" in what) == ("warning", False)
    ((level, what),) = doctor(sentinels.master.url, 1, redislock_min_replicas=2)["replication"]
    assert (level, what) == ("error", "1 replica: redislock_min_replicas asks 2")
    with sentinels.client() as client:
        client.config_set("min-replicas-to-write", 2)
        ((level, what),) = doctor(sentinels.master.url, 1)["replication"]
        client.config_set("min-replicas-to-write", 0)
    assert (level, what.startswith("1 replica in step, and min-replicas-")) == ("error", True)


def test_a_user_that_may_only_look_gets_no_error(own_redis, doctor):
    with own_redis.client() as client:
        grant(client, "watchers")
    found = doctor(as_user(own_redis.url, "watchers"), redislock_prefix="redislock")
    assert found["rights"] == [
        ("unknown", "this user may only look: whether workers may do their work is unknown")
    ]


def test_a_wrong_password_is_called_that(own_redis, doctor):
    with own_redis.client() as client:
        client.acl_setuser("anna", True, passwords="+right", keys="*", commands=["+@all"])
    url = own_redis.url.replace("://", "://anna:wrong@")
    ((level, what),) = doctor(url, 1)["server"]
    assert level == "error"
    assert what.startswith("refuses this user or password: ")
    listed = run(make_app(url, "redislock"), "list")
    assert listed.output.startswith("Error: the lock server refuses this user or password: ")
    away = run(make_app(f"redis://127.0.0.1:{free_port()}", "redislock"), "list")
    assert away.output.startswith("Error: the lock server does not answer: ")


@pytest.mark.parametrize("command", ["TIME", "EVALSHA"])
def test_a_command_that_the_server_does_not_know_is_called_that(label, command):
    with RedisServer("--rename-command", command, "") as server:
        app = make_app(server.url, label)
        with pytest.raises(LockUnavailable, match=r"renamed or removed the command"):
            RedisLock(app, label).acquire(timeout=5)
        if command == "TIME":
            told = run(app, "doctor")
            assert told.exit_code != 0
            assert "cannot be used: " in told.output
            assert "renamed or removed the command" in told.output
            assert "network" not in told.output


def test_a_server_that_is_no_sentinel_is_called_that(redis_server, label):
    app = make_app(f"redis+sentinel://127.0.0.1:{redis_server.port}/main", label)
    told = run(app, "list")
    assert told.exit_code == 1
    assert "sentinels, and this is none" in told.output
    assert "renamed" not in told.output
