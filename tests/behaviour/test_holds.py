"""An operator's hold: calls do what they do as duplicates, and what has begun is not lost."""

from __future__ import annotations

import json
import time
import uuid
import zlib

import pytest

from celery_redislock import LockConflict, RedisLock, TaskSkipped
from celery_redislock.operations import (
    hold_locks,
    list_holds,
    list_locks,
    unhold_locks,
)
from tests.behaviour.apps.house import house
from tests.behaviour.conftest import HOUSE
from tests.support.looking import run
from tests.support.waiting import eventually, never

QUEUE = "holds"
#: Holds of whole tasks are of this module's locks only.
PREFIX = f"redislock:holds-{uuid.uuid4().hex[:8]}"
WHY = "migration of the accounts"


@pytest.fixture(scope="module", autouse=True)
def worker(start_module_worker):
    conf = {"redislock_prefix": PREFIX, "test_prefix": PREFIX}
    return start_module_worker(app=HOUSE, queues=QUEUE, concurrency=6, conf=conf)


@pytest.fixture
def app(conf, redis_server):
    """The worker's app, as an operator has it."""
    own = {"redislock_url": f"{redis_server.url}/0", "redislock_prefix": PREFIX}
    with house({**conf, **own}) as app:
        yield app
        for each in list_holds(app):
            unhold_locks(app, task=each.task, lock=each.lock)


def row_of(app, name, label):
    key = app.tasks[name].lock_key_for(label)
    return next((each for each in list_locks(app) if each.key == key), None)


def test_a_call_is_skipped_while_its_task_is_on_hold_and_runs_afterwards(
    app, send, worker, journal, label
):
    made = run(app, "hold", "pauses", "--for", "1h", "--why", WHY)
    assert "task pauses" in made.stdout
    (hold,) = list_holds(app)
    assert hold.ends_at - hold.since == pytest.approx(3600, abs=0.01)

    explained = " ".join(run(app, "explain", "pauses", label).stdout.split())
    assert f"{WHY}, until " in explained
    assert "it would be skipped" in explained
    skipped = send("pauses", label)
    with pytest.raises(TaskSkipped) as caught:
        skipped.get(timeout=20)
    assert str(caught.value).startswith("skipped, because the lock is on hold: ")
    assert (caught.value.holder.on_hold, caught.value.holder.description) == (True, WHY)
    (line,) = [each for each in worker.log().splitlines() if f"pauses[{skipped.id}] skip" in each]
    assert f"is held by an operator, {hold.by}, since " in line
    assert line.endswith(f": {WHY}")
    assert "WARNING/" in line, "no run of its own kept it from its work"

    table = run(app, "list", "--state", "on hold").stdout
    assert WHY in table
    assert "on hold until" in table
    row = row_of(app, "pauses", label)
    assert (row.state, row.task, row.token) == ("on hold", "pauses", None)
    assert "unhold" in run(app, "break", row.key, "--force").output

    other = send("describes", label)
    assert other.get(timeout=20) == label, "another task is not on hold"
    ended = run(app, "unhold", "pauses", "--all")
    assert "ended: " in ended.stdout
    assert row_of(app, "pauses", label) is None
    assert send("pauses", label).get(timeout=20) == label
    assert "no such hold" in run(app, "unhold", "pauses", "--all").output


@pytest.mark.parametrize("name", ["job", "waits"])
def test_those_that_wait_do_so_until_the_hold_ends_and_then_run_once_in_order(
    app, send, journal, label, name
):
    hold_locks(app, lock=app.tasks[name].lock_key_for(label), seconds=3600, why=WHY)
    sent = [send(name, label)]
    eventually(lambda: (row := row_of(app, name, label)) and row.state == "on hold", "it is met")
    sent += [send(name, label) for _ in range(2)]
    eventually(lambda: row_of(app, name, label).waiting == 3, "all wait")
    never(lambda: journal.count(label, "start"), "one runs", 3)
    assert send("pauses", label).get(timeout=20) == label, "no pool slot is taken"

    unhold_locks(app, lock=app.tasks[name].lock_key_for(label))
    assert [each.get(timeout=30) for each in sent] == [label] * 3
    ran = [each.task_id for each in journal.read(label, "start")]
    assert ran[1:] == [each.id for each in sent]
    assert not journal.overlaps(label)


def test_it_ends_by_itself(app, send, journal, label):
    began = time.monotonic()
    hold_locks(app, task="job", seconds=2)
    assert send("job", label).get(timeout=30) == label
    assert time.monotonic() - began >= 2 - 0.01
    assert list_holds(app) == []


def test_a_run_goes_on_and_its_retry_waits_whatever_the_policy(app, send, journal, label):
    """Skipping the retry would lose the task: no other run does its work."""
    first = send("describes", label, "stand and retry")
    eventually(lambda: journal.count(label, "start"), "it runs")
    made = json.loads(
        run(app, "hold", "--task", "desc*", "--for", "1h", "--why", WHY, "--json").stdout
    )
    assert (made["task"], made["running"]) == ("desc*", 1)
    journal.let_go(first.id)
    eventually(lambda: (row := row_of(app, "describes", label)) and row.state == "on hold", "met")
    with pytest.raises(TaskSkipped):
        send("describes", label).get(timeout=20)
    assert not first.ready()
    unhold_locks(app, task="desc*")
    assert first.get(timeout=60) == label
    assert journal.count(label, "start") == 2


@pytest.mark.parametrize(
    ("command", "target"),
    [
        (("pauses",), "task pauses"),
        (("pauses", "--all"), "task pauses"),
        (("--all",), "task *"),
        (("paus*",), "task paus*"),
        (("--task", "paus*"), "task paus*"),
        (("shared:x",), "lock shared:x"),
        (("shared:*",), "lock shared:*"),
        (("queues", "x"), "lock shared:x"),
        ((f"{PREFIX}:{{{zlib.crc32(b'shared:x') % 1024}}}:lock:shared:x",), "lock shared:x"),
    ],
)
def test_what_is_held_is_named_as_in_other_commands(app, command, target):
    made = run(app, "hold", *command, "--for", "60")
    assert [each.target for each in list_holds(app)] == [target], made.output
    assert f"{target}, by " in " ".join(run(app, "unhold", *command).stdout.split())
    assert list_holds(app) == []


def test_a_hold_of_all_is_of_locks_outside_of_tasks_too(app, label):
    name = f"outside:{label}"
    url = app.conf.redislock_url
    with RedisLock(url, name, prefix=PREFIX):
        hold_locks(app, task="*", seconds=60, by="deploy 71")
        running = [each for each in list_locks(app) if each.name == name]
        assert [each.state for each in running] == ["held"], "who has it keeps it"
    with pytest.raises(LockConflict) as caught, RedisLock(url, name, prefix=PREFIX, timeout=0):
        pass
    assert str(caught.value.holder).startswith("an operator, deploy 71, since")
    unhold_locks(app, task="*")
    with RedisLock(url, name, prefix=PREFIX, timeout=0) as held:
        assert held.fence


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"seconds": 5}, "either task or lock"),
        ({"seconds": 5, "task": "a", "lock": "b"}, "either task or lock"),
        ({"seconds": 0, "task": "a"}, "seconds=0; accepted"),
        ({"seconds": "1h", "task": "a"}, "seconds='1h'; accepted"),
        ({"seconds": 5, "lock": "*a*b*c*"}, "3 stars"),
    ],
)
def test_an_order_that_is_not_clear_is_refused(app, options, says):
    with pytest.raises(ValueError, match=says.replace("*", r"\*")):
        hold_locks(app, **options)
    assert list_holds(app) == []


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("hold", "pauses", "x"), "--for"),
        (("hold", "nosuch", "--all", "--for", "5m"), "no such task: nosuch"),
        (("hold", "--task", "pauses", "--all", "--for", "5m"), "one of them"),
        (("hold", "pauses", "x", "--all", "--for", "5m"), "no arguments"),
        (("hold", "*a*b*c*", "--for", "5m"), "3 stars"),
        (("unhold",), "which hold?"),
        (("unhold", "--all"), "no such hold"),
    ],
)
def test_a_command_that_is_not_clear_says_what_is_missing(app, command, says):
    done = run(app, *command)
    assert done.exit_code != 0
    assert says in " ".join(done.output.split())
    assert "no hold" in run(app, "hold").stdout
