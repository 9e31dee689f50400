"""What an operator suspends: calls do what they do as duplicates, what waits does so until the end,
and nothing that has begun is lost.
"""

from __future__ import annotations

import json
import time
import uuid
import zlib

import pytest

from celery_redislock import RedisLock, TaskSkipped
from celery_redislock.operations import (
    list_locks,
    list_suspensions,
    resume,
    suspend,
)
from tests.behaviour.apps.suspendable import suspendable
from tests.support.looking import run, told
from tests.support.waiting import eventually

APP = "tests.behaviour.apps.suspendable"
QUEUE = "suspensions"
#: What this module suspends is its own.
PREFIX = f"redislock:suspended-{uuid.uuid4().hex[:8]}"
WHY = "migration of the accounts"
HOUR = 3600


@pytest.fixture(scope="module", autouse=True)
def worker(start_module_worker):
    conf = {"redislock_prefix": PREFIX, "test_prefix": PREFIX}
    return start_module_worker(app=APP, queues=QUEUE, concurrency=6, conf=conf)


@pytest.fixture
def app(conf, redis_server):
    """The worker's app, as an operator has it."""
    own = {"redislock_url": f"{redis_server.url}/0", "redislock_prefix": PREFIX}
    with suspendable({**conf, **own}) as app:
        yield app
        for each in list_suspensions(app):
            resume(app, each.task, lock=each.lock)


def row_of(app, name, label):
    key = app.tasks[name].lock_key_for(label)
    return next((each for each in list_locks(app) if each.key == key), None)


def waiting(app, name, label):
    row = row_of(app, name, label)
    return 0 if row is None else row.waiting


# -- what becomes of calls ---------------------------------------------------------------------


def test_a_call_is_skipped_while_its_task_is_suspended_and_runs_afterwards(
    app, send, worker, journal, label
):
    made = run(app, "suspend", "skips", "--for", "1h", "--why", WHY)
    assert "task skips" in made.stdout
    (suspension,) = list_suspensions(app)
    assert suspension.ends_at - suspension.since == pytest.approx(HOUR, abs=0.01)

    explained = " ".join(run(app, "explain", "skips", label).stdout.split())
    assert WHY in explained
    assert "is suspended: it would be skipped" in explained
    skipped = send("skips", label)
    with pytest.raises(TaskSkipped) as caught:
        skipped.get(timeout=20)
    assert str(caught.value).startswith("skipped, because the lock is suspended: ")
    assert caught.value.holder is None
    assert caught.value.suspension.why == WHY
    (line,) = [each for each in worker.log().splitlines() if f"skips[{skipped.id}] (" in each]
    assert f"is suspended: task skips, by {suspension.by} until " in line
    assert line.endswith(f": {WHY}")
    assert "WARNING/" in line, "no run of its own kept it from its work"

    assert list_suspensions(app)[0].ended == 1
    other = send("raises", label)
    assert other.get(timeout=20) == label, "another task is not suspended"
    assert "resumed: task skips" in run(app, "resume", "skips").stdout
    assert send("skips", label).get(timeout=20) == label
    assert "it is not suspended" in run(app, "resume", "skips").output


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", "it would fail with LockConflict"),
        ("waits_briefly", "it would wait in Redis; after 2 s, it would fail"),
        ("queues", "it would wait in Redis, with 0 before it"),
        ("replaces", "it would wait in Redis until that ends, and end no run"),
        ("unique_until_it_starts", "it would be sent, and wait in Redis until that ends"),
    ],
)
def test_explain_says_what_becomes_of_a_call(app, label, name, says):
    suspend(app, name, seconds=HOUR)
    explained = " ".join(run(app, "explain", name, label).stdout.split())
    assert f"now the task or its lock is suspended: {says}" in explained


def test_explain_says_that_a_unique_call_is_there(app, journal, label, send):
    suspend(app, "unique", seconds=HOUR)
    send("unique", label)
    eventually(lambda: waiting(app, "unique", label) == 1, "it waits")
    explained = " ".join(run(app, "explain", "unique", label).stdout.split())
    assert "now a call of it waits: apply_async would send nothing" in explained


# -- locks outside of tasks --------------------------------------------------------------------


def test_a_lock_outside_of_tasks_is_acquired_when_its_suspension_ends(app, label):
    lock = RedisLock(app, f"outside:{label}")
    with lock:
        suspension = suspend(app, lock=f"outside:{label}", seconds=2, by="deploy 71")
        (row,) = [each for each in list_locks(app) if each.name == f"outside:{label}"]
        assert (row.state, row.suspension) == ("held", suspension), "who has it keeps it"
    assert lock.acquire(timeout=20)
    assert 0 <= time.time() - suspension.ends_at < 6
    lock.release()


# -- ends, and names ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "target"),
    [
        (("skips",), "task skips"),
        (("task.to.come", "--unknown"), "lock task.to.come"),
        (("task task.to.come", "--unknown"), "task task.to.come"),
        (("skips", "x"), "lock skips:"),
        (("first_of_two", "x"), "lock shared:x"),
        (("shared:x", "--unknown"), "lock shared:x"),
        (
            (
                f"{PREFIX}:{{{zlib.crc32(b'shared:x') % 1024}}}:lock:shared:x",
                "--unknown",
            ),
            "lock shared:x",
        ),
    ],
)
def test_what_is_suspended_is_named_as_in_other_commands(app, command, target):
    made = run(app, "suspend", *command, "--for", "60")
    assert [each.target[: len(target)] for each in list_suspensions(app)] == [target], made.output
    named = [each for each in command if each != "--unknown"]
    assert f"resumed: {target}" in " ".join(run(app, "resume", *named).stdout.split())
    assert list_suspensions(app) == []


def test_a_lock_is_named_by_its_label_also_to_resume_it(app, send, journal, label):
    held = send("skips", label, "stand")
    journal.await_start(label, held.id)
    made = told(app, "suspend", f"account {label}", "--for", "1h", "--why", WHY)
    assert (made["label"], made["running"]) == (f"account {label}", 1)
    shown = run(app, "show", "skips", label).stdout
    assert WHY in shown
    journal.let_go(held.id)
    assert held.get(timeout=20) == label
    listed = run(app, "list").stdout
    assert listed.splitlines()[0].startswith("suspended until ")
    assert f"(account {label})" in listed
    eventually(lambda: row_of(app, "skips", label).state == "suspended", "an idle lock, too")
    assert f"account {label}" in run(app, "resume", f"account {label}").stdout
    assert row_of(app, "skips", label) is None


def test_a_call_is_shown_as_it_was_named(app, label):
    run(app, "suspend", "queues", label, "--for", "1h")
    (found,) = list_suspensions(app)
    assert found.label == f"queues {label}"
    assert f"queues {label}" in run(app, "list").stdout


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("skip",), "did you mean skips"),
        (("*",), "no task, and no lock"),
        (("shop.*",), "no task, and no lock"),
        (("account 4",), "no task, and no lock that anybody holds or waits for"),
        (("skips", "x", "y", "z"), "skips"),
        (("celery.backend_cleanup",), "takes no lock"),
    ],
)
def test_a_name_that_nothing_has_is_refused(app, command, says):
    done = run(app, "suspend", *command, "--for", "5m")
    assert done.exit_code != 0
    assert says in " ".join(done.output.split())
    assert "nothing is suspended" in run(app, "suspend").stdout


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"seconds": 5}, "either task or lock"),
        ({"seconds": 5, "task": "skips", "lock": "b"}, "either task or lock"),
        ({"seconds": 5, "lock": "", "unknown": True}, "either task or lock"),
        ({"seconds": 0, "task": "skips"}, "seconds=0 is not accepted"),
        ({"seconds": "1h", "task": "skips"}, "seconds='1h' is not accepted"),
        ({"seconds": 5, "task": "skip"}, "did you mean skips"),
    ],
)
def test_an_order_that_is_not_clear_is_refused(app, options, says):
    with pytest.raises(ValueError, match=says):
        suspend(app, **options)
    assert list_suspensions(app) == []


def test_a_command_says_what_is_missing(app):
    assert "--for" in run(app, "suspend", "skips").output
    assert "what?" in run(app, "resume").output
    assert json.loads(run(app, "suspend", "--json").stdout) == []


def test_doctor_and_list_say_what_is_suspended_and_what_came_of_it(app, send, label):
    suspend(app, "skips", seconds=HOUR, why=WHY, by="anna@host")
    suspend(app, "queues", seconds=2 * HOUR)
    for _ in range(2):
        with pytest.raises(TaskSkipped):
            send("skips", label).get(timeout=20)
    send("queues", label)
    eventually(lambda: waiting(app, "queues", label) == 1, "it waits")
    told = " ".join(run(app, "doctor").output.split())
    assert f"task skips, by anna@host: {WHY}; because of it 2 calls ended without a run" in told
    assert "because of it 0 calls ended without a run, and 1 now wait" in told
    lines = run(app, "list").stdout.splitlines()
    assert [line.split(",")[0].partition(": ")[2] for line in lines[:2]] == [
        "task skips",
        "task queues",
    ]


# -- what it costs -----------------------------------------------------------------------------


def spent(client):
    """The commands that the server has executed, and the bytes that it has sent."""
    stats = client.info("stats")
    return stats["total_commands_processed"], stats["total_net_output_bytes"]


def test_few_commands_suspend_and_resume_a_task_and_of_many_locks_each(conf, own_redis):
    own = {"redislock_url": f"{own_redis.url}/0", "redislock_prefix": PREFIX}
    with suspendable({**conf, **own}) as app, own_redis.client() as client:
        list_suspensions(app)
        before, _ = spent(client)
        suspend(app, "skips", seconds=HOUR)
        between, _ = spent(client)
        assert between - before <= 100
        resume(app, "skips")
        assert spent(client)[0] - between <= 100

        names = [f"lock-{number}" for number in range(40)]
        for name in names:
            suspend(app, lock=name, seconds=HOUR, unknown=True)
        assert len(list_suspensions(app)) == len(names)
        commands, sent = spent(client)
        for name in names:
            assert resume(app, lock=name)
        now, sent_now = spent(client)
        assert now - commands < 10 * len(names)
        assert sent_now - sent < 500 * len(names), "none of them reads what the others are"
        assert not client.keys("*:suspended")
