"""States of a lock, as each tool shows them: a run goes on without it, a call waits for quiet."""

from __future__ import annotations

import json

import pytest
from celery import Celery

from celery_redislock.operations import break_locks
from tests.support.looking import run
from tests.support.waiting import eventually

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry

from celery_redislock.prometheus import Collector

WITHOUT = "without its lock"


class Tools:
    """What the tools say of an app's locks."""

    def __init__(self, app: Celery) -> None:
        self.app = app

    def rows(self, *filters: str) -> dict[str, str]:
        """The states in `list`, by the tasks' ids."""
        rows = json.loads(run(self.app, "list", "--json", *filters).stdout)
        return {row["task_id"]: row["state"] for row in rows}

    def shown(self, *words: str) -> list[str]:
        """The states in `show`."""
        return [
            row["state"]
            for row in json.loads(run(self.app, "show", "--json", *words).stdout)["locks"]
        ]

    def doctor(self, *options: str) -> tuple[int, list[str]]:
        """The exit status of `doctor`, and the errors that it finds."""
        done = run(self.app, "doctor", "--json", *options)
        found = json.loads(done.stdout)
        return done.exit_code, [each["what"] for each in found if each["level"] == "error"]

    def value(self, name: str, task: str, **labels: str) -> float:
        """What the exporter has of a task; 0 if it has nothing."""
        registry = CollectorRegistry()
        registry.register(Collector(self.app, every=0.1))
        return registry.get_sample_value(f"redislock_{name}", {"task": task, **labels}) or 0.0

    def count(self, task: str) -> float:
        """How many runs of the task go on without their lock, as the exporter says."""
        count = self.value("runs_without_lock", task)
        assert self.value("locks", task, state=WITHOUT) == count
        return count


@pytest.fixture
def tools(tasks):
    return Tools(tasks["job"].app)


def test_two_runs_that_lost_their_lock_are_seen_until_they_end(
    start_house, tools, hold, journal, label
):
    start_house(concurrency=3)
    first = hold("quick_job")
    assert tools.rows() == {first.id: "held"}
    assert tools.count("quick_job") == 0, "the series is there before the first"
    assert [each.state for each in break_locks(tools.app, task="quick_job")] == ["held"]
    eventually(lambda: tools.rows().get(first.id) == WITHOUT, "it tells that it goes on")
    second = hold("quick_job")

    assert tools.rows() == {first.id: WITHOUT, second.id: "held"}
    assert tools.rows("--state", WITHOUT) == {first.id: WITHOUT}
    assert tools.rows("--state", "held", "--state", "free") == {second.id: "held"}
    assert tools.shown("quick_job", label) == ["held", WITHOUT]
    assert tools.count("quick_job") == 1
    for options in ((), ("--workers",)):
        status, (error,) = tools.doctor(*options)
        assert status == 1
        assert first.id in error
        assert second.id in error, "the finding names both"

    assert len(break_locks(tools.app, task="*")) == 1, "the one that goes on has none to break"
    eventually(lambda: tools.rows() == {first.id: WITHOUT, second.id: WITHOUT}, "both go on")
    assert tools.count("quick_job") == 2
    status, errors = tools.doctor("--workers")
    assert (status, len(errors)) == (1, 2)
    assert all(first.id in error and second.id in error for error in errors)

    for result in (first, second):
        journal.let_go(result.id)
        assert result.get(timeout=20) == label
    eventually(lambda: not tools.rows(), "both have ended")
    assert tools.count("quick_job") == 0
    assert tools.doctor("--workers")[1] == []
