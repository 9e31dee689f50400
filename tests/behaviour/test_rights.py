"""Least privilege: what docs/operations.md grants is enough, and nothing of it is too much."""

from __future__ import annotations

import re

from celery_redislock.ops.doctor.rights import COMMANDS, EXTRA
from celery_redislock.servers import hash_slots
from tests.support.looking import ROOT, make_app, run, take
from tests.support.rights import acl_lines, as_user, cluster_rights, denials, grant
from tests.support.waiting import eventually

SOURCES = ROOT / "celery_redislock"


def granted(user):
    return {word[1:] for word in acl_lines()[user] if word.startswith("+")}


def test_the_line_of_workers_has_exactly_the_commands_that_the_sources_use():
    scripts = "".join(path.read_text() for path in SOURCES.glob("scripts/*.lua"))
    used = set(re.findall(r"redis\.p?call\((?:in_front == '1' and )?'([A-Z]+)'", scripts))
    used |= set(re.findall(r"'LPUSH' or '([A-Z]+)'", scripts))
    # What only people look at, in `looking`, is not what workers need.
    servers = (f"servers/{name}" for name in ("scripts", "talk", "restarts"))
    for name in (*servers, "protocol/calls", "protocol/rooms"):
        used |= set(re.findall(r'"([A-Z]{3,})"', (SOURCES / f"{name}.py").read_text()))
    used = {name.lower() for name in used} | {"select"}
    used -= {"wrongtype", "readonly", "busy", "extended", "retaken", "withscores"}
    used -= {"moved", "ask", "tryagain", "masterdown", "clusterdown", "sentinel"}  # in replies
    used -= {"cluster", "slots"}  # only in a cluster, see below
    used.remove("wait")  # only with `redislock_min_replicas`
    assert granted("workers") == used
    assert cluster_rights() == [f"+{'|'.join(each).lower()}" for each in hash_slots.COMMANDS]
    assert {command.split()[0] for command in (*COMMANDS, *EXTRA)} == used
    assert {word for word in acl_lines()["workers"] if word[0] in "~-"} == {"~redislock:*", "-@all"}


def test_every_policy_works_with_the_rights_of_workers(
    own_redis, start_worker, sender, queue, journal, label
):
    with own_redis.client() as client:
        grant(client, "workers")
        worker = start_worker(
            queues=queue,
            concurrency=8,
            conf={"redislock_url": f"{as_user(own_redis.url, 'workers')}/5"},
        )
        run_twice = (
            *("skip", "defer", "wait", "queued", "coalesced", "replaced_gently", "two_at_once"),
            *("pauses", "unique_skip", "retries", "retries_held", "wait_briefly", "warns"),
        )
        first, results = [], []
        for name in run_twice:
            arguments = [f"{label}-{name}"] + ([] if name.startswith("retries") else [0.6])
            first.append(sender.send_task(name, arguments, queue=queue))
            results.append(sender.send_task(name, arguments, queue=queue))
        for result in (*first, *results):
            eventually(lambda result=result: result.ready(), f"{result.id} ends", 60)
        assert all(
            result.state != "FAILURE" or "Conflict" in repr(result.result) for result in results
        )
        assert "NOPERM" not in worker.log()
        assert denials(client, "workers") == []
        with own_redis.client(db=5) as locks:
            assert locks.keys("redislock:*:done:*") or locks.keys("redislock:*:fence")


def test_the_commands_need_only_the_rights_of_those_who_look(own_redis):
    with own_redis.client() as client:
        grant(client, "watchers")
        grant(client, "operators")
        app = make_app(own_redis.url, "redislock")
        made = take(app, "sync", "x")

        def not_taken():
            with own_redis.client() as admin:
                admin.rpush(made["room"], "x:0.0")
                admin.hset(made["entries"], "x:0.0", '||{"task":"sync","task_id":"x"}')
                admin.zadd(made["sent"], {"x:0.0": 1})

        looks = make_app(as_user(own_redis.url, "watchers"), "redislock")
        for command in (
            ["list"],
            ["show", "sync", "x"],
            ["explain", "sync", "--args", '["x"]'],
            ["watch", "--times", "1"],
            ["doctor"],
        ):
            not_taken()
            result = run(looks, *command)
            assert "x" in result.output
            assert result.exit_code == 0, result.output
            assert "worker takes" in result.output or command[0] == "explain"
        denied = run(looks, "break", "--force", "sync", "x")
        assert denied.exit_code == 1
        assert denied.output.startswith("Error: no rights: ")
        breaks = make_app(as_user(own_redis.url, "operators"), "redislock")
        assert run(breaks, "doctor").exit_code == 0
        done = run(breaks, "break", "--force", "--drop-waiting", "sync", "x")
        assert done.exit_code == 0, done.output
        take(app, "sync", "x")
        for command in (["drop-waiting", "--all"], ["break", "--node", "w@*"]):
            not_taken()
            done = run(breaks, *command, "--force")
            assert done.exit_code == 0, done.output
        assert denials(client, "operators") == []


def test_a_worker_cannot_touch_what_is_not_under_the_prefix(own_redis, label):
    with own_redis.client() as client:
        grant(client, "workers")
        app = make_app(as_user(own_redis.url, "workers"), label)
        result = run(app, "explain", "sync", "--args", '["x"]')
        assert "no rights" in result.output
