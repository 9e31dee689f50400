"""Unique while queued: the lock stands from when a task is sent, and never without its message."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import signal
import threading
import time
import uuid
from datetime import datetime, timedelta, timezone

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import TimeoutError as ResultTimeout
from kombu.exceptions import OperationalError

from celery_redislock import (
    ConfigError,
    Holder,
    LockConflict,
    LockUnavailable,
    Queue,
    SingletonTask,
    TaskSkipped,
    lock_conflict,
)
from celery_redislock.app.delivery import KEY, Delivery, Kept
from celery_redislock.core import holders
from celery_redislock.core.claims import Acquired, Busy, Claim, Reserved, new_token
from celery_redislock.core.connections import pools_from_url
from celery_redislock.core.keys import lock_keys
from celery_redislock.core.store import Store
from celery_redislock.tasks import reserve
from tests.support.interrupts import interrupted
from tests.support.lateness import elapsed
from tests.support.servers import free_port
from tests.support.unique import UNIQUE
from tests.support.waiting import eventually, never

QUEUE = "scopes"


def body(label, seconds=0.2, how="return"):
    """Has the worker's signature, and runs there only."""


def make_sender(conf, **overrides):
    """An app that has the tasks' code, as a web server has."""
    app = Celery("scopes", set_as_current=False)
    app.conf.update({k: v for k, v in conf.items() if not k.startswith("test_")})
    app.conf.update(overrides)
    for name, options in UNIQUE.items():
        define(app, name, **options)
    for name in ("unique_retries", "unique_pages"):
        define(app, name, lock_scope="queued+running")
    define(app, "unique_queued_retries", lock_scope="queued")
    define(app, "skip")
    app.task(name="total", shared=False)(lambda_total)
    return app


def lambda_total(numbers):
    """The body of the chords."""


def define(app, name, **options):
    if name.endswith("retries"):
        function = retries_body
    elif name == "unique_pages":
        function = pages_body
    else:
        function = body
    defaults = {"base": SingletonTask, "lock_key": ["label"], "lock_ttl": 6, "shared": False}
    return app.task(**{**defaults, **options, "name": name})(function)


def retries_body(label, times=1, countdown=0):
    """As the worker's."""


def pages_body(label, left=2):
    """As the worker's."""


@pytest.fixture(scope="module")
def app(conf):
    app = make_sender(conf)
    yield app
    gc.collect()  # results that nobody asked for, while there is a server
    app.close()


@pytest.fixture
def tasks(app, queue):
    """The sender's tasks by name, sent to this test's own queue."""

    class Tasks:
        def __getattr__(self, name):
            return app.tasks[name]

        def send(self, name, *args, **options):
            return app.tasks[name].apply_async(args, **{"queue": queue, **options})

        def sig(self, name, *args):
            return app.tasks[name].si(*args).set(queue=queue)

    return Tasks()


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


@pytest.fixture
def length(redis_server, queue):
    """How many messages are in this test's queue."""
    with redis_server.client(db=1) as broker:
        yield lambda: broker.llen(queue)


@pytest.fixture
def heard():
    """What the signal of conflicts told in this process."""
    told = []

    def hear(sender, details, **kwargs):
        told.append(details)

    lock_conflict.connect(hear)
    yield told
    lock_conflict.disconnect(hear)


def reservation(label, task_id="", attempt=0):
    token = new_token()
    value = holders.encode(
        token, ttl_ms=5000, task="pkg.task", task_id=task_id, attempt=attempt, queued=True
    )
    return Claim(lock_keys("redislock", label), token, 5, value, task_id, attempt)


def delivery(label, task_id="", attempt=0, kept=""):
    token = new_token()
    value = holders.encode(token, ttl_ms=5000, task="pkg.task", task_id=task_id, attempt=attempt)
    keys = lock_keys("redislock", label)
    return Claim(keys, token, 5, value, task_id, attempt, kept=kept)


# -- in the store -----------------------------------------------------------------------------


def test_a_reservation_stands_under_the_locks_key_and_names_who_is_queued(store, inside, label):
    mine = reservation(label, "0c1e")
    assert isinstance(store.locks.reserve(mine, 20), Reserved)
    assert 19_000 < inside.pttl(mine.keys.lock) <= 20_000
    holder = store.locks.holder(mine.keys, 5)
    assert (holder.task_id, holder.queued, holder.fence) == ("0c1e", True, None)
    assert abs(holder.acquired_at - time.time()) < 5
    assert str(holder).endswith(", waiting in the queue")

    other = store.locks.reserve(reservation(label, "other"), 20)
    assert isinstance(other, Busy)
    assert other.holder.task_id == "0c1e"
    assert isinstance(store.locks.acquire(delivery(label, "other")), Busy)


def test_asked_again_with_its_own_token_it_is_still_reserved(store, label):
    mine = reservation(label)
    assert isinstance(store.locks.reserve(mine, 20), Reserved)
    assert isinstance(store.locks.reserve(mine, 20), Reserved)


def test_the_first_copy_of_the_message_takes_it_over_and_no_other_one(store, inside, label):
    mine = reservation(label, "0c1e")
    store.locks.reserve(mine, 20)
    first, copy = (delivery(label, "0c1e", kept=mine.token) for _ in range(2))
    taken = store.locks.acquire(first)
    assert isinstance(taken, Acquired)
    assert inside.pttl(mine.keys.lock) <= 5_000
    assert not store.locks.holder(mine.keys, 5).queued
    reply = store.locks.acquire(copy)
    assert isinstance(reply, Busy)
    assert reply.relation == "own"
    assert store.locks.keep_reserved(mine, 60) is False
    assert not store.locks.settle(mine).ours
    assert store.locks.settle(first).ours


def test_a_message_that_lost_its_header_is_known_by_its_task(store, label):
    store.locks.reserve(reservation(label, "0c1e"), 20)
    assert isinstance(store.locks.acquire(delivery(label, "0c1e")), Acquired)


def test_a_copy_of_an_earlier_attempt_does_not_take_what_is_kept_for_the_next(store, label):
    mine = reservation(label, "0c1e", attempt=1)
    store.locks.reserve(mine, 20)
    assert not isinstance(store.locks.acquire(delivery(label, "0c1e")), Acquired)
    assert isinstance(store.locks.acquire(delivery(label, "0c1e", attempt=1)), Acquired)


def test_a_lapsed_reservation_is_not_revived(store, inside, label):
    mine = reservation(label)
    store.locks.reserve(mine, 0.01)
    eventually(lambda: not inside.exists(mine.keys.lock), "it lapsed")
    assert store.locks.keep_reserved(mine, 60) is False
    assert not inside.exists(mine.keys.lock)


def test_a_foreign_value_is_left_alone(store, inside, label):
    mine = reservation(label)
    inside.rpush(mine.keys.lock, "x")
    reply = store.locks.reserve(mine, 20)
    assert isinstance(reply, Busy)
    assert reply.holder.task_id is None
    assert inside.type(mine.keys.lock) == "list"


def test_while_somebody_is_in_the_room_a_free_lock_is_not_reserved(store, inside, label):
    holder, waiter = delivery(label, "runs"), delivery(label, "waits")
    store.locks.acquire(holder)
    store.rooms.park(waiter, json.dumps({"task": "pkg.task", "task_id": "waits"}))
    inside.delete(holder.keys.lock)
    for is_first in (True, False):
        reply = store.locks.reserve(reservation(label, "new"), 20)
        assert isinstance(reply, Busy)
        assert (reply.holder.task_id, reply.holder.queued) == ("waits", True)
        assert (reply.offered is not None) is is_first, "its message is to be published once"
    assert isinstance(store.locks.acquire(waiter), Acquired)


def test_a_lock_for_several_is_reserved_slot_by_slot(store, label):
    keys = lock_keys("redislock", label, 2)
    claims = [dataclasses.replace(reservation(label, f"{n}"), keys=keys) for n in range(3)]
    replies = [store.locks.reserve(claim, 20) for claim in claims]
    assert [type(reply) for reply in replies] == [Reserved, Reserved, Busy]
    assert replies[2].holder.task_id == "0"
    second = dataclasses.replace(delivery(label, "1", kept=claims[1].token), keys=keys)
    assert isinstance(store.locks.acquire(second), Acquired)
    assert store.locks.settle(claims[0]).ours
    assert isinstance(store.locks.reserve(claims[2], 20), Reserved)
    assert store.locks.settle(second).ours


def test_a_servers_restart_is_held_off_here_too(own_redis, label):
    store = Store(pools_from_url(own_redis.url))
    store.locks.acquire(delivery(label, "runs"))
    own_redis.restart_empty()
    with pytest.raises(LockUnavailable, match="held off"):
        store.locks.reserve(reservation(label), 20)
    store.close()


# -- sending ----------------------------------------------------------------------------------


def test_a_duplicate_gets_the_result_of_the_one_in_the_queue(tasks, label, length, heard):
    first = tasks.send("unique", label, 0.1)
    again = tasks.send("unique", label, 5.0, "raise")
    assert again.id == first.id
    assert length() == 1
    other = tasks.send("unique", f"{label}-other")
    assert other.id != first.id
    (said,) = heard
    assert (said.outcome, said.holder.task_id, said.holder.queued) == ("not sent", first.id, True)
    assert tasks.unique.lock_holder(label).queued


def test_the_lock_passes_from_the_message_to_the_run_and_stands_until_its_end(
    tasks, label, queue, consume, client, journal
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
    tasks, label, queue, consume, journal
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


def test_a_duplicate_may_be_told(tasks, label, length):
    first = tasks.send("unique_or_raise", label)
    with pytest.raises(LockConflict) as caught:
        tasks.send("unique_or_raise", label)
    assert caught.value.holder.task_id == first.id
    assert caught.value.key == tasks.unique_or_raise.lock_key_for(label)
    assert length() == 1


def test_a_duplicate_that_is_sent_meets_the_policy(tasks, label, queue, length, consume):
    first = tasks.send("unique_skip", label, 3.0)
    second = tasks.send("unique_skip", label)
    assert length() == 2
    consume()
    with pytest.raises(TaskSkipped) as caught:
        second.get(timeout=20)
    assert caught.value.holder.task_id == first.id
    assert first.get(timeout=20)


def test_delay_and_signatures_come_here_and_a_name_alone_does_not(app, tasks, label, queue, length):
    app.conf.task_default_queue = queue
    try:
        first = tasks.unique.delay(label)
        assert tasks.unique.s(label).delay().id == first.id
        assert tasks.unique.s().apply_async((label,)).id == first.id
        assert length() == 1
        assert app.send_task("unique", (label,)).id != first.id
        assert length() == 2
    finally:
        app.conf.task_default_queue = "celery"


def test_a_task_that_sends_itself_is_its_own_duplicate(sender, label, queue, consume):
    consume()
    assert sender.send_task("sends_itself", (label,), queue=queue).get(timeout=20) is True


def test_arguments_that_do_not_fit_are_refused_as_celery_does(tasks, client, label):
    with pytest.raises(TypeError, match="label"):
        tasks.send("unique")


# -- never a lock without a message -----------------------------------------------------------


def test_a_broker_that_is_away_leaves_no_lock(conf, label):
    app = make_sender(
        conf, broker_url=f"redis://127.0.0.1:{free_port()}/0", task_publish_retry=False
    )
    with pytest.raises((OperationalError, OSError)):
        app.tasks["unique"].delay(label)
    assert app.tasks["unique"].lock_holder(label) is None
    app.close()


def test_an_interrupt_while_the_broker_hangs_leaves_no_lock(conf, own_redis, label):
    app = make_sender(conf, broker_url=own_redis.url)
    app.tasks["unique"].delay(f"{label}-other")  # connected
    own_redis.stop()
    try:
        with interrupted(KeyboardInterrupt, "_put"), pytest.raises(KeyboardInterrupt):
            app.tasks["unique"].delay(label)
    finally:
        own_redis.resume()
    assert app.tasks["unique"].lock_holder(label) is None
    app.close()


def test_while_the_broker_hangs_the_lock_stands_for_a_short_time_only(
    conf, own_redis, label, client, monkeypatch
):
    monkeypatch.setattr(reserve, "PUBLISHING", 1.0)
    app = make_sender(conf, broker_url=own_redis.url)
    task = app.tasks["unique"]
    task.delay(f"{label}-other")
    own_redis.stop()
    sent = []
    thread = threading.Thread(target=lambda: sent.append(task.delay(label)), daemon=True)
    thread.start()
    eventually(lambda: task.lock_holder(label), "it was reserved")
    assert client.pttl(task.lock_key_for(label)) <= 1000
    eventually(lambda: task.lock_holder(label) is None, "it lapsed")
    own_redis.resume()
    thread.join(20)
    assert sent
    assert task.lock_holder(label) is None, "what lapsed is not revived"
    app.close()


def test_a_message_that_was_lost_frees_the_lock_in_the_end(tasks, label):
    first = tasks.send("unique_lost", label)
    assert tasks.send("unique_lost", label).id == first.id
    eventually(lambda: tasks.unique_lost.lock_holder(label) is None, "it lapsed", 5)
    assert tasks.send("unique_lost", label).id != first.id


def test_a_countdown_longer_than_the_ttl_is_survived(tasks, label, queue, consume, journal, client):
    key = tasks.unique_short.lock_key_for(label)
    consume()
    first = tasks.send("unique_short", label, 0.1, countdown=5)
    assert 33_000 < client.pttl(key) <= 35_000
    never(lambda: tasks.send("unique_short", label).id != first.id, "another was sent", 2.5)
    assert first.get(timeout=20)
    assert journal.count(label, "start") == 1


@pytest.mark.parametrize("form", ["number", "datetime", "text", "naive"])
def test_an_eta_and_an_expiry_in_any_form_are_counted(app, tasks, label, client, form):
    when = datetime.now(timezone.utc) + timedelta(seconds=100)
    value = {
        "number": 100,
        "datetime": when,
        "text": when.isoformat(),
        "naive": when.replace(tzinfo=None),
    }[form]
    key = tasks.unique_short.lock_key_for(label)
    tasks.send("unique_short", label, **{"countdown" if form == "number" else "eta": value})
    assert 125_000 < client.pttl(key) <= 130_000
    key = tasks.unique.lock_key_for(label)
    tasks.send("unique", label, expires=value)
    assert 95_000 < client.pttl(key) <= 100_000


def test_a_revoked_message_frees_the_lock_at_once(app, tasks, label, queue, consume, journal):
    consume()
    first = tasks.send("unique", label, countdown=4)
    assert tasks.unique.lock_holder(label).queued
    first.revoke()
    eventually(lambda: tasks.unique.lock_holder(label) is None, "the lock is free", 10)
    assert first.state == "REVOKED"
    assert journal.count(label, "start") == 0
    assert tasks.send("unique", label, 0.1).get(timeout=20)


def test_a_message_that_expired_in_the_queue_frees_the_lock(
    tasks, label, queue, start_worker, journal
):
    start_worker(queues=queue, concurrency=1)
    blocks = tasks.send("unique", f"{label}-blocks", 2.5)
    eventually(lambda: journal.count(f"{label}-blocks", "start") == 1, "the slot is taken")
    first = tasks.send("unique", label, expires=1)
    eventually(lambda: tasks.unique.lock_holder(label) is None, "the lock is free", 10)
    second = tasks.send("unique", label, 0.1)
    assert second.get(timeout=20)
    with pytest.raises(Exception, match="expired"):
        first.get(timeout=5)
    assert blocks.get(timeout=5)


# -- retries and copies -----------------------------------------------------------------------


@pytest.mark.parametrize("countdown", [0, 1])
def test_a_retry_gets_the_lock_without_a_gap(
    tasks, label, queue, consume, client, journal, countdown
):
    consume()
    first = tasks.send("unique_retries", label, 2, countdown)
    key = tasks.unique_retries.lock_key_for(label)
    while client.exists(key):
        pass
    assert journal.count(label, "end") == 3
    assert first.get(timeout=20) == 2
    assert len({entry.task_id for entry in journal.read(label, "start")}) == 1


def test_between_two_attempts_the_lock_says_who_waits_in_the_queue(
    app, tasks, label, queue, consume, journal
):
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
    tasks, label, queue, consume, journal
):
    consume()
    first = tasks.send("unique_queued_retries", label, 1, 4)
    eventually(lambda: journal.count(label, "start") == 1, "its first attempt runs")
    eventually(lambda: tasks.unique_queued_retries.lock_holder(label), "its retry is queued")
    assert tasks.send("unique_queued_retries", label).id == first.id
    assert first.get(timeout=20) == 1
    assert tasks.unique_queued_retries.lock_holder(label) is None


def test_a_task_that_replaces_itself_keeps_the_lock(tasks, label, queue, consume, client, journal):
    consume()
    first = tasks.send("unique_pages", label, 3)
    key = tasks.unique_pages.lock_key_for(label)
    while client.exists(key):
        pass
    assert journal.count(label, "end") == 4
    assert first.get(timeout=20) == "last page"
    assert journal.overlaps(label) == []


def test_a_message_that_is_delivered_twice_runs_once(
    app, tasks, label, queue, consume, redis_server, journal
):
    first = tasks.send("unique_late", label, 1.0)
    with redis_server.client(db=1) as broker:
        (message,) = broker.lrange(queue, 0, -1)
        broker.rpush(queue, message)
    consume()
    assert first.get(timeout=20)
    eventually(lambda: tasks.unique_late.lock_holder(label) is None, "the lock is free", 20)
    never(lambda: journal.count(label, "start") > 1, "the copy runs", 1)


def test_a_dead_childs_lock_is_free_at_once(tasks, label, queue, start_worker, journal):
    start_worker(queues=queue)
    tasks.send("unique", label, 60)
    (run,) = eventually(lambda: journal.read(label, "start"), "it runs")
    os.kill(run.pid, signal.SIGKILL)
    eventually(lambda: tasks.unique.lock_holder(label) is None, "the lock is free", 5)


def test_a_deferred_message_keeps_its_reservation():
    kept = Kept("1|name", "token")
    header = Delivery("t", kept=kept).next_header(outage=True)
    assert Kept.of(header) == kept
    assert Kept.of({}) is None
    assert Kept.of({KEY: {"kept": ["1|name", 5]}}) is None


def test_a_reservation_under_another_name_is_freed_when_its_message_runs(
    app, tasks, label, queue, consume, client
):
    """The sender's code is older than the worker's."""
    old = f"old:{label}"
    store = tasks.unique.app_locks.store
    mine = reservation(old)
    store.locks.reserve(mine, 60)
    headers = {KEY: Kept(mine.keys.mark, mine.token).header}
    consume()
    result = app.send_task("unique", (label, 0.1), queue=queue, headers=headers)
    assert result.get(timeout=20)
    assert not client.exists(mine.keys.lock)


# -- who waits --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["unique_wait", "unique_line"])
def test_who_waits_for_a_queued_task_leaves_it_the_only_slot(
    app, tasks, label, queue, start_worker, journal, name
):
    start_worker(queues=queue, concurrency=1)
    first = tasks.send(name, label, 0.1, countdown=2)
    second = app.send_task(name, (label, 0.1), queue=queue)
    other = tasks.send(name, f"{label}-other", 0.1)
    assert other.get(timeout=5), "the slot is free meanwhile"
    assert first.get(timeout=20)
    assert second.get(timeout=20)
    assert [entry.task_id for entry in journal.read(label, "start")] == [first.id, second.id]


def test_who_waits_for_a_revoked_message_has_its_turn(app, tasks, label, queue, consume):
    consume()
    first = tasks.send("unique_line", label, countdown=4)
    second = app.send_task("unique_line", (label, 0.1), queue=queue)
    first.revoke()
    assert second.get(timeout=20)


# -- canvas: nobody waits for ever ------------------------------------------------------------


def ended(result, timeout=20):
    """What it ended in."""
    try:
        return result.get(timeout=timeout)
    except ResultTimeout:
        raise
    except Exception as exc:
        return exc


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
def test_a_chord_whose_body_is_a_duplicate_ends(tasks, label, queue, consume, name):
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
def test_a_chain_may_have_the_same_lock_twice(tasks, label, queue, consume, journal, name):
    consume()
    result = chain(*(tasks.sig(name, label, 0.1) for _ in range(3)))()
    assert ended(result)[0] == label
    assert journal.count(label, "start") == 3


@pytest.mark.parametrize("name", ["unique", "unique_or_raise"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_chain_with_a_duplicate_fails_fast(tasks, label, queue, consume, journal, name, place):
    consume()
    tasks.send(name, label, 4.0)
    eventually(lambda: journal.count(label, "start") == 1, "it stands")
    links = [tasks.sig(name, f"{label}-{n}", 0.1) for n in range(3)]
    links[place] = tasks.sig(name, label, 0.1)
    outcome = ended(chain(*links)(), 3.5)
    assert isinstance(outcome, TaskSkipped)


@pytest.mark.parametrize("name", ["unique", "unique_or_raise", "unique_queued"])
def test_a_group_with_duplicates_ends(tasks, label, queue, consume, name):
    consume()
    results = group(tasks.sig(name, label, 0.5) for _ in range(3))()
    outcomes = [ended(result) for result in results]
    assert any(isinstance(outcome, list) for outcome in outcomes)


def test_a_duplicate_with_callbacks_or_an_id_of_its_own_is_sent(tasks, label, length):
    first = tasks.send("unique", label)
    linked = tasks.send("unique", label, link=tasks.sig("unique", label))
    named = tasks.send("unique", label, task_id=f"{label}-id")
    frozen = tasks.sig("unique", label)
    promised = frozen.freeze()
    frozen.apply_async()
    assert len({first.id, linked.id, named.id, promised.id}) == 4
    assert length() == 4
    with pytest.raises(LockConflict):
        tasks.send("unique_or_raise", label)
        tasks.send("unique_or_raise", label, link=tasks.sig("unique", label))


# -- a lock server that is away ---------------------------------------------------------------


@pytest.mark.parametrize("choice", ["defer", "run", "raise"])
def test_without_the_lock_server_a_sender_does_as_it_is_told(
    conf, label, queue, length, choice, caplog
):
    app = make_sender(conf, redislock_url=f"redis://127.0.0.1:{free_port()}/0")
    task = define(app, "choosy", lock_scope="queued+running", on_redis_error=choice)
    started = time.monotonic()
    if choice == "raise":
        with pytest.raises(LockUnavailable):
            task.apply_async((label,), queue=queue)
    else:
        task.apply_async((label,), queue=queue)
        assert "sent without a reservation" in caplog.text
    assert length() == (choice != "raise")
    chain(task.si(label).set(queue=queue), task.si(label).set(queue=queue))()
    assert length() == 1 + (choice != "raise"), "a chain is left to the worker"
    assert elapsed(started) < 6
    app.close()


def test_a_message_without_a_reservation_is_a_duplicate_like_any_other(
    app, tasks, label, queue, consume
):
    consume()
    first = tasks.send("unique", label, countdown=4)
    with pytest.raises(TaskSkipped) as caught:
        app.send_task("unique", (label,), queue=queue).get(timeout=20)
    assert (caught.value.holder.task_id, caught.value.holder.queued) == (first.id, True)


# -- eager, disabled, misconfigured -----------------------------------------------------------


def test_eager_tasks_reserve_nothing_and_need_no_server():
    app = make_sender({"broker_url": "memory://"}, task_always_eager=True)
    assert app.tasks["unique"].delay("x").successful()
    app.close()


def test_eager_tasks_that_are_to_lock_do_so(conf, label):
    app = make_sender(conf, task_always_eager=True, redislock_eager=True)
    task = app.tasks["unique"]

    @app.task(base=SingletonTask, lock_key=["label"], lock_scope="queued+running", shared=False)
    def outer(label, again=True):
        inner = outer.delay(label)
        return inner.state, inner.id

    assert task.delay(label).successful()
    assert task.lock_holder(label) is None
    assert outer.delay(label).get()[0] == "REVOKED"
    app.close()


def test_a_disabled_app_reserves_nothing(conf, label, queue):
    app = make_sender(conf, redislock_enabled=False)
    results = {app.tasks["unique"].apply_async((label,), queue=queue).id for _ in range(2)}
    assert len(results) == 2
    app.close()


CONTRADICTIONS = [
    ({"lock_queued_ttl": 60}, "lock_queued_ttl"),
    ({"on_queued_conflict": "raise"}, "on_queued_conflict"),
    ({"lock_scope": "queued", "lock_max_hold": 60}, "lock_max_hold"),
    ({"lock_scope": "queued", "lock_warn_after": 60}, "lock_warn_after"),
    ({"lock_scope": "queued", "lock_min_hold": 60}, "lock_min_hold"),
    ({"lock_scope": "queued", "on_lock_lost": "abort"}, "on_lock_lost"),
    ({"lock_scope": "queued", "lock_across_retries": "hold"}, "lock_across_retries"),
    ({"lock_scope": "queued", "on_conflict": Queue()}, "on_conflict"),
    ({"lock_scope": "queued", "on_queued_conflict": "publish"}, "on_queued_conflict"),
    ({"lock_scope": "queued+running", "lock_across_retries": "release"}, "lock_across_retries"),
    ({"lock_scope": "queued", "typing": False}, "typing"),
    ({"lock_scope": "queued+running", "typing": False, "lock_key": None}, "typing"),
    ({"lock_scope": "queued", "typing": False, "lock_key": "{label}"}, "typing"),
    ({"lock_scope": "waiting"}, "lock_scope"),
    ({"lock_scope": "queued", "lock_queued_ttl": 0}, "lock_queued_ttl"),
    ({"lock_scope": "queued", "on_queued_conflict": "skip"}, "on_queued_conflict"),
]


@pytest.mark.parametrize(("options", "named"), CONTRADICTIONS, ids=lambda o: str(o)[:60])
def test_what_contradicts_a_scope_is_refused(conf, options, named):
    app = make_sender(conf)
    define(app, "contradicts", **options)
    with pytest.raises(ConfigError, match="task contradicts: ") as caught:
        app.finalize()
    assert f"{named}=" in str(caught.value)
    app.close()


@pytest.mark.parametrize(
    "options",
    [
        {"lock_key": lambda label, *rest: label},
        {"lock_key": "one for all"},
        {"lock_scope": "queued+running", "lock_across_retries": "hold", "typing": True},
    ],
)
def test_what_goes_along_with_a_scope_is_accepted(conf, options):
    app = make_sender(conf)
    define(app, "goes_along", **{"lock_scope": "queued", "typing": False, **options})
    app.finalize()
    assert app.tasks["goes_along"].lock_options.lock_queued_ttl == 3600
    app.close()


def test_a_holder_in_the_queue_travels_in_an_error():
    holder = Holder(task="pkg.task", task_id="0c1e", node="web", pid=1, queued=True)
    assert Holder.from_dict(holder.to_dict()) == holder
    assert "waiting in the queue" in str(LockConflict("a key", holder))
