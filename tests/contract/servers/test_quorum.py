"""Locks that a majority of independent servers keeps, and what breaks."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.strategies import sampled_from

from celery_redislock import LockLost, LockUnavailable, RedisLock, SingletonTask
from celery_redislock.errors import ConfigError
from celery_redislock.inspection.locks import lost_of
from celery_redislock.operations import holders, list_locks
from celery_redislock.protocol import calls, notes, rooms
from celery_redislock.protocol.claims import (
    EXTENDED,
    RETAKEN,
    Acquired,
    Busy,
    Done,
    Parking,
    Reserved,
)
from celery_redislock.protocol.holders import held_for_retry
from celery_redislock.servers import quorum
from celery_redislock.servers.connections import pools_like
from celery_redislock.servers.factory import server_at
from celery_redislock.servers.node import Node
from celery_redislock.servers.quorum import Quorum
from celery_redislock.servers.scripts import sha_of
from celery_redislock.servers.urls import source_from_url
from celery_redislock.testing import MemoryServer
from tests.contract.claims import busy, extended, extension, make_claim, outcomes, taken
from tests.contract.clocks import clock
from tests.support.clusters import url_of_quorum
from tests.support.looking import run
from tests.support.servers import Proxy, RedisServer
from tests.support.waiting import eventually, never
from tests.support.workers import make_app


@pytest.fixture(scope="module")
def servers() -> Iterator[list[RedisServer]]:
    """For what does no harm to them."""
    with RedisServer() as one, RedisServer() as two, RedisServer() as three:
        yield [one, two, three]


def store_at(servers: list[RedisServer]) -> Iterator[Quorum]:
    store = server_at(source_from_url(url_of_quorum(servers)))
    assert isinstance(store, Quorum)
    yield store
    store.close()


@pytest.fixture
def store(servers: list[RedisServer]) -> Iterator[Quorum]:
    yield from store_at(servers)


@pytest.fixture
def frail(three_servers: list[RedisServer]) -> Iterator[Quorum]:
    """On servers of this test's own, which it breaks."""
    yield from store_at(three_servers)


def app_on(servers: list[RedisServer], label: str) -> Celery:
    url = url_of_quorum(servers)
    return make_app({"redislock_url": url, "redislock_prefix": label, "broker_url": "memory://"})


def holding(servers: list[RedisServer], key: str) -> int:
    """How many of the servers have this key."""
    return sum(server.client().exists(key) for server in servers if server.runs())


# -- taking, keeping, giving back ---------------------------------------------------------------


def test_a_run_without_its_lock_tells_all_servers_until_it_ends(store, servers, label) -> None:
    claim = make_claim(label, task_id="goes on")
    held, keys = taken(store.run(calls.acquire(claim))), claim.keys
    store.run(calls.break_lock(keys, 30))
    now = store.ask(rooms.server_time(keys.lock))
    store.ask(calls.mark_lost(keys, held.fence, held.value, "", now))
    assert holding(servers, keys.lost) == 3
    found = lost_of(store, [(keys.lost, keys.name)])
    assert [each.holder.task_id for each in found] == ["goes on"]
    store.ask(calls.unmark_lost(keys, held.fence))
    assert holding(servers, keys.lost) == 0


def test_a_pause_outlives_the_retry_on_all_servers(store, servers, label) -> None:
    first, retry = (make_claim(label, task_id="runs", attempt=number) for number in range(2))
    heir = (held_for_retry(taken(store.run(calls.acquire(first))).value), 5.0)
    release = calls.Release(notes.lasting(notes.ENDED), True, heir=heir, pause=600.0)
    assert store.run(calls.settle(first, release)).ours
    held = taken(store.run(calls.acquire(retry)))
    assert outcomes(extended(store, extension(retry, held))) == [EXTENDED]
    assert store.run(calls.settle(retry)).ours
    reply = busy(store.run(calls.acquire(make_claim(label, task_id="other"))))
    assert reply.holder is not None
    assert reply.holder.cooling_down
    assert 500 < reply.remaining <= 600
    assert holding(servers, first.keys.lock) == 3


def test_a_lock_is_taken_extended_and_released_on_all_servers(store, servers, label) -> None:
    claim = make_claim(label)
    held = taken(store.run(calls.acquire(claim)))
    assert holding(servers, claim.keys.lock) == 3
    assert busy(store.run(calls.acquire(make_claim(label)))).relation == "other"
    assert outcomes(extended(store, extension(claim, held))) == [EXTENDED]
    holder = store.ask(calls.holder_of(claim.keys, 5))
    assert holder is not None
    assert store.run(calls.settle(claim)).ours
    assert holding(servers, claim.keys.lock) == 0
    assert not store.run(calls.settle(claim)).ours


def test_the_right_is_shorter_by_the_drift(store, label) -> None:
    before = clock()
    held = taken(store.run(calls.acquire(make_claim(label, ttl=100))))
    assert before - 1.01 <= held.sent_at <= clock() - 1.0


def test_a_minority_is_given_back(store, servers, label) -> None:
    claim, other = make_claim(label), make_claim(label)
    for server in servers[:2]:
        alone = server_at(source_from_url(server.url))
        taken(alone.run(calls.acquire(other)))
        alone.close()
    assert busy(store.run(calls.acquire(claim))).relation == "other"
    assert holding(servers[2:], claim.keys.lock) == 0


def test_the_highest_fence_counts_and_a_majority_knows_it(frail, three_servers, label) -> None:
    claim, note = make_claim(label, task_id="x"), calls.Release(note="1", always=True)
    ahead = 9 * 10**15
    with three_servers[1].client() as client:
        client.set(claim.keys.fence, ahead)

    assert taken(frail.run(calls.acquire(claim))).fence == ahead + 1
    counters = [int(server.client().get(claim.keys.fence)) for server in three_servers]
    assert counters == [ahead + 1] * 3
    assert frail.run(calls.settle(claim, note)).ours

    three_servers[1].kill()
    assert taken(frail.run(calls.acquire(make_claim(label)))).fence == ahead + 2
    copy = frail.run(calls.acquire(make_claim(label, task_id="x")))
    assert isinstance(copy, Done), "a majority knows the note too"


def test_a_reservation_needs_a_majority(store, label) -> None:
    claim = make_claim(label, task_id="x")
    assert isinstance(store.run(calls.reserve(claim, 30)), Reserved)
    assert isinstance(store.run(calls.reserve(make_claim(label, task_id="y"), 30)), Busy)
    assert store.run(calls.settle(claim)).ours


def test_a_waiter_gets_the_lock_soon_after_the_release(servers, label) -> None:
    url = url_of_quorum(servers)
    holder, waiter = (RedisLock(url, label, ttl=60) for _ in range(2))
    assert holder.acquire(timeout=0)
    got = threading.Event()
    thread = threading.Thread(target=lambda: waiter.acquire(timeout=30) and got.set())
    thread.start()
    assert not got.wait(0.3)
    assert holder.release()
    assert got.wait(20), "the lock of a holder that says nothing would lapse after sixty"
    thread.join()


# -- what breaks --------------------------------------------------------------------------------


@pytest.fixture
def slow_to_give_up(
    three_servers: list[RedisServer], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Quorum]:
    """It waits for a server for 1.5 s, and then does not ask it any more."""
    monkeypatch.setattr(quorum, "TIMEOUT", 1.5)
    monkeypatch.setattr(quorum, "LEFT_ALONE", 60.0)
    yield from store_at(three_servers)


def test_who_hangs_is_left_alone_and_the_others_have_the_lock(
    slow_to_give_up, three_servers, label
) -> None:
    store = slow_to_give_up
    claim = make_claim(label, ttl=12)
    held = taken(store.run(calls.acquire(claim)))
    three_servers[0].stop()
    began = time.monotonic()

    assert outcomes(extended(store, extension(claim, held))) == [EXTENDED]
    busy(store.run(calls.acquire(make_claim(label, ttl=12))))
    assert store.run(calls.settle(claim)).ours
    taken(store.run(calls.acquire(make_claim(label, ttl=12))))

    assert time.monotonic() - began < 5, "it was asked once"
    three_servers[0].resume()


def test_with_two_of_three_away_the_lock_is_unavailable(frail, three_servers, label) -> None:
    claim = make_claim(label, ttl=3)
    held = taken(frail.run(calls.acquire(claim)))
    for server in three_servers[:2]:
        server.kill()
    for call in (calls.acquire(make_claim(label, ttl=3)), calls.settle(claim)):
        with pytest.raises(LockUnavailable, match="1 of 3 servers answered"):
            frail.run(call)
    (reply,) = extended(frail, extension(claim, held))
    assert isinstance(reply, LockUnavailable)
    free = make_claim(f"{label}-free", ttl=3)
    with pytest.raises(LockUnavailable):
        frail.run(calls.acquire(free))
    assert holding(three_servers, free.keys.lock) == 0, "what the one gave is given back"


def test_a_server_that_restarts_empty_gives_no_lock_away_that_is_held(
    frail, three_servers, label
) -> None:
    claim = make_claim(label, ttl=6)
    held = taken(frail.run(calls.acquire(claim)))
    for server in three_servers[:2]:
        server.restart_empty()
        assert isinstance(asks(frail, label), Busy | LockUnavailable)

        def is_whole() -> bool:
            extends = answered(frail, claim, held) == EXTENDED
            return extends and holding(three_servers, claim.keys.lock) == 3

        eventually(is_whole, "the holder's lock is on the empty server too")


def test_if_a_majority_restarts_empty_nobody_takes_a_lock_before_its_holder_does(
    frail, three_servers, label
) -> None:
    claim = make_claim(label, ttl=9)
    held = taken(frail.run(calls.acquire(claim)))
    for server in three_servers[:2]:
        server.restart_empty()
    with pytest.raises(LockUnavailable, match="no new locks for"):
        eventually(lambda: not isinstance(asks(frail, label), Busy), "they are seen to be new")
        frail.run(calls.acquire(make_claim(label, ttl=9)), hold_off=0)
    assert eventually(lambda: answered(frail, claim, held), "it is heard") == RETAKEN


def asks(store: Quorum, label: str) -> Any:
    try:
        return store.run(calls.acquire(make_claim(label, ttl=9)), hold_off=0)
    except LockUnavailable as exc:
        return exc


def answered(store: Quorum, claim: Any, held: Acquired) -> Any:
    (reply,) = extended(store, extension(claim, held))
    return None if isinstance(reply, LockUnavailable) else reply.outcome


@pytest.mark.parametrize("lost", [1, 2])
def test_a_server_whose_answer_was_lost_gets_its_lock_back(servers, label, lost) -> None:
    with contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(each.port)) for each in servers]
        lock = RedisLock("redlock://" + ",".join(f"127.0.0.1:{p.port}" for p in proxies), label)
        with lock:
            pass  # the servers know the scripts
        for proxy in proxies[-lost:]:
            proxy.lose_replies(to=sha_of("acquire").encode())

        if lost == 1:
            assert lock.acquire(timeout=0)
            assert holding(servers, lock.key) == 3
            assert lock.release(), "while it is left alone"
        else:
            with pytest.raises(LockUnavailable, match="1 of 3 servers answered"):
                lock.acquire(timeout=0)

        eventually(lambda: not holding(servers, lock.key), "all have their lock back", 10)


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_release_whose_answers_were_lost_is_no_proof_of_a_loss(
    servers, label, lost, caplog
) -> None:
    """It was carried out, and is asked for again on new connections."""
    with contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(each.port)) for each in servers]
        url = "redlock://" + ",".join(f"127.0.0.1:{each.port}" for each in proxies)
        lock = RedisLock(url, label, ttl=60)
        with lock:
            pass  # the servers know the scripts
        with lock:
            for proxy in proxies[:lost]:
                proxy.lose_replies(1, to=sha_of("settle").encode())
        assert [proxy.lost for proxy in proxies] == [1] * lost + [0] * (3 - lost)
    assert "LOST" not in caplog.text


def test_a_request_that_is_interrupted_is_in_doubt(store, label, monkeypatch) -> None:
    """So what it may have taken is given back, again if need be."""
    call = calls.acquire(make_claim(label))
    run = Node.run

    def interrupted(node: Node, *args: Any, **options: Any) -> None:
        run(node, *args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(Node, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.run(call)
    assert call.in_doubt
    monkeypatch.undo()
    taken(store.run(call))
    assert call.in_doubt, "it may have been carried out before"


@pytest.mark.parametrize("away", [0, 1])
def test_a_release_that_most_did_not_find_is_a_loss(frail, three_servers, label, away) -> None:
    lock = RedisLock(url_of_quorum(three_servers), label, ttl=60)
    with pytest.raises(LockLost), lock:
        for server in three_servers[:away]:
            server.kill()
        for server in three_servers[away:]:
            with server.client() as client:
                client.delete(lock.key)


def test_what_could_not_be_undone_is_not_undone_once_the_lock_is_taken(servers, label) -> None:
    """No answer comes for a while: a request, what undoes it, and then the request again."""
    with contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(each.port)) for each in servers]
        url = "redlock://" + ",".join(f"127.0.0.1:{each.port}" for each in proxies)
        lock = RedisLock(url, label, ttl=60, heartbeat=False)
        with lock:
            pass  # the servers know the scripts
        for proxy in proxies:
            proxy.to_client.block()
            threading.Timer(1.3, proxy.to_client.unblock).start()
        assert lock.acquire(timeout=0)
        never(lambda: holding(servers, lock.key) < 3, "its holder's token frees it", 1.0)
        assert lock.release()


def test_a_server_that_stood_still_gives_its_lock_back(servers, label) -> None:
    lock = RedisLock(url_of_quorum(servers), label)
    with lock:
        pass
    servers[2].stop()
    with lock:
        servers[2].resume()
        eventually(lambda: holding(servers, lock.key) == 3, "it carried out what it was sent")
    eventually(lambda: not holding(servers, lock.key), "it has its lock back", 10)


def test_what_a_minority_has_is_not_shown(three_servers, label) -> None:
    """Neither what the first server has alone, nor what it has forgotten."""
    with app_on(three_servers, label) as app:

        @app.task(base=SingletonTask, shared=False, name="sync", lock_key="{account}")
        def sync(account: str) -> None:
            """Nothing."""

        app.finalize()
        ours, theirs = (RedisLock(app, name) for name in ("ours", "theirs"))
        assert ours.acquire(timeout=0)
        with three_servers[0].client() as first:
            first.delete(ours.key)
            alone = RedisLock(three_servers[0].url, "theirs", prefix=label, heartbeat=False)
            assert alone.acquire(timeout=0)

            def shown() -> list[Any]:
                listed = [each.key for each in list_locks(app)]
                held = [each and each.pid for each in holders(app, [(sync, ("ours",))])]
                return [listed, held, holders(app, [(sync, ("theirs",))])]

            assert shown() == [[ours.key], [os.getpid()], [None]]
            assert [each.lives_for is not None for each in list_locks(app)] == [True]
            assert theirs.holder() is None
            assert sync.lock_holder("ours").pid == os.getpid()
        three_servers[2].kill()
        three_servers[1].kill()
        with pytest.raises(LockUnavailable, match="1 of 3 servers answered"):
            list_locks(app)


def test_there_are_no_waiting_rooms(store, label) -> None:
    with pytest.raises(LockUnavailable, match="no waiting rooms"):
        store.run(rooms.park(make_claim(label, task_id="x"), Parking("{}", "x:0.0")))


def test_commands_show_what_the_servers_that_answer_have(three_servers, label, monkeypatch) -> None:
    # A server has 0.2 s to answer. A machine that stands still for longer is no matter of this.
    monkeypatch.setattr(quorum, "TIMEOUT", 2.0)
    with app_on(three_servers, label) as app:
        lock = RedisLock(app, label)
        assert lock.acquire(timeout=0)
        three_servers[0].kill()
        for arguments in (["list", "--json"], ["show", "--json", lock.key]):
            result = run(app, *arguments)
            assert result.exit_code == 0, result.output
            assert lock.key in result.output
        assert run(app, "doctor").exit_code == 1, "one of them is away"
        broken = run(app, "break", "--force", lock.key)
        assert broken.exit_code == 0, broken.output
        assert lock.holder() is None


# -- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"on_conflict": "queue"}, "lets tasks wait in Redis"),
        ({"on_conflict": "coalesce"}, "lets tasks wait in Redis"),
        ({"lock_scope": "queued+running"}, "lets tasks wait in Redis"),
        ({"lock_limit": 2}, "lock_limit=2 is not accepted"),
    ],
)
def test_what_needs_one_server_is_refused_when_the_task_is_bound(options, reason) -> None:
    conf = {"redislock_url": "redlock://a,b,c", "broker_url": "memory://"}
    with make_app(conf) as app:

        def body() -> None:
            """Nothing."""

        app.finalize()
        with pytest.raises(ConfigError, match=reason):
            app.task(base=SingletonTask, shared=False, name="needy", **options)(body)


# -- in every order of events -------------------------------------------------------------------


class Majority(RuleBasedStateMachine):
    """Three clients of three servers in memory, one of which may be away, or come back empty. No
    lock expires here. Nobody but the holder has the lock, and each fence is higher.
    """

    def __init__(self) -> None:
        super().__init__()
        self.servers = [MemoryServer() for _ in range(3)]
        pools = [pools_like(each.client) for each in self.servers]
        self.store = Quorum(pools, ["a", "b", "c"])
        for node in self.store._nodes:  # the rules below hold off, and not the clock
            node.watch.meet = lambda connection: iter(())  # type: ignore
        self.claims = [make_claim("x", ttl=30, task_id=f"task-{each}") for each in range(3)]
        self.held: dict[int, Acquired] = {}
        self.highest = 0
        self.away: int | None = None
        self.is_in_step = True

    @rule(who=sampled_from([0, 1, 2]))
    def acquire(self, who: int) -> None:
        if who in self.held:
            return
        try:
            answer = self.store.run(calls.acquire(self.claims[who]), once=True, hold_off=0)
        except LockUnavailable:
            raise AssertionError("a majority answers") from None
        assert isinstance(answer, Acquired) is not bool(self.held), "free is free, held is held"
        if isinstance(answer, Acquired):
            assert answer.fence > self.highest
            self.highest, self.held[who] = answer.fence, answer

    @precondition(lambda self: self.held)
    @rule()
    def extend(self) -> None:
        ((who, held),) = self.held.items()
        (reply,) = extended(self.store, extension(self.claims[who], held))
        assert reply.outcome in (EXTENDED, RETAKEN)
        self.is_in_step = self.is_in_step or self.away is None

    @precondition(lambda self: self.held)
    @rule()
    def release(self) -> None:
        ((who, _),) = self.held.items()
        assert self.store.run(calls.settle(self.claims[who]), once=True).ours
        self.claims[who] = make_claim("x", ttl=30, task_id=f"task-{who}")
        del self.held[who]

    @precondition(lambda self: self.away is None)
    @rule(which=sampled_from([0, 1, 2]))
    def leaves(self, which: int) -> None:
        if not self.is_in_step:
            return
        self.servers[which].memory.connected = False
        self.away = which

    @precondition(lambda self: self.away is not None)
    @rule(is_empty=sampled_from([True, False]))
    def comes_back(self, is_empty: bool) -> None:
        assert self.away is not None
        self.servers[self.away].memory.connected = True
        client, key = self.servers[self.away].client, self.claims[0].keys.lock
        if is_empty:
            client.flushall()
        holder = next((self.claims[who].token for who in self.held), "nobody")
        if holder not in (client.get(key) or ""):
            client.delete(key)  # a released lock expires there, for which no test waits
        # Until the holder has said so, the lock may be missing there: the hold-off of a server
        # that comes back keeps the next one from leaving in the meantime.
        self.is_in_step, self.away = not self.held, None

    @invariant()
    def one_holder(self) -> None:
        assert len(self.held) <= 1

    def teardown(self) -> None:
        self.store.close()


Majority.TestCase.settings = settings(max_examples=6, stateful_step_count=20, deadline=None)


class TestMajority(Majority.TestCase):  # type: ignore[misc]
    """`Majority`, with servers that are asked again at once."""

    @pytest.fixture(autouse=True)
    def _at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(quorum, "LEFT_ALONE", -1.0)


# -- the history --------------------------------------------------------------------------------


def test_the_history_has_each_run_once_with_its_end(three_servers, label) -> None:
    app = app_on(three_servers, label)
    for name in ("one", "two"):
        with RedisLock(app, name):
            pass
    with RedisLock(app, "held"):
        for forgetful in three_servers:
            told = json.loads(run(app, "history", "--json").stdout)
            ends = {each["name"]: each["how"] for each in told}
            assert ends == {"one": "released", "two": "released", "held": "running"}
            assert len(told) == 3
            if forgetful is three_servers[0]:
                forgetful.restart_empty()  # what the others have is still shown
