"""What the commands print fits the terminal, and shows what tells one lock from another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid

import pytest
from celery.bin.celery import celery
from click.shell_completion import ShellComplete
from wcwidth import wcswidth

from celery_redislock import SingletonTask
from tests.support.looking import (
    ROOT,
    keep,
    lock_named,
    lock_of,
    make_app,
    park,
    run,
    take,
    told,
)

LONG = "shop.warehouse.inventory.tasks.reconcile_every_location_of_a_tenant"
EVIL = "x\n\x1b[2J\u202e" + "日本語" * 40 + "end-of-it"
NODE = "celery@web-17.eu-central-1.compute.internal.example.com"
WIDTHS = (80, 100, 120)


@pytest.fixture
def app(app):
    def body(self, label):
        """Nothing."""

    options = {"base": SingletonTask, "bind": True, "shared": False, "on_conflict": "queue"}
    app.task(name=LONG, lock_key=["label"], **options)(body)
    app.task(name=EVIL, lock_key=["label"], **options)(body)
    app.task(name="import", lock_key="import:{label}", **options)(body)
    return app


def fill(app, client, label):
    """Locks whose names are as long or as hostile as can be, in most states."""
    take(app, LONG, "4711", node=NODE, task_id=str(uuid.uuid4()), lock_label="order 4711")
    take(app, LONG, EVIL, node=EVIL, task_id=EVIL, lock_label=EVIL)
    take(app, EVIL, "x", node=NODE)
    take(app, "import", "/data/2026/november/orders-of-a-very-long-customer.csv")
    take(app, "import", "k" * 5000)
    keep(app, take(app, LONG, "retries"))
    client.set(lock_named(label, "x\n\x1b[2J").key, "not ours")
    for number in range(3):
        park(app, LONG, "4711", f"{number}{EVIL}", age=6000, argsrepr=f"('{EVIL}',)")


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_wider_than_the_terminal_whatever_the_names_are(app, client, label, width):
    fill(app, client, label)
    key = lock_of(app, LONG, "4711").key
    for command in (
        ["list"],
        ["list", "--sort", "key"],
        ["show", key],
        ["show", lock_of(app, "import", "k" * 5000).name],
        ["explain", LONG, "--args", json.dumps(["4711"])],
        ["explain", EVIL, "--args", json.dumps([EVIL])],
        ["doctor"],
        ["watch", "--times", "1"],
    ):
        result = run(app, *command, env={"COLUMNS": str(width)})
        assert result.exit_code == 0 or command == ["doctor"], result.output
        lines = result.output.split("\n")
        assert all(line.isprintable() for line in lines), command
        assert max(map(wcswidth, lines)) <= width, command
    for command in ("explain", "show"):
        refused = run(app, command, f"nothing{EVIL}").output
        assert all(line.isprintable() for line in refused.split("\n"))
    preview = run(app, "break", key, input="n\n", env={"COLUMNS": str(width)}).output
    table = preview.partition("Break 1 lock")[0]
    assert max(map(wcswidth, table.split("\n"))) <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_what_tells_a_lock_from_others_is_never_cut(app, client, label, width):
    fill(app, client, label)
    listed = run(app, "list", env={"COLUMNS": str(width)}).output
    head, *rows = listed.splitlines()
    task, key = slice(head.index("KEY")), slice(head.index("KEY"), head.index("STATE"))
    keys, tasks = ("".join(row[of].replace(" ", "") for row in rows) for of in (key, task))
    assert "order4711" in keys
    assert "/data/2026/november/orders-of-a-very-long-customer.csv" in keys
    assert "web-17" in listed
    assert LONG in tasks
    assert label not in listed, "no prefix"
    assert "import:" not in keys, "no task's name"


def test_keys_and_ids_are_as_short_as_can_be_told_apart(app, client):
    for number, task_id in enumerate(("nightly-report-1", "nightly-report-2", "f" * 36)):
        take(app, "sync", str(number), task_id=task_id)

    def body():
        """Nothing."""

    app.task(name="beat", base=SingletonTask, shared=False)(body)
    value = '{"token":"t","v":2,"task":"beat","task_id":"1","node":"w"}'
    client.set(app.tasks["beat"].lock_key_for(), value, ex=60)

    listed = run(app, "list").output
    rows = {row.split()[0]: row for row in listed.splitlines()}
    assert "nightly-report-1" in listed
    assert "nightly-report-2" in listed
    assert "ffffffff " in listed
    assert "(no arguments)" in rows["beat"]


@pytest.mark.parametrize("width", WIDTHS)
def test_what_break_tells_fits_too_and_is_one_line_in_a_pipe(app, width):
    take(app, LONG, "4711", node=NODE, task_id=str(uuid.uuid4()), lock_label="order 4711")
    done = run(app, "break", LONG, '"4711"', "--force", columns=width).output
    assert max(map(wcswidth, done.splitlines())) <= width
    take(app, LONG, "4711")
    piped = run(app, "break", LONG, '"4711"', "--force", env={"COLUMNS": ""}).output
    assert len(piped.splitlines()) == 1
    assert lock_of(app, LONG, "4711").key in piped


def test_a_lock_can_be_named_by_what_list_shows_of_it(app, client):
    made = take(app, LONG, "4711", task_id="51d92c56-56d6-4ebf", lock_label="order 4711")
    digest = made.name.rpartition(":")[2]
    for text in ("order 4711", digest[:8], "51d92c56", "51d92c56-56d6-4ebf"):
        assert told(app, "show", text)["locks"][0]["label"]
    for text in (digest[:7], "51d92c5", "order 471"):
        assert "no such lock" in run(app, "show", text).output
    take(app, "sync", "4711", lock_label="order 4711")
    both = run(app, "break", "--force", "order 4711")
    assert both.exit_code == 1
    assert "is not clear: " in both.output
    assert client.exists(made.key)
    assert "broke" in run(app, "break", "--force", "51d92c56").output


def test_each_id_that_is_shown_can_be_used(app):
    ids = ["a1", "import-of-2026-11-27-of-shop-1", "import-of-2026-11-27-of-shop-12"]
    for number, task_id in enumerate(ids):
        take(app, "import", f"{number}", task_id=task_id, node=NODE)
    made = park(app, "report", "room", "b2")
    park(app, "report", "room", "f" * 36)

    head, *rows = run(app, "list", "--sort", "key", columns=60).output.splitlines()
    column = slice(head.index(" ID ") + 1, head.index(" NODE"))
    shown = "".join(row[column].strip() for row in rows)
    assert [each in shown for each in ids] == [True] * 3, "none is cut"
    for number, task_id in enumerate(ids):
        (found,) = told(app, "show", task_id)["locks"]
        assert (found["task_id"], found["name"]) == (task_id, f"import:{number}")
    shown = run(app, "show", "report", "room", columns=60).output
    for task_id in ("b2", "ffffffff"):
        assert task_id in shown
        (found,) = told(app, "show", task_id)["locks"]
        assert found["key"] == made.key
        assert run(app, "break", "--force", task_id).exit_code == 1, "it does not hold it"
        assert run(app, "drop-waiting", "--force", task_id).exit_code == 1, "it is not all of them"
    assert run(app, "show", "fffffff").exit_code == 1, "too short"


def test_trouble_is_coloured_where_there_are_colours(app, client, label):
    take(app, "sync", "sound")
    client.set(lock_named(label, "foreign").key, "not ours")

    def red(*arguments, **env):
        env = {"TERM": "xterm", "NO_COLOR": None, **env}
        shown = run(app, *arguments, no_color=False, color=True, env=env).output
        return [line for line in shown.splitlines() if "\x1b[31m" in line]

    for command in (["list"], ["list", "--by-task"]):
        (line,) = red(*command)
        assert "foreign" in line
        assert red(*command, TERM="dumb") == []
        assert red(*command, NO_COLOR="1") == []
    assert "\x1b" not in run(app, "list", no_color=False, color=True, env={"TERM": "dumb"}).output


def test_words_that_name_a_lock_and_no_task_are_to_be_quoted(app):
    take(app, "sync", "x", lock_label="order 4711")
    take(app, "report", "x", lock_label="2026 november", history=True)
    for command in ("show", "break", "drop-waiting", "history"):
        result = run(app, command, "order", "4711")
        assert result.exit_code == 1
        assert "write it in quotes, 'order 4711'" in result.output, command
    assert "no such task: order" in run(app, "show", "order", "5").output
    take(app, "account", "5")
    assert told(app, "show", "account", "5")["locks"]


def test_the_names_of_tasks_are_completed():
    complete = ShellComplete(celery, {}, "celery", "_CELERY_COMPLETE")

    def completed(*words, app="tests.support.tasks"):
        *before, last = words
        found = complete.get_completions(["-A", app, "redislock", *before], last)
        return {each.value for each in found}

    assert {"skip", "skip_result"} <= completed("show", "sk")
    assert all(each.startswith("sk") for each in completed("show", "sk"))
    for words in (["explain", "skip_r"], ["history", "skip_r"], ["list", "--task", "skip_r"]):
        assert completed(*words) == {"skip_result"}, words
    assert completed("break", "no such") == set()
    assert completed("show", "sk", app="no.such.app") == set()


def test_in_a_pipe_tables_have_a_fixed_width_and_stderr_says_where_they_are_from(
    conf, redis_server, label
):
    app = make_app(redis_server.url, label)
    take(app, "account", "k" * 200, node="n" * 200)
    url = redis_server.url.replace("://", "://default:@")
    own = {"redislock_url": url, "redislock_prefix": label}
    environment = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    environment["TEST_CONF"] = json.dumps({**conf, **own})

    def said(*arguments):
        command = [sys.executable, "-m", "celery", "-A", "tests.support.tasks", "redislock"]
        return subprocess.run(
            [*command, *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )

    done = said("list")
    assert 80 < max(map(len, done.stdout.splitlines())) <= 120
    where = redis_server.url.removeprefix("redis://")
    assert done.stderr == f"Redis: redis://{where}/0, prefix '{label}'\n"
