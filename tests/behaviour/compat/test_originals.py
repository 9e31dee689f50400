"""The documented examples of celery-once and celery-singleton, with these packages and with ours in
their place; and where ours differ, as docs/migrating.md says.
"""

from __future__ import annotations

import os
import signal

import pytest
from celery import chain, chord

from celery_redislock import LockConflict, TaskSkipped
from tests.support.waiting import eventually, never

from .conftest import TTL

#: A task of each package, without any options.
PLAIN = ["slow_task", "do_something"]


def another(jobs, task, first, *args, **options):
    """The result of a run other than the first; None if that is still in the way."""
    try:
        result = task.apply_async(args, **options)
    except jobs.AlreadyQueued:
        return None
    return result if result.id != first.id else None


def resent(jobs, task, first, *args, **options):
    """The result of another run, which may be sent as soon as the first one's lock is free."""
    return eventually(lambda: another(jobs, task, first, *args, **options), "its lock is free")


@pytest.fixture
def nowhere(label):
    """Options of a call whose message no worker gets."""
    return {"queue": f"nowhere-{label}"}


# -- celery-once ------------------------------------------------------------------------------


def test_a_duplicate_raises_while_the_task_is_queued_or_runs(jobs, label, starts, end):
    result = jobs.slow_task.delay(label)
    with pytest.raises(jobs.AlreadyQueued) as caught:
        jobs.slow_task.delay(label)
    starts()
    with pytest.raises(jobs.AlreadyQueued):
        jobs.slow_task.apply_async(args=(label,))
    assert caught.value.countdown > 0
    assert caught.value.message == f"Expires in {caught.value.countdown} seconds"
    assert end(result) == ["Done!"]
    again = resent(jobs, jobs.slow_task, result, label)
    assert end(again) == ["Done!"]
    assert starts(2) == [result.id, again.id]


def test_a_graceful_task_returns_a_result_without_an_id(jobs, label, starts, end):
    result = jobs.graceful_task.delay(label)
    starts()
    duplicate = jobs.graceful_task.delay(label)
    assert (duplicate.id, duplicate.state, duplicate.result) == (None, "REJECTED", None)
    end(result)


def test_keys_say_which_arguments_count(jobs, label, end):
    result = jobs.slow_add.delay(label, 1)
    with pytest.raises(jobs.AlreadyQueued):
        jobs.slow_add.delay(label, 2)
    with pytest.raises(jobs.AlreadyQueued):
        jobs.slow_add.delay(b=3, a=label)
    end(result, jobs.slow_add.delay(f"{label}2", 2))


def test_unlocked_before_its_run_another_may_be_sent_during_it(jobs, label, starts, end):
    first = jobs.unlocked_task.apply_async((label,), countdown=2)
    with pytest.raises(jobs.AlreadyQueued):
        jobs.unlocked_task.delay(label)
    starts()
    second = jobs.unlocked_task.delay(label)
    assert starts(2) == [first.id, second.id]
    end(first, second)


def test_the_lock_of_a_call_can_be_cleared(jobs, label, end):
    result = jobs.slow_task.apply_async((label,), queue=f"nowhere-{label}")
    jobs.slow_task.once_backend.clear_lock(jobs.slow_task.get_key((label,)))
    second = jobs.slow_task.delay(label)
    assert second != result
    jobs.slow_task.once_backend.clear_lock(jobs.slow_task.get_key(kwargs={"label": label}))
    end(second)


def test_the_timeout_is_how_long_a_lost_message_keeps_the_lock(side, senders, label, nowhere):
    jobs = senders[side]
    for task, seconds in ((jobs.long_running_task, 36000), (jobs.slow_task, 3600)):
        task.apply_async((label,), **nowhere)
        with pytest.raises(jobs.AlreadyQueued) as caught:
            task.delay(label)
        assert seconds - 60 < caught.value.countdown <= seconds
    other = f"{label}-call"
    jobs.slow_task.apply_async((other,), once={"timeout": 120}, **nowhere)
    with pytest.raises(jobs.AlreadyQueued) as caught:
        jobs.slow_task.delay(other)
    assert 60 < caught.value.countdown <= 120


# -- celery-singleton -------------------------------------------------------------------------


def test_a_duplicate_is_the_task_that_is_queued_or_runs(jobs, label, starts, end):
    first = jobs.do_stuff.delay(label, 2, 3, a="b")
    assert jobs.do_stuff.delay(label, 2, 3, a="b") == first
    starts()
    assert jobs.do_stuff.delay(label, 2, 3, a="b") == first
    other = jobs.do_stuff.delay(label, 5, 6)
    assert other != first
    end(first, other)
    again = resent(jobs, jobs.do_stuff, first, label, 2, 3)
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
    def body(label): ...

    jobs.app.conf.singleton_raise_on_duplicate = True
    try:
        tasks = [
            jobs.app.task(base=jobs.Singleton, name=f"{label}.{own}", **own)(body)
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


# -- where both differ ------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLAIN)
def test_a_killed_pool_processs_lock_is_free_only_with_ours(
    side, jobs, label, nowhere, starts, journal, name
):
    task = getattr(jobs, name)
    first = task.delay(label)
    starts()

    os.kill(journal.read(label, "start")[-1].pid, signal.SIGKILL)

    eventually(lambda: first.state == "FAILURE", "Celery has noticed")
    if side == "ours":
        assert resent(jobs, task, first, label, **nowhere)
    else:
        assert another(jobs, task, first, label) is None


@pytest.mark.parametrize("name", ["slow_task", "do_stuff"])
def test_equal_members_end_the_chord_only_with_ours(ours, theirs, label, starts, end, name):
    old, new = getattr(theirs, name), getattr(ours, name)
    if name == "slow_task":
        with pytest.raises(theirs.AlreadyQueued):
            chord([old.s(label), old.s(label)])(theirs.total.s())
        hangs = None
    else:
        hangs = chord([old.s(label), old.s(label)])(theirs.total.s())
    (first,) = starts()
    end(theirs.app.AsyncResult(first))

    result = chord([new.s(label), new.s(label)])(ours.total.s())
    starts(2)
    members = result.parent.results
    eventually(lambda: "REVOKED" in [each.state for each in members], "one is turned away")
    end(*(each for each in members if each.state != "REVOKED"))

    eventually(lambda: result.state == "FAILURE", "the chord has ended")
    assert "TaskSkipped" in str(result.result)
    assert hangs is None or not hangs.ready()


def test_the_same_arguments_said_otherwise_are_the_same_call_only_with_ours(
    side, senders, label, nowhere
):
    jobs = senders[side]

    @jobs.app.task(base=jobs.QueueOnce, name=f"once.{side}.{label}")
    def sync(a, b=1): ...

    first = sync.apply_async((label,), **nowhere)
    by_default = another(jobs, sync, first, label, 1, **nowhere)
    first = jobs.expiring.apply_async((label,), **nowhere)
    by_name = jobs.expiring.apply_async(kwargs={"label": label}, **nowhere)
    assert [by_default is None, by_name == first] == [side == "ours"] * 2


# -- where celery-once differs ----------------------------------------------------------------


def test_a_killed_workers_lock_is_free_soon(ours, sides, label, queue, start_worker, starts):
    worker = start_worker(app="tests.behaviour.compat.jobs", queues=queue, conf=sides["ours"])
    ours.slow_task.apply_async((label,), queue=queue)
    starts()

    worker.close()

    eventually(lambda: ours.slow_task.lock_holder(label) is None, "it is free", TTL + 20)
    assert ours.slow_task.apply_async((label,), queue=queue).id


def test_sent_by_name_a_task_is_locked_only_with_ours(ours, theirs, label, starts, end):
    result = theirs.app.send_task(theirs.slow_task.name, (label,))
    starts()
    duplicate = theirs.slow_task.delay(label)
    assert starts(2) == [result.id, duplicate.id]
    end(result, duplicate)

    result = ours.app.send_task(ours.slow_task.name, (label,))
    starts(3)
    with pytest.raises(ours.AlreadyQueued) as caught:
        ours.slow_task.delay(label)
    assert isinstance(caught.value, LockConflict)
    assert caught.value.holder.task_id == result.id
    assert caught.value.key == ours.slow_task.get_key((label,))
    end(result)


def test_the_retry_of_an_unlocked_task_is_locked_until_it_starts_only_with_ours(
    ours, theirs, label, starts, end
):
    first = theirs.retried_unlocked.delay(label)
    eventually(lambda: first.state == "RETRY", "it is to be retried")
    second = theirs.retried_unlocked.delay(label)
    starts(2)
    end(first, second)

    first = ours.retried_unlocked.delay(label)
    eventually(lambda: first.state == "RETRY", "it is to be retried")
    with pytest.raises(ours.AlreadyQueued):
        ours.retried_unlocked.delay(label)
    starts(3)
    end(first)


def test_a_duplicate_in_a_chain_is_an_error_at_send_or_ends_the_chain(
    ours, theirs, label, starts, end
):
    held = theirs.slow_task.delay(label)
    with pytest.raises(theirs.AlreadyQueued):
        chain(theirs.slow_task.si(label), theirs.total.s())()
    end(held)

    held = ours.slow_task.delay(label)
    starts(2)
    result = chain(ours.slow_task.si(label), ours.total.s())()
    eventually(lambda: result.parent.state == "REVOKED", "it is skipped")
    eventually(lambda: result.state == "REVOKED", "so is what follows")
    assert isinstance(result.result, TaskSkipped)
    end(held)


def test_a_run_that_lasts_longer_than_its_ttl_is_not_overtaken(ours, label, starts, end):
    result = ours.slow_task.apply_async((label,), once={"timeout": 1})
    starts()
    never(lambda: another(ours, ours.slow_task, result, label), "another is sent", TTL + 1)
    end(result)


# -- where celery-singleton differs -----------------------------------------------------------


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


def test_the_expiry_ends_the_lock_of_a_run_only_with_theirs(side, jobs, label, starts, end):
    first = jobs.short.delay(label)
    starts()
    if side == "ours":
        never(lambda: another(jobs, jobs.short, first, label), "another is sent", 1)
        end(first)
    else:
        second = resent(jobs, jobs.short, first, label)
        assert starts(2) == [first.id, second.id]
        end(first, second)


def test_the_expiry_is_how_long_a_lost_message_keeps_the_lock(ours, label, nowhere):
    first = ours.expiring.apply_async((label,), **nowhere)
    holder = ours.expiring.lock_holder(label)
    assert holder.task_id == first.id
    assert 540 < holder.ttl <= 600
    ours.do_something.apply_async((label,), **nowhere)
    assert 3540 < ours.do_something.lock_holder(label).ttl <= 3600, "an hour"
