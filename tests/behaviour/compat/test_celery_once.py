"""celery-once's documented examples, with that package and with our `QueueOnce` in its place."""

from __future__ import annotations

import os
import signal

import pytest
from celery import chain, chord

from celery_redislock import LockConflict, TaskSkipped
from tests.support.waiting import eventually, never

from .conftest import TTL


def resent(jobs, task, *args, **options):
    """The result of a task that may be sent again as soon as its lock is free."""

    def sent():
        try:
            return task.apply_async(args, **options)
        except jobs.AlreadyQueued:
            return None

    return eventually(sent, "its lock is free")


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
    again = resent(jobs, jobs.slow_task, label)
    assert end(again) == ["Done!"]
    assert starts(2) == [result.id, again.id]


def test_a_graceful_task_returns_a_result_without_an_id(jobs, label, starts, end):
    result = jobs.graceful_task.delay(label)
    starts()
    duplicate = jobs.graceful_task.delay(label)
    assert (duplicate.id, duplicate.state, duplicate.result) == (None, "REJECTED", None)
    end(result)


def test_a_call_may_be_graceful_and_a_graceful_task_may_be_called_without(jobs, label, end):
    result = jobs.slow_task.delay(label)
    assert jobs.slow_task.apply_async((label,), once={"graceful": True}).id is None
    graceful = jobs.graceful_task.delay(label)
    with pytest.raises(jobs.AlreadyQueued):
        jobs.graceful_task.apply_async((label,), once={"graceful": False})
    end(result, graceful)


def test_keys_say_which_arguments_count(jobs, label, end):
    result = jobs.slow_add.delay(label, 1)
    with pytest.raises(jobs.AlreadyQueued):
        jobs.slow_add.delay(label, 2)
    with pytest.raises(jobs.AlreadyQueued):
        jobs.slow_add.delay(b=3, a=label)
    end(result, jobs.slow_add.delay(f"{label}2", 2))


def test_without_keys_there_is_one_lock_for_all_calls(jobs, label, end):
    result = jobs.only_one.delay(label, 1)
    with pytest.raises(jobs.AlreadyQueued):
        jobs.only_one.delay(f"{label}2", 2)
    end(result)


def test_unlocked_before_its_run_another_may_be_sent_during_it(jobs, label, starts, end):
    first = jobs.unlocked_task.apply_async((label,), countdown=2)
    with pytest.raises(jobs.AlreadyQueued):
        jobs.unlocked_task.delay(label)
    starts()
    second = jobs.unlocked_task.delay(label)
    assert starts(2) == [first.id, second.id]
    end(first, second)


def test_a_call_of_a_base_of_ones_own_wraps_the_body(jobs, label, journal, starts, end):
    result = jobs.context_task.delay(label)
    with pytest.raises(jobs.AlreadyQueued):
        jobs.context_task.delay(label)
    starts()
    end(result)
    assert journal.count(label, "context") == 1


def test_a_retry_runs(jobs, label, starts, end):
    result = jobs.retried_once.delay(label)
    assert starts() == [result.id]
    end(result)


def test_the_lock_of_a_call_can_be_cleared(jobs, label, end):
    result = jobs.slow_task.apply_async((label,), queue=f"nowhere-{label}")
    jobs.slow_task.once_backend.clear_lock(jobs.slow_task.get_key((label,)))
    second = jobs.slow_task.delay(label)
    assert second != result
    jobs.slow_task.once_backend.clear_lock(jobs.slow_task.get_key(kwargs={"label": label}))
    end(second)


def test_the_timeout_is_how_long_a_lost_message_keeps_the_lock(senders, label):
    ours, theirs = senders["ours"], senders["theirs"]
    nowhere = {"queue": f"nowhere-{label}"}
    for jobs in (ours, theirs):
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


# -- where they differ ------------------------------------------------------------------------


def test_an_argument_with_its_default_is_the_same_call_only_with_ours(senders, label):
    for side, jobs in senders.items():

        @jobs.app.task(base=jobs.QueueOnce, name=f"once.{side}.{label}")
        def sync(a, b=1): ...

        sync.apply_async((label,), queue=f"nowhere-{label}")
        if side == "ours":
            with pytest.raises(jobs.AlreadyQueued):
                sync.apply_async((label, 1), queue=f"nowhere-{label}")
        else:
            assert sync.apply_async((label, 1), queue=f"nowhere-{label}").id


def test_a_killed_workers_lock_is_free_soon(ours, sides, label, queue, start_worker, starts):
    worker = start_worker(app="tests.behaviour.compat.jobs", queues=queue, conf=sides["ours"])
    ours.slow_task.apply_async((label,), queue=queue)
    starts()

    worker.close()

    eventually(lambda: ours.slow_task.lock_holder(label) is None, "it is free", TTL + 20)
    assert ours.slow_task.apply_async((label,), queue=queue).id


def test_a_killed_pool_processs_lock_is_free_only_with_ours(side, jobs, label, starts, journal):
    result = jobs.slow_task.delay(label)
    starts()
    os.kill(journal.read(label, "start")[-1].pid, signal.SIGKILL)
    eventually(lambda: result.state == "FAILURE", "Celery has noticed")
    if side == "ours":
        resent(jobs, jobs.slow_task, label, queue=f"nowhere-{label}")
    else:
        with pytest.raises(jobs.AlreadyQueued) as caught:
            jobs.slow_task.delay(label)
        assert caught.value.countdown > 3000


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


def test_equal_members_of_a_chord_are_an_error_at_send_or_end_the_chord(
    ours, theirs, label, starts, end
):
    with pytest.raises(theirs.AlreadyQueued):
        chord([theirs.slow_task.s(label), theirs.slow_task.s(label)])(theirs.total.s())
    (first,) = starts()
    end(theirs.app.AsyncResult(first))

    result = chord([ours.slow_task.s(label), ours.slow_task.s(label)])(ours.total.s())
    starts(2)
    members = result.parent.results
    eventually(lambda: "REVOKED" in [each.state for each in members], "one is turned away")
    end(*(each for each in members if each.state != "REVOKED"))
    eventually(lambda: result.state == "FAILURE", "the chord has ended")
    assert "TaskSkipped" in str(result.result)


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

    def sent():
        try:
            return ours.slow_task.delay(label)
        except ours.AlreadyQueued:
            return None

    never(sent, "another is sent", TTL + 1)
    end(result)
