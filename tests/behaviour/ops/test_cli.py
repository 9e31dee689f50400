"""`celery redislock`: list, show, explain, break, watch; and the entry point that brings it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time

import click
import pytest

from celery_redislock import SingletonTask, TaskSkipped
from celery_redislock.testing import hold_lock
from tests.support.looking import (
    ROOT,
    every_state,
    lock_named,
    lock_of,
    make_app,
    park,
    run,
    store,
    take,
    told,
    untaken,
)
from tests.support.servers import free_port
from tests.support.waiting import eventually


def listed(app, *arguments):
    return told(app, "list", *arguments)


def of_burst(app):
    """Adds a task whose calls wait for quiet."""

    def burst(label):
        """Nothing."""

    options = {"base": SingletonTask, "lock_key": ["label"], "on_conflict": "debounce"}
    app.task(name="burst", shared=False, **options)(burst)


# -- list -------------------------------------------------------------------------------------


def test_list_shows_each_lock_for_what_it_is(app, client, label):
    every_state(app)
    client.set(f"{label}:{{0}}:lock:misplaced", "in another bucket")

    found = listed(app, "--sort", "key")
    states = {(each["task"], each["task_id"]): each for each in found if each["task_id"]}
    assert {each["state"] for each in found} == {
        *("held", "kept", "queued", "foreign", "broken", "free"),
    }
    held = states["sync", "id-of-held"]
    assert (held["state"], held["node"], held["pid"]) == ("held", "w@one", os.getpid())
    assert held["fence"] > 10**15
    assert 300 < held["lives_for"] <= 600
    assert 0 <= held["held_for"] < 300
    kept = {each["task_id"]: each["kept_for"] for each in found if each["state"] == "kept"}
    assert kept == {"id-of-retries": "its retry", "id-of-cools": "a pause", None: "a waiter"}
    assert states["unique", "id-of-sent"]["state"] == "queued"
    assert states["sync", "id-of-ends"]["replaced_by"] == "newer"
    awaited = states["report", "id-of-awaited"]
    assert (awaited["waiting"], awaited["untaken"]) == (2, 2)
    assert states["several", "id-of-both"]["name"] == states["several", "another"]["name"]
    assert [each["waiting"] for each in found if each["state"] == "free"] == [1]
    foreign = [each for each in found if each["state"] == "foreign"]
    assert {(each["name"], each["lives_for"]) for each in foreign} == {
        ("text", None),
        ("a list", None),
    }
    assert not any("misplaced" in each["key"] for each in found), "it is nobody's lock"
    for more in ([], ["--wide"]):
        table = run(app, "list", "--all", *more).output.splitlines()
        assert table[0].split()[:3] == ["TASK", "KEY", "STATE"]
        assert len(table) == len(found) + 2
        assert table[-1] == (
            f"{len(found) - 1} locks, 2 waiting that no worker has taken, 1 broken lately"
        )
        words = " ".join(" ".join(table).split())
        for each in (
            "kept for its retry",
            "kept for a pause",
            "kept for a waiter",
            "held, replaced",
        ):
            assert each in words
    for state in {each["state"] for each in found}:
        keys = [each["key"] for each in listed(app, "--state", state, "--sort", "key")]
        assert keys == [each["key"] for each in found if each["state"] == state], "and no others"
    assert len(listed(app, "--state", "kept", "--state", "queued")) == 4
    assert run(app, "list", "--state", "taken").exit_code == 2
    assert len(run(app, "list", "--state", "broken").output.splitlines()) == 3
    table = run(app, "list").output.splitlines()
    assert len(table) == len(found) + 1, "what was broken is no lock"
    assert table[-1].endswith("1 broken lately (--all shows them)")
    assert "2 waiting that no worker has taken" in run(app, "watch", "--times", "1").output
    for state, count in (("kept", 3), ("broken", 1), ("queued", 1)):
        shown = run(app, "watch", "--times", "1", "--state", state).output
        assert len(re.findall(rf"\b{state}\b", shown)) >= count
        assert "id-of-held" not in shown


def test_list_counts_the_locks_of_each_task_by_state_and_what_waits_for_them(app):
    every_state(app)
    tasks = {each.pop("task"): each for each in listed(app, "--by-task")}
    locks = {task: each["locks"] for task, each in tasks.items()}
    assert locks == {
        "sync": {"held": 2, "kept": 3},
        "unique": {"queued": 1},
        "several": {"held": 2},
        "report": {"held": 1, "free": 1},
        "unknown": {"foreign": 2},
    }
    waits = {task: (each["waiting"], each["untaken"]) for task, each in tasks.items()}
    assert (waits["report"], waits["sync"], waits["several"]) == ((3, 2), (1, 0), (0, 0))
    assert 3600 <= tasks["several"]["oldest_holder"] < 3700

    head, *rows, summary = run(app, "list", "--by-task", "--sort", "waiting").output.splitlines()
    assert head.split() == ["TASK", "LOCKS", "OLDEST", "WAIT", "UNTAKEN"]
    words = rows[0].split()
    assert (words[:5], words[-2:]) == (["report", "1", "held,", "1", "free"], ["3", "2"])
    assert summary.startswith(f"{len(rows)} tasks, 12 locks, 2 waiting that no worker has taken")
    first = listed(app, "--by-task", "--state", "held", "--state", "kept", "--limit", "1")
    assert [(each["task"], each["locks"]) for each in first] == [("several", {"held": 2})]
    every = {each["task"]: each["locks"] for each in listed(app, "--by-task", "--all")}
    assert every["sync"]["broken"] == 1
    result = run(app, "list", "--by-task", "--queues")
    assert (result.exit_code, "it takes no --queues" in result.output) == (1, True)


def test_list_tells_how_long_the_queues_are_in_which_messages_keep_locks(redis_server, label):
    app = make_app(redis_server.url, label, broker_url=f"{redis_server.url}/5")
    default, own, empty = (f"{kind}-{label}" for kind in ("default", "own", "empty"))
    app.conf.task_default_queue = default
    for name in ("one", "two"):
        app.tasks["unique"].delay(name)
    app.tasks["unique"].apply_async(("three",), queue=own)
    app.tasks["plain"].delay()  # another's message counts, too
    take(app, "unique", "lost", queued=True, queue=empty)
    take(app, "sync", "runs")

    def depths(*more):
        found = listed(app, *more)
        return sorted((each["queue"] or "", each["queue_depth"]) for each in found)

    assert depths("--queues", "--state", "queued") == sorted(
        [(default, 3), (default, 3), (own, 1), (empty, 0)]
    )
    assert {depth for _, depth in depths()} == {None}, "the broker is not asked"
    table = run(app, "list", "--queues").output
    assert table.count(f"queued, 3 in {default}") == 2
    app.conf.broker_url = f"redis://127.0.0.1:{free_port()}"
    result = run(app, "list", "--queues")
    assert result.exit_code == 0
    assert "Warning: the broker does not tell its queues: " in result.output
    assert "5 locks" in result.output


def test_a_holder_that_does_not_extend_its_lock_is_silent(app, client):
    made = take(app, "sync", "dies")  # for 600 s: an extension is due after 200
    take(app, "sync", "lives")
    client.pexpire(made.key, 400_000)
    assert [each["state"] for each in listed(app)] == ["held", "held"], "it may be a little late"
    client.pexpire(made.key, 300_000)
    assert [each["task_id"] for each in listed(app, "--state", "silent")] == ["id-of-dies"]
    broken = run(app, "break", "--task", "sync", "--force", "--json").output
    assert len(json.loads(broken)["broken"]) == 2, "a run holds both"


def test_list_filters_sorts_and_limits(app):
    take(app, "sync", "old", node="w@old", age=3600)
    take(app, "sync", "young", node="w@young", age=60)
    take(app, "report", "other")

    def ids(*arguments):
        return [each["task_id"].removeprefix("id-of-") for each in listed(app, *arguments)]

    assert ids() == ["old", "young", "other"], "what is held for the longest comes first"
    assert ids("--reverse") == ["other", "young", "old"]
    assert ids("--task", "sync") == ["old", "young"]
    assert ids("--task", "re*") == ["other"]
    assert ids("--node", "w@y*") == ["young"]
    assert ids("--older", "5m") == ["old"]
    assert ids("--older", "30") == ["old", "young"]
    assert ids("--sort", "task", "--limit", "1") == ["other"]
    assert run(app, "list", "--older", "soon").exit_code == 2


def test_many_locks_are_listed_without_KEYS_and_in_short_steps(own_redis):
    app = make_app(own_redis.url, "many")
    value = json.dumps(take(app, "sync", "first").value)
    with own_redis.client() as client:
        names = (f"sync:v1:{number:032x}" for number in range(19_999))
        client.mset({lock_named("many", name).key: value for name in names})
        shown = run(app, "list", "--limit", "3").output
        stats = client.info("commandstats")

    assert shown.splitlines()[-1] == "20000 locks, the first 3 shown"
    assert "cmdstat_keys" not in stats
    # Each step blocks the server for its own time only; this is of the server's own clock.
    assert stats["cmdstat_scan"]["usec_per_call"] < 20_000


# -- show and explain -------------------------------------------------------------------------


def test_show_takes_a_key_a_name_or_a_task_with_arguments(app):
    made = take(app, "account", "5")
    park(app, "account", "5", "waits")
    for words in (
        [made.key],
        ["account:5"],
        ["account", "5"],
        ["account", "--args", "[5]"],
        ["account", "--kwargs", '{"label": 5}'],
    ):
        shown = told(app, "show", *words)
        assert shown["locks"][0]["task_id"] == "id-of-5"
        assert [(each["task"], each["task_id"]) for each in shown["room"]] == [("account", "waits")]
        assert shown["room_total"] == 1
    text = run(app, "show", "account:5").output
    assert "\nwaiting: 1\n" in text
    assert text.splitlines()[-1].split()[:3] == ["1", "account", "waits"]
    assert made.value["token"] not in text


def test_show_reads_no_thousand_slots_of_a_lock_that_has_one_or_two(own_redis, label):
    app = make_app(own_redis.url, label)
    take(app, "sync", "x")
    take(app, "several", "x", history=True)
    take(app, "several", "x", task_id="another")
    with own_redis.client() as client:
        for task, most in (("sync", 5), ("several", 40)):
            client.config_resetstat()
            assert told(app, "show", task, "x")["locks"]
            assert client.info("commandstats")["cmdstat_get"]["calls"] <= most, task


def test_show_finds_all_slots_for_a_user_that_may_not_ask_which_are_there(own_redis, label):
    app = make_app(own_redis.url, label)
    take(app, "several", "x")
    take(app, "several", "x", task_id="another")
    with own_redis.client() as client:
        rights = ["on", ">pw", f"~{label}:*", "+@all", "-exists"]
        client.execute_command("ACL", "SETUSER", "looks", *rights)
    looks = make_app(own_redis.url.replace("://", "://looks:pw@"), label)
    assert len(told(looks, "show", "several", "x")["locks"]) == 2


def test_a_debounced_call_is_shown_and_explained_as_one_that_waits_though_the_lock_is_free(
    app, client
):
    of_burst(app)
    explained = run(app, "explain", "burst", "x").output
    assert "the lock is free: it would wait in Redis until no newer call has come" in explained
    made = park(app, "burst", "x", "the-newest", quiet=6000)
    shown = told(app, "show", "burst", "x")
    (waits,), (lock,) = shown["room"], shown["locks"]
    assert (waits["task"], waits["task_id"]) == ("burst", "the-newest")
    assert (lock["task"], lock["state"]) == ("burst", "waits for quiet")
    assert 5000 < lock["due_in"] <= 6000
    in_words = r"waits for quiet, 1h\d\dm\b"
    for command in (["list"], ["list", "--wide"], ["watch", "--times", "1"]):
        assert re.search(in_words, run(app, *command).output), command
    explained = run(app, "explain", "burst", "x").output
    assert re.search(rf"nobody holds the lock; the last call {in_words}: it would wait", explained)
    (text,) = re.findall(r"due_in +(.+)", run(app, "show", "burst", "x").output)
    assert re.fullmatch(r"1h\d\dm", text)
    past = time.time() - 5
    client.hset(made["entries"], "#=burst", f"{past * 1000:.0f}|1||the-newest:0.0")
    (lock,) = listed(app)
    assert (lock["state"], lock["due_in"]) == ("free", None), "it is to be published"
    client.zadd(made["sent"], {"=burst": (past - 120) * 1000})
    (lock,) = listed(app)
    assert (lock["state"], lock["untaken"]) == ("not taken", 1)
    client.zadd(f"{made.bucket}:rooms", {f"1|{made.name}": (past - 60) * 1000})
    assert listed(app)[0]["state"] == "free", "nobody looks after it"


def test_show_tells_which_tasks_no_worker_takes(app, client):
    made = take(app, "report", "x")
    park(app, "report", "x", "next")
    park(app, "report", "x", "last")
    untaken(app, made, "next")
    shown = told(app, "show", "report", "x")
    first, second = shown["room"]
    assert (first["task_id"], second["task_id"]) == ("next", "last")
    assert 115 < first["published_for"] < 600
    assert second["published_for"] is None
    assert (shown["room_total"], shown["untaken"]) == (2, 1)
    text = run(app, "show", made.key).output
    assert "no worker has taken 1 of them for a minute or more; what was published is publ" in text
    assert "is published again, once the lock is free" in text
    client.hset(made["entries"], "#next:0.0", "1|||next:0.0")  # who looked could not publish it
    first, _ = told(app, "show", "report", "x")["room"]
    assert (first["published_for"], first["passed_over"]) == (None, True)
    text = run(app, "show", made.key).output
    assert "no worker that looks after the room can publish 1" in text
    assert "published again" not in text
    client.hset(made["entries"], "#next:0.0", "0|||next:0.0")
    client.delete(made.key)
    assert "published again, again and again" in run(app, "show", made.key).output
    client.set(lock_named(app.conf.redislock_prefix, "text")["sent"], "not ours")
    assert run(app, "list").exit_code == 0


def test_explain_tells_the_key_the_arguments_and_what_would_happen(app):
    def explained(*arguments):
        return told(app, "explain", *arguments)

    free = explained("sync", "--args", '["x", 5]')
    assert free["key"] == app.tasks["sync"].lock_key_for("x", 5)
    assert free["lock_key"] == "['label']"
    assert free["arguments"] == {"label": "'x'"}, "number does not count"
    assert free["now"] == "the lock is free: it would run"
    take(app, "sync", "x")
    held = explained("sync", "--kwargs", '{"label": "x"}')["now"]
    assert "held by sync[id-of-x] on w@one" in held
    assert "it would be skipped: REVOKED" in held
    shown = run(app, "explain", "sync", "x").output
    assert re.search("found in Redis +held, task id-of-x\n", shown), shown

    take(app, "report", "x")
    park(app, "report", "x", "second")
    assert "with 1 before it" in explained("report", "--args", '["x"]')["now"]
    take(app, "several", "x")
    assert explained("several", "--args", '["x"]')["now"] == "the lock is free: it would run"
    take(app, "unique", "x", queued=True)
    assert "apply_async would send nothing" in explained("unique", "--args", '["x"]')["now"]
    assert "label='x'" in run(app, "explain", "account", "--args", '["x"]').output


@pytest.mark.parametrize(
    ("call", "now"),
    [
        (("by_call", "x"), "the lock is free: it would be sent, and keep the lock until it"),
        (("sync", "woken"), "the lock is being handed over: it may run, or wait behind the task"),
        (("report", "woken"), "the lock is being handed over: it would wait in Redis, with 1"),
        (("report", "left"), "the lock is free, but others wait before it (1): it would wait"),
        (("report", "late"), "nobody holds the lock, and no worker has taken what waits for it"),
        (("sync", "text"), "a foreign value blocks its key: it would be skipped"),
    ],
)
def test_explain_tells_of_a_lock_that_no_run_holds(app, client, call, now):
    def key_of(label):
        return label

    app.task(base=SingletonTask, name="by_call", lock_key=key_of, lock_scope="queued")(key_of)
    for task in ("sync", "report"):
        client.set(lock_of(app, task, "woken").key, '{"token":"","reserved":true}', ex=60)
    for label in ("woken", "left", "late"):
        lock = park(app, "report", label, "next")
    untaken(app, lock, "next")
    client.set(lock_of(app, "sync", "text").key, "not ours")
    explained = told(app, "explain", *call)
    assert explained["now"].startswith(now)
    if call[0] == "by_call":
        assert explained["lock_key"] == f"a callable, {__name__}.{key_of.__qualname__}"


def test_a_header_is_part_of_how_a_lock_is_named(app):
    options = {"lock_key": ["label"], "lock_headers": ["tenant"], "shared": False}

    @app.task(base=SingletonTask, name="of_tenant", **options)
    def of_tenant(label):
        """Nothing."""

    with hold_lock(of_tenant.with_headers({"tenant": 5}), "x") as held:
        named = ("of_tenant", "x", "--header", "tenant=5")
        explained = told(app, "explain", *named)
        assert explained["key"] == held.key
        assert explained["lock_key"] == "['label']; headers: tenant"
        assert explained["arguments"] == {"label": "'x'", "headers[tenant]": "5"}
        assert told(app, "show", *named)["locks"][0]["key"] == held.key
        for other in (("of_tenant", "x"), (*named[:-1], "tenant=a")):
            assert "nobody holds" in run(app, "break", "--force", *other).output
        assert f"broke {held.key}" in run(app, "break", "--force", *named).output
    assert "is not NAME=VALUE" in run(app, "show", *named[:-1], "tenant").output
    assert "a key takes no" in run(app, "show", held.key, "--header", "tenant=a").output


def test_commands_tell_wrong_tasks_and_show_the_locks_of_the_others(redis_server, label):
    wrong = {"sync": {"lock_ttl": 0}, "report": {"lock_label": "{no}"}}
    app = make_app(redis_server.url, label, task_annotations=wrong)
    take(app, "account", "x")
    result = run(app, "list")
    assert result.exit_code == 0
    assert "1 lock" in result.output
    for what in ("Warning: task report: lock_label names", "Warning: task sync: lock_ttl=0"):
        assert result.output.count(what) == 1
    refused = run(app, "explain", "sync", "x")
    assert refused.exit_code == 1
    assert "Error: sync: task sync: lock_ttl=0 is not accepted" in refused.output


def test_explain_says_which_entry_protects_a_task_that_is_not_ours(redis_server, label):
    app = make_app(redis_server.url, label, redislock_tasks={"pl*": {"lock_ttl": 60}})
    result = run(app, "explain", "plain")
    assert "redislock_tasks['pl*']" in result.output, result.output
    assert "not set: all arguments" in result.output
    app.tasks["plain"].app_locks.server.close()


def test_explain_says_that_no_locks_are_taken_at_all(redis_server, label):
    app = make_app(redis_server.url, label, redislock_enabled=False)
    result = run(app, "explain", "sync", "--args", '["x"]')
    assert "it would run without a lock" in result.output


@pytest.mark.parametrize("command", [["show"], ["explain"]])
def test_a_task_that_only_the_server_knows_is_answered_with_all_there_is(
    app, redis_server, label, client, command
):
    old = make_app(redis_server.url, label)

    def body(label):
        """Nothing."""

    options = {"base": SingletonTask, "shared": False, "on_conflict": "queue"}
    old.task(name="old", lock_key=["label"], **options)(body)
    old.task(name="shared", lock_key="both:{label}", **options)(body)
    take(old, "old", "held")
    take(old, "old", "awaited")
    park(old, "old", "awaited", "waits")
    client.delete(lock_of(old, "old", "awaited").key)
    take(old, "account", "other", token="account")
    client.set(
        lock_named(label, "both:x").key,
        json.dumps({"token": "t", "v": 2, "task": "sync", "task_id": "x"}),
    )
    park(old, "shared", "x", "behind")

    for words in ([], ["held"], ["--args", '["held"]']):
        found = run(app, *command, "old", *words)
        assert found.exit_code == 0
        assert "this app does not know the task old; the server has:" in found.output
        assert [line.split()[2] for line in found.output.splitlines()[2:-1]] == [*("free", "held")]
    found = told(app, *command, "old", "held")
    assert (found["task"], found["known"], len(found["locks"])) == ("old", False, 2)
    (behind,) = told(app, *command, "shared")["locks"]
    assert (behind["key"], behind["task"]) == (lock_named(label, "both:x").key, "sync")


# -- break ------------------------------------------------------------------------------------


def test_break_asks_first_and_tells_what_it_broke(app, client):
    made = take(app, "sync", "x")
    refused = run(app, "break", "sync", "x", input="n\n")
    assert refused.exit_code == 1
    assert "id-of-x" in refused.output
    assert client.exists(made.key)
    done = run(app, "break", "sync", "x", input="y\n")
    assert done.exit_code == 0
    assert f"broke {made.key}, held by sync[id-of-x] on w@one" in done.output
    assert not client.exists(made.key)
    assert made.value["token"] in client.get(made["broken"]), "its holder does not take it again"
    again = run(app, "break", "--force", "sync", "x")
    assert again.exit_code == 1
    assert "no such lock" in again.output


def test_break_leaves_alone_who_took_the_lock_since_it_was_shown(app, client, monkeypatch):
    made = take(app, "sync", "x")

    def confirm(*args, **kwargs):
        client.delete(made.key)
        take(app, "sync", "x", task_id="successor")
        return True

    monkeypatch.setattr(click, "confirm", confirm)
    result = run(app, "break", "sync", "x")
    assert result.exit_code == 1
    assert f"did not break {made.key}" in result.output
    assert "successor" in client.get(made.key)


def test_break_breaks_all_of_a_task_and_one_slot_alone(app, client):
    one = take(app, "sync", "x")
    two = take(app, "sync", "y")
    several = take(app, "several", "x")
    take(app, "several", "x", task_id="another")
    broken = told(app, "break", "--force", "--all", "sync")["broken"]
    assert {each["task_id"] for each in broken} == {"id-of-x", "id-of-y"}
    assert not client.exists(one.key, two.key)
    assert run(app, "break", "--force", several["lock2"]).exit_code == 0
    assert client.exists(several.key)
    assert not client.exists(several["lock2"])


def test_break_keeps_who_waits_unless_asked_and_then_nothing_hangs(app, client):
    made = take(app, "report", "x")
    for number in range(3):
        park(app, "report", "x", f"waits{number}")
    kept = run(app, "break", "--force", "report", "x")
    assert "3 still waiting: the next one is published" in kept.output
    assert client.llen(made["room"]) == 3
    dropped = run(app, "break", "--force", "report", "x", "--drop-waiting")
    assert "dropped 3 that waited" in dropped.output, dropped.output
    assert not client.exists(made["room"], made["entries"], made["ended"])
    for number in range(3):
        assert client.get(f"{made['done']}:waits{number}:0.0") == "+0", "no copy of it runs"
        result = app.AsyncResult(f"waits{number}")
        assert result.state == "REVOKED"
        with pytest.raises(TaskSkipped):
            result.get(timeout=1)


# -- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["show", "nothing"], "no such lock"),
        (["show", "\ud800"], "is not valid text"),
        (["explain", "nothing"], "no such task: nothing"),
        (["explain", "snyc", "x"], "no such task: snyc; did you mean sync?"),
        (["show", "snyc", "x"], "no such task: snyc; did you mean sync?"),
        (["list", "-t", "snyc"], "no such task: snyc; did you mean sync?"),
        (["list", "-t", "nothing.like.*"], "no such task: nothing.like.*"),
        (["break", "snyc", "--all", "-f"], "no such task: snyc; did you mean sync?"),
        (["explain", "plain"], "plain takes no lock"),
        (["explain", "sync"], "missing"),
        (["show", "nothing", "5"], "no such task"),
        (["break", "--force", "nothing"], "no such lock"),
        (["break", "--force", "--all", "sync", "x"], "no arguments"),
        (["history", "--args", '["x"]'], "which lock?"),
    ],
)
def test_errors_are_one_line_and_a_status(app, command, said):
    result = run(app, *command)
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert line.startswith("Error: ")
    assert said in line


@pytest.mark.parametrize(
    ("option", "given", "said"),
    [
        ("--args", "[5", "not JSON: "),
        ("--args", '{"label": 5}', "it must be a JSON array"),
        ("--kwargs", "[5]", "it must be a JSON object"),
    ],
)
def test_arguments_that_are_not_the_json_that_is_asked_for_are_said(app, option, given, said):
    refused = run(app, "show", "sync", option, given)
    assert refused.exit_code == 2
    assert f"{option}': {said}" in refused.output


def test_a_module_of_the_project_that_cannot_be_imported_is_one_line(redis_server, label):
    result = run(make_app(redis_server.url, label, imports=["no_such_module"]), "list")
    assert result.exit_code == 1
    assert result.output == "Error: cannot load the app's tasks: No module named 'no_such_module'\n"


def test_a_server_that_is_away_or_denies_is_one_line(own_redis, label):
    away = make_app(f"redis://127.0.0.1:{free_port()}", label)
    result = run(away, "list")
    assert result.exit_code == 1
    assert result.output.startswith("Error: the lock server does not answer: ")
    assert len(result.output.splitlines()) == 1
    with own_redis.client() as client:
        client.acl_setuser("blind", enabled=True, passwords="+x", keys=["*"], commands=["+get"])
    blind = make_app(f"redis://blind:x@127.0.0.1:{own_redis.port}", label)
    result = run(blind, "list")
    assert result.exit_code == 1
    assert result.output.startswith("Error: no rights: ")
    assert len(result.output.splitlines()) == 1


# -- the entry point --------------------------------------------------------------------------


def test_tasks_are_protected_in_a_worker_that_imports_nothing_of_ours(
    start_worker, sender, queue, journal, label
):
    start_worker(
        queues=queue,
        app="tests.support.unaware",
        conf={"redislock_tasks": {"unaware": {"lock_key": ["label"]}}},
    )
    first = sender.send_task("unaware", [label, 4.0], queue=queue)
    eventually(lambda: journal.read(label, "start"), "it runs")
    with pytest.raises(TaskSkipped):
        sender.send_task("unaware", [label], queue=queue).get(timeout=20)
    assert first.get(timeout=20)


def test_celery_has_the_command_loads_little_for_it_and_says_so_if_there_is_no_app():
    script = (
        "import sys; from celery.bin.celery import celery\n"
        "print(*sys.modules); celery(['redislock', 'list'])\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "Error: no app: use celery -A proj redislock ...\n"
    loaded = done.stdout.split()
    assert {"rich", "gevent", "starlette", "uvicorn", "prometheus_client"}.isdisjoint(loaded)
    ours = [each for each in loaded if each.startswith("celery_redislock.")]
    assert not [each for each in ours if re.search("doctor|watch", each)]


# -- what is not there, and what is in trouble ------------------------------------------------


def test_a_name_that_nobody_has_gives_no_key(app):
    take(app, "sync", "x", lock_label="account 4711")
    result = run(app, "show", "account 4008")
    assert result.exit_code == 1
    assert result.output == (
        "Error: no such lock: nothing here is called account 4008; did you mean account 4711?\n"
    )
    assert "id-of-x" in run(app, "show", "account 4711").output
    free = run(app, "show", "sync", "free")
    assert "nobody holds" in free.output, "the key of this call is known"


def test_the_duplicates_of_a_run_that_lasts_are_shown(app):
    lock = take(app, "sync", "x")
    assert "SKIPS" not in run(app, "list").output
    store(app, lock, turned_away=3)
    head, row, _ = run(app, "list").output.splitlines()
    assert row.split()[head.split().index("SKIPS")] == "3"
    assert "turned_away  3" in run(app, "show", "sync", "x").output
    assert listed(app)[0]["turned_away"] == 3
