"""Orders about many locks at once, by command and from Python; and rooms whose holder is gone."""

from __future__ import annotations

import json

import pytest

from celery_redislock import ConfigError, LockUnavailable
from celery_redislock.operations import break_locks, drop_waiting, list_locks
from celery_redislock.ops import orders
from celery_redislock.protocol import calls, holders, rooms
from celery_redislock.protocol.keys import lock_keys
from tests.behaviour.ops.test_fits import park
from tests.support.looking import claim, make_app, run, take
from tests.support.servers import free_port


@pytest.fixture
def app(redis_server, label):
    app = make_app(redis_server.url, label)
    yield app
    app.tasks["sync"].app_locks.server.close()


def left(app, client, task="report", label="free", count=3):
    """A room whose holder died: its lock has expired."""
    made, _ = take(app, task, label)
    for number in range(count):
        park(app, task, label, f"{label}-{number}", "order 4711")
    client.delete(made.keys.lock)
    return made.keys


def both_nodes(app):
    """Locks on two nodes, in each state that a node can leave them in."""
    store = app.tasks["sync"].app_locks.server
    for name in ("runs", "hangs"):
        take(app, "sync", name, node="w@gone")
    take(app, "report", "runs", node="w@gone", token="report")
    take(app, "sync", "elsewhere", node="w@here")
    _, reply = take(app, "sync", "kept", node="w@gone")
    store.run(calls.hold(claim(app, "sync", "kept"), holders.held_for_retry(reply.value), 60))
    store.run(calls.reserve(claim(app, "unique", "sent", queued=True, node="w@gone"), 60))


def ids(found):
    return {each["task_id"].removeprefix("id-of-") for each in found}


# -- rooms whose holder is dead ---------------------------------------------------------------


def test_a_room_whose_holder_died_belongs_to_the_task_that_waits_there(app, client):
    keys = left(app, client)
    (found,) = json.loads(run(app, "list", "--task", "report", "--json").output)
    assert (found["task"], found["state"], found["waiting"]) == ("report", "free", 3)
    assert found["label"] == "order 4711"
    assert "order 4711" in run(app, "list", "--task", "rep*").output
    assert run(app, "list", "--task", "sync").output == "0 locks\n"
    dropped = run(app, "break", "--task", "report", "--drop-waiting", "--force")
    assert dropped.output == "dropped 3 that waited\n"
    assert not client.exists(keys.room, keys.entries)


def test_a_room_that_cannot_be_read_is_listed_without_a_task(app, client):
    keys = left(app, client)
    client.delete(keys.entries)
    (found,) = json.loads(run(app, "list", "--json").output)
    assert (found["task"], found["state"], found["waiting"]) == (None, "free", 3)
    client.set(keys.entries, "not a hash")
    assert json.loads(run(app, "list", "--json").output) == [found]


def test_a_free_lock_is_called_by_the_label_of_the_first_that_waits(app, client):
    keys = left(app, client)
    app.tasks["report"].app_locks.server.run(rooms.look(keys, 60, 3600))
    for command in (["list"], ["show", "report", "free"]):
        (found,) = looked(app, *command)
        assert (found["state"], found["label"]) == ("free", "order 4711")
    assert "order 4711" in run(app, "list").output


def looked(app, *command):
    found = json.loads(run(app, *command, "--json").output)
    return found if command == ("list",) else found["locks"]


def test_a_lock_that_only_pool_slots_wait_for_is_the_tasks_in_its_name(app, client):
    keys = claim(app, "sync", "x").keys
    seconds, _ = client.time()
    client.zadd(keys.waiters, {"someone": (seconds + 60) * 1000})
    (found,) = json.loads(run(app, "list", "--task", "sync", "--json").output)
    assert (found["task"], found["state"], found["waiting"]) == ("sync", "free", 1)


def test_a_broken_lock_is_no_lock_and_its_room_is_free(app, client):
    made, _ = take(app, "report", "x")
    app.tasks["report"].app_locks.server.run(calls.break_lock(made.keys, 60))
    assert run(app, "list").output == "0 locks, 1 broken lately (--all shows them)\n"
    assert "broken" in run(app, "list", "--all").output.splitlines()[1]
    assert "state" in run(app, "show", "report", "x").output
    assert run(app, "watch", "--times", "1").output.count("broken") == 0
    left(app, client, label="x")
    states = [each["state"] for each in json.loads(run(app, "list", "--json").output)]
    assert states == ["free"], "somebody waits for it, which is what counts"
    shown = json.loads(run(app, "show", "report", "x", "--json").output)
    assert [each["state"] for each in shown["locks"]] == ["free", "broken"]
    assert [each["broken_by"] for each in shown["locks"]] == [None, holders.user_here()]


# -- break and drop-waiting -------------------------------------------------------------------


def test_break_node_takes_the_locks_of_its_runs_and_leaves_what_messages_keep(app, client, label):
    both_nodes(app)
    result = run(app, "break", "--node", "w@gone", "--force", "--json")
    assert ids(json.loads(result.output)["broken"]) == {"runs", "hangs"}
    rest = json.loads(run(app, "list", "--json").output)
    states = sorted(each["state"] for each in rest if each["state"] != "broken")
    assert states == ["held", "kept", "queued"]


def test_break_takes_globs_and_all_and_leaves_foreign_values(app, client, label):
    both_nodes(app)
    theirs = lock_keys(label, "theirs").lock
    client.set(theirs, "not ours")
    refused = run(app, "break", "--task", "s*", "--older", "0.0001", input="n\n")
    assert refused.exit_code == 1
    assert "Break 4 locks?" in refused.output
    assert "w@here" in refused.output, "a preview"
    done = run(app, "break", "--task", "s*", "--force", "--json")
    assert ids(json.loads(done.output)["broken"]) == {"runs", "hangs", "elsewhere", "kept"}
    done = run(app, "break", "--all", "--force")
    assert done.exit_code == 0, done.output
    assert client.get(theirs) == "not ours"
    rest = json.loads(run(app, "list", "--json").output)
    assert {each["state"] for each in rest} == {"broken", "foreign"}
    nothing = run(app, "break", "--all", "--force")
    assert (nothing.exit_code, nothing.output) == (1, "Error: no such lock: none matches\n")


def test_a_long_preview_is_cut_and_json_stays_clean(app):
    for number in range(25):
        take(app, "sync", str(number), token=f"t{number}")
    refused = run(app, "break", "--all", input="n\n")
    assert "... and 5 more\nBreak 25 locks? [y/N]: " in refused.output
    done = run(app, "break", "--all", "--json", input="y\n")
    assert len(json.loads(done.stdout)["broken"]) == 25


def cut_off_after(count, proxy, monkeypatch, owner, name):
    """The server goes away when this was called so often."""
    original, calls = getattr(owner, name), []

    def then_away(*args, **options):
        reply = original(*args, **options)
        calls.append(1)
        if len(calls) == count:
            proxy.cut_off()
        return reply

    monkeypatch.setattr(owner, name, then_away)


@pytest.mark.parametrize("as_json", [True, False])
def test_what_was_broken_is_told_if_the_server_goes_away_meanwhile(
    app, label, proxy, monkeypatch, as_json
):
    for number in range(5):
        take(app, "sync", str(number), token=f"t{number}")
    far = make_app(proxy.url, label)
    cut_off_after(2, proxy, monkeypatch, orders, "break_slot")
    done = run(far, "break", "--all", "--force", *(["--json"] if as_json else []))
    assert done.exit_code == 1
    away = "the lock server does not answer: "
    left_over = sum(each.state == "held" for each in list_locks(app))
    assert left_over == 3
    if as_json:
        told = json.loads(done.stdout)
        assert len(told["broken"]) == 2
        assert told["error"].startswith(away)
    else:
        assert done.output.count("broke ") == 2
    assert f"Error: {away}" in done.output


@pytest.mark.parametrize("command", ["break", "drop-waiting"])
def test_what_was_dropped_is_told_if_the_server_goes_away_meanwhile(
    app, client, label, proxy, monkeypatch, command
):
    for name in ("one", "other"):
        left(app, client, label=name, count=2)
    far = make_app(proxy.url, label)
    cut_off_after(1, proxy, monkeypatch, orders, "_drop_all")
    dropping = ["--drop-waiting"] if command == "break" else []
    done = run(far, command, "--all", "--force", "--json", *dropping)
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert told["dropped"] == 2
    assert "does not answer" in told["error"]
    assert [each.waiting for each in list_locks(app)] == [2]


def test_drop_waiting_leaves_the_holder_alone(app, client):
    made, _ = take(app, "report", "x")
    for number in range(3):
        park(app, "report", "x", f"waits-{number}")
    refused = run(app, "drop-waiting", "report", "x", input="n\n")
    assert refused.exit_code == 1
    assert "Drop the tasks that waited for 1 lock?" in refused.output
    dropped = run(app, "drop-waiting", "report", "x", "--force", "--json")
    assert json.loads(dropped.output)["dropped"] == 3
    assert client.exists(made.keys.lock)
    assert [app.AsyncResult(f"waits-{n}").state for n in range(3)] == ["REVOKED"] * 3
    again = run(app, "drop-waiting", "report", "x", "--force")
    assert (again.exit_code, again.output) == (1, "Error: no task waits there\n")


@pytest.mark.parametrize("which", [["report", "--all"], ["--task", "rep*"], ["--all"]])
def test_drop_waiting_takes_many_at_once(app, client, which):
    left(app, client)
    left(app, client, label="other")
    others = left(app, client, "account", "z")
    dropped = run(app, "drop-waiting", *which, input="y\n")
    assert dropped.exit_code == 0, dropped.output
    count = 9 if which == ["--all"] else 6
    assert dropped.output.endswith(f"dropped {count} that waited\n")
    assert client.exists(others.room) == (which != ["--all"])


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["break", "--force"], "which lock?"),
        (["drop-waiting", "--force"], "which lock?"),
        (["break", "sync", "x", "--all", "--force"], "no arguments"),
        (["break", "sync", "--node", "w@gone", "--force"], "give one of both"),
        (["break", "sync", "--all", "--task", "x", "--force"], "two tasks"),
        (["break", "sync", "--all", "--force"], "sync holds no lock"),
        (["break", "--node", "w@nowhere", "--force"], "none matches"),
    ],
)
def test_what_is_not_clear_breaks_nothing(app, client, command, said):
    made, _ = take(app, "report", "x")
    result = run(app, *command)
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert said in line
    assert client.exists(made.keys.lock)


# -- from Python ------------------------------------------------------------------------------


def test_the_same_from_python(app, client, label):
    both_nodes(app)
    left(app, client)
    assert {each.state for each in list_locks(app, node="w@gone")} == {
        *("held", "kept", "queued"),
    }
    assert list_locks(app, older=3600) == []
    broken = break_locks(app, node="w@g*", task="sync")
    assert {each.holder.task_id for each in broken} == {"id-of-runs", "id-of-hangs"}
    (mine,) = list_locks(app, node="w@here")
    assert "token" not in repr(mine)
    assert break_locks(app, [mine]) == [mine]
    assert break_locks(app, [mine]) == [], "nobody holds it any more"
    assert drop_waiting(app, task="rep*") == 3
    assert drop_waiting(app, task="rep*") == 0
    assert {each.task for each in break_locks(app, task="*")} == {"report", "sync", "unique"}
    assert [each for each in list_locks(app) if each.state != "broken"] == []


def test_python_refuses_to_break_all_by_mistake_and_tells_what_is_wrong(app, label):
    with pytest.raises(ValueError, match=r"task='\*'"):
        break_locks(app)
    with pytest.raises(ValueError, match=r"task='\*'"):
        drop_waiting(app)
    with pytest.raises(LockUnavailable):
        list_locks(make_app(f"redis://127.0.0.1:{free_port()}", label))
    with pytest.raises(ConfigError, match="redislock_url"):
        list_locks(make_app(None, label))
