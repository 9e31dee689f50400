"""The last quarter of an hour, put together from looks at the store and from events."""

from __future__ import annotations

import dataclasses

import pytest

from celery_redislock.inspection.history import PastRun
from celery_redislock.inspection.locks import Found
from celery_redislock.protocol.holders import Holder
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.web.counts import WINDOW
from celery_redislock.web.items import MOST
from celery_redislock.web.look import Seen
from celery_redislock.web.past import Past
from celery_redislock.web.present import Present
from celery_redislock.web.waits import FOLLOWED

T0 = 1_000_000.0


def key_of(name, prefix="p"):
    return lock_keys(prefix, name).lock


def found(name, task_id, fence=1, state="held", began=T0, **more):
    holder = Holder(task="t", task_id=task_id, fence=fence, acquired_at=began, node="w@one")
    fields = {"state": state, "holder": holder, "token": f"of-{task_id}", **lives(T0, 30.0)}
    return Found(key=key_of(name), name=name, **{**fields, **more})


def lives(now, seconds):
    return {"lives_for": seconds, "expires_at": now + seconds}


def event(kind, name, task_id, **more):
    more = {f"redislock_{k}": v for k, v in more.items()}
    key = key_of(name)
    return {"type": f"task-lock-{kind}", "uuid": task_id, "redislock_key": key, **more}


@pytest.fixture
def past():
    return Past("p")


def only(past, kind):
    return [item for item in past.items() if item["kind"] == kind]


def test_a_run_is_seen_from_when_it_took_the_lock_until_it_is_gone(past):
    past.take_in(Seen(T0 + 5, [found("x", "a")], {}))
    past.take_in(Seen(T0 + 6, [found("x", "a")], {}))
    (run,), _ = past.take_changes()
    assert (run["kind"], run["began"], run.get("ended")) == ("run", T0, None)
    past.take_in(Seen(T0 + 7, [], {}))
    (run,), _ = past.take_changes()
    assert (run["ended"], run.get("how")) == (T0 + 7, None)
    assert past.take_changes() == ([], [])


def test_one_run_after_another_under_one_key_is_two_runs(past):
    past.take_in(Seen(T0 + 1, [found("x", "a", 1)], {}))
    past.take_in(Seen(T0 + 9, [found("x", "b", 2, began=T0 + 4)], {}))
    first, second = only(past, "run")
    assert (first["task_id"], first["ended"]) == ("a", T0 + 4), "when the other one began"
    assert (second["began"], second.get("ended")) == (T0 + 4, None)


def test_a_run_that_takes_its_vanished_lock_again_is_one_run(past):
    past.take_in(Seen(T0 + 1, [found("x", "a", 1)], {}))
    past.take_in(Seen(T0 + 2, [], {}))
    for second in (3, 4):
        past.take_in(Seen(T0 + second, [found("x", "a", 2)], {}))
    (run,) = only(past, "run")
    assert "ended" not in run
    past.take_in(Seen(T0 + 5, [], {}))
    assert only(past, "run")[0]["ended"] == T0 + 5


def test_a_lock_that_is_kept_is_no_run(past):
    past.take_in(Seen(T0 + 1, [found("x", "a")], {}))
    past.take_in(Seen(T0 + 2, [found("x", "a", state="kept")], {}))
    (run,), (kept,) = only(past, "run"), only(past, "kept")
    assert run["ended"] == kept["began"] == T0 + 2
    assert kept["state"] == "kept"


def test_celerys_events_say_when_and_how_a_run_has_ended(past):
    past.take_in(Seen(T0 + 1, [found("x", "a")], {}))
    ended = {"type": "task-failed", "uuid": "a"}
    assert past.cares_for(ended)
    assert not past.cares_for({"type": "task-failed", "uuid": "somebody-elses"})
    past.hear(ended, T0 + 1.5)
    past.take_in(Seen(T0 + 1.6, [found("x", "a")], {}))  # a look that had begun before
    past.take_in(Seen(T0 + 2.6, [], {}))
    (run,) = only(past, "run")
    assert (run["ended"], run["how"]) == (T0 + 1.5, "failed")


def test_an_event_that_comes_after_the_look_that_saw_the_end_says_how_it_was(past):
    past.take_in(Seen(T0 + 1, [found("x", "a")], {}))
    past.take_in(Seen(T0 + 2, [], {}))
    past.hear({"type": "task-succeeded", "uuid": "a"}, T0 + 2.5)
    past.hear({"type": "task-failed", "uuid": "a"}, T0 + 9)
    (run,) = only(past, "run")
    assert (run["ended"], run["how"]) == (T0 + 2, "succeeded")


def test_marks_that_come_together_are_counted(past):
    for number in range(50):
        past.hear(event("skipped", "x", f"id{number}", holder_task_id="a"), T0 + number / 100)
    past.hear(event("skipped", "x", "later"), T0 + 5)
    past.hear(event("lost", "x", "a", reason="it expired"), T0 + 5)
    assert [(mark["what"], mark["count"]) for mark in only(past, "mark")] == [
        ("skipped", 50),
        ("skipped", 1),
        ("lost", 1),
    ]
    assert only(past, "mark")[0]["by"] == "a"
    past.hear({"type": "task-lock-skipped", "uuid": "x", "redislock_key": "nobody's"}, T0)
    past.hear({"type": "task-lock-skipped"}, T0)
    assert len(past.items()) == 3


def test_one_that_waits_does_so_until_it_has_the_lock_or_ends(past):
    past.hear(event("queued", "x", "b"), T0)
    past.hear(event("deferred", "x", "c"), T0 + 1)
    past.hear(event("deferred", "x", "c"), T0 + 4)
    past.hear(event("acquired", "x", "b"), T0 + 3)
    past.hear(event("revoked", "x", "c"), T0 + 6)
    waits = [(each["task_id"], each["began"], each["ended"]) for each in only(past, "wait")]
    assert waits == [("b", T0, T0 + 3), ("c", T0 + 1, T0 + 6)]
    past.take_in(Seen(T0 + 7, [], {"x": [{"task_id": "d", "task": "t", "since": T0 + 6.5}]}))
    assert only(past, "wait")[-1]["began"] == T0 + 6.5, "also without events"
    past.take_in(Seen(T0 + 9, [found("x", "d", began=T0 + 8)], {}))
    assert only(past, "wait")[-1]["ended"] == T0 + 8


def test_what_is_old_is_forgotten_and_a_long_run_is_not(past):
    past.take_in(Seen(T0, [found("long", "a")], {}))
    past.hear(event("skipped", "x", "b"), T0)
    past.take_in(Seen(T0 + 2 * WINDOW, [found("long", "a")], {}))
    assert [item["lock"] for item in past.items()] == ["long"]


def test_there_is_never_too_much_of_it_and_what_is_urgent_stays(past):
    past.take_in(Seen(T0 + 5, [found("held for long", "a", began=T0 - 7200)], {}))
    past.hear(event("lost", "unlucky", "u", reason="it expired"), T0 + 5)
    for number in range(2 * MOST):
        past.hear(event("skipped", f"lock{number}", "b"), T0 + 5 + number / 1000)
        past.hear(event("queued", "crowded", f"id{number}"), T0 + 5 + number / 1000)
        if number % 1000 == 0:
            past.prune(T0 + 5 + number / 1000)
    past.prune(T0 + 30)
    assert len(past.items()) <= MOST
    assert {"held for long", "unlucky"} < {item["lock"] for item in past.items()}
    assert sum(item["kind"] == "wait" for item in past.items()) == FOLLOWED
    assert past.counts.totals() == {"away": 2 * MOST, "lost": 1}, "all are counted"
    changed, dropped = past.take_changes()
    assert [item["id"] for item in changed] == [item["id"] for item in past.items()]
    assert not {item["id"] for item in changed} & set(dropped)
    past.take_in(Seen(T0 + 30 + WINDOW, [], {}))
    past.take_in(Seen(T0 + 30 + 3 * WINDOW, [], {}))
    assert past.items() == []
    assert past.counts.totals() == {"away": 0, "lost": 0}
    assert not any((past._runs, past._waits._of, past._marks, past._took, past._slots))


def kept(name, task_id, fence, began, ended, how="succeeded", turned_away=0):
    about = {"key": key_of(name), "name": name, "task": "t", "task_id": task_id, "attempt": 0}
    about |= {"node": "w@one", "pid": 1, "label": None, "turned_away": turned_away}
    return PastRun(**about, fence=fence, began=began, ended=ended, how=how)


def test_the_history_brings_the_runs_that_no_look_has_seen(past):
    past.remember([kept("x", "b", 2, T0 + 3, T0 + 4, "failed"), kept("x", "a", 1, T0, T0 + 2)])
    runs = [(each["task_id"], each["began"], each["ended"], each["how"]) for each in past.items()]
    assert runs == [("a", T0, T0 + 2, "succeeded"), ("b", T0 + 3, T0 + 4, "failed")]
    past.take_changes()
    past.remember([kept("x", "a", 1, T0, T0 + 2)])
    assert past.take_changes() == ([], []), "it is known"


def test_the_history_knows_best_how_a_run_has_ended(past):
    past.take_in(Seen(T0 + 1, [found("x", "a", 7)], {}))
    past.take_in(Seen(T0 + 3, [], {}))
    past.remember([kept("x", "a", 7, T0, T0 + 2.25, "died", turned_away=4)])
    (run,) = past.items()
    assert (run["ended"], run["how"], run["turned_away"]) == (T0 + 2.25, "died", 4)
    past.remember([kept("y", "b", 8, T0, None, "lapsed")])
    assert past.items()[-1]["ended"] == T0, "nobody knows when"


# -- the present ------------------------------------------------------------------------------


def test_only_what_differs_is_told():
    present = Present(lambda name: 0)
    one, two = found("one", "a"), found("two", "b")
    change = present.update(Seen(T0, [one, two], {}))
    assert [row["name"] for row in change.rows] == ["one", "two"]
    assert change.rows[0]["lease"] == 30.0
    assert "token" not in change.rows[0]
    later = [dataclasses.replace(each, **lives(T0 + 1, 29.05)) for each in (one, two)]
    assert present.update(Seen(T0 + 1, later, {})) == ([], {}, []), "the same leases"
    extended = dataclasses.replace(one, **lives(T0 + 2, 29.9))
    change = present.update(Seen(T0 + 2, [extended], {}))
    assert (change.rows, change.leases) == ([], {1: T0 + 31.9})
    assert change.gone == [2]
    waits = dataclasses.replace(extended, waiting=1)
    change = present.update(Seen(T0 + 2, [waits], {"one": [{"task_id": "c", "since": T0}]}))
    assert change.rows[0]["next"] == [{"task_id": "c", "since": T0}]
    change = present.update(Seen(T0 + 2, [waits], {"one": [{"task_id": "c", "since": T0 + 0.1}]}))
    assert change == ([], {}, []), "since when it waits is known to a tenth of a second"


def test_the_next_holder_has_another_mark_and_none_tells_the_token():
    present = Present(lambda name: 0)
    marks = set()
    for task_id in ("a", "b"):
        (row,) = present.update(Seen(T0, [found("x", task_id)], {})).rows
        assert task_id in row["task_id"]
        assert "of-" not in row["holder"]
        marks.add(row["holder"])
    assert len(marks) == 2
    foreign = found("x", "a", token=None, holder=None, state="foreign")
    (row,) = present.update(Seen(T0, [foreign], {})).rows
    assert "holder" not in row


def test_how_long_a_task_usually_takes_is_the_median_of_runs_that_succeeded(past):
    runs = [kept("x", f"id{n}", n, T0 + n, T0 + n + took) for n, took in enumerate((1, 9, 2))]
    past.remember(runs[:2])
    assert past.usual.of_tasks() == {}, "two say little"
    past.remember(runs)
    past.remember([*runs, kept("x", "f", 9, T0, T0 + 100, "failed")])
    assert past.usual.of_tasks() == {"t": 2}
