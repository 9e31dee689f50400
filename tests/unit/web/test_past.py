"""The last quarter of an hour, as the history has it; and the rows of the present."""

from __future__ import annotations

import dataclasses

import pytest

from celery_redislock.inspection.locks import Found
from celery_redislock.protocol.holders import Holder
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.protocol.past import PastRun
from celery_redislock.web.look import Seen, rows_of
from celery_redislock.web.past import LAST, MOST, OF_LOCK, OF_TASK, WINDOW, Past

T0 = 1_000_000.0
#: How many runs a bucket keeps.
KEPT = 20


def key_of(name, prefix="p"):
    return lock_keys(prefix, name).lock


def found(name, task_id, fence=1, state="held", began=T0, **more):
    holder = Holder(task="t", task_id=task_id, fence=fence, acquired_at=began, node="w@one")
    fields = {"state": state, "holder": holder, "token": f"of-{task_id}", **lives(T0, 30.0)}
    return Found(key=key_of(name), name=name, **{**fields, **more})


def lives(now, seconds):
    return {"lives_for": seconds, "expires_at": now + seconds}


def seen(at, *slots, first=None):
    return Seen(at, list(slots), first or {}, [])


def kept(name, task_id, fence, began, ended, how="succeeded", turned_away=0, task="t"):
    holder = Holder(task=task, task_id=task_id, node="w@one", pid=1)
    took = None if ended is None else ended - began
    return PastRun(f"1|{name}", holder, fence, began, took, how, turned_away, key=key_of(name))


def many(number, name="x", task="t", took=1.0):
    """So many runs one after another, the latest first."""
    runs = [kept(name, f"id{n}", n, T0 + n, T0 + n + took, task=task) for n in range(number)]
    return runs[::-1]


@pytest.fixture
def past():
    return Past(KEPT)


# -- the past -----------------------------------------------------------------------------------


def test_the_runs_are_those_of_the_history(past):
    runs = [kept("x", "b", 2, T0 + 3, T0 + 4, "failed"), kept("x", "a", 1, T0, T0 + 2)]
    past.remember(runs, T0 + 5)
    assert [(id_, run["task_id"], run["how"]) for id_, run in past.runs.items()] == [
        *(("2:x", "b", "failed"), ("1:x", "a", "succeeded"))
    ]
    past.remember(runs, T0 + 3.5 + WINDOW)
    assert [*past.runs] == ["2:x"], "the other is too old"


def test_when_a_run_lapsed_is_not_told_since_nobody_knows(past):
    past.remember([kept("x", "a", 1, T0, None, "lapsed")], T0 + 5)
    assert "ended" not in past.runs["1:x"]


def test_a_lane_begins_where_the_history_may_have_dropped_older_runs(past):
    runs = many(KEPT)
    past.remember(runs, T0 + 100)
    assert past.kept_since(seen(T0 + 100)) == {"x": T0}
    assert past.kept_since(seen(T0 + 100 + WINDOW)) == {}, "that is older than what is shown"
    past.remember(runs[:-1], T0 + 100)
    assert past.kept_since(seen(T0 + 100)) == {}, "fewer than it keeps: these are all"


def test_a_lock_that_is_held_begins_there_too_if_others_pushed_its_runs_out(past):
    twin = next(each for each in map(str, range(10_000)) if _bucket(each) == _bucket("x"))
    past.remember(many(KEPT), T0 + 100)
    assert past.kept_since(seen(T0 + 100, found(twin, "a"), found("y", "b"))) == {"x": T0, twin: T0}


def test_the_tasks_of_a_bucket_share_what_it_keeps(past):
    half = KEPT // 2
    past.remember([*many(half), *many(half - 1, task="u")], T0 + 100)
    assert past.kept_since(seen(T0 + 100)) == {"x": T0}
    past.remember([*many(half - 1), *many(half - 1, task="u")], T0 + 100)
    assert past.kept_since(seen(T0 + 100)) == {}


def _bucket(name):
    return key_of(name).partition("}")[0]


def test_there_is_never_too_much_of_it_and_it_says_since_when_it_is_all():
    past, now = Past(10 * MOST), T0 + WINDOW
    past.remember([kept("x", str(n), n, now - n / 100, now) for n in range(MOST + 100)], now)
    assert len(past.runs) == MOST
    since = now - (MOST - 1) / 100
    assert past.kept_since(seen(now, found("y", "a"))) == {"x": since, "y": since}


def test_how_long_a_run_usually_takes_is_known_of_its_lock_or_else_of_its_task(past):
    slot, other = found("x", "a"), found("y", "b")
    past.remember(many(OF_LOCK - 1), T0)
    assert past.usual(slot) is None, "these say little"
    past.remember(many(OF_LOCK, took=2.0), T0)
    assert (past.usual(slot), past.usual(other)) == (2.0, None)
    past.remember([*many(OF_LOCK, took=2.0), *many(OF_TASK, name="z", took=9.0)], T0)
    assert (past.usual(slot), past.usual(other)) == (2.0, 9.0)
    failed = [each._replace(how="failed", took=999.0) for each in many(OF_LOCK)]
    past.remember([*failed, *many(LAST, took=2.0), *many(LAST, took=500.0)], T0)
    assert past.usual(slot) == 2.0, "those that succeeded, and the last of them"


# -- the present ------------------------------------------------------------------------------


def row(slot, before=None, at=T0, first=None):
    (row,) = rows_of(seen(at, slot, first=first), lambda slot: None, before or {}).values()
    return row


def test_a_row_differs_from_the_one_before_only_if_something_happened():
    one = found("one", "a")
    before = {one.key: row(one)}
    assert "token" not in before[one.key]
    later = dataclasses.replace(one, **lives(T0 + 1, 29.05))
    assert row(later, before, T0 + 1) == before[one.key], "the same lease"
    extended = dataclasses.replace(one, **lives(T0 + 2, 29.9))
    assert row(extended, before, T0 + 2) == {**before[one.key], "expires_at": T0 + 31.9}
    first = {"one": [{"task_id": "c", "since": T0}]}
    assert row(one, before, first=first) == {**before[one.key], "next": first["one"]}


def test_the_next_holder_has_another_mark_and_none_tells_the_token():
    marks = [row(found("x", task_id))["holder"] for task_id in ("a", "b")]
    assert len({*marks}) == 2
    assert not any("of-" in mark for mark in marks)
    foreign = found("x", "a", token=None, holder=None, state="foreign")
    assert "holder" not in row(foreign)
