"""The newer run wins: the running one is told, then terminated; the lock passes when it is gone."""

from __future__ import annotations

import itertools
import json

import pytest
from celery import chain, chord, signature

from celery_redislock import ConfigError, Holder, RedisLock, Replace, TaskReplaced, TaskSkipped
from celery_redislock.core import holders
from celery_redislock.core.claims import (
    EXTENDED,
    Acquired,
    Claim,
    Done,
    Extension,
    Older,
    Parked,
    Turn,
    new_token,
)
from celery_redislock.core.connections import pools_from_url
from celery_redislock.core.keys import lock_keys
from celery_redislock.core.store import Store
from tests.acceptance.test_scopes import define, ended, make_sender
from tests.support.waiting import eventually, never
from tests.support.workers import is_running

QUEUE = "replace"


@pytest.fixture(scope="module")
def worker(start_module_worker):
    return start_module_worker("-E", queues=QUEUE, concurrency=4)


@pytest.fixture
def started(journal, label):
    """Waits for so many runs of the label, and gives the last."""

    def started(count=1):
        eventually(lambda: journal.count(label, "start") == count, f"{count} started")
        return journal.read(label, "start")[-1]

    return started


@pytest.mark.parametrize("name", ["replaced", "replaced_late"])
def test_the_running_one_is_terminated_and_the_lock_passes_when_it_is_gone(
    worker, send, journal, label, started, name
):
    first = send(name, label, 60)
    victim = started()
    second = send(name, label, 0.2)
    entry = started(2)
    assert entry.task_id == second.id
    assert journal.overlaps(label) == []
    eventually(lambda: not is_running(victim.pid), "its process is gone")
    with pytest.raises(TaskReplaced) as caught:
        first.get(timeout=10)
    assert first.state == "REVOKED"
    assert (caught.value.holder.task, caught.value.holder.task_id) == (name, second.id)
    assert "replaced by a newer run" in str(caught.value)
    assert second.get(timeout=10)[0] == label
    never(lambda: journal.count(label, "start") > 2, "the first one runs again", 1.5)


def test_the_running_one_is_told_and_may_end_by_itself(worker, send, label, started, client):
    first = send("replaced_gently", label)
    victim = started()
    second = send("replaced_gently", label, 0.2)
    assert isinstance(ended(first), TaskReplaced)
    assert first.state == "REVOKED"
    assert second.get(timeout=10) == label
    assert is_running(victim.pid), "its process lives on"


def test_a_body_that_ends_well_within_its_grace_has_its_result(worker, send, label, started):
    first = send("replaced_gently", label, 60, "return")
    started()
    second = send("replaced_gently", label, 0.1)
    assert first.get(timeout=10) == label
    assert second.get(timeout=10) == label


def test_a_body_may_be_ended_by_an_exception(worker, send, label, started):
    first = send("replaced_by_abort", label, 60)
    victim = started()
    second = send("replaced_by_abort", label, 0.1)
    assert isinstance(ended(first), TaskReplaced)
    assert second.get(timeout=10)
    assert is_running(victim.pid)


def test_within_its_grace_a_body_is_left_alone(worker, send, journal, label, started):
    first = send("replaced_sometime", label, 2.5)
    started()
    second = send("replaced_sometime", label, 0.1)
    assert first.get(timeout=10)[0] == label
    assert second.get(timeout=10)
    assert journal.overlaps(label) == []
    assert [entry.data["lost"] for entry in journal.read(label, "end")] == [True, False]


def test_of_several_newcomers_the_newest_runs(worker, send, journal, label, started):
    first = send("replaced_sometime", label, 4)
    started()
    others = []
    for _ in range(3):
        before = len(others)
        others.append(send("replaced_sometime", label, 0.1))
        if before:
            assert isinstance(ended(others[before - 1]), TaskSkipped)
            assert ended(others[before - 1]).holder.task_id == others[before].id
        else:
            eventually(lambda: journal.count(label, "start") == 1, "it waits")
    assert first.get(timeout=10)
    assert others[-1].get(timeout=10)
    assert journal.count(label, "start") == 2


def test_who_replaces_is_replaced_in_turn(worker, send, label, started):
    runs = [send("replaced", label, 60)]
    for count in range(1, 4):
        started(count)
        runs.append(send("replaced", label, 60 if count < 3 else 0.1))
    for run, successor in itertools.pairwise(runs):
        assert ended(run).holder.task_id == successor.id
    assert runs[-1].get(timeout=10)


def test_a_retry_of_the_replaced_does_not_run(worker, send, journal, label, started):
    first = send("replaced_gently", label, 60, "retry")
    started()
    second = send("replaced_gently", label, 0.1, "return")
    assert second.get(timeout=10) == label
    assert ended(first).holder.task_id == second.id
    assert journal.count(label, "start") == 2


def test_the_chain_and_the_chord_of_the_replaced_fail_fast(worker, send, sender, label, started):
    def sig(name, *args):
        return signature(name, args, app=sender, immutable=True).set(queue=QUEUE)

    chained = chain(sig("replaced", label, 60), sig("skip", f"{label}-next"))()
    started()
    total = signature("total", app=sender).set(queue=QUEUE)
    body = chord([sig("replaced", label, 60), sig("skip", f"{label}-other", 0.1)], app=sender)(
        total
    )
    assert isinstance(ended(chained, 10), TaskReplaced)
    started(2)
    last = send("replaced", label, 0.1)
    assert isinstance(ended(body, 10), Exception)
    assert last.get(timeout=10)


def test_a_process_that_stands_the_signal_is_killed(start_worker, send, queue, label, started):
    start_worker(queues=queue, concurrency=2)
    first = send("stubborn", label, 60, queue=queue)
    victim = started()
    second = send("stubborn", label, 0.1, queue=queue)
    assert started(2).task_id == second.id
    assert not is_running(victim.pid)
    assert second.get(timeout=20)
    assert ended(first).holder.task_id == second.id


@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_where_nothing_can_be_terminated_the_newcomer_waits(
    start_worker, send, journal, queue, label, started, pool
):
    start_worker(queues=queue, pool=pool, concurrency=4)
    first = send("replaced", label, 3, queue=queue)
    started()
    second = send("replaced", label, 0.1, queue=queue)
    assert first.get(timeout=20)[0] == label
    assert second.get(timeout=20)[0] == label
    assert journal.overlaps(label) == []
    assert [entry.data["lost"] for entry in journal.read(label, "end")] == [True, False]
    gentle = send("replaced_gently", f"{label}-2", queue=queue)
    eventually(lambda: journal.count(f"{label}-2", "start") == 1, "it runs")
    third = send("replaced_gently", f"{label}-2", 0.1, queue=queue)
    assert isinstance(ended(gentle), TaskReplaced)
    assert third.get(timeout=20)


def test_a_redis_lock_is_told_too(worker, send, conf, redis_server, label):
    app = make_sender(conf)
    task = define(app, "replaced")
    key = task.lock_key_for(label)
    name = key.split(":lock:")[1]
    lock = RedisLock(conf["redislock_url"], name, ttl=3)
    assert lock.acquire(0)
    result = send("replaced", label, 0.1)
    eventually(lambda: lock.lost, "it is told")
    holder = task.lock_holder(label)
    assert holder.replaced_by == result.id
    assert f"to be replaced by {result.id}" in str(holder)
    never(result.ready, "it runs beside the holder", 3.5)
    assert lock.release()
    assert result.get(timeout=10)
    app.close()


def test_a_message_in_the_queue_is_replaced_before_it_runs(worker, send, conf, journal, label):
    app = make_sender(conf)
    task = app.tasks["unique_newest"]
    first = task.apply_async((label, 0.1), queue=QUEUE, countdown=6)
    assert task.lock_holder(label).task_id == first.id
    second = task.apply_async((label, 0.1), queue=QUEUE)
    assert second.get(timeout=5)
    assert ended(first).holder.task_id == second.id
    assert first.state == "REVOKED"
    assert journal.count(label, "start") == 1
    assert task.lock_holder(label) is None
    app.close()


def test_it_makes_no_sense_for_a_lock_that_several_hold(conf):
    app = make_sender(conf)
    define(app, "contradicts", lock_limit=2, on_conflict=Replace())
    with pytest.raises(ConfigError, match="lock_limit=2"):
        app.finalize()
    app.close()


@pytest.mark.parametrize("grace", [-1, None, True, "5", float("inf")])
def test_a_grace_is_a_number_of_seconds(grace):
    with pytest.raises(ConfigError, match="grace="):
        Replace(grace=grace)


# -- in the store -----------------------------------------------------------------------------


@pytest.fixture
def store(redis_server):
    store = Store(pools_from_url(redis_server.url))
    yield store
    store.close()


def claim_of(label, task_id, arrived=None, attempt=0, kept=""):
    token = new_token()
    value = holders.encode(
        token, ttl_ms=5000, task="pkg.task", task_id=task_id, attempt=attempt, arrived=arrived
    )
    return Claim(lock_keys("redislock", label), token, 5, value, task_id, attempt, kept=kept)


def park(store, claim, arrived=None, grace=5.0, age=0.0):
    by = holders.successor_text("pkg.task", claim.task_id)
    entry = json.dumps({"task": "pkg.task", "task_id": claim.task_id})
    return store.rooms.park(
        claim, entry, kind="pkg.task", in_front=True, replace=(by, grace), arrived=arrived, age=age
    )


def extension(claim, held):
    return Extension(claim, held.value, held.fence, retake=True)


def test_a_holder_hears_from_its_extension_who_waits_and_how_long_it_may_go_on(store, label):
    holder, first, second = (claim_of(label, task_id) for task_id in ("runs", "first", "second"))
    held = store.locks.acquire(holder)
    (reply,) = store.locks.extend([extension(holder, held)])
    assert reply.replaced_by is None
    assert isinstance(park(store, first), Parked)
    (reply,) = store.locks.extend([extension(holder, held)])
    assert reply.outcome == EXTENDED
    assert reply.replaced_by == Holder(task="pkg.task", task_id="first")
    assert 4 < reply.ends_in <= 5
    assert list(park(store, second, grace=60).replaced) == [first.entry_id]
    (reply,) = store.locks.extend([extension(holder, held)])
    assert reply.replaced_by.task_id == "second"
    assert reply.ends_in <= 5, "the time that it was given first counts"
    assert store.locks.holder(holder.keys, 5).replaced_by == "second"
    offered = store.locks.settle(holder).offered
    assert offered.entry_id == second.entry_id
    second = claim_of(label, "second", kept=offered.token)
    assert isinstance(store.locks.acquire(second), Acquired)
    assert isinstance(store.locks.acquire(first), Done)


def test_what_arrived_before_replaces_neither_who_runs_nor_who_waits(store, label):
    holder = claim_of(label, "runs", arrived=100.0)
    held = store.locks.acquire(holder)
    older = park(store, claim_of(label, "old"), arrived=99.0)
    assert isinstance(older, Older)
    assert older.holder.task_id == "runs"
    (reply,) = store.locks.extend([extension(holder, held)])
    assert reply.replaced_by is None
    assert isinstance(park(store, claim_of(label, "new"), arrived=102.0), Parked)
    assert park(store, claim_of(label, "between"), arrived=101.0) == Older("new")
    assert store.locks.holder(holder.keys, 5).replaced_by == "new"
    assert isinstance(park(store, claim_of(label, "nobody noted when")), Parked)


def test_of_two_whose_age_is_known_the_older_replaces_neither(store, client, label):
    """Each is measured where the message was received; the times are the lock server's."""
    token = new_token()
    value = holders.encode(token, ttl_ms=5000, task="pkg.task", task_id="runs", age=5.0)
    holder = Claim(lock_keys("redislock", label), token, 5, value, "runs")
    assert isinstance(store.locks.acquire(holder), Acquired)
    older = park(store, claim_of(label, "old"), age=8.0)
    assert isinstance(older, Older)
    assert older.holder.task_id == "runs"
    assert isinstance(park(store, claim_of(label, "new"), age=2.0), Parked)
    assert park(store, claim_of(label, "between"), age=4.0) == Older("new")


@pytest.mark.parametrize("kept", ["for its retry", "in the queue"])
def test_what_does_not_run_is_replaced_at_once_and_its_message_finds_out(store, label, kept):
    holder, newer = claim_of(label, "runs"), claim_of(label, "newer")
    held = store.locks.acquire(holder)
    if kept == "for its retry":
        store.locks.leave(holder, holders.held_for_retry(held.value), 60)
    else:
        value = holders.kept_in_queue(held.value, new_token(), task="t", attempt=1, nesting=0)
        store.locks.leave(holder, value, 60)
    assert isinstance(park(store, newer), Turn)
    assert isinstance(store.locks.acquire(newer), Acquired)
    reply = store.locks.acquire(claim_of(label, "runs", attempt=1))
    assert isinstance(reply, Done)
    assert reply.note.replaced_by == Holder(task="pkg.task", task_id="newer")
    again = store.locks.acquire(claim_of(label, "runs", attempt=1))
    assert again.note.replaced_by.task_id == "newer"


def test_what_cools_down_or_is_not_ours_is_waited_for(store, client, label):
    holder, newer = claim_of(label, "runs"), claim_of(label, "newer")
    store.locks.acquire(holder)
    store.locks.settle(holder, min_hold=60)
    before = client.get(holder.keys.lock)
    assert isinstance(park(store, newer), Parked)
    assert client.get(holder.keys.lock) == before
    client.set(holder.keys.lock, "foreign")
    assert isinstance(park(store, claim_of(label, "newest")), Parked)
    assert client.get(holder.keys.lock) == "foreign"


@pytest.mark.parametrize("task_id", ["0c1e", 'a "quoted" one', "}]\\", "ключ", "\U0001f511", ""])
def test_a_successor_survives_whatever_it_is_called(task_id):
    text = holders.successor_text("pkg.task", task_id)
    assert text.count('"') == 4
    assert json.loads(text) == ["pkg.task", task_id]
    value = f'{{"token":"x","replaced":5,"by":{text}}}'.encode()
    assert holders.successor_of(value) == Holder(task="pkg.task", task_id=task_id)
    assert holders.parse(value, None).replaced_by == task_id
