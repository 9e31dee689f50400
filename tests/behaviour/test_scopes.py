"""Unique while queued: the lock stands from when a task is sent, and never without its message."""

from __future__ import annotations

import os
import signal
import uuid

import pytest
from celery import chain, chord, group
from celery.exceptions import TimeLimitExceeded, WorkerLostError

from celery_redislock import TaskSkipped
from tests.support.sending import app, define, ended, length, tasks
from tests.support.waiting import eventually, never
from tests.support.workers import is_running, make_app

__all__ = ["app", "length", "tasks"]  # fixtures

QUEUE = "scopes"


@pytest.fixture(scope="module")
def worker(start_module_worker):
    """Of all tests' queues, each as long as its test wants it."""
    return start_module_worker(queues=f"q{uuid.uuid4().hex}", concurrency=4)


@pytest.fixture
def consume(worker, sender, queue):
    """Lets the worker have this test's queue: from now on what was sent runs."""

    def tell(command):
        # A worker that is just ready may not listen yet.
        return command(queue, destination=[worker.node], reply=True, timeout=2.0)

    yield lambda: eventually(lambda: tell(sender.control.add_consumer), "the worker consumes it")
    tell(sender.control.cancel_consumer)


# -- sending ----------------------------------------------------------------------------------


def test_the_lock_passes_from_the_message_to_the_run_and_stands_until_its_end(
    tasks, label, consume, journal
):
    first = tasks.send("unique", label, 3.0)
    consume()
    eventually(lambda: journal.count(label, "start") == 1, "it runs")
    assert not tasks.unique.lock_holder(label).queued
    assert tasks.send("unique", label).id == first.id
    assert first.get(timeout=20)[1] > 0
    eventually(lambda: tasks.unique.lock_holder(label) is None, "the lock is free")
    second = tasks.send("unique", label)
    assert second.id != first.id
    assert second.get(timeout=20)
    assert journal.count(label, "start") == 2


def test_a_lock_of_the_queue_alone_is_free_as_soon_as_the_task_starts(
    tasks, label, consume, journal
):
    first = tasks.send("unique_queued", label, 3.0)
    assert tasks.send("unique_queued", label).id == first.id
    consume()
    eventually(lambda: journal.count(label, "start") == 1, "it runs")
    assert tasks.unique_queued.lock_holder(label) is None
    second = tasks.send("unique_queued", label, 0.1)
    assert second.id != first.id
    assert second.get(timeout=20) == [label, 0]
    assert len(journal.overlaps(label)) == 1, "the second ran beside the first"
    assert first.get(timeout=20) == [label, 0]


def test_a_duplicate_that_is_sent_meets_the_policy(tasks, label, length, consume):
    first = tasks.send("unique_skip", label, 3.0)
    second = tasks.send("unique_skip", label)
    assert length() == 2
    consume()
    with pytest.raises(TaskSkipped) as caught:
        second.get(timeout=20)
    assert caught.value.holder.task_id == first.id
    assert first.get(timeout=20)


def test_a_task_that_sends_itself_is_its_own_duplicate(sender, label, queue, consume):
    consume()
    assert sender.send_task("sends_itself", (label,), queue=queue).get(timeout=20) is True


# -- never a lock without a message -----------------------------------------------------------


def test_a_countdown_longer_than_the_ttl_is_survived(tasks, label, consume, journal, client):
    key = tasks.unique_short.lock_key_for(label)
    consume()
    first = tasks.send("unique_short", label, 0.1, countdown=5)
    assert 33_000 < client.pttl(key) <= 35_000
    never(lambda: tasks.send("unique_short", label).id != first.id, "another was sent", 2.5)
    assert first.get(timeout=20)
    assert journal.count(label, "start") == 1


# -- retries and copies -----------------------------------------------------------------------


@pytest.mark.parametrize("countdown", [0, 1])
def test_a_retry_gets_the_lock_without_a_gap(tasks, label, consume, client, journal, countdown):
    consume()
    first = tasks.send("unique_retries", label, 2, countdown)
    key = tasks.unique_retries.lock_key_for(label)
    while client.exists(key):
        pass
    assert journal.count(label, "end") == 3
    assert first.get(timeout=20) == 2
    assert len({entry.task_id for entry in journal.read(label, "start")}) == 1


def test_between_two_attempts_the_lock_says_who_waits_in_the_queue(tasks, label, consume, journal):
    consume()
    first = tasks.send("unique_retries", label, 1, 3)
    eventually(lambda: journal.count(label, "end") == 1, "its first attempt ended")
    holder = eventually(
        lambda: (h := tasks.unique_retries.lock_holder(label)) and h.queued and h, "it is queued"
    )
    assert (holder.task_id, holder.attempt) == (first.id, 1)
    first.revoke()
    eventually(lambda: tasks.unique_retries.lock_holder(label) is None, "its revoking frees it")


def test_a_retry_of_a_task_that_is_unique_in_the_queue_runs_all_the_same(
    tasks, label, consume, journal
):
    consume()
    first = tasks.send("unique_queued_retries", label, 1, 4)
    eventually(lambda: journal.count(label, "start") == 1, "its first attempt runs")
    eventually(lambda: tasks.unique_queued_retries.lock_holder(label), "its retry is queued")
    assert tasks.send("unique_queued_retries", label).id == first.id
    assert first.get(timeout=20) == 1
    assert tasks.unique_queued_retries.lock_holder(label) is None


def test_a_task_that_replaces_itself_keeps_the_lock(tasks, label, consume, client, journal):
    consume()
    first = tasks.send("unique_pages", label, 3)
    key = tasks.unique_pages.lock_key_for(label)
    while client.exists(key):
        pass
    assert journal.count(label, "end") == 4
    assert first.get(timeout=20) == "last page"
    assert journal.overlaps(label) == []


def test_a_message_that_is_delivered_twice_runs_once(
    tasks, label, queue, consume, redis_server, journal
):
    first = tasks.send("unique_late", label, 1.0)
    with redis_server.client(db=1) as broker:
        (message,) = broker.lrange(queue, 0, -1)
        broker.rpush(queue, message)
    consume()
    assert first.get(timeout=20)
    eventually(lambda: tasks.unique_late.lock_holder(label) is None, "the lock is free", 20)
    never(lambda: journal.count(label, "start") > 1, "the copy runs", 1)


def test_a_run_that_met_its_hard_time_limit_is_nobodys_original(tasks, label, consume):
    """Celery stores the result some 100 ms before the process is dead and the lock is free."""
    consume()
    for _ in range(3):
        first = tasks.send("unique_limited", label, 60.0)
        with pytest.raises(TimeLimitExceeded):
            first.get(timeout=30, interval=0.01)
        second = tasks.send("unique_limited", label, 0.1)
        assert second.id != first.id
        assert second.get(timeout=20)[0] == label, "it ran, and met no lock"


def test_a_child_that_dies_before_it_takes_its_lock_fails_its_task_and_frees_what_was_kept(
    tasks, label, consume, length
):
    """Its own reservation is no other delivery that would go on with the task."""
    consume()
    result = tasks.send("unique_killed", label)
    with pytest.raises(WorkerLostError):
        result.get(timeout=30)
    eventually(lambda: tasks.unique_killed.lock_holder(label) is None, "the lock is free")
    assert length() == 0


@pytest.mark.parametrize("how", ["max_tasks_per_child", "killed"])
def test_what_a_child_could_not_free_before_it_ended_is_freed_when_the_server_answers(
    tasks, label, queue, start_worker, journal, proxy, conf, how
):
    more = {"worker_max_tasks_per_child": 1} if how == "max_tasks_per_child" else {}
    url = proxy.in_front_of(conf["redislock_url"])
    start_worker(queues=f"{queue}-now", concurrency=2, conf={"redislock_url": url, **more})
    proxy.cut_off()
    sent = {
        # The worker looks every two seconds.
        f"{label}{countdown}": tasks.send(
            "unique_queued", f"{label}{countdown}", 0.1, queue=f"{queue}-now", countdown=countdown
        )
        for countdown in (None, 4.0)
    }
    for own, result in sent.items():
        assert result.get(timeout=20)
        (run,) = journal.read(own, "start")
        if how == "killed":
            os.kill(run.pid, signal.SIGKILL)
        eventually(lambda run=run: not is_running(run.pid), "its process has ended")
        holder = tasks.unique_queued.lock_holder(own)
        assert (holder.task_id, holder.queued) == (result.id, True)
    proxy.reconnect()
    for own in sent:
        eventually(lambda own=own: tasks.unique_queued.lock_holder(own) is None, "it is free", 20)


def test_what_moved_to_the_next_message_is_not_freed_with_the_one_before(
    tasks, label, queue, start_worker, proxy, conf
):
    """The main process looks after reservations of tasks that have ended: this one has not."""
    url = proxy.in_front_of(conf["redislock_url"])
    worker = start_worker(queues=f"{queue}-now", concurrency=1, conf={"redislock_url": url})
    proxy.cut_off()
    first = tasks.send("unique", label, 0.1, queue=f"{queue}-now")
    eventually(lambda: worker.log().count(" is deferred for ") == 3, "it is to come in 4 s")
    proxy.reconnect()
    never(lambda: tasks.unique.lock_holder(label) is None, "its reservation is freed", 3.5)
    assert first.get(timeout=20)
    eventually(lambda: tasks.unique.lock_holder(label) is None, "the lock is free")


def test_a_reservation_under_another_name_is_freed_when_its_message_runs(
    conf, label, queue, consume, client
):
    """The sender's code is older than the worker's."""
    with make_app(conf) as older:
        task = define(older, "unique", lock_scope="queued+running", lock_key="old:{label}")
        result = task.apply_async((label, 0.1), queue=queue)
        assert task.lock_holder(label).queued
        consume()
        assert result.get(timeout=20)
        assert not client.exists(task.lock_key_for(label))


# -- who waits --------------------------------------------------------------------------------


def test_who_waits_for_a_queued_task_leaves_it_the_only_slot(
    app, tasks, label, queue, start_worker, journal
):
    start_worker(queues=queue, concurrency=1)
    for name in ("unique_wait", "unique_line"):
        own = f"{label}-{name}"
        first = tasks.send(name, own, 0.1, countdown=6)
        second = app.send_task(name, (own, 0.1), queue=queue)
        other = tasks.send(name, f"{own}-other", 0.1)
        assert other.get(timeout=20)
        assert not journal.read(own, "start"), "the slot is free meanwhile"
        assert first.get(timeout=20)
        assert second.get(timeout=20)
        assert [entry.task_id for entry in journal.read(own, "start")] == [first.id, second.id]


def test_who_waits_for_a_revoked_message_has_its_turn(app, tasks, label, queue, consume):
    consume()
    first = tasks.send("unique_line", label, countdown=4)
    second = app.send_task("unique_line", (label, 0.1), queue=queue)
    first.revoke()
    assert second.get(timeout=20)


# -- canvas: nobody waits for ever ------------------------------------------------------------


@pytest.mark.parametrize("name", ["unique", "unique_or_raise", "unique_skip"])
def test_a_chord_with_a_duplicate_fails_fast(tasks, label, queue, consume, name):
    consume()
    header = [tasks.sig(name, label, 1.0), tasks.sig(name, label, 1.0)]
    result = chord(header)(tasks.total.s().set(queue=queue))
    assert isinstance(ended(result), Exception)
    eventually(lambda: tasks.unique.lock_holder(label) is None, "the lock is free")


def test_a_chord_of_tasks_that_are_unique_in_the_queue_runs(tasks, label, queue, consume):
    consume()
    header = [tasks.sig("unique_queued", label, 0.1) for _ in range(3)]
    assert ended(chord(header)(tasks.total.s().set(queue=queue))) == 3


@pytest.mark.parametrize("name", ["unique", "unique_or_raise", "unique_queued"])
def test_a_chord_whose_body_is_a_duplicate_ends(tasks, label, consume, name):
    consume()
    stands = tasks.send(name, label, 3.0, countdown=1)
    header = [tasks.sig(name, f"{label}-{n}", 0.1) for n in range(2)]
    result = chord(header)(tasks.sig(name, label, 0.1))
    outcome = ended(result)
    if name == "unique_queued":
        assert outcome == [label, 0]
    else:
        assert isinstance(outcome, TaskSkipped)
        assert outcome.holder.task_id == stands.id


@pytest.mark.parametrize("name", ["unique", "unique_or_raise", "unique_queued"])
def test_a_chain_may_have_the_same_lock_twice(tasks, label, consume, journal, name):
    consume()
    result = chain(*(tasks.sig(name, label, 0.1) for _ in range(3)))()
    assert ended(result)[0] == label
    assert journal.count(label, "start") == 3


@pytest.mark.parametrize("name", ["unique", "unique_or_raise"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_chain_with_a_duplicate_fails_fast(tasks, label, consume, journal, name, place):
    consume()
    holder = tasks.send(name, label, 4.0)
    eventually(lambda: journal.count(label, "start") == 1, "it stands")
    links = [tasks.sig(name, f"{label}-{n}", 0.1) for n in range(3)]
    links[place] = tasks.sig(name, label, 0.1)
    assert isinstance(ended(chain(*links)()), TaskSkipped)
    assert not holder.ready(), "it did not wait"


@pytest.mark.parametrize("name", ["unique", "unique_or_raise", "unique_queued"])
def test_a_group_with_duplicates_ends(tasks, label, consume, name):
    consume()
    results = group(tasks.sig(name, label, 0.5) for _ in range(3))()
    outcomes = [ended(result) for result in results]
    assert any(isinstance(outcome, list) for outcome in outcomes)


# -- a lock server that is away ---------------------------------------------------------------


def test_a_message_without_a_reservation_is_a_duplicate_like_any_other(
    app, tasks, label, queue, consume
):
    consume()
    first = tasks.send("unique", label, countdown=4)
    with pytest.raises(TaskSkipped) as caught:
        app.send_task("unique", (label,), queue=queue).get(timeout=20)
    assert (caught.value.holder.task_id, caught.value.holder.queued) == (first.id, True)
