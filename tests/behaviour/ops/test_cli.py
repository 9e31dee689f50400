"""`celery redislock`: list, show, explain, break, watch; and the entry point that brings it."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import socket
import subprocess
import sys
import time

import click
import pytest

from celery_redislock import SingletonTask, Skip, TaskSkipped
from celery_redislock.app.entries import Entry
from celery_redislock.protocol import calls, holders, rooms
from celery_redislock.protocol.claims import Parking
from celery_redislock.protocol.entries import slot_of
from celery_redislock.protocol.holders import successor_text
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.testing import hold_lock
from tests.support.looking import ROOT, claim, installed, make_app, run, take
from tests.support.servers import free_port
from tests.support.waiting import eventually, within


@pytest.fixture
def app(redis_server, label):
    app = make_app(redis_server.url, label)
    yield app
    app.tasks["sync"].app_locks.server.close()


def store_of(app):
    return app.tasks["sync"].app_locks.server


def listed(app, *arguments):
    result = run(app, "list", "--json", *arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def park(app, task, label, task_id, **more):
    """Let another call of the task wait for the lock."""
    made = claim(app, task, label, task_id=task_id, token=f"token-of-{task_id}")
    options = {"task_id": task_id, "headers": {"redislock": {}}}
    entry = Entry.of(app.tasks[task], [label], {}, options)
    store_of(app).run(rooms.park(made, Parking(entry.dump(), made.entry_id, **more)))


def untaken(client, keys, *task_ids):
    """As if these calls, which wait, had first been published two minutes ago."""
    seconds, _ = client.time()
    client.zadd(keys.sent, {f"{task_id}:0.0": (seconds - 120) * 1000 for task_id in task_ids})


# -- list -------------------------------------------------------------------------------------


def test_list_shows_each_lock_for_what_it_is(app, client, label):
    store = store_of(app)
    take(app, "sync", "held")
    made, reply = take(app, "sync", "retries")
    store.run(calls.hold(made, holders.held_for_retry(reply.value), 60))
    made, _ = take(app, "sync", "cools")
    store.run(calls.settle(made, calls.Release(note="1", min_hold=60)))
    store.run(calls.reserve(claim(app, "unique", "sent", queued=True), 60))
    take(app, "several", "both", token="first")
    take(app, "several", "both", token="second", task_id="another")
    take(app, "report", "awaited")
    park(app, "report", "awaited", "second")
    park(app, "report", "awaited", "third")
    take(app, "sync", "ends")
    park(app, "sync", "ends", "newer", replace=(successor_text("sync", "newer"), 60))
    take(app, "report", "left")
    park(app, "report", "left", "next")
    client.delete(claim(app, "report", "left").keys.lock)
    made, _ = take(app, "sync", "broken")
    store.run(calls.break_lock(made.keys, 60))
    reserved = claim(app, "sync", "reserved").keys.lock
    client.set(reserved, '{"token":"","reserved":true}', ex=60)
    client.set(lock_keys(label, "text").lock, "not ours")
    client.rpush(lock_keys(label, "a list").lock, "not ours")
    client.set(f"{label}:{{0}}:lock:misplaced", "in another bucket")
    untaken(client, claim(app, "report", "awaited").keys, "second", "third")

    found = listed(app, "--sort", "key")
    states = {(each["task"], each["task_id"]): each for each in found if each["task_id"]}
    assert {each["state"] for each in found} == {
        *("held", "kept", "queued", "foreign", "broken", "free"),
    }
    assert states["sync", "id-of-held"]["state"] == "held"
    assert states["sync", "id-of-held"]["node"] == "w@one"
    assert states["sync", "id-of-held"]["pid"] == os.getpid()
    assert states["sync", "id-of-held"]["fence"] > 10**15
    assert 50 < states["sync", "id-of-held"]["lives_for"] <= 60
    assert 0 <= states["sync", "id-of-held"]["held_for"] < 30
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
            f"{len(found) - 1} locks, 2 waiting that no worker takes, 1 broken lately"
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


def test_a_holder_that_does_not_extend_its_lock_is_silent(app, client):
    made, _ = take(app, "sync", "dies")  # for 60 s: an extension is due after 20
    take(app, "sync", "lives")
    client.pexpire(made.keys.lock, 40_000)
    assert [each["state"] for each in listed(app)] == ["held", "held"], "it may be a little late"
    client.pexpire(made.keys.lock, 30_000)
    assert [each["task_id"] for each in listed(app, "--state", "silent")] == ["id-of-dies"]
    broken = run(app, "break", "--task", "sync", "--force", "--json").output
    assert len(json.loads(broken)["broken"]) == 2, "a run holds both"


def test_list_filters_sorts_and_limits(app, client):
    for number, name in enumerate(("old", "young")):
        _, reply = take(app, "sync", name, node=f"w@{name}")
        record = json.loads(reply.value)
        record["acquired_at"] = time.time() - (3600, 60)[number]
        client.set(claim(app, "sync", name).keys.lock, json.dumps(record), keepttl=True)
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


def test_names_and_values_cannot_break_a_line(app, client):
    evil = "x\n\x1b[31mred\r\u202etxt\u2028end"
    made, _ = take(app, "account", evil, node=f"node{evil}", task_id=f"id{evil}")
    for command in (
        ["list"],
        ["show", made.keys.lock],
        ["explain", "account", "--args", json.dumps([evil])],
        ["show", f"nothing{evil}"],
        ["explain", f"nothing{evil}"],
        ["break", "--force", made.keys.lock],
    ):
        output = run(app, *command).output
        lines = output.split("\n")
        assert all(line.isprintable() for line in lines), (command, output)
        if command[0] == "list":
            assert len(lines) == 4, output
        if command[0] == "break":
            assert len(lines) == 2, output


def test_twenty_thousand_locks_are_listed_in_seconds_and_without_KEYS(own_redis):
    value = holders.encode("t", ttl_ms=60_000, task="sync", task_id="1", node="w@one")
    raw = bytearray()
    for number in range(20_000):
        key = lock_keys("many", f"sync:v1:{number:032x}").lock
        raw += b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (
            *(len(key), key.encode(), len(value), value.encode()),
        )
    with socket.create_connection(("127.0.0.1", own_redis.port)) as pipe:
        pipe.sendall(raw)
        with own_redis.client() as client:
            eventually(lambda: client.dbsize() == 20_000, "all are there")
            app = make_app(own_redis.url, "many")
            results = []
            # Half a second on an idle machine.
            assert within(10, lambda: results.append(run(app, "list", "--limit", "3")))
            store_of(app).close()
            stats = client.info("commandstats")
    assert results[-1].output.splitlines()[-1] == "20000 locks, the first 3 shown"
    assert "cmdstat_keys" not in stats
    assert stats["cmdstat_scan"]["usec_per_call"] < 5000


# -- show and explain -------------------------------------------------------------------------


def test_show_takes_a_key_a_name_or_a_task_with_arguments(app):
    made, _ = take(app, "account", "5")
    park(app, "account", "5", "waits")
    for words in (
        [made.keys.lock],
        ["account:5"],
        ["account", "5"],
        ["account", "--args", "[5]"],
        ["account", "--kwargs", '{"label": 5}'],
    ):
        result = run(app, "show", *words, "--json")
        assert result.exit_code == 0, result.output
        shown = json.loads(result.output)
        assert shown["locks"][0]["task_id"] == "id-of-5"
        assert [(each["task"], each["task_id"]) for each in shown["room"]] == [("account", "waits")]
        assert shown["room_total"] == 1
    text = run(app, "show", "account:5").output
    assert "\nwaiting: 1\n" in text
    assert text.splitlines()[-1].split()[:3] == ["1", "account", "waits"]
    assert made.token not in text


def test_show_shows_every_slot_of_a_lock_or_the_one_that_was_named(app):
    made, _ = take(app, "several", "x", token="first")
    take(app, "several", "x", token="second", task_id="another")
    both = json.loads(run(app, "show", "several", "x", "--json").output)["locks"]
    assert {each["task_id"] for each in both} == {"id-of-x", "another"}
    one = json.loads(run(app, "show", made.keys.slots[0], "--json").output)["locks"]
    assert [each["task_id"] for each in one] == ["another"]


def test_a_debounced_call_is_shown_and_explained_as_one_that_waits_though_the_lock_is_free(
    app, client
):
    def burst(label):
        """Nothing."""

    options = {"base": SingletonTask, "lock_key": ["label"], "on_conflict": "debounce"}
    app.task(name="burst", shared=False, **options)(burst)
    explained = run(app, "explain", "burst", "x").output
    assert "the lock is free: it would wait in Redis until no newer call has come" in explained
    made = claim(app, "burst", "x", task_id="the-newest")
    options = {"task_id": "the-newest", "headers": {"redislock": {}}}
    entry = Entry.of(app.tasks["burst"], ["x"], {}, options).dump()
    store_of(app).run(rooms.park(made, Parking(entry, slot_of("burst"), quiet=(60.0, 60.0))))
    shown = json.loads(run(app, "show", "burst", "x", "--json").output)
    (waits,), (lock,) = shown["room"], shown["locks"]
    assert (waits["task"], waits["task_id"]) == ("burst", "the-newest")
    assert (lock["task"], lock["state"]) == ("burst", "waits for quiet")
    assert 30 < lock["due_in"] <= 60
    in_words = r"waits for quiet, (\d+s|1m00s)\b"
    for command in (["list"], ["list", "--wide"], ["watch", "--times", "1"]):
        assert re.search(in_words, run(app, *command).output), command
    explained = run(app, "explain", "burst", "x").output
    assert re.search(rf"nobody holds the lock; the last call {in_words}: it would wait", explained)
    (text,) = re.findall(r"due_in +(.+)", run(app, "show", "burst", "x").output)
    assert re.fullmatch(r"\d+s|1m00s", text)
    past = time.time() - 5
    client.hset(made.keys.entries, f"#{slot_of('burst')}", f"{past * 1000:.0f}|1||the-newest:0.0")
    (lock,) = listed(app)
    assert (lock["state"], lock["due_in"]) == ("free", None), "it is to be published"
    client.zadd(made.keys.sent, {slot_of("burst"): (past - 120) * 1000})
    (lock,) = listed(app)
    assert (lock["state"], lock["untaken"]) == ("not taken", 1)
    client.zadd(made.keys.rooms, {made.keys.lock_id: (past - 60) * 1000})
    assert listed(app)[0]["state"] == "free", "nobody looks after it"


def test_show_tells_which_tasks_no_worker_takes(app, client):
    made, _ = take(app, "report", "x")
    park(app, "report", "x", "next")
    park(app, "report", "x", "last")
    untaken(client, made.keys, "next")
    shown = json.loads(run(app, "show", "report", "x", "--json").output)
    first, second = shown["room"]
    assert (first["task_id"], second["task_id"]) == ("next", "last")
    assert 115 < first["published_for"] < 180
    assert second["published_for"] is None
    assert (shown["room_total"], shown["untaken"]) == (2, 1)
    text = run(app, "show", made.keys.lock).output
    assert "no worker takes 1 of them; what was published is published again, once the" in text
    client.hset(made.keys.entries, "#next:0.0", "1|||next:0.0")  # who looked could not publish it
    first, _ = json.loads(run(app, "show", "report", "x", "--json").output)["room"]
    assert (first["published_for"], first["passed_over"]) == (None, True)
    text = run(app, "show", made.keys.lock).output
    assert "no worker that looks after the room can publish 1" in text
    assert "published again" not in text
    client.hset(made.keys.entries, "#next:0.0", "0|||next:0.0")
    client.delete(made.keys.lock)
    assert "published again, again and again" in run(app, "show", made.keys.lock).output
    client.set(lock_keys(app.conf.redislock_prefix, "text").sent, "not ours")
    assert run(app, "list").exit_code == 0


def test_explain_tells_the_key_the_arguments_and_what_would_happen(app):
    def explained(*arguments):
        result = run(app, "explain", *arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.output)

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
    store_of(app).run(calls.reserve(claim(app, "unique", "x", queued=True), 60))
    assert "apply_async would send nothing" in explained("unique", "--args", '["x"]')["now"]
    assert "label='x'" in run(app, "explain", "account", "--args", '["x"]').output


def test_a_header_is_part_of_how_a_lock_is_named(app):
    options = {"lock_key": ["label"], "lock_headers": ["tenant"], "shared": False}

    @app.task(base=SingletonTask, name="of_tenant", **options)
    def of_tenant(label):
        """Nothing."""

    with hold_lock(of_tenant.with_headers({"tenant": 5}), "x") as held:
        named = ("of_tenant", "x", "--header", "tenant=5")
        told = json.loads(run(app, "explain", *named, "--json").output)
        assert told["key"] == held.key
        assert told["lock_key"] == "['label']; headers: tenant"
        assert told["arguments"] == {"label": "'x'", "headers[tenant]": "5"}
        assert json.loads(run(app, "show", *named, "--json").output)["locks"][0]["key"] == held.key
        for other in (("of_tenant", "x"), (*named[:-1], "tenant=a")):
            assert "nobody holds" in run(app, "break", "--force", *other).output
        assert f"broke {held.key}" in run(app, "break", "--force", *named).output
    assert "is not NAME=VALUE" in run(app, "show", *named[:-1], "tenant").output
    assert "a key takes no" in run(app, "show", held.key, "--header", "tenant=a").output


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("defer", "deferred, and tried again in 5 s"),
        ("wait", "wait in its pool slot"),
        ("coalesce", "replace the waiting task of this name"),
        ("replace", "end the running task, within 5 s"),
        ("raise", "fail with LockConflict"),
    ],
)
def test_explain_has_words_for_each_policy(redis_server, label, policy, words):
    app = make_app(redis_server.url, label, redislock_on_conflict=policy)
    take(app, "sync", "x")
    assert words in run(app, "explain", "sync", "--args", '["x"]').output
    store_of(app).close()


@pytest.mark.parametrize(
    "arguments", [["explain", "snyc"], ["explain", "snyc", "x"], ["show", "snyc", "x"]]
)
def test_a_misspelt_task_is_answered_with_what_is_called_nearly_so(app, arguments):
    result = run(app, *arguments)
    assert result.exit_code == 1
    assert result.output == "Error: no such task: snyc; did you mean sync?\n"


@pytest.mark.parametrize(
    ("policy", "shown"), [("skip", "Skip()"), (Skip(result=5), "Skip(result=5)")]
)
def test_explain_shows_a_policy_as_it_is_written(redis_server, label, policy, shown):
    app = make_app(redis_server.url, label, redislock_on_conflict=policy)
    explained = json.loads(run(app, "explain", "sync", "x", "--json").output)
    assert explained["policy"] == shown
    store_of(app).close()


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
    store_of(app).close()


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
    store_of(app).close()


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
    client.delete(claim(old, "old", "awaited").keys.lock)
    take(old, "account", "other", token="account")
    client.set(lock_keys(label, "both:x").lock, claim(old, "sync", "x").value)
    park(old, "shared", "x", "behind")

    for words in ([], ["held"], ["--args", '["held"]']):
        found = run(app, *command, "old", *words)
        assert found.exit_code == 0
        assert "this app does not know the task old; the server has:" in found.output
        assert [line.split()[2] for line in found.output.splitlines()[2:-1]] == [*("free", "held")]
    told = json.loads(run(app, *command, "old", "held", "--json").stdout)
    assert (told["task"], told["known"], len(told["locks"])) == ("old", False, 2)
    (behind,) = json.loads(run(app, *command, "shared", "--json").stdout)["locks"]
    assert (behind["key"], behind["task"]) == (lock_keys(label, "both:x").lock, "sync")


# -- break ------------------------------------------------------------------------------------


def test_break_asks_first_and_tells_what_it_broke(app, client):
    made, _ = take(app, "sync", "x")
    refused = run(app, "break", "sync", "x", input="n\n")
    assert refused.exit_code == 1
    assert "id-of-x" in refused.output
    assert client.exists(made.keys.lock)
    done = run(app, "break", "sync", "x", input="y\n")
    assert done.exit_code == 0
    assert f"broke {made.keys.lock}, held by sync[id-of-x] on w@one" in done.output
    assert not client.exists(made.keys.lock)
    assert made.token in client.get(made.keys.broken), "its holder does not take it again"
    again = run(app, "break", "--force", "sync", "x")
    assert again.exit_code == 1
    assert "no such lock" in again.output


def test_break_leaves_alone_who_took_the_lock_since_it_was_shown(app, client, monkeypatch):
    made, _ = take(app, "sync", "x")

    def confirm(*args, **kwargs):
        store_of(app).run(calls.settle(made))
        take(app, "sync", "x", token="successor", task_id="successor")
        return True

    monkeypatch.setattr(click, "confirm", confirm)
    result = run(app, "break", "sync", "x")
    assert result.exit_code == 1
    assert f"did not break {made.keys.lock}" in result.output
    assert "successor" in client.get(made.keys.lock)


def test_break_breaks_all_of_a_task_and_one_slot_alone(app, client):
    one, _ = take(app, "sync", "x")
    two, _ = take(app, "sync", "y")
    several, _ = take(app, "several", "x", token="first")
    take(app, "several", "x", token="second", task_id="another")
    result = run(app, "break", "--force", "--all", "sync", "--json")
    assert {each["task_id"] for each in json.loads(result.output)["broken"]} == {
        "id-of-x",
        "id-of-y",
    }
    assert not client.exists(one.keys.lock, two.keys.lock)
    assert run(app, "break", "--force", several.keys.slots[0]).exit_code == 0
    assert client.exists(several.keys.lock)
    assert not client.exists(several.keys.slots[0])


def test_break_refuses_what_is_not_a_lock_of_ours(app, client, label):
    key = lock_keys(label, "theirs").lock
    client.set(key, "not ours")
    result = run(app, "break", "--force", "theirs")
    assert result.exit_code == 1
    assert "not a lock of ours" in result.output
    assert client.get(key) == "not ours"


def test_break_keeps_who_waits_unless_asked_and_then_nothing_hangs(app, client):
    made, _ = take(app, "report", "x")
    for number in range(3):
        park(app, "report", "x", f"waits{number}")
    kept = run(app, "break", "--force", "report", "x")
    assert "3 still waiting: the next one is published" in kept.output
    assert client.llen(made.keys.room) == 3
    dropped = run(app, "break", "--force", "report", "x", "--drop-waiting")
    assert "dropped 3 that waited" in dropped.output, dropped.output
    assert not client.exists(made.keys.room, made.keys.entries, made.keys.ended)
    for number in range(3):
        assert client.get(made.keys.done_by(f"waits{number}:0.0")) == "+0", "no copy of it runs"
        result = app.AsyncResult(f"waits{number}")
        assert result.state == "REVOKED"
        with pytest.raises(TaskSkipped):
            result.get(timeout=1)


def test_break_drops_what_waits_of_a_task_that_this_app_does_not_know(app, client):
    made, _ = take(app, "account", "x")
    entry = Entry.of(app.tasks["account"], ["x"], {}, {"task_id": "lost", "headers": {}})
    sealed = entry._replace(task="renamed").sealed(app, made.keys.lock)
    waits = claim(app, "account", "x", task_id="lost")
    store_of(app).run(rooms.park(waits, Parking(sealed.dump(), waits.entry_id)))
    dropped = run(app, "break", "--force", "account", "x", "--drop-waiting")
    assert dropped.exit_code == 0, dropped.output
    assert app.AsyncResult("lost").state == "REVOKED"
    assert not client.exists(made.keys.ended), "nobody else could store its result"


# -- watch ------------------------------------------------------------------------------------


def test_watch_draws_holders_and_counts_events(app):
    from celery_redislock.ops.watch import Rates

    take(app, "sync", "x")
    result = run(app, "watch", "--times", "1")
    assert result.exit_code == 0, result.output
    assert "1 lock, 0 waiting" in result.output
    rates = Rates(app)
    conflicts, others = ("skipped", "deferred"), ("acquired", "recovered", "revoked", "lost")
    for kind in (*conflicts, *others):
        rates._count({"type": f"task-lock-{kind}"})
    rates._count({"type": "task-sent"})
    taken = rates.take()
    assert taken["conflicts"] == 2 * taken["lost"] > 0
    assert rates.take()["conflicts"] == 0
    rates.ear.close()


def test_watch_counts_those_that_no_worker_takes(app, client):
    made, _ = take(app, "report", "x")
    park(app, "report", "x", "waits")
    untaken(client, made.keys, "waits")
    shown = run(app, "watch", "--times", "1").output
    assert "1 lock, 1 waiting that no worker takes, 1 waiting" in shown


# -- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["show", "nothing"], "no such lock"),
        (["explain", "nothing"], "no such task: nothing"),
        (["explain", "plain"], "plain takes no lock"),
        (["explain", "sync"], "missing"),
        (["show", "nothing", "5"], "no such task"),
        (["break", "--force", "nothing"], "no such lock"),
        (["break", "--force", "--all", "sync", "x"], "no arguments"),
    ],
)
def test_errors_are_one_line_and_a_status(app, command, said):
    result = run(app, *command)
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert line.startswith("Error: ")
    assert said in line


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


@pytest.fixture
def environment(tmp_path):
    return {**os.environ, "PYTHONPATH": installed(tmp_path)}


def celery(environment, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "celery", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_celery_has_the_command_and_says_so_if_there_is_no_app(
    environment, conf, redis_server, label
):
    own = {"redislock_url": redis_server.url, "redislock_prefix": label}
    environment["TEST_CONF"] = json.dumps({**conf, **own})
    done = celery(environment, "-A", "tests.support.tasks", "redislock", "list")
    assert (done.returncode, done.stdout) == (0, "0 locks\n"), done.stderr
    without = celery(environment, "redislock", "list")
    assert without.returncode == 1
    assert without.stderr == "Error: no app: use celery -A proj redislock ...\n"


def test_tasks_are_protected_in_a_worker_that_imports_nothing_of_ours(
    environment, start_worker, sender, queue, journal, label, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", environment["PYTHONPATH"])
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


def test_the_entry_point_imports_only_what_a_command_line_needs():
    script = (
        "import sys, celery.bin.celery; before = set(sys.modules)\n"
        "import celery_redislock.ops.cli; print(*(set(sys.modules) - before))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = done.stdout.split()
    for module in ("rich", "celery_redislock.ops.doctor", "celery_redislock.ops.watch", "gevent"):
        assert not [name for name in loaded if name.split(".")[0] == module or name == module]
    assert SingletonTask.__module__ == "celery_redislock.tasks.task"


# -- what is not there, and what is in trouble ------------------------------------------------


def test_a_task_that_is_none_is_an_error_with_what_was_meant(app):
    for arguments in (("list", "-t", "snyc"), ("break", "snyc", "--all", "-f")):
        result = run(app, *arguments)
        assert result.exit_code == 1
        assert result.output == "Error: no such task: snyc; did you mean sync?\n"
    assert run(app, "list", "-t", "nothing.like.*").output == (
        "Error: no such task: nothing.like.*\n"
    )
    assert run(app, "list", "-t", "sync").output == "0 locks\n", "it takes none now"
    assert run(app, "list", "-t", "s?nc").output == "0 locks\n"


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
    def delivery(task_id):
        made = claim(app, "sync", "x", token=task_id, task_id=task_id)
        return dataclasses.replace(made, history=50, turned_away=True, task="sync")

    store_of(app).run(calls.acquire(delivery("runs")))
    assert "SKIPS" not in run(app, "list").output
    for _ in range(3):
        store_of(app).run(calls.acquire(delivery("again")))
    head, row, _ = run(app, "list").output.splitlines()
    assert row.split()[head.split().index("SKIPS")] == "3"
    assert "turned_away  3" in run(app, "show", "sync", "x").output
    assert json.loads(run(app, "list", "--json").output)[0]["turned_away"] == 3


def test_numbers_end_at_the_right(app):
    for number in range(3):
        take(app, "sync", f"{number}")
    lines = run(app, "list", "--wide").output.splitlines()[:-1]
    ends = lines[0].index("FENCE") + len("FENCE")
    assert {len(line) for line in lines} == {ends}
    assert all(line[ends - 1] != " " for line in lines)


@pytest.mark.parametrize("plain", [{}, {"NO_COLOR": "1"}])
def test_trouble_is_red_on_a_terminal_unless_nobody_wants_colours(app, client, label, plain):
    client.set(claim(app, "sync", "foreign").keys.lock, "not ours")
    take(app, "sync", "fine")
    shown = run(app, "list", no_color=False, color=True, env={"COLUMNS": "200", **plain}).output
    red = [line for line in shown.splitlines() if line.startswith("\x1b[31m")]
    assert len(red) == (0 if plain else 1)
    assert all("foreign" in line for line in red)
    assert "\x1b" not in run(app, "list", no_color=False).output, "not in a pipe"


def test_no_help_is_cut(app):
    shown = run(app, "--help", columns=80).output
    assert "drop-waiting" in shown
    assert [
        line for line in shown.splitlines() if line.endswith("...") and "Usage" not in line
    ] == []
