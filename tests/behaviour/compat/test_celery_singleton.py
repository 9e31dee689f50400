"""celery-singleton's documented examples, with that package and with ours in its place."""

from __future__ import annotations

import os
import signal

import pytest
from celery import chord

from celery_redislock import LockConflict
from tests.support.waiting import eventually, never


def resent(task, first, *args, **options):
    """The result of another run, which may be sent as soon as the first one's lock is free."""

    def sent():
        result = task.apply_async(args, **options)
        return result.id != first.id and result

    return eventually(sent, "its lock is free")


@pytest.fixture
def nowhere(label):
    """Options of a call whose message no worker gets."""
    return {"queue": f"nowhere-{label}"}


def test_a_duplicate_is_the_task_that_is_queued_or_runs(jobs, label, starts, end):
    first = jobs.do_stuff.delay(label, 2, 3, a="b")
    assert jobs.do_stuff.delay(label, 2, 3, a="b") == first
    starts()
    assert jobs.do_stuff.delay(label, 2, 3, a="b") == first
    other = jobs.do_stuff.delay(label, 5, 6)
    assert other != first
    end(first, other)
    again = resent(jobs.do_stuff, first, label, 2, 3)
    end(again)
    assert len(starts(3)) == 3


def test_unique_on_says_which_arguments_count(jobs, label, end):
    first = jobs.do_something.delay(username=label, otherarg=99)
    assert jobs.do_something.delay(username=label, otherarg=100) == first
    assert jobs.do_something.delay(label) == first
    other = jobs.do_something.delay(f"{label}2")
    assert other != first
    end(first, other)


def test_a_duplicate_may_be_an_error_that_names_the_task(side, jobs, label, end):
    first = jobs.do_or_raise.delay(label)
    with pytest.raises(jobs.DuplicateTaskError) as caught:
        jobs.do_or_raise.delay(label)
    assert caught.value.task_id == first.id
    assert str(caught.value) == f"Attempted to queue a duplicate of task ID {first.id}"
    if side == "ours":
        assert isinstance(caught.value, LockConflict)
        assert caught.value.holder.task_id == first.id
        assert caught.value.key == jobs.do_or_raise.lock_key_for(label)
    end(first)


def test_the_setting_makes_all_duplicates_errors(jobs, label, nowhere):
    jobs.app.conf.singleton_raise_on_duplicate = True
    try:
        tasks = [
            jobs.app.task(base=jobs.Singleton, name=f"{label}.{own}", **own)(lambda label: None)
            for own in ({}, {"raise_on_duplicate": False})
        ]
        first, second = (task.apply_async((label,), **nowhere) for task in tasks)
        with pytest.raises(jobs.DuplicateTaskError) as caught:
            tasks[0].apply_async((label,), **nowhere)
        assert caught.value.task_id == first.id
        assert tasks[1].apply_async((label,), **nowhere) == second
    finally:
        del jobs.app.conf.changes["singleton_raise_on_duplicate"]


def test_a_task_class_may_say_what_a_duplicate_comes_to(jobs, label, end):
    first = jobs.telling.delay(label)
    assert jobs.telling.delay(label) == f"duplicate of {first.id}"
    end(first)


def test_a_duplicate_with_an_id_or_a_link_is_not_sent(jobs, label, starts, end):
    first = jobs.do_something.delay(label)
    assert jobs.do_something.apply_async((label,), task_id=f"{label}-own") == first
    assert jobs.do_something.apply_async((label,), link=jobs.total.s()) == first
    end(first)
    assert starts() == [first.id]


def test_a_lock_can_be_released(jobs, label, nowhere):
    first = jobs.do_something.apply_async((label,), **nowhere)
    jobs.do_something.release_lock(task_args=(label,))
    second = jobs.do_something.apply_async((label,), **nowhere)
    assert second != first
    jobs.do_something.release_lock(task_kwargs={"username": label})
    assert jobs.do_something.apply_async((label,), **nowhere) != second


# -- where they differ ------------------------------------------------------------------------


def test_clearing_locks_leaves_those_of_runs_alone_only_with_ours(
    senders, workers, operator, label, nowhere, starts, end
):
    for count, (side, jobs) in enumerate(senders.items(), 1):
        lost = jobs.do_something.apply_async((f"{label}-lost",), **nowhere)
        first = jobs.do_something.delay(label)
        starts(count * 2 - 1)
        jobs.clear_locks(operator if side == "ours" else jobs.app)
        assert jobs.do_something.apply_async((f"{label}-lost",), **nowhere) != lost
        if side == "ours":
            assert jobs.do_something.delay(label) == first
            end(first)
        else:
            second = jobs.do_something.delay(label)
            assert starts(2) == [first.id, second.id]
            end(first, second)


def test_a_retry_is_lost_only_with_theirs(ours, theirs, label, starts, end):
    lost = theirs.retried_singleton.delay(label)
    eventually(lambda: lost.state == "RETRY", "it is to be retried")
    assert theirs.retried_singleton.delay(label) == lost

    kept = ours.retried_singleton.delay(label)
    assert starts() == [kept.id]
    end(kept)
    never(lambda: lost.state != "RETRY", "it is retried", 0.5)


def test_a_killed_pool_processs_lock_is_free_only_with_ours(side, jobs, label, starts, journal):
    first = jobs.do_something.delay(label)
    starts()
    os.kill(journal.read(label, "start")[-1].pid, signal.SIGKILL)
    eventually(lambda: first.state == "FAILURE", "Celery has noticed")
    if side == "ours":
        resent(jobs.do_something, first, label, queue=f"nowhere-{label}")
    else:
        assert jobs.do_something.delay(label) == first
        backend = jobs.do_something.singleton_backend.redis
        keys = [key for key in backend.keys("SINGLETONLOCK_*") if backend.get(key) == first.id]
        assert [backend.ttl(key) for key in keys] == [-1], "it never expires"


def test_the_expiry_ends_the_lock_of_a_run_only_with_theirs(senders, workers, label, end, journal):
    def ran() -> list[str]:
        return [entry.task_id for entry in journal.read(label, "start")]

    for side, jobs in senders.items():
        first = jobs.short.delay(label)
        eventually(lambda first=first: first.id in ran(), "it runs")
        before = len(ran())
        if side == "ours":
            send = jobs.short.delay
            never(lambda send=send, n=before: send(label) and len(ran()) > n, "another runs", 2)
            end(first)
        else:
            second = resent(jobs.short, first, label)
            eventually(lambda n=before: len(ran()) > n, "another runs")
            end(first, second)


def test_equal_members_of_a_chord_hang_or_end_the_chord(ours, theirs, label, starts, end):
    hangs = chord([theirs.do_stuff.s(label), theirs.do_stuff.s(label)])(theirs.total.s())
    (first,) = starts()
    end(theirs.app.AsyncResult(first))

    result = chord([ours.do_stuff.s(label), ours.do_stuff.s(label)])(ours.total.s())
    starts(2)
    members = result.parent.results
    eventually(lambda: "REVOKED" in [each.state for each in members], "one is turned away")
    end(*(each for each in members if each.state != "REVOKED"))
    eventually(lambda: result.state == "FAILURE", "the chord has ended")
    assert "TaskSkipped" in str(result.result)
    assert not hangs.ready()


def test_arguments_by_name_are_the_same_call_only_with_ours(senders, label, nowhere):
    for side, jobs in senders.items():
        first = jobs.expiring.apply_async((label,), **nowhere)
        second = jobs.expiring.apply_async(kwargs={"label": label}, **nowhere)
        assert (first == second) is (side == "ours")


def test_the_expiry_is_how_long_a_lost_message_keeps_the_lock(ours, theirs, label, nowhere):
    first = ours.expiring.apply_async((label,), **nowhere)
    holder = ours.expiring.lock_holder(label)
    assert holder.task_id == first.id
    assert 540 < holder.ttl <= 600
    ours.do_something.apply_async((label,), **nowhere)
    assert 3540 < ours.do_something.lock_holder(label).ttl <= 3600, "an hour"
