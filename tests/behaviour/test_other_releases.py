"""A worker of this release beside a worker of a newer one, whose formats this one cannot read."""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path

import pytest
from celery.exceptions import TaskRevokedError

from celery_redislock import LockConflict, RedisLock
from tests.behaviour.apps.every_policy import OPTIONS
from tests.support.waiting import eventually, never
from tests.support.workers import ROOT

APP = "tests.behaviour.apps.every_policy"
#: The tasks whose calls all run, whatever they meet.
ALL_RUN = ("defer", "wait", "queue")
#: Those that may run beside each other: they take no lock as they run.
UNLOCKED = ("queued",)


@pytest.fixture(scope="module")
def newer_release(tmp_path_factory) -> Path:
    """A folder with a copy of this package whose formats all have the next version, and fields more
    than this one.
    """
    folder = tmp_path_factory.mktemp("newer-release")
    package = shutil.copytree(ROOT / "celery_redislock", folder / "celery_redislock")
    changes = [
        (
            "*.py",
            r"^VERSION: Final = (\d+)$",
            lambda found: f"VERSION: Final = {int(found[1]) + 1}",
        ),
        ("*.lua", r"^local VERSION = (\d+)$", lambda found: f"local VERSION = {int(found[1]) + 1}"),
        ("delivery.py", r'"v": VERSION,', lambda found: f'{found[0]} "of_tomorrow": [1],'),
        (
            "entries.py",
            r"self\._asdict\(\)",
            lambda found: f'{{**{found[0]}, "v": VERSION, "of_tomorrow": [1]}}',
        ),
        ("holders.py", r'value \+ "}"', lambda found: """value + ',"of_tomorrow":[1]}'"""),
    ]
    for names, pattern, change in changes:
        changed = 0
        for path in package.rglob(names):
            text, times = re.subn(pattern, change, path.read_text(), flags=re.M)
            path.write_text(text)
            changed += times
        assert changed, f"{pattern} is nowhere in {names}"
    return folder


@pytest.fixture
def start(start_worker, queue, newer_release):
    """Starts a worker of one of the releases, for this test's queue."""

    def start(release, **options):
        package = newer_release if release == "newer" else None
        options = {"app": APP, "queues": queue, "concurrency": 4, **options}
        return start_worker(package=package, **options)

    return start


@pytest.fixture
def send(sender, queue):
    """Sends a task as the release of the worker does that has this queue. Returns its result."""

    def send(name, label, how=0.1):
        arguments = (name, label, how, queue)
        return sender.AsyncResult(
            sender.send_task(f"{APP}.send", arguments, queue=queue).get(timeout=60)
        )

    return send


def told_by(worker):
    """The lines in which it warns of what a newer release wrote."""
    return [line for line in worker.log().splitlines() if "newer celery-redislock wrote" in line]


@pytest.mark.timeout(240)
def test_beside_a_newer_release_every_task_ends_as_its_policy_says(start, send, journal, label):
    older, newer = start("older"), start("newer")
    sent = {name: [send(name, f"{label}-{name}", 0.3) for _ in range(3)] for name in OPTIONS}

    def open_ones():
        return [name for name, these in sent.items() for each in these if not each.ready()]

    eventually(lambda: not open_ones(), "all have ended", 150)
    from_both = {
        each.data["from"] for name in OPTIONS for each in journal.read(f"{label}-{name}", "sent")
    }
    assert len(from_both) == 2, "each release has sent some"
    for name, these in sent.items():
        for each in these:
            errors = (LockConflict,) if name == "raise" else (TaskRevokedError,)
            assert each.state == "SUCCESS" or isinstance(each.result, errors), (name, each.result)
        ids = [each.task_id for each in journal.read(f"{label}-{name}", "start")]
        assert len(ids) == len(set(ids)), f"{name}: one ran twice"
        if name in ALL_RUN:
            assert set(ids) == {each.id for each in these}
        if name not in UNLOCKED:
            assert journal.overlaps(f"{label}-{name}") == [], name
    for each in (older, newer):
        assert "Traceback" not in each.log()
    assert not told_by(newer)


def test_messages_that_only_a_newer_release_reads_wait_for_it(start, sender, journal, label, queue):
    older = start("older")
    header = {"v": 3, "kept": ["1|x", "y"], "of_tomorrow": [1]}
    options = {"queue": queue, "headers": {"redislock": header, "mine": "kept"}, "priority": 3}
    sent = {
        f"{label}-{name}{n}": sender.send_task(name, (f"{label}-{name}{n}",), retries=1, **options)
        for name in ("queue", "queued")
        for n in range(3)
    }
    back = "goes back to its queue"
    eventually(lambda: older.log().count(back) > 12, "each went back more than once")
    assert {each.state for each in sent.values()} == {"PENDING"}
    told = told_by(older)  # another process may say it any time
    processes = {line.partition(": WARNING/")[2].partition("]")[0] for line in told}
    assert 1 <= len(told) == len(processes), "each process says it once"

    start("newer")

    for own, result in sent.items():
        assert result.get(timeout=60) == own
        assert [each.retries for each in journal.read(own, "start")] == [1]


@pytest.mark.timeout(240)
def test_entries_that_only_a_newer_release_reads_stay_in_the_room(
    start, send, conf, label, journal
):
    newer, waits = start("newer"), {}
    met = r"\[([\w-]+)\] (?:queued|coalesced|debounced|replacing|replaced|is debounced)"
    with contextlib.ExitStack() as locks:
        for name in ("queue", "coalesce_result", "debounce", "replace"):
            locks.enter_context(RedisLock(conf["redislock_url"], f"{name}:{label}", ttl=60))
            waits[name] = [send(name, label) for _ in range(3)]
        every = [each for these in waits.values() for each in these]
        eventually(lambda: {each.id for each in every} <= {*re.findall(met, newer.log())}, "parked")
        # Two are replaced; their messages must not be with the worker that is killed.
        for name in waits.keys() - {"queue"}:
            eventually(lambda n=name: sum(each.ready() for each in waits[n]) == 2, "two have ended")
        newer.kill()
        older = start("older")
    never(lambda: any(each.state == "FAILURE" for each in every), "one fails", 2)
    assert journal.count(label, "start") == 0
    assert told_by(older)

    start("newer")

    eventually(lambda: all(each.ready() for each in every), "they have ended", 90)
    for name, these in waits.items():
        results = [each.result for each in these]
        assert results.count(label) == (3 if name == "queue" else 1), (name, results)


def test_what_meets_a_lock_of_a_newer_release_is_not_skipped(
    start, sender, send, journal, label, queue
):
    """It may be another copy of the very task that has the lock."""
    start("newer")
    holder = send("skip", label, "stand")
    journal.await_start(label, holder.id)
    older = start("older", queues=f"{queue}-older")
    waits = sender.send_task("skip", (label,), queue=f"{queue}-older")
    eventually(lambda: f"{waits.id}] deferred" in older.log(), "it is put off")
    journal.let_go(holder.id)
    assert holder.get(timeout=20) == waits.get(timeout=60) == label
    assert journal.overlaps(label) == []
