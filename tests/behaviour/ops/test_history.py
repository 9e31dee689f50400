"""`celery redislock history`: what it shows, in 80 columns, and as JSON."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

import pytest
from celery import Celery

from celery_redislock import SingletonTask
from celery_redislock.app.settings import app_locks
from celery_redislock.errors import ConfigError
from celery_redislock.ops.commands.history import _row
from celery_redislock.ops.doctor.examine import examine
from celery_redislock.ops.history import past_runs
from celery_redislock.protocol import calls, holders, past
from celery_redislock.protocol.claims import Acquired
from celery_redislock.servers.server import Server
from tests.support.looking import claim, make_app, run
from tests.support.servers import RedisServer


@pytest.fixture
def app(redis_server: RedisServer, label: str) -> Celery:
    return make_app(redis_server.url, label)


@pytest.fixture
def store(app: Celery) -> Server:
    return app_locks(app).server


def begin(app: Celery, store: Server, task: str, label: str, **more: Any) -> Any:
    """A run that has begun: its claim, and the fence."""
    made = claim(app, task, label, token=f"token{time.monotonic_ns()}", **more)
    made = dataclasses.replace(made, task=task, history=50)
    reply = store.run(calls.acquire(made))
    assert isinstance(reply, Acquired)
    return made, reply.fence


def ran(app: Celery, store: Server, task: str, label: str, how: str = "succeeded") -> None:
    """A run of 90 seconds."""
    made, fence = begin(app, store, task, label)
    assert store.run(
        calls.settle(made, calls.Release(run_end=past.end_text(fence, 90.0, how)))
    ).ours


@pytest.fixture
def some(app: Celery, store: Server) -> None:
    """Runs of two tasks, one of which turned somebody away, one that lapsed, one that runs."""
    ran(app, store, "sync", "a")
    made, fence = begin(app, store, "sync", "b")
    for number in range(3):
        duplicate = claim(app, "sync", "b", token=f"t{number}", task_id=f"duplicate-{number}")
        store.run(
            calls.acquire(
                dataclasses.replace(duplicate, task="sync", history=50, turned_away=True)
            ),
            hold_off=None,
        )
    store.run(calls.settle(made, calls.Release(run_end=past.end_text(fence, 2.0, past.FAILED))))
    ran(app, store, "account", "a" * 60)
    begin(app, store, "report", "dead")
    store.replies([("DEL", app.tasks["report"].lock_key_for("dead"))])
    begin(app, store, "report", "alive")


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


def test_a_run_that_still_has_its_lock_shows_what_it_has_turned_away_so_far(
    app: Celery, store: Server
) -> None:
    begin(app, store, "sync", "hangs")
    for number in range(10):
        duplicate = claim(app, "sync", "hangs", token=f"t{number}", task_id=f"duplicate-{number}")
        duplicate = dataclasses.replace(duplicate, task="sync", history=50, turned_away=True)
        store.run(calls.acquire(duplicate))
    row = table(app, "sync")[2]
    assert (row[2], row[-1]) == ("running", "10")
    (told,) = json.loads(run(app, "history", "--json").stdout)
    assert told["turned_away"] == 10


def test_a_run_that_goes_on_without_its_lock_has_lost_it_and_has_not_lapsed(
    app: Celery, store: Server
) -> None:
    made, fence = begin(app, store, "sync", "stalled")
    (value,) = store.replies([("GET", made.keys.lock)])
    store.replies([("DEL", made.keys.lock)])
    store.ask(calls.mark_lost(made.keys, fence, value.decode(), "it expired", time.time()))
    row, summary = table(app, "sync", "stalled")[2:]
    assert (row[1], row[2]) == ("-", "lost")
    assert " ".join(summary) == "1 run"
    assert len(json.loads(run(app, "history", "--ended", "lost", "--json").stdout)) == 1
    ended = past.end_text(fence, 90.0, past.LOST)
    assert not store.run(calls.settle(made, calls.Release(run_end=ended))).ours
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


@pytest.mark.usefixtures("some")
def test_a_lock_is_named_by_what_the_table_shows_of_it(app: Celery, store: Server) -> None:
    name = app.tasks["sync"].lock_name(["a"], {})
    digest = name.rpartition(":")[2]
    assert table(app, digest[:8])[0] == [name]
    assert table(app, digest)[0] == [name]
    assert table(app, "id-of-a")[0] != [name], "too short"
    assert table(app, "id-of-dead")[2][2] == "lapsed"
    begin(app, store, "sync", "x", lock_label="order 4711")
    begin(app, store, "report", "y", lock_label="order 4711")
    begin(app, store, "sync", "z", lock_label="order 4712")
    assert table(app, "order 4712")[0][-1] == "4712)"
    unclear = run(app, "history", "order 4711")
    assert (unclear.exit_code, "is not clear: report:v1:" in unclear.output) == (1, True)
    assert "not valid text" in run(app, "history", "\udcff").output


def test_what_is_left_out_is_said_and_a_time_leaves_nothing_out(app: Celery, store: Server) -> None:
    for _ in range(25):
        ran(app, store, "sync", "a")
    ran(app, store, "sync", "b", "failed")
    for arguments, lines, said in (
        ([], 20, "the last 20 runs; some more are kept (--limit shows more)"),
        (["sync"], 20, "the last 20 runs; some more are kept (--limit shows more)"),
        (["sync", "a"], 20, "the last 20 runs; 5 more are kept (--limit shows more)"),
        (["--limit", "26"], 26, "26 runs"),
        (["--since", "1h"], 26, "26 runs"),
        (["--since", "1h", "--limit", "3"], 3, "the last 3 runs; 23 more are kept (--limit shows"),
    ):
        *_, told = run(app, "history", *arguments).output.splitlines()
        assert told.startswith(said), arguments
        assert len(json.loads(run(app, "history", *arguments, "--json").stdout)) == lines, arguments


@pytest.mark.usefixtures("some")
def test_runs_are_found_by_how_they_ended(app: Celery) -> None:
    def found(*arguments: str) -> list[tuple[str, str]]:
        runs = json.loads(run(app, "history", *arguments, "--json").stdout)
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
    assert all(repr(how) in refused.output for how in past.ENDS)
    assert run(app, "history", "--skips", "--ended", "failed").exit_code == 1


def test_a_free_lock_that_the_history_knows_is_shown_as_free(app: Celery, store: Server) -> None:
    made, fence = begin(app, store, "sync", "x", lock_label="order 4711")
    store.run(calls.settle(made, calls.Release(run_end=past.end_text(fence, 2.0, past.FAILED))))
    key = app.tasks["sync"].lock_key_for("x")
    for named in (["order 4711"], [key], ["sync", "x"]):
        shown = run(app, "show", *named)
        assert shown.exit_code == 0
        assert f"key       {key}\n" in shown.output
        assert "state     free\n" in shown.output
        assert "last_run  failed: began " in shown.output
        only = json.loads(run(app, "show", *named, "--json").stdout)
        assert (only["locks"], only["last_run"]["how"]) == ([], "failed")
    told = run(app, "break", "--force", "order 4711")
    assert told.exit_code == 1
    assert told.output == "Error: nobody holds order 4711 or waits for it: the lock is free\n"
    assert "nothing here is called" in run(app, "show", "order 4712").output


def test_what_tells_a_lock_is_never_cut_and_ids_and_nodes_are_as_in_list(
    app: Celery, store: Server
) -> None:
    node, label = "celery@web-17.eu-central-1.example.com", "order 4711 of customer 12345"
    long = "shop.warehouse.inventory.reconcile_every_location"

    def body(label: str) -> None:
        """Nothing."""

    app.task(name=long, base=SingletonTask, shared=False)(body)
    begin(app, store, long, "a", lock_label=label, node=node, task_id="0" * 36)
    begin(app, store, "sync", "b", lock_label=label, node=node, task_id="f" * 36)
    for columns in (80, 120):
        head, *lines = run(app, "history", columns=columns).output.splitlines()[:-1]
        key = slice(head.index("KEY"), head.index("ID"))
        assert "".join("".join(line[key].split()) for line in lines) == 2 * "".join(label.split())
        text = "\n".join(lines)
        assert "00000000 " in text
        assert "web-17" in text
        assert "~" in text
        assert ".." not in text


@pytest.mark.usefixtures("some")
def test_wide_shows_all_and_a_pipe_is_120_columns_wide(app: Celery, store: Server) -> None:
    begin(app, store, "sync", "x", lock_label="order 4711")
    wide = run(app, "history", "--wide", columns=60).output
    for each in json.loads(run(app, "history", "--json").stdout):
        for text in (each["key"], each["task_id"], str(each["pid"]), str(each["fence"])):
            assert text in wide
    assert wide.splitlines()[0].split()[-1] == "LABEL"
    assert "order 4711" in wide
    piped = run(app, "history", env={"COLUMNS": ""}).output.splitlines()
    assert 80 < max(map(len, piped)) <= 120


@pytest.mark.parametrize("days", [0, 3])
def test_runs_of_other_days_show_the_day(app: Celery, store: Server, days: int) -> None:
    begin(app, store, "sync", "a")
    at = time.time() - 86400 * days
    (run_,) = past_runs(app_locks(app), running=True)
    row = _row(dataclasses.replace(run_, began=at), {}, {})
    form = "%m-%d %H:%M" if days else "%H:%M:%S"
    assert row["WHEN"] == time.strftime(form, time.localtime(at))


@pytest.mark.usefixtures("some")
def test_programs_get_all_of_it(app: Celery) -> None:
    found = json.loads(run(app, "history", "sync", "b", "--json").stdout)
    (only,) = found
    assert only["how"] == "failed"
    assert only["turned_away"] == 3
    assert only["ended"] - only["began"] == pytest.approx(2.0)
    assert (only["task"], only["task_id"], only["node"]) == ("sync", "id-of-b", "w@one")
    assert only["key"] == app.tasks["sync"].lock_key_for("b")
    (skips,) = json.loads(run(app, "history", "--skips", "--json").stdout)
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
        found = [each for check, each in examine(app) if check == "rights"]
        assert [each.level for each in found] == ["warning"]
        assert "lset, ltrim: no history is kept" in found[0].what


def test_a_lock_is_called_by_its_label(app: Celery, store: Server) -> None:
    made = dataclasses.replace(claim(app, "sync", "a"), task="sync", history=50)
    value = holders.encode(made.token, ttl_ms=60_000, task="sync", label="order\n4711")
    reply = store.run(calls.acquire(dataclasses.replace(made, value=value)))
    assert isinstance(reply, Acquired)
    ran(app, store, "account", "a")
    assert "order\\n4711" in run(app, "history").output
    (only,) = json.loads(run(app, "history", "sync", "--json").stdout)
    assert (only["label"], only["how"]) == ("order\n4711", "running")
