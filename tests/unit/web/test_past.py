"""The last quarter of an hour, as the history has it; and the rows of the present."""

from __future__ import annotations

import dataclasses

import pytest

from celery_redislock.inspection.history import PastRun
from celery_redislock.inspection.locks import Found
from celery_redislock.protocol.holders import Holder
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.web.look import Seen
from celery_redislock.web.past import LAST, MOST, OF_LOCK, OF_TASK, WINDOW, Past
from celery_redislock.web.present import Present

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
    about = {"key": key_of(name), "name": name, "task": task, "task_id": task_id, "attempt": 0}
    about |= {"node": "w@one", "pid": 1, "label": None, "turned_away": turned_away}
    return PastRun(**about, fence=fence, began=began, ended=ended, how=how)


def many(number, name="x", task="t", took=1.0):
    """So many runs one after another, the latest first."""
    runs = [kept(name, f"id{n}", n, T0 + n, T0 + n + took, task=task) for n in range(number)]
    return runs[::-1]


@pytest.fixture
def past():
    return Past(KEPT)


def told(past):
    """What is new: who ran, from when until when, and how that ended; and what is dropped."""
    changes = past.take_changes()
    runs = [
        (run["task_id"], run["began"], run.get("ended"), run.get("how")) for run in changes["runs"]
    ]
    return runs, changes["dropped"]


# -- the past -----------------------------------------------------------------------------------


def test_the_runs_are_those_of_the_history_and_each_is_told_once(past):
    runs = [kept("x", "b", 2, T0 + 3, T0 + 4, "failed"), kept("x", "a", 1, T0, T0 + 2)]
    past.remember(runs, T0 + 5)
    assert told(past) == (
        [("b", T0 + 3, T0 + 4, "failed"), ("a", T0, T0 + 2, "succeeded")],
        [],
    )
    past.remember(runs, T0 + 6)
    assert told(past) == ([], [])
    past.remember([dataclasses.replace(runs[0], turned_away=4), runs[1]], T0 + 7)
    assert [run["turned_away"] for run in past.take_changes()["runs"]] == [4]
    past.remember(runs, T0 + 3.5 + WINDOW)
    assert told(past)[1] == ["1:x"], "it is too old"


def test_when_a_run_lapsed_is_not_told_since_nobody_knows(past):
    past.remember([kept("x", "a", 1, T0, None, "lapsed")], T0 + 5)
    assert told(past) == ([("a", T0, None, "lapsed")], [])


def test_how_a_run_ended_is_asked_of_the_history_which_knows_best(past):
    assert not past.take_in(seen(T0 + 1, found("x", "a", 7)))
    assert past.take_in(seen(T0 + 3)), "the history has something to tell"
    assert told(past) == ([("a", T0, T0 + 3, None)], [])
    assert past.take_in(seen(T0 + 4)), "it is not read yet"
    past.remember([kept("x", "a", 7, T0, T0 + 2.25, "died")], T0 + 4)
    assert not past.take_in(seen(T0 + 5))
    assert told(past) == ([("a", T0, T0 + 2.25, "died")], [])


def test_a_run_has_ended_when_the_next_one_began(past):
    past.take_in(seen(T0 + 1, found("x", "a", 7)))
    past.take_in(seen(T0 + 3, found("x", "b", 8, began=T0 + 2.5)))
    assert told(past) == ([("a", T0, T0 + 2.5, None)], [])


def test_what_only_a_viewer_saw_is_not_kept(past):
    past.take_in(seen(T0 + 1, found("x", "a", 7)))
    past.take_in(seen(T0 + 3))
    told(past)
    past.give_up()
    assert told(past) == ([], ["7:x"]), "the history cannot be read"
    past.take_in(seen(T0 + 4, found("x", "b", 8)))
    past.take_in(seen(T0 + 5))
    told(past)
    past.remember([], T0 + 6)
    assert told(past) == ([], ["8:x"]), "it has none of it"
    other = Past(KEPT)  # that of another viewer, who came later
    other.remember([], T0 + 4)
    assert past.runs() == other.runs() == []


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
    assert past.kept_since(seen(T0 + 100, found(twin, "a"), found("y", "b"))) == {
        "x": T0,
        twin: T0,
    }


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
    assert len(past.take_changes()["runs"]) == MOST
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
    failed = [dataclasses.replace(each, how="failed", ended=T0 + 999) for each in many(OF_LOCK)]
    past.remember([*failed, *many(LAST, took=2.0), *many(LAST, took=500.0)], T0)
    assert past.usual(slot) == 2.0, "those that succeeded, and the last of them"


# -- the present ------------------------------------------------------------------------------


def test_only_what_differs_is_told():
    present = Present(lambda slot: None)
    one, two = found("one", "a"), found("two", "b")
    change = present.update(seen(T0, one, two))
    assert [row["name"] for row in change.rows] == ["one", "two"]
    assert change.rows[0]["lease"] == 30.0
    assert "token" not in change.rows[0]
    later = [dataclasses.replace(each, **lives(T0 + 1, 29.05)) for each in (one, two)]
    assert present.update(seen(T0 + 1, *later)) == ([], {}, []), "the same leases"
    extended = dataclasses.replace(one, **lives(T0 + 2, 29.9))
    change = present.update(seen(T0 + 2, extended))
    assert (change.rows, change.leases) == ([], {1: T0 + 31.9})
    assert change.gone == [2]
    waits = dataclasses.replace(extended, waiting=1)
    change = present.update(seen(T0 + 2, waits, first={"one": [{"task_id": "c", "since": T0}]}))
    assert change.rows[0]["next"] == [{"task_id": "c", "since": T0}]
    change = present.update(
        seen(T0 + 2, waits, first={"one": [{"task_id": "c", "since": T0 + 0.1}]})
    )
    assert change == ([], {}, []), "since when it waits is known to a tenth of a second"


def test_the_next_holder_has_another_mark_and_none_tells_the_token():
    present = Present(lambda slot: None)
    marks = set()
    for task_id in ("a", "b"):
        (row,) = present.update(seen(T0, found("x", task_id))).rows
        assert task_id in row["task_id"]
        assert "of-" not in row["holder"]
        marks.add(row["holder"])
    assert len(marks) == 2
    foreign = found("x", "a", token=None, holder=None, state="foreign")
    (row,) = present.update(seen(T0, foreign)).rows
    assert "holder" not in row
