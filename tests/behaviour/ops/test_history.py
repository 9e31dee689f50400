"""`celery redislock history`: what it shows, in 80 columns, and as JSON."""

from __future__ import annotations

import time
from typing import Any

import pytest
from celery import Celery

from celery_redislock.errors import ConfigError
from tests.support.looking import (
    Lock,
    client_of,
    end,
    make_app,
    run,
    runs_without,
    take,
    told,
)
from tests.support.servers import RedisServer

ENDS = (
    *("succeeded", "failed", "retried", "ignored", "rejected", "replaced", "lost", "broken"),
    *("died", "terminated", "not run", "released", "running", "lapsed"),
)


def begin(app: Celery, task: str, label: str, **more: Any) -> Lock:
    """A run that has begun."""
    return take(app, task, label, history=True, **more)


def ran(app: Celery, task: str, label: str, how: str = "succeeded") -> None:
    """A run of 90 seconds."""
    end(app, begin(app, task, label), how)


@pytest.fixture
def some(app: Celery) -> None:
    """Runs of two tasks, one of which turned somebody away, one that lapsed, one that runs."""
    ran(app, "sync", "a")
    end(app, begin(app, "sync", "b", turned_away=3), "failed", 2.0)
    lock = app.tasks["sync"].lock_key_for("b")
    turned = f"{lock.partition(':lock:')[0]}:turned"
    client_of(app).hset(turned, "sync", f"{int(time.time() // 3600)}:3;")
    ran(app, "account", "a" * 60)
    client_of(app).delete(begin(app, "report", "dead").key)
    begin(app, "report", "alive")


def table(app: Celery, *arguments: str) -> list[list[str]]:
    result = run(app, "history", *arguments, columns=80)
    assert result.exit_code == 0, result.output
    assert all(len(line) <= 80 for line in result.output.splitlines()), result.output
    return [line.split() for line in result.output.splitlines()]


@pytest.mark.usefixtures("some")
def test_the_last_runs_of_all_are_shown_the_newest_first(app: Celery) -> None:
    head, *rows, summary = table(app)
    assert head == ["WHEN", "TOOK", "ENDED", "TASK", "KEY", "ID", "NODE", "SKIPS"]
    rows = [row for row in rows if len(row) > 1]  # the others go on with a long key
    assert [row[2] for row in rows] == ["running", "lapsed", "succeeded", "failed", "succeeded"]
    assert [row[3] for row in rows] == ["report", "report", "account", "sync", "sync"]
    assert [row[-1] for row in rows] == ["0", "0", "0", "3", "0"]
    assert rows[1][1] == "-"
    assert rows[2][1] == "1m30s"
    assert " ".join(summary) == "5 runs; 1 lapsed: nobody released the lock"


def test_a_run_that_goes_on_without_its_lock_has_lost_it_and_has_not_lapsed(app: Celery) -> None:
    lock = begin(app, "sync", "stalled")
    client_of(app).delete(lock.key)
    runs_without(app, lock)
    row, summary = table(app, "sync", "stalled")[2:]
    assert (row[1], row[2]) == ("-", "lost")
    assert " ".join(summary) == "1 run"
    assert len(told(app, "history", "--ended", "lost")) == 1
    end(app, lock, "lost")
    assert table(app, "sync", "stalled")[2][1:3] == ["1m30s", "lost"]


@pytest.mark.usefixtures("some")
def test_the_runs_of_a_task_or_of_one_lock_are_shown(app: Celery) -> None:
    task, head, *rows, _ = table(app, "sync")
    assert (task, "TASK" in head) == (["sync"], False)
    assert [row[2] for row in rows] == ["failed", "succeeded"]
    assert [row[2] for row in table(app, "s?nc", "--limit", "1")[2:-1]] == ["failed"]
    name, head, row, _ = table(app, "sync", "a")
    assert (name, "KEY" in head) == ([app.tasks["sync"].lock_name(["a"], {})], False)
    assert row[2] == "succeeded"
    assert table(app, app.tasks["sync"].lock_key_for("a"))[2] == row
    assert table(app, f"account:{'a' * 60}")[2][2] == "succeeded"
    unknown, told = table(app, "nobody")
    assert " ".join(unknown) == "no such lock: nothing here is called nobody"
    assert told == ["no", "runs", "are", "kept", "that", "match"]
    assert len(table(app, "--since", "1h")) >= 7


def test_what_is_left_out_is_said_and_a_time_leaves_nothing_out(app: Celery) -> None:
    for _ in range(25):
        ran(app, "sync", "a")
    ran(app, "sync", "b", "failed")
    for arguments, lines, said in (
        ([], 20, "the last 20 runs; some more are kept (--limit shows more)"),
        (["sync"], 20, "the last 20 runs; some more are kept (--limit shows more)"),
        (["sync", "a"], 20, "the last 20 runs; 5 more are kept (--limit shows more)"),
        (["--limit", "26"], 26, "26 runs"),
        (["--since", "1h"], 26, "26 runs"),
        (["--since", "1h", "--limit", "3"], 3, "the last 3 runs; 23 more are kept (--limit shows"),
    ):
        *_, last = run(app, "history", *arguments).output.splitlines()
        assert last.startswith(said), arguments
        assert len(told(app, "history", *arguments)) == lines, arguments


@pytest.mark.usefixtures("some")
def test_runs_are_found_by_how_they_ended(app: Celery) -> None:
    def found(*arguments: str) -> list[tuple[str, str]]:
        runs = told(app, "history", *arguments)
        return [(each["task"], each["how"]) for each in runs]

    assert found("--ended", "failed") == [("sync", "failed")]
    assert found("--ended", "failed", "--ended", "running", "--limit", "1") == [
        ("report", "running")
    ]
    assert found("sync", "--ended", "succeeded") == [("sync", "succeeded")]
    assert found("sync", "b", "--ended", "succeeded") == []
    nothing = run(app, "history", "account", "--ended", "lost")
    assert nothing.output == "no runs are kept that match\n"
    refused = run(app, "history", "--ended", "fail")
    assert refused.exit_code == 2
    assert all(repr(how) in refused.output for how in ENDS)
    assert run(app, "history", "--skips", "--ended", "failed").exit_code == 1


def test_a_free_lock_that_the_history_knows_is_shown_as_free(app: Celery) -> None:
    end(app, begin(app, "sync", "x", lock_label="order 4711"), "failed")
    key = app.tasks["sync"].lock_key_for("x")
    for named in (["order 4711"], [key], ["sync", "x"]):
        shown = run(app, "show", *named)
        assert shown.exit_code == 0
        assert f"key       {key}\n" in shown.output
        assert "state     free\n" in shown.output
        assert "last_run  failed: began " in shown.output
        only = told(app, "show", *named)
        assert (only["locks"], only["last_run"]["how"]) == ([], "failed")
    refused = run(app, "break", "--force", "order 4711")
    assert refused.exit_code == 1
    assert refused.output == "Error: nobody holds order 4711 or waits for it: the lock is free\n"
    assert "nothing here is called" in run(app, "show", "order 4712").output


@pytest.mark.usefixtures("some")
def test_programs_get_all_of_it(app: Celery) -> None:
    found = told(app, "history", "sync", "b")
    (only,) = found
    assert only["how"] == "failed"
    assert only["turned_away"] == 3
    assert only["ended"] - only["began"] == pytest.approx(2.0)
    assert (only["task"], only["task_id"], only["node"]) == ("sync", "id-of-b", "w@one")
    assert only["key"] == app.tasks["sync"].lock_key_for("b")
    (skips,) = told(app, "history", "--skips")
    assert (skips["task"], skips["turned_away"]) == ("sync", 3)
    assert skips["hour"] % 3600 == 0


@pytest.mark.usefixtures("some")
def test_skips_are_drawn_by_the_hour(app: Celery) -> None:
    result = run(app, "history", "--skips")
    first, bars, hours = result.output.splitlines()
    assert first.startswith("sync: 3 skipped or refused, at most 3 in an hour (")
    assert bars.count("█") == 1
    assert len(bars) == len(hours) == 52
    long = run(app, "history", "--skips", columns=60).output.splitlines()
    assert max(map(len, long)) <= 60
    assert "no duplicates were skipped" in run(app, "history", "--skips", "report").output
    assert "takes a task" in run(app, "history", "--skips", "sync", "a").output


def test_no_history_is_said(redis_server: RedisServer, label: str) -> None:
    app = make_app(redis_server.url, label, redislock_history=0)
    assert "redislock_history is 0" in run(app, "history").output
    assert "no runs are kept" in run(app, "history").output


@pytest.mark.parametrize("value", [-1, 1.5, True, "50", None, 100_001])
def test_a_setting_that_is_not_accepted_is_refused(label: str, value: object) -> None:
    with pytest.raises(ConfigError, match=r"redislock_history=.* must be a whole number from 0"):
        make_app("redis://localhost", label, redislock_history=value).tasks["sync"].delay("x")


def test_doctor_names_the_rights_that_history_needs(own_redis: RedisServer, label: str) -> None:
    with own_redis.client() as client:
        rights = "ACL SETUSER some on >pw ~* +@all -ltrim -lset"
        client.execute_command(*rights.split())
        app = make_app(own_redis.url.replace("://", "://some:pw@"), label)
        found = [each for each in told(app, "doctor") if each["check"] == "rights"]
        assert [each["level"] for each in found] == ["warning"]
        assert "lset, ltrim: no history is kept" in found[0]["what"]
