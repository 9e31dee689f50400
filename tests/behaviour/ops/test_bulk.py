"""Orders about many locks at once, by command and from Python; and rooms whose holder is gone."""

from __future__ import annotations

import getpass
import json
import socket

import pytest

from celery_redislock import ConfigError, LockUnavailable
from celery_redislock.operations import break_locks, drop_waiting, list_locks, suspend
from tests.support.looking import (
    keep,
    lock_named,
    make_app,
    park,
    run,
    take,
    told,
)
from tests.support.servers import free_port


def left(app, task="report", label="free", count=3):
    """A room whose holder died: its lock has expired."""
    for number in range(count):
        lock = park(app, task, label, f"{label}-{number}", lock_label="order 4711")
    return lock


def both_nodes(app):
    """Locks on two nodes, in each state that a node can leave them in."""
    for name in ("runs", "hangs"):
        take(app, "sync", name, node="w@gone")
    take(app, "report", "runs", node="w@gone")
    take(app, "sync", "elsewhere", node="w@here")
    keep(app, take(app, "sync", "kept", node="w@gone"))
    take(app, "unique", "sent", queued=True, node="w@gone")


def ids(found):
    return {each["task_id"].removeprefix("id-of-") for each in found}


# -- rooms whose holder is dead ---------------------------------------------------------------


def test_a_room_whose_holder_died_belongs_to_the_task_that_waits_there(app, client):
    lock = left(app)
    (found,) = told(app, "list", "--task", "report")
    assert (found["task"], found["state"], found["waiting"]) == ("report", "free", 3)
    assert found["label"] == "order 4711"
    assert "order 4711" in run(app, "list", "--task", "rep*").output
    assert run(app, "list", "--task", "sync").output == "0 locks\n"
    dropped = run(app, "break", "--task", "report", "--drop-waiting", "--force")
    assert dropped.output == "dropped 3 that waited\n"
    assert not client.exists(lock["room"], lock["entries"])


def test_a_free_lock_is_called_by_the_label_of_the_first_that_waits(app, client):
    lock = left(app)
    client.hset(lock["entries"], "#free-0:0.0", "0|||free-0:0.0")  # it has been looked at
    for command in (["list"], ["show", "report", "free"]):
        (found,) = looked(app, *command)
        assert (found["state"], found["label"]) == ("free", "order 4711")
    assert "order 4711" in run(app, "list").output


def looked(app, *command):
    found = told(app, *command)
    return found if command == ("list",) else found["locks"]


def test_a_broken_lock_is_no_lock_and_its_room_is_free(app, client):
    made = take(app, "report", "x")
    run(app, "break", "--force", made.key)
    assert run(app, "list").output == "0 locks, 1 broken lately (--all shows them)\n"
    assert "broken" in run(app, "list", "--all").output.splitlines()[1]
    assert "state" in run(app, "show", "report", "x").output
    assert run(app, "watch", "--times", "1").output.count("broken") == 0
    left(app, label="x")
    states = [each["state"] for each in told(app, "list")]
    assert states == ["free"], "somebody waits for it, which is what counts"
    shown = told(app, "show", "report", "x")
    assert [each["state"] for each in shown["locks"]] == ["free", "broken"]
    by = f"{getpass.getuser()}@{socket.gethostname()}"
    assert [each["broken_by"] for each in shown["locks"]] == [None, by]


# -- break and drop-waiting -------------------------------------------------------------------


def test_break_node_takes_the_locks_of_its_runs_and_leaves_what_messages_keep(app, client, label):
    both_nodes(app)
    result = run(app, "break", "--node", "w@gone", "--force", "--json")
    assert ids(json.loads(result.stdout)["broken"]) == {"runs", "hangs"}
    rest = told(app, "list")
    states = sorted(each["state"] for each in rest if each["state"] != "broken")
    assert states == ["held", "kept", "queued"]


def test_break_takes_globs_and_all_and_leaves_foreign_values(app, client, label):
    both_nodes(app)
    theirs = lock_named(label, "theirs").key
    client.set(theirs, "not ours")
    refused = run(app, "break", "--task", "s*", "--older", "0.0001", input="n\n")
    assert refused.exit_code == 1
    assert "Break 4 locks?" in refused.output
    assert "w@here" in refused.output, "a preview"
    done = run(app, "break", "--task", "s*", "--force", "--json")
    assert ids(json.loads(done.stdout)["broken"]) == {"runs", "hangs", "elsewhere", "kept"}
    done = run(app, "break", "--all", "--force")
    assert done.exit_code == 0, done.output
    assert client.get(theirs) == "not ours"
    rest = told(app, "list")
    assert {each["state"] for each in rest} == {"broken", "foreign"}
    nothing = run(app, "break", "--all", "--force")
    assert (nothing.exit_code, nothing.output) == (1, "Error: no such lock: none matches\n")


def test_a_long_preview_is_cut_and_json_stays_clean(app):
    for number in range(25):
        take(app, "sync", str(number))
    refused = run(app, "break", "--all", input="n\n")
    assert "... and 5 more\nBreak 25 locks? [y/N]: " in refused.output
    done = run(app, "break", "--all", "--json", input="y\n")
    assert len(json.loads(done.stdout)["broken"]) == 25


def test_drop_waiting_leaves_the_holder_alone(app, client):
    made = take(app, "report", "x")
    for number in range(3):
        park(app, "report", "x", f"waits-{number}")
    refused = run(app, "drop-waiting", "report", "x", input="n\n")
    assert refused.exit_code == 1
    assert "Drop the tasks that waited for 1 lock?" in refused.output
    dropped = run(app, "drop-waiting", "report", "x", "--force", "--json")
    assert json.loads(dropped.output)["dropped"] == 3
    assert client.exists(made.key)
    assert [app.AsyncResult(f"waits-{n}").state for n in range(3)] == ["REVOKED"] * 3
    again = run(app, "drop-waiting", "report", "x", "--force")
    assert (again.exit_code, again.output) == (1, "Error: no task waits there\n")


@pytest.mark.parametrize("which", [["report", "--all"], ["--task", "rep*"], ["--all"]])
def test_drop_waiting_takes_many_at_once(app, client, which):
    left(app)
    left(app, label="other")
    others = left(app, "account", "z")
    dropped = run(app, "drop-waiting", *which, input="y\n")
    assert dropped.exit_code == 0, dropped.output
    count = 9 if which == ["--all"] else 6
    assert dropped.output.endswith(f"dropped {count} that waited\n")
    assert client.exists(others["room"]) == (which != ["--all"])


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
        (["break", "sync", "idle", "--force"], "it is suspended, which `resume` ends"),
    ],
)
def test_what_is_not_clear_breaks_nothing(app, client, command, said):
    made = take(app, "report", "x")
    suspend(app, "sync", args=["idle"], seconds=60)
    result = run(app, *command)
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert said in line
    assert client.exists(made.key)


# -- from Python ------------------------------------------------------------------------------


def test_the_same_from_python(app, client, label):
    both_nodes(app)
    left(app)
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
