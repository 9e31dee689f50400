"""The lock's scripts, rule by rule. Together, in any order, they are in `tests/simulation`."""

from __future__ import annotations

import json

import pytest

from celery_redislock.protocol import calls, notes
from celery_redislock.protocol.claims import (
    EXTENDED,
    NOT_OURS,
    RETAKEN,
    Acquired,
    Claim,
    Done,
    Extension,
)
from celery_redislock.protocol.holders import encode
from celery_redislock.protocol.keys import BUCKETS
from celery_redislock.protocol.waiting import Block, waiting
from tests.contract.claims import busy, extended, extension, make_claim, outcomes, taken
from tests.support.waiting import eventually


def test_a_foreign_value_that_lapses_frees_the_lock(store, inside, label) -> None:
    claim = make_claim(label)
    inside.set(claim.keys.lock, "somebody", px=20_000)
    reply = busy(store.run(calls.acquire(claim)))
    assert 0 < reply.remaining <= 20
    inside.pexpire(claim.keys.lock, 1)
    eventually(lambda: isinstance(store.run(calls.acquire(claim)), Acquired), "it lapses")


def test_a_token_that_only_begins_like_the_holders_is_another(store, label) -> None:
    claim = make_claim(label)
    taken(store.run(calls.acquire(claim)))
    short = Claim(claim.keys, claim.token[:-1], 30, claim.value)
    assert not store.run(calls.settle(short)).ours
    assert outcomes(
        extended(store, Extension(short, '{"token":"' + short.token + '"}', 1, True))
    ) == [0]


def test_an_extension_that_arrives_after_the_release_does_not_bring_the_lock_back(
    store, inside, label
) -> None:
    claim = make_claim(label)
    held = taken(store.run(calls.acquire(claim)))
    assert store.run(calls.settle(claim, calls.Release(stray=True))).ours
    assert outcomes(extended(store, extension(claim, held))) == [NOT_OURS]
    assert not inside.exists(claim.keys.lock)
    assert taken(store.run(calls.acquire(make_claim(label)))).fence > held.fence + 1


def test_who_saw_the_counter_since_takes_again_what_vanished(store, inside, label) -> None:
    claim = make_claim(label)
    held = taken(store.run(calls.acquire(claim)))
    inside.set(claim.keys.fence, counter := held.fence + 10)  # another lock of this bucket
    (reply,) = extended(store, extension(claim, held))
    assert (reply.outcome, reply.counter) == (EXTENDED, counter)
    inside.delete(claim.keys.lock)
    assert outcomes(extended(store, extension(claim, held))) == [NOT_OURS]
    again = extension(claim, held)._replace(counter=reply.counter)
    assert outcomes(extended(store, again)) == [RETAKEN]


@pytest.mark.parametrize(
    ("by", "said"),
    [
        ("anna@host", "anna@host"),
        ('an "operator"\n\\ of näme', 'an "operator"\\n\\ of näme'),
        ("x" * 200, "x" * 100),
        ("", ""),
    ],
)
@pytest.mark.parametrize("is_taken", [True, False])
def test_the_holder_is_told_who_broke_its_lock(store, label, by, said, is_taken) -> None:
    claim = make_claim(label)
    reply = taken(store.run(calls.acquire(claim)))
    store.run(calls.break_lock(claim.keys, 30, by=by))
    if is_taken:
        other = make_claim(label)
        taken(store.run(calls.acquire(other)))
        store.run(calls.break_lock(claim.keys, 30, by="somebody else"))
        taken(store.run(calls.acquire(make_claim(label))))
    for retake in (True, False):
        (found,) = extended(store, extension(claim, reply, retake))
        assert (found.outcome, found.broken_by) == (NOT_OURS, said)


def test_a_mark_of_an_older_release_does_not_say_who(store, inside, label) -> None:
    claim = make_claim(label)
    reply = taken(store.run(calls.acquire(claim)))
    store.run(calls.break_lock(claim.keys, 30, by="anna@host"))
    mark = inside.get(claim.keys.broken)
    inside.set(claim.keys.broken, f"{claim.opening}{mark}")
    (found,) = extended(store, extension(claim, reply))
    assert (found.outcome, found.broken_by) == (NOT_OURS, "")
    assert claim.opening in mark, "which is what an older release looks for"


def test_one_that_nobody_broke_is_not_said_to_be_broken(store, label) -> None:
    claim, other = make_claim(label), make_claim(label)
    reply = taken(store.run(calls.acquire(claim)))
    store.run(calls.settle(claim))
    taken(store.run(calls.acquire(other)))
    (found,) = extended(store, extension(claim, reply))
    assert (found.outcome, found.broken_by) == (NOT_OURS, None)


def test_a_mark_says_nothing_about_another_lock(store, label) -> None:
    claim = make_claim(label, task_id=label)
    taken(store.run(calls.acquire(claim)))
    store.run(calls.settle(claim, calls.Release(note="1", always=True)))
    taken(store.run(calls.acquire(make_claim(f"{label}2", task_id=label))))


def test_any_number_of_locks_leaves_a_bounded_number_of_keys(own_store, own_redis) -> None:
    claims = [make_claim(str(number), task_id=str(number)) for number in range(200)]
    for number, claim in enumerate(claims):
        taken(own_store.run(calls.acquire(claim)))
        if number % 50 == 0:
            busy(own_store.run(calls.acquire(make_claim(str(number)), "wait")))
        own_store.run(calls.settle(claim, calls.Release(note="1", always=number % 50 == 1)))

    with own_redis.client() as client:
        lasting = {key for key in client.scan_iter(count=1000) if client.pttl(key) == -1}
    assert lasting == {claim.keys.fence for claim in claims}
    assert BUCKETS == 1024, "there are so many of these"


# -- fences -----------------------------------------------------------------------------------


def test_a_fence_is_above_the_counter_where_the_clock_is_behind(store, inside, label) -> None:
    claim = make_claim(label)
    ahead = taken(store.run(calls.acquire(claim))).fence + 10**12
    store.run(calls.settle(claim))
    inside.set(claim.keys.fence, ahead)
    held = taken(store.run(calls.acquire(claim)))
    assert held.fence == ahead + 1

    inside.delete(claim.keys.lock, claim.keys.fence)  # as on a server that came back empty
    assert outcomes(extended(store, extension(claim, held))) == [RETAKEN]
    store.run(calls.settle(claim))
    assert taken(store.run(calls.acquire(make_claim(label)))).fence > held.fence


# -- times ------------------------------------------------------------------------------------


def test_to_ask_again_with_the_same_token_extends(store, inside, label) -> None:
    claim = make_claim(label)
    held = taken(store.run(calls.acquire(claim)))
    inside.pexpire(claim.keys.lock, 1000)
    assert taken(store.run(calls.acquire(claim))).fence == held.fence
    assert inside.pttl(claim.keys.lock) > 20_000


def test_who_counts_for_the_holder_extends_no_longer_than_it_may_hold(store, label) -> None:
    claim = make_claim(label)
    asked = extension(claim, taken(store.run(calls.acquire(claim))))
    assert outcomes(extended(store, asked._replace(max_hold=60.0))) == [EXTENDED]
    eventually(
        lambda: outcomes(extended(store, asked._replace(max_hold=0.001))) == [NOT_OURS],
        "it is over",
    )


def test_who_is_no_task_tells_its_own_lock_from_anothers(store, label) -> None:
    mine, other = (Claim(make_claim(label).keys, t, 30, encode(t, ttl_ms=30_000)) for t in "ab")
    held = taken(store.run(calls.acquire(mine)))
    assert busy(store.run(calls.acquire(other))).relation == "other"
    assert taken(store.run(calls.acquire(mine))).fence == held.fence


# -- other runs of the task -------------------------------------------------------------------


def test_what_a_newer_release_says_of_its_run_is_not_believed(store, inside, label) -> None:
    claim = make_claim(label, task_id=label)
    value = {"token": "t", "v": 99, "task_id": label, "cooling": True, "done": ["0", 1]}
    inside.set(claim.keys.lock, json.dumps(value, separators=(",", ":")), px=20_000)
    for attempt in (0, 1):
        asked = make_claim(label, task_id=label, attempt=attempt)
        assert busy(store.run(calls.acquire(asked))).relation == "newer"


def test_a_retry_takes_over_from_an_attempt_that_missed_its_heartbeats(
    store, inside, label
) -> None:
    first, retry = (make_claim(label, task_id=label, attempt=attempt) for attempt in (0, 1))
    taken(store.run(calls.acquire(first)))
    assert busy(store.run(calls.acquire(retry))).relation == "earlier"
    inside.pexpire(first.keys.lock, 14_000)  # of thirty seconds
    taken(store.run(calls.acquire(retry)))
    assert isinstance(store.run(calls.acquire(make_claim(label, task_id=label))), Done)


def test_who_leaves_a_lock_to_its_retry_leaves_a_note_and_who_is_to_run_again_does_so(
    store, label
) -> None:
    first, retry = (make_claim(label, task_id=label, attempt=attempt) for attempt in (0, 1))
    taken(store.run(calls.acquire(first)))
    left = calls.Release(note="1", heir=(retry.value, 30.0))
    assert store.run(calls.settle(first, left)).ours
    retry.kept = retry.value
    taken(store.run(calls.acquire(retry)))
    store.run(calls.settle(retry))
    copy = make_claim(label, task_id=label)
    assert isinstance(store.run(calls.acquire(copy)), Done)
    taken(store.run(calls.acquire(copy, again=notes.NO_MESSAGE)))


@pytest.mark.parametrize("kind", ["1", "+1"])
def test_what_was_sent_again_under_its_id_waits_until_the_lock_is_free_and_runs_once(
    store, label, kind
):
    """Each question says that an earlier run is known: else it would be told of that, at once."""
    first, anew, copy = (make_claim(label, task_id=label) for _ in range(3))
    first.sent, anew.sent, copy.sent = "a message", "another message", "another message"
    other = make_claim(label, task_id="other")
    taken(store.run(calls.acquire(first)))
    assert store.run(calls.settle(first, calls.Release(note=kind, always=True))).ours
    taken(store.run(calls.acquire(other)))
    asked = waiting(anew, 60.0, again=anew.sent)
    step = asked.send(None)
    answer = store.run(step.call)
    assert answer.holder.task_id == "other"
    step = asked.send(answer)
    assert isinstance(step, Block)
    assert store.run(calls.settle(other)).ours
    taken(store.run(step.call))
    assert store.run(calls.settle(anew, calls.Release(note=kind, always=True))).ours
    assert isinstance(store.run(calls.acquire(copy, again=copy.sent)), Done)


def test_of_copies_that_are_turned_away_at_once_only_the_first_one_ends_the_task(
    store, label
) -> None:
    first, copy, other = (make_claim(label, task_id=label) for _ in range(3))
    first.sent = copy.sent = "a message"
    other.sent = "another message"

    assert store.run(calls.mark_done(first)) is None

    lasting = notes.lasting(notes.EXPECTS_RESULT)
    done = store.run(calls.mark_done(copy, lasting))
    assert done is not None
    assert done.note == notes.Note(notes.EXPECTS_RESULT, "a message")
    assert done.age < 5
    assert store.run(calls.mark_done(first, notes.ENDED)) is not None
    done = store.run(calls.mark_done(copy, notes.PUBLISHING))
    assert done is not None, "it has told all since"
    assert done.note.kind == notes.ENDED
    third = store.run(calls.acquire(copy))
    assert isinstance(third, Done)
    assert third.note.kind == notes.ENDED, "and that stays noted"
    assert store.run(calls.mark_done(other, notes.ENDED)) is None, "the same id was sent again"


def test_a_note_that_is_to_last_does_so_though_its_run_says_later_that_all_is_over(
    store, inside, label
) -> None:
    """Only the lock's value said that a copy was seen."""
    claim = make_claim(label, task_id=label)
    claim.sent = "a message"
    taken(store.run(calls.acquire(claim)))
    copy = make_claim(label, task_id=label)
    copy.sent = claim.sent
    assert busy(store.run(calls.acquire(copy))).relation == "own"
    store.run(calls.settle(claim, calls.Release(notes.PUBLISHING, always=True)))
    store.run(calls.mark_done(claim, notes.ENDED))
    for call in calls.forget([claim.done_key], most=claim.done_ttl):
        store.run(call)

    done = store.run(calls.acquire(copy))
    assert isinstance(done, Done)
    assert done.note.kind == notes.ENDED


def test_who_does_not_know_its_message_does_not_know_its_copies(store, label) -> None:
    for _ in range(2):
        assert store.run(calls.mark_done(make_claim(label, task_id=label))) is None


# -- those who wait ---------------------------------------------------------------------------


def test_who_gives_up_a_wait_or_has_died_is_no_waiter(store, inside, label) -> None:
    holder, *waiting = (make_claim(label) for _ in range(3))
    taken(store.run(calls.acquire(holder)))
    for each in waiting:
        busy(store.run(calls.acquire(each, "wait")))
    busy(store.run(calls.acquire(waiting[0], "last")))
    left = dict(inside.zrange(holder.keys.waiters, 0, -1, withscores=True))
    assert [*left] == [waiting[1].opening]

    inside.zadd(holder.keys.waiters, {waiting[1].opening: 1})  # it has not asked for long
    store.run(calls.settle(holder))
    assert not inside.exists(holder.keys.lock), "it is kept for nobody"


def test_what_is_kept_for_a_waiter_is_not_taken_by_another_that_begins_to_wait(
    store, label, monkeypatch
) -> None:
    monkeypatch.setattr(calls, "RESERVE", 60.0)
    holder, first, second = (make_claim(label) for _ in range(3))
    taken(store.run(calls.acquire(holder)))
    busy(store.run(calls.acquire(first, "wait")))
    store.run(calls.settle(holder))
    assert busy(store.run(calls.acquire(second, "wait"))).relation == "reserved"
    taken(store.run(calls.acquire(first, "woken")))


def test_a_break_wakes_a_waiter(store, inside, label) -> None:
    holder, waiter = make_claim(label), make_claim(label)
    taken(store.run(calls.acquire(holder)))
    busy(store.run(calls.acquire(waiter, "wait")))
    assert store.run(calls.break_lock(holder.keys, 30)) is not None
    assert inside.llen(holder.keys.wake) == 1


def test_a_break_is_remembered_as_long_as_any_of_those_who_were_broken_may_believe(
    store, inside, label
) -> None:
    for ttl in (30.0, 1.0):
        claim = make_claim(label, ttl)
        taken(store.run(calls.acquire(claim)))
        assert store.run(calls.break_lock(claim.keys, ttl)) is not None
    assert inside.pttl(claim.keys.broken) > 20_000
