"""A duplicate that an old holder turns away is warned of: one of ten times its `lock_ttl`."""

from __future__ import annotations

import contextlib
import re
import time

import pytest

from celery_redislock import LockConflict, TaskSkipped
from tests.support.waiting import eventually

QUEUE = "warn_after"


@pytest.fixture(scope="module", autouse=True)
def worker(start_module_worker):
    return start_module_worker(queues=QUEUE, concurrency=3)


@pytest.fixture
def run(send, journal, label):
    """Starts a run that holds the label's lock until the test's end."""
    runs = []

    def run(name):
        runs.append(send(name, label, 60.0))
        return runs[-1], eventually(lambda: journal.read(label, "start"), "it runs")[-1]

    yield run
    for each in runs:
        each.revoke(terminate=True, signal="SIGKILL")


@pytest.fixture
def said(worker):
    """The level of the line that says what a task ended in, and what it says."""

    def said(result):
        pattern = rf": (\w+)/\S+\] redislock: \w+\[{result.id}\] (.*)$"
        found = eventually(lambda: re.findall(pattern, worker.log(), re.M), "it is said")
        (line,) = found
        return line

    return said


def turned_down(send, name, label):
    result = send(name, label)
    with contextlib.suppress(TaskSkipped, LockConflict):
        assert result.get(timeout=20) == "skipped"
    return result


def await_age(entry, seconds):
    """Until this run is older than so many seconds."""
    eventually(lambda: time.monotonic() - entry.at > seconds, "it is old")


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("warns", "skipped"),
        ("warns_result", "skipped with a result"),
        ("warns_raise", "raised"),
    ],
)
def test_an_old_holder_is_warned_of_with_its_name_and_age_and_a_young_one_is_not(
    send, run, said, label, name, outcome
):
    holder, began = run(name)
    level, text = said(turned_down(send, name, label))
    assert (level, text.split(":")[0]) == ("INFO", outcome)
    assert f"is held by {name}[{holder.id}] on " in text
    assert ", for " not in text
    await_age(began, 5.5)
    level, text = said(turned_down(send, name, label))
    assert (level, text.split(":")[0]) == ("WARNING", outcome)
    assert f"is held by {name}[{holder.id}] on " in text
    age = re.search(r", for (\d+) s$", text)
    assert age, text
    assert 5 <= int(age[1]) < 60
