"""The one heartbeat of a process, between several servers and many who wait."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from celery_redislock import LockUnavailable, RedisLock
from celery_redislock.lock.heartbeat import Heartbeat, heartbeat
from celery_redislock.lock.lease import Heir, Lease
from celery_redislock.protocol import holders
from celery_redislock.protocol.claims import EXTENDED, NOT_OURS, RETAKEN, Acquired, Extended
from celery_redislock.servers.node import Node
from celery_redislock.servers.urls import source_from_url
from tests.contract.clocks import clock
from tests.contract.servers.test_store import make_claim
from tests.support.interrupts import each_place, in_a_child
from tests.support.waiting import eventually, never


@pytest.fixture
def store(redis_server):
    store = Node(source_from_url(redis_server.url))
    yield store
    store.close()


def test_hundreds_may_wait_for_one_lock_without_asking_all_the_time(own_redis, label):
    """redis-py 8 stops at a hundred connections, unless it is told otherwise."""
    waiting, got = 150, []
    holder = RedisLock(own_redis.url, label, ttl=30)
    assert holder.acquire(0)
    client = own_redis.client()

    def wait():
        lock = RedisLock(own_redis.url, label, ttl=30)
        got.append(lock.acquire(60))
        lock.release()

    threads = [threading.Thread(target=wait, daemon=True) for _ in range(waiting)]
    for thread in threads:
        thread.start()
    keys = f"redislock:*:waiters:{label}"
    eventually(
        lambda: sum(client.zcard(key) for key in client.scan_iter(keys)) == waiting, "all wait"
    )

    def asked():
        return client.info("commandstats")["cmdstat_evalsha"]["calls"]

    before = asked()
    never(lambda: asked() - before > 2 * waiting, "they ask without a pause", 1.0)
    holder.release()
    for thread in threads:
        thread.join(60)
    assert got == [True] * waiting


def test_whoever_is_to_hear_of_a_loss_does_though_the_body_ends_meanwhile(store, label):
    entered, ended = threading.Event(), threading.Event()

    class Slow(logging.Handler):
        def emit(self, record):
            entered.set()
            ended.wait(20)

    told = []
    lease = Lease(store, make_claim(label), on_lost=told.append)
    lease.acquire()
    handler = Slow(logging.ERROR)
    logging.getLogger("celery_redislock").addHandler(handler)
    try:
        heartbeat = threading.Thread(target=denied, args=(lease,))
        heartbeat.start()
        assert entered.wait(20)
        lease.release()
    finally:
        ended.set()
        heartbeat.join(20)
        logging.getLogger("celery_redislock").removeHandler(handler)
    assert told == [lease]


def denied(lease: Lease) -> None:
    lease.answered(Extended(NOT_OURS, 1), clock(), discarded=False)


@pytest.mark.parametrize(("fails", "ttl"), [("while it is waited for", 60), ("later", 1.5)])
def test_an_extension_under_way_does_not_bring_back_what_is_released(
    redis_server, client, label, fails, ttl
):
    """It is held up in the network, and arrives when nobody waits for its answer any more."""
    sent, goes_on, ended = threading.Event(), threading.Event(), threading.Event()
    held_up = []

    class HeldUp(Node):
        def run_all(self, calls, **options):
            held_up.extend(calls)
            sent.set()
            goes_on.wait(20)
            ended.set()
            raise LockUnavailable(label, None, "no answer")

    store = HeldUp(source_from_url(redis_server.url))
    lease = Lease(store, make_claim(label, ttl=ttl))
    lease.acquire()
    heartbeat.beat_now(lease)
    try:
        assert sent.wait(20)
        if fails != "later":
            threading.Timer(0.05, goes_on.set).start()
        assert lease.release()
        assert ended.is_set() is (fails != "later")
        replies = Node.run_all(store, held_up, ttl=30.0)
        assert [reply.outcome for reply in replies] == [NOT_OURS]
        assert not client.exists(lease.key)
    finally:
        goes_on.set()
        assert ended.wait(20)
        store.close()


def test_an_extension_that_failed_a_moment_ago_does_not_bring_back_what_is_released(
    redis_server, client, label
):
    """Its lease has not dealt with the failure yet."""
    failed, goes_on = threading.Event(), threading.Event()
    sent = []

    class Failing(Node):
        def run_all(self, calls, **options):
            sent.extend(calls)
            return [LockUnavailable(label, None, "no answer")] * len(calls)

    def slow(*args, **kwargs):
        failed.set()
        goes_on.wait(20)

    store = Failing(source_from_url(redis_server.url))
    lease = Lease(store, make_claim(label, ttl=60))
    lease.answered = slow
    lease.acquire()
    heartbeat.beat_now(lease)
    try:
        assert failed.wait(20)
        assert lease.release()
        replies = Node.run_all(store, sent, ttl=30.0)
        assert [reply.outcome for reply in replies] == [NOT_OURS]
        assert not client.exists(lease.key)
    finally:
        goes_on.set()
        store.close()


def test_what_is_taken_again_after_it_could_not_be_left_is_given_back(redis_server, client, label):
    sent, goes_on = threading.Event(), threading.Event()

    class HeldUp(Node):
        def run_all(self, calls, **options):
            sent.set()
            goes_on.wait(20)
            replies = super().run_all(calls, **options)
            outcomes.extend(reply.outcome for reply in replies)
            return replies

    outcomes = []
    store = HeldUp(source_from_url(redis_server.url))
    lease = Lease(store, make_claim(label, ttl=12))
    lease.acquire()
    client.delete(lease.key)
    heartbeat.beat_now(lease)
    assert sent.wait(20)
    assert not lease.leave_to(Heir(holders.held_for_retry, 1)), "there is nothing to leave"
    goes_on.set()
    eventually(lambda: outcomes, "the extension arrives")
    assert outcomes == [RETAKEN]
    eventually(lambda: not client.exists(lease.key), "it is given back", 6)
    store.close()


class Overtaking(Node):
    """Its extension is answered when `goes_on` is set. The main thread's release then comes after
    all that the heartbeat does for that answer.
    """

    def __init__(self, server):
        super().__init__(source_from_url(server.url))
        self.sent, self.goes_on = threading.Event(), threading.Event()

    def run_all(self, calls, **options):
        replies = super().run_all(calls, **options)
        self.sent.set()
        assert self.goes_on.wait(20)
        return replies

    def run(self, call, **options):
        if call.script == "settle" and threading.current_thread() is threading.main_thread():
            self.goes_on.set()
            done = threading.Event()
            heartbeat.call_soon(done.set)
            assert done.wait(20)
        return super().run(call, **options)


@pytest.mark.parametrize("vanished", [False, True])
@pytest.mark.parametrize("ttl", [3, 60])
def test_what_an_extension_did_before_the_release_makes_it_no_loss(
    redis_server, client, label, vanished, ttl, caplog
):
    """The release waits for a sixth of the ttl."""
    lost = []
    store = Overtaking(redis_server)
    lease = Lease(store, make_claim(label, ttl=ttl), on_lost=lost.append)
    lease.acquire()
    if vanished:
        client.delete(lease.key)
    heartbeat.beat_now(lease)
    assert store.sent.wait(20)
    if ttl > 3:
        threading.Timer(0.05, store.goes_on.set).start()

    released = lease.release()

    assert released is not None
    assert released.ours
    assert not client.exists(lease.key)
    assert (lost, lease.is_lost, "LOST" in caplog.text) == ([], False, False)
    store.close()


def test_what_is_taken_again_before_it_is_left_is_left(redis_server, client, label):
    store = Overtaking(redis_server)
    lease = Lease(store, make_claim(label, ttl=60))
    lease.acquire()
    client.delete(lease.key)
    heartbeat.beat_now(lease)
    assert store.sent.wait(20)
    threading.Timer(0.05, store.goes_on.set).start()
    assert lease.leave_to(Heir(holders.held_for_retry, 9))
    assert client.exists(lease.key)
    store.close()


def test_a_thread_that_extends_what_another_one_releases_reports_no_loss(store, label, caplog):
    """Its request comes when the lock is free, and nobody knows yet."""
    lost = []
    lease = Lease(store, make_claim(label, ttl=60), on_lost=lost.append)
    lease.acquire()

    class Between(Node):
        def run(self, call, **options):
            reply = store.run(call, **options)
            if call.script == "settle":
                assert not lease.extend_now(retake=False)
            return reply

    lease.server = Between(store.pools)
    released = lease.release()
    assert released is not None
    assert released.ours
    assert (lost, lease.is_lost, "LOST" in caplog.text) == ([], False, False)


def test_an_extension_after_a_sleep_is_not_late_for_that(store, label):
    """The right counts from before the sleep, and so the extension follows at once."""
    late = []
    lease = Lease(
        store, make_claim(label, ttl=3), beats=False, on_extended=lambda _, by, __: late.append(by)
    )
    now = clock()
    lease.accept(Acquired(lease.claim.value, 1, sent_at=now - 1), now)
    lease.answered(Extended(EXTENDED, 1), now + 0.25, discarded=False)
    lease.answered(Extended(EXTENDED, 1), now + 0.25 + 1.4, discarded=False)
    assert late == pytest.approx([0.25, 0.5])


def test_a_question_that_fails_is_no_error_if_the_heartbeat_extends_the_lock_meanwhile(
    store, label, monkeypatch
):
    """Both ask when the right has ended, on connections of their own."""
    lease = Lease(store, make_claim(label, ttl=3), beats=False)
    lease.acquire()
    lease.deadline = clock()

    def run(call, **options):
        (reply,) = store.run_all([call], ttl=lease.ttl, purpose="heartbeat")
        lease.answered(reply, clock(), discarded=False)
        raise LockUnavailable(lease.key, None, "this connection broke")

    monkeypatch.setattr(store, "run", run)
    assert lease.lost is False
    lease.ensure()
    monkeypatch.undo()
    lease.release()


class Beats:
    """What is extended, but for a server: it is told when it is due."""

    ttl, next_beat = 6.0, 0.0
    server: Any = None

    def __init__(self) -> None:
        self.beat: set[int] = set()

    def extension(self, now: float) -> None:
        self.next_beat = now + 60
        self.beat.add(threading.get_ident())


def test_wherever_the_start_is_interrupted_one_thread_extends_later_locks():
    """Two would not know what the other one has under way."""

    def check() -> None:
        mine, given = Heartbeat(), Beats()
        mine.add(given)

        def add() -> None:
            nonlocal mine, given
            given = Beats()
            mine = Heartbeat()
            mine.add(given)

        for where, _ in each_place(add, ("celery_redislock.lock", "threading")):
            one, two = Beats(), Beats()
            mine.add(one)
            eventually(lambda one=one: one.beat, where)
            mine.add(two)
            eventually(lambda two=two: two.beat, where)
            assert len(given.beat | one.beat | two.beat) == 1, where

    in_a_child(check)
