"""The log: one line an outcome, its fields, its level, and names that try to break it."""

from __future__ import annotations

import json
import logging

import pytest

from celery_redislock import LockConflict, RedisLock, SingletonTask
from celery_redislock.protocol.holders import Holder, one_line
from celery_redislock.protocol.log import FIELDS, fields
from tests.support.waiting import eventually

EVIL = "a\n[2026-01-01 00:00:00,000: ERROR/MainProcess] FORGED\r\x1b[31m\x9b2J\u2028\u202eend"


@pytest.fixture
def app(make_app, redislock_memory):
    return make_app(redislock_eager=True, task_always_eager=True)


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.DEBUG, "celery_redislock")
    return lambda: [record for record in caplog.records if record.name.startswith("celery_redisl")]


@pytest.fixture
def conflict(app, redislock_memory):
    """Runs a task whose lock somebody has, with a name that tries to break the log."""

    def conflict(**options):
        @app.task(base=SingletonTask, shared=False, name="logged", lock_key="{name}", **options)
        def logged(name):
            return name

        name = f"name{EVIL}"
        holder = Holder(task="other", task_id=f"id{EVIL}", pid=1, node="n")
        value = {"token": "t", "task": "other", "task_id": holder.task_id, "pid": 1, "node": "n"}
        redislock_memory.client.set(logged.lock_key_for(name), json.dumps(value), px=20_000)
        return logged.apply((name,)), logged.lock_key_for(name)

    return conflict


@pytest.mark.parametrize(("policy", "outcome"), [("skip", "skipped"), ("raise", "raised")])
def test_an_outcome_is_one_line_with_all_its_fields(conflict, lines, policy, outcome):
    result, key = conflict(on_conflict=policy)
    (record,) = [line for line in lines() if line.redislock_outcome == outcome]
    assert record.levelno == logging.INFO
    assert record.getMessage().isprintable()
    assert {name for name in vars(record) if name.startswith("redislock_")} == set(FIELDS)
    assert record.redislock_key == one_line(key)
    assert record.redislock_task == "logged"
    assert record.redislock_task_id == result.id
    assert record.redislock_holder_task_id == one_line(f"id{EVIL}")
    assert all(
        value.isprintable() for name, value in vars(record).items()
        if name in FIELDS and isinstance(value, str)
    )  # fmt: skip


def test_taking_and_giving_back_are_for_debugging(app, lines):
    @app.task(base=SingletonTask, shared=False, lock_key="{name}")
    def logged(name):
        return name

    logged.apply(("name",))
    found = {line.redislock_outcome: line for line in lines() if line.redislock_outcome}
    assert set(found) == {"acquired", "released"}
    assert {line.levelno for line in found.values()} == {logging.DEBUG}
    assert found["acquired"].redislock_fence == found["released"].redislock_fence > 0
    assert found["released"].redislock_held > 0


def test_the_text_of_an_error_is_one_line(conflict):
    result, key = conflict(on_conflict="raise")
    assert isinstance(result.result, LockConflict)
    assert result.result.key == key, "the attribute is the key itself"
    assert str(result.result).isprintable()


def test_no_field_is_one_of_logging_itself():
    own = vars(logging.LogRecord("n", 0, "p", 0, "m", (), None))
    assert not set(FIELDS) & {*own, "message", "asctime"}
    assert set(fields("skipped", "key", fence=1, held=1.0, countdown=1.0, reason="")) == (
        set(FIELDS)
    )


def test_a_formatter_may_name_a_field_on_every_line():
    """Also on those that are of no outcome."""
    record = logging.getLogger("celery_redislock").makeRecord(
        "celery_redislock", logging.INFO, "p", 1, "redislock: %s %d", (EVIL, 5), None
    )
    assert logging.getLogger("celery_redislock").filter(record)
    text = logging.Formatter("%(message)s %(redislock_key)s").format(record)
    assert text.isprintable()
    assert text.endswith(" 5 None")


def test_a_lost_lock_says_which_task_lost_it(redislock_memory, lines):
    lock = RedisLock("redis://127.0.0.1:1/0", "name\n", ttl=0.5)
    assert lock.acquire(0)
    redislock_memory.client.set(lock.key, "another's", px=5000)
    (record,) = eventually(
        lambda: [line for line in lines() if line.redislock_outcome == "lost"], "it is said"
    )
    assert lock.lost
    assert record.levelno == logging.ERROR
    assert record.redislock_key == one_line(lock.key)
    assert record.redislock_fence > 0
    assert record.getMessage().isprintable()


def test_a_name_is_told_as_it_is_if_it_harms_nothing():
    assert one_line("Straße 5 {x} \\n") == "Straße 5 {x} \\n"
    assert one_line("a\nb\x1b[31m\ud800") == "a\\nb\\x1b[31m\\ud800"


def test_a_label_is_the_runs_own_or_else_the_holders(conflict, lines):
    conflict(lock_label="of {name}")
    (record,) = [line for line in lines() if line.redislock_outcome == "skipped"]
    assert record.redislock_label.startswith("of ")
    assert record.redislock_label.isprintable()
    holder = Holder(task="other", task_id="x", label=EVIL)
    found = fields("broken", "a key", holder=holder)
    assert found["redislock_label"] == one_line(EVIL)
    assert EVIL not in str(holder)
    assert fields("broken", "a key", holder=holder, label="own")["redislock_label"] == "own"
