"""What the timeline draws of a course of looks, events and history: nothing that was not so."""

from __future__ import annotations

import dataclasses

import pytest

from celery_redislock.inspection.locks import Found
from celery_redislock.protocol.holders import Holder
from celery_redislock.web.look import Seen
from celery_redislock.web.past import Past
from tests.unit.web.test_past import T0, event, found, kept, key_of

#: Seconds for which nobody looks.
LONG = 300


class Course:
    """Looks, events and history, at seconds after `T0`."""

    def __init__(self) -> None:
        self.past = Past("p")

    def look(self, at, *slots, rooms=None, waiting=None, to=None):
        """What a look finds, and each second the same until `to`."""
        rooms = rooms or {}
        counts = {name: len(ids) for name, ids in rooms.items()} | (waiting or {})
        free = [name for name in counts if name not in {each.name for each in slots}]
        all_found = [
            *(dataclasses.replace(each, waiting=counts.get(each.name, 0)) for each in slots),
            *(Found(key=key_of(n), name=n, state="free", waiting=counts[n]) for n in free),
        ]
        for second in range(at, (to or at) + 1):
            read = {n: frozenset(ids) for n, ids in rooms.items() if n in self.past.asked()}
            self.past.take_in(Seen(T0 + second, all_found, {}, read))
        return self

    def hear(self, at, kind, name, task_id, **more):
        self.past.hear(event(kind, name, task_id, task="t", **more), T0 + at)
        return self

    def remember(self, *runs):
        self.past.remember(runs)
        return self

    def drawn(self):
        """A row for each item: lock, what, who, from when, until when, how it ended."""
        rows = []
        for item in self.past.items():
            what = item["what"] if item["kind"] == "mark" else item["kind"]
            what = item["state"] if item["kind"] == "kept" else what
            ended = f"{item['ended'] - T0:g}" if "ended" in item else "-"
            row = (item["lock"], what, item.get("task_id", "-"), f"{item['began'] - T0:g}", ended)
            rows.append(" ".join((*row, item.get("how", "-"))))
        return rows


def held(name, task_id, fence=1, began=0.0, **more):
    return found(name, task_id, fence, began=T0 + began, **more)


@pytest.fixture
def course():
    return Course()


def items(course, *kinds):
    return [row for row in course.drawn() if row.split()[1] in kinds]


def test_a_wait_lasts_for_as_long_as_it_lasts(course):
    course.look(0, held("x", "a")).hear(1, "queued", "x", "b")
    course.look(2, held("x", "a"), rooms={"x": ["b"]}, to=3000)
    assert course.drawn() == ["x run a 0 - -", "x wait b 1 - -"], "the marks are older than 15 min"


def test_a_wait_that_leaves_the_room_unseen_is_over(course):
    for number in range(5):
        course.hear(1, "queued", "x", f"w{number}")
    course.look(2, held("x", "a"), rooms={"x": [f"w{n}" for n in range(5)]}, to=9)
    course.look(10, held("x", "a"), rooms={"x": ["w1"]}, to=11)
    waits = items(course, "wait")
    assert [row.split()[2] for row in waits if row.endswith(" - -")] == ["w1"]
    assert {row.split()[4] for row in waits if "w1" not in row} == {"10"}
    course.look(12, held("x", "a"), to=13)
    assert items(course, "wait")[1] == "x wait w1 1 12 -", "nobody waits behind it"


def test_what_began_to_wait_after_a_look_had_seen_the_room_still_waits(course):
    course.look(0, held("x", "a"), to=4).hear(4.5, "queued", "x", "b")
    course.look(5, held("x", "a"))
    assert items(course, "wait") == ["x wait b 4.5 - -"]
    course.look(6, held("x", "a"))
    assert items(course, "wait") == ["x wait b 4.5 6 -"]


def test_in_a_room_that_is_too_long_to_read_a_wait_goes_on(course):
    course.hear(1, "queued", "x", "b")
    course.look(2, held("x", "a"), waiting={"x": 1000}, to=9)
    assert items(course, "wait") == ["x wait b 1 - -"]


@pytest.mark.parametrize("how", ["coalesced", "debounced", "replacing"])
def test_of_calls_that_wait_as_the_newest_one_waits(course, how):
    for number in range(3):
        course.hear(number, how, "x", f"w{number}")
    course.hear(3, "queued", "x", "queued")
    assert items(course, "wait") == [
        *("x wait w0 0 1 replaced", "x wait w1 1 2 replaced", "x wait w2 2 - -"),
        "x wait queued 3 - -",
    ]


def test_one_that_runs_too_fast_to_be_seen_has_waited_until_it_ran(course):
    course.hear(1, "queued", "x", "b")
    course.remember(kept("x", "b", 2, T0 + 3, T0 + 3.1))
    assert items(course, "wait", "run") == ["x wait b 1 3 -", "x run b 3 3.1 succeeded"]


def test_a_deferred_task_waits_in_no_room_and_until_it_should_have_come_back(course):
    course.look(0, held("x", "a"))
    course.hear(1, "deferred", "x", "b", countdown=10).hear(11, "deferred", "x", "b", countdown=20)
    course.look(12, held("x", "a"), to=90)
    assert items(course, "wait") == ["x wait b 1 - -"]
    course.look(91, held("x", "a"), to=92)
    assert items(course, "wait") == ["x wait b 1 31 unseen"], "a minute too late"
    course.hear(95, "acquired", "x", "b")
    assert items(course, "wait") == ["x wait b 1 95 -"]


def test_while_nobody_looked_nothing_is_drawn(course):
    """The same cool-down was stretched over nine runs."""
    course.look(0, held("x", "a"), to=3).look(4, held("x", "a", state="kept"), to=6)
    course.look(LONG, held("x", "i", 9, began=LONG - 1, state="kept"))
    assert course.drawn() == [
        *("x run a 0 4 -", "x kept a 4 6 unseen"),
        f"x kept i {LONG} - -",
    ]
    assert course.past.gaps == [(T0 + 6, T0 + LONG)]


def test_what_is_the_same_after_nobody_looked_has_gone_on(course):
    course.hear(1, "queued", "x", "b").hear(1, "queued", "x", "c")
    course.look(2, held("x", "a"), rooms={"x": ["b", "c"]}, to=6)
    course.look(LONG, held("x", "a"), rooms={"x": ["c"]}, to=LONG + 1)
    assert items(course, "run", "wait") == [
        *("x wait b 1 6 unseen", "x wait c 1 - -"),
        "x run a 0 - -",
    ]


def test_the_history_tells_what_ran_while_nobody_looked(course):
    course.look(0, held("x", "a"), to=6)
    course.look(LONG, held("x", "c", 3, began=LONG - 2))
    course.remember(kept("x", "a", 1, T0, T0 + 60, "failed"), kept("x", "b", 2, T0 + 61, T0 + 70))
    assert course.drawn() == [
        *("x run a 0 60 failed", f"x run c {LONG - 2} - -", "x run b 61 70 succeeded"),
    ]


def test_a_pause_begins_when_its_run_ended_as_the_history_tells(course):
    course.look(0, held("x", "a"), to=3).remember(kept("x", "a", 1, T0, T0 + 3.4))
    course.look(5, held("x", "a", state="kept"))
    assert course.drawn() == ["x run a 0 3.4 succeeded", "x kept a 3.4 - -"]


def test_a_machine_that_looks_seldom_has_no_gaps(course):
    for at in range(0, 60, 4):
        course.look(at, held("x", "a"))
    assert course.past.gaps == []
    course.look(200, held("x", "a")).look(204, held("x", "a")).look(400, held("x", "a"))
    assert course.past.gaps == [(T0 + 56, T0 + 200), (T0 + 204, T0 + 400)]


def test_one_run_from_history_and_look_is_drawn_once(course):
    course.remember(kept("x", "a", 1, T0 + 0.0004, T0 + 4, "succeeded"))
    course.look(3, held("x", "a"))  # a look that had begun before
    course.look(5)
    assert course.drawn() == ["x run a 0.0004 4 succeeded"]


@pytest.mark.parametrize("remembered", [1, 2], ids=["the first fence", "the second fence"])
def test_a_run_whose_lock_was_taken_again_is_drawn_once(course, remembered):
    course.look(0, held("x", "a", 1)).look(1).look(2, held("x", "a", 2), to=3)
    course.remember(kept("x", "a", remembered, T0 + 0.001, T0 + 3.5))
    course.look(4)
    assert course.drawn() == ["x run a 0 3.5 succeeded"]


def test_a_lock_that_a_look_has_missed_is_held_all_the_time(course):
    course.look(0, held("x", "a")).look(1).look(2, held("x", "a"))
    assert course.drawn() == ["x run a 0 - -"]


def test_a_retry_is_another_run(course):
    course.look(0, held("x", "a")).remember(kept("x", "a", 1, T0, T0 + 1, "retried"))
    holder = Holder(task="t", task_id="a", fence=2, attempt=1, acquired_at=T0 + 2)
    course.look(2, held("x", "a", holder=holder))
    assert course.drawn() == ["x run a 0 1 retried", "x run a 2 - -"]


def test_a_lapsed_lock_is_drawn_for_as_long_as_it_was_seen(course):
    course.look(0, held("x", "a"), to=7).look(8)
    course.remember(kept("x", "a", 1, T0, None, "lapsed"))
    assert course.drawn() == ["x run a 0 8 lapsed"]


def test_an_operators_break_is_not_lost(course):
    course.hear(1, "lost", "x", "a", reason="an operator broke it: anna at web-1")
    course.hear(5, "lost", "x", "b", reason="it expired or was broken, or another run may have it")
    first, second = course.past.items()
    assert (first["what"], first["by_whom"], second["what"]) == ("broken", "anna at web-1", "lost")
    assert course.past.counts.totals()["lost"] == 1


def test_what_happened_is_counted_for_all_locks_and_from_both_sources(course):
    for number in range(3000):
        course.hear(number / 1000, "skipped", f"lock{number}", "b", holder_task_id="a")
    course.hear(4, "lost", "lock1", "a", reason="it expired")
    runs = [
        kept("lock1", "a", 1, T0, T0 + 4, "lost", turned_away=7),
        kept("quiet", "b", 2, T0, T0 + 5, "lost", turned_away=2),
    ]
    course.remember(*runs).remember(*runs)
    assert course.past.counts.totals() == {"away": 3000 - 1 + 7 + 2, "lost": 2}
    assert [course.past.counts.away(name) for name in ("lock1", "lock2", "quiet")] == [7, 1, 2]
    course.look(10).look(LONG).look(880, held("x", "a"))
    assert course.past.counts.totals()["lost"] == 2
    course.look(1000, held("x", "a"))
    assert course.past.counts.totals() == {"away": 0, "lost": 0}, "a quarter of an hour later"


def test_duplicates_that_only_the_lock_tells_of_are_counted_and_those_of_long_ago_are_not(course):
    def seen(at, new, old):
        course.look(
            at,
            held("new", "a", turned_away=new),
            held("old", "b", 2, began=-7200, turned_away=old),
        )
        return [course.past.counts.away(name) for name in ("new", "old")]

    assert seen(1, 0, 500) == [0, 0]
    assert seen(2, 3, 501) == [3, 1]
    course.hear(3, "replaced", "new", "older").hear(3, "raised", "new", "twin")
    assert seen(4, 4, 501) == [4, 1], "the event and the lock tell of the same"
    course.remember(kept("new", "a", 1, T0, T0 + 5, turned_away=4))
    assert course.past.counts.totals() == {"away": 5, "lost": 0}
