"""Locks in a real Redis Cluster, and what may happen to its nodes and slots."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from celery_redislock import LockUnavailable, RedisLock
from celery_redislock.protocol import calls, rooms
from celery_redislock.protocol.claims import EXTENDED, Acquired, Parked, Parking
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.servers import topology
from celery_redislock.servers.cluster import Cluster
from celery_redislock.servers.factory import server_at
from celery_redislock.servers.hash_slots import SlotMap, slot_map
from celery_redislock.servers.node import Node
from celery_redislock.servers.topology import Topology
from celery_redislock.servers.urls import Nodes, source_from_url
from tests.contract.claims import busy, extended, extension, make_claim, outcomes, taken
from tests.support.clusters import ClusterSet, free_port_with_bus
from tests.support.interrupts import each_place
from tests.support.rights import as_user, grant
from tests.support.servers import RedisServer
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def _own() -> Iterator[ClusterSet]:
    with ClusterSet() as servers:
        yield servers


@pytest.fixture
def own(_own: ClusterSet) -> Iterator[ClusterSet]:
    """A cluster of these tests' own. It is mended after each of them."""
    yield _own
    _own.mend()


@pytest.fixture
def store(own: ClusterSet) -> Iterator[Cluster]:
    store = server_at(source_from_url(own.url))
    assert isinstance(store, Cluster)
    yield store
    store.close()


def names_on(servers: ClusterSet, label: str) -> dict[int, str]:
    """For each primary, by its port, the name of a lock in it."""
    ranges = servers.ranges(servers.primaries()[0])
    found: dict[int, str] = {}
    for number in itertools.count():  # no lock may be in a range that is one slot
        if found.keys() == {port for _, _, port in ranges}:
            return found
        slot = slot_of(name := f"{label}-{number}")
        found.setdefault(next(port for low, high, port in ranges if low <= slot <= high), name)
    raise AssertionError("unreachable")


def slot_of(name: str) -> int:
    return key_slot(lock_keys("redislock", name).lock.encode())


# -- which node has a lock ----------------------------------------------------------------------


def test_each_lock_is_in_the_node_that_has_its_slot(own, store, label) -> None:
    for port, name in names_on(own, label).items():
        claim = make_claim(name)
        taken(store.run(calls.acquire(claim)))
        with redis.Redis(port=port) as node:
            assert node.exists(claim.keys.lock), "this node has it"
        assert store.run(calls.settle(claim)).ours


def test_heartbeats_take_one_round_trip_to_each_node(own, store, label, monkeypatch) -> None:
    names = [f"{label}-{number}" for number in range(30)]
    held = [(claim := make_claim(name), taken(store.run(calls.acquire(claim)))) for name in names]
    asked: Counter[Any] = Counter()
    exchange = Node.exchange

    def counted(self: Node, *arguments: Any) -> Any:
        asked[self] += 1
        return exchange(self, *arguments)

    monkeypatch.setattr(Node, "exchange", counted)
    assert outcomes(extended(store, *(extension(*each) for each in held))) == [EXTENDED] * 30
    assert sorted(asked.values()) == [1, 1, 1]


def test_a_server_that_is_no_cluster_says_so(redis_server: RedisServer, label) -> None:
    store = server_at(source_from_url(f"redis+cluster://127.0.0.1:{redis_server.port}"))
    with pytest.raises(LockUnavailable, match="cluster support disabled"):
        store.run(calls.acquire(make_claim(label)))
    store.close()


def test_a_node_of_a_cluster_that_is_taken_for_a_server_says_so(own, label) -> None:
    ports = names_on(own, label)
    wrong, right = list(ports)[:2]
    node = server_at(source_from_url(f"redis://127.0.0.1:{wrong}"))
    with pytest.raises(LockUnavailable, match=r"redis\+cluster://"):
        node.run(calls.acquire(make_claim(ports[right], ttl=600)))  # it would ask for minutes
    node.close()


# -- failovers ----------------------------------------------------------------------------------


def test_after_a_failover_the_lock_is_kept_and_only_its_node_holds_off(own, store, label) -> None:
    name, elsewhere, *_ = names_on(own, label).values()
    claim = make_claim(name, ttl=60)
    held = taken(store.run(calls.acquire(claim)))
    taken(store.run(calls.acquire(make_claim(elsewhere, ttl=60))))
    own.kill_primary_of(claim.keys.lock)

    def is_extended() -> bool:
        return outcomes_of(store, extension(claim, held)) == [EXTENDED]

    eventually(is_extended, "the promoted replica extends the lock")
    with pytest.raises(LockUnavailable, match="no new locks for"):
        store.run(calls.acquire(make_claim(f"{name}", ttl=60)), hold_off=0)
    other = make_claim(f"{elsewhere}-{label}", ttl=60)
    if own.primary_of(other.keys.lock) is own.primary_of(claim.keys.lock):
        other = make_claim(elsewhere, ttl=60)
        busy(store.run(calls.acquire(other), hold_off=0))
    else:
        taken(store.run(calls.acquire(other), hold_off=0))
    assert store.run(calls.settle(claim)).ours


def outcomes_of(store: Cluster, *extensions: Any) -> list[Any]:
    """What the heartbeat would learn; a failure as its text."""
    try:
        replies = extended(store, *extensions)
    except LockUnavailable as exc:
        return [str(exc)]
    return [str(each) if isinstance(each, LockUnavailable) else each.outcome for each in replies]


def test_a_replica_that_an_operator_promotes_holds_off_too(own, store, label) -> None:
    claim = make_claim(label, ttl=6)
    held = taken(store.run(calls.acquire(claim)))
    own.failover(claim.keys.lock)
    eventually(lambda: outcomes_of(store, extension(claim, held)) == [EXTENDED], "it is kept")
    assert store.run(calls.settle(claim)).ours
    began = time.monotonic()
    taken(store.run(calls.acquire(make_claim(label, ttl=6))))
    assert time.monotonic() - began < 6, "a third of the ttl, and no longer"


def test_a_waiter_that_is_asleep_in_a_demoted_node_goes_on_at_the_new_one(own, label) -> None:
    holder = RedisLock(own.url, label, ttl=9)
    assert holder.acquire(timeout=0)
    waiter = RedisLock(own.url, label, ttl=9)
    got = threading.Event()

    def wait() -> None:
        if waiter.acquire(timeout=30):
            got.set()
            waiter.release()

    thread = threading.Thread(target=wait)
    thread.start()
    primary = own.primary_of(holder.key)

    def sleeps() -> bool:
        with primary.client() as client:
            return bool(client.info("clients")["blocked_clients"])

    eventually(sleeps, "it sleeps")
    own.failover(holder.key)
    holder.release()  # if no node answers it in time, the lock expires
    assert got.wait(20)
    thread.join()


def test_while_a_node_is_away_its_locks_are_unavailable_and_others_are_not(
    own, store, label
) -> None:
    name, elsewhere, *_ = names_on(own, label).values()
    mine, other = make_claim(name, ttl=12), make_claim(elsewhere, ttl=12)
    held = [(each, taken(store.run(calls.acquire(each)))) for each in (mine, other)]
    primary = own.primary_of(mine.keys.lock)
    primary.stop()
    try:
        began = time.monotonic()
        with pytest.raises(LockUnavailable):
            store.run(calls.acquire(make_claim(name, ttl=12)))
        assert time.monotonic() - began < 10, "about a third of the ttl"
        for _ in range(2):
            began = time.monotonic()
            gone, kept = outcomes_of(store, *(extension(*each) for each in held))
            assert kept == EXTENDED
            assert "imeout" in str(gone)
            assert time.monotonic() - began < 6, "the locks elsewhere live on"
    finally:
        primary.resume()
    eventually(lambda: outcomes_of(store, extension(*held[0])) == [EXTENDED], "it is back")


def test_a_cluster_that_restarts_empty_gives_no_lock_away_that_is_held(own, store, label) -> None:
    claim = make_claim(label, ttl=6)
    held = taken(store.run(calls.acquire(claim)))
    for node in own.nodes:
        node.restart()
    eventually(own.agree, "it is up again", 60)
    with pytest.raises(LockUnavailable, match="no new locks for"):
        store.run(calls.acquire(make_claim(label, ttl=60)), hold_off=0)
    eventually(
        lambda: outcomes_of(store, extension(claim, held)) not in ([EXTENDED], []),
        "the holder hears from it",
    )
    assert busy(store.run(calls.acquire(make_claim(label, ttl=1.0)))).holder is not None


def test_a_cluster_that_restarts_holds_off_from_when_it_answers(own, store, label) -> None:
    held = make_claim(label, ttl=3)
    taken(store.run(calls.acquire(held)))
    own.switch_off()
    for node in own.nodes:
        node.start()

    def why_unavailable() -> str:
        with pytest.raises(LockUnavailable) as caught:
            store.run(calls.acquire(make_claim(label, ttl=3)), once=True, hold_off=0)
        return caught.value.reason

    eventually(lambda: "cluster is down" in why_unavailable(), "a node has restarted", 1)
    # It refuses all for two seconds, which is more than a third of the ttl.
    eventually(own.agree, "it is up again", 60)
    assert "no new locks for" in why_unavailable(), "holders come first"


def test_who_may_not_ask_whether_a_cluster_works_holds_off_too(own, label) -> None:
    def grant_on_all() -> None:
        for node in own.nodes:
            with node.client() as client:
                grant(client, "workers", "+cluster|slots")

    grant_on_all()
    store = server_at(source_from_url(as_user(own.url, "workers")))
    taken(store.run(calls.acquire(make_claim(label, ttl=3))))
    own.switch_off()
    own.mend()
    grant_on_all()
    with pytest.raises(LockUnavailable, match="no new locks for"):
        store.run(calls.acquire(make_claim(label, ttl=3)), hold_off=0)
    store.close()


# -- slots that move ----------------------------------------------------------------------------


def test_a_lock_and_its_room_move_with_their_slot(own, store, label) -> None:
    claim = make_claim(label, ttl=60, task_id="holder")
    held = taken(store.run(calls.acquire(claim)))
    parked = make_claim(label, ttl=60, task_id="parked")
    entry = '{"task": "pkg.task"}'
    assert isinstance(store.run(rooms.park(parked, Parking(entry, parked.entry_id))), Parked)
    source = own.primary_of(claim.keys.lock)
    target = next(each for each in own.primaries() if each is not source)
    own.move_slot(slot_of(label), target)
    assert outcomes(extended(store, extension(claim, held))) == [EXTENDED]
    busy(store.run(calls.acquire(make_claim(label, ttl=60)), hold_off=0))
    settled = store.run(calls.settle(claim))
    assert settled.offered is not None
    assert settled.offered.place.entry_id == parked.entry_id
    # Nobody held off: the slot's keys came along.
    taken(store.run(calls.acquire(parked), hold_off=0))


def test_while_a_slot_moves_its_locks_are_unavailable_and_none_is_lost(own, store, label) -> None:
    claim = make_claim(label, ttl=3)
    held = taken(store.run(calls.acquire(claim)))
    slot = slot_of(label)
    primary = own.primary_of(claim.keys.lock)
    target = next(each for each in own.primaries() if each is not primary)
    source = own.begin_to_move(slot, target)
    try:
        for call in (calls.acquire(make_claim(label, ttl=3)), calls.settle(claim)):
            with pytest.raises(LockUnavailable, match=r"TRYAGAIN|TryAgain|ASK|Ask"):
                store.run(call)
        moved = threading.Timer(0.2, own.end_move, (slot, source, target))
        moved.start()
        assert outcomes(
            [eventually(lambda: answered(store, claim, held), "the heartbeat is answered")]
        ) == [EXTENDED]
        moved.join()
    finally:
        with contextlib.suppress(AssertionError, redis.RedisError):
            own.end_move(slot, source, target)
    assert busy(store.run(calls.acquire(make_claim(label, ttl=3)))).relation == "other"
    assert store.run(calls.settle(claim)).ours


def answered(store: Cluster, claim: Any, held: Acquired) -> Any:
    reply = extended(store, extension(claim, held))[0]
    return None if isinstance(reply, LockUnavailable) else reply


@pytest.fixture
def movable() -> Iterator[ClusterSet]:
    with ClusterSet(replicas=0) as servers:
        yield servers


def test_slots_move_to_a_new_node_under_load(movable, label) -> None:
    names = [f"{label}-{number}" for number in range(3)]
    inside: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    overlaps: list[str] = []
    stopped = threading.Event()

    def work(name: str) -> None:
        while not stopped.is_set():
            # While the slot moves for longer than one asks, a lock is unavailable, and one that
            # nobody heard being released expires.
            with contextlib.suppress(LockUnavailable):
                lock = RedisLock(movable.url, name, ttl=15)
                if lock.acquire(timeout=5):
                    inside[name] += 1
                    if inside[name] != 1:
                        overlaps.append(name)
                    inside[name] -= 1
                    lock.release()
                    runs[name] += 1

    with ThreadPoolExecutor(6) as pool:
        workers = [pool.submit(work, name) for name in names for _ in "ab"]
        try:
            new = movable.add_node()
            slots = sorted({slot_of(name) for name in names})
            # A node that loses its last slot becomes a replica.
            movable.move_slot(next(each for each in range(100) if each not in slots), new)
            for target in (new, *movable.primaries()[:2], new):
                for slot in slots:
                    if movable.owner_of(slot) is not target:
                        movable.move_slot(slot, target)
            before = runs.copy()
            eventually(lambda: all(runs[name] > before[name] for name in names), "all go on", 90)
        finally:
            stopped.set()
    assert [worker.result() for worker in workers] == [None] * 6
    assert overlaps == []


# -- clients ------------------------------------------------------------------------------------


def test_a_redis_lock_takes_a_cluster_client_and_leaves_it_alone(own, label) -> None:
    client = own.client(decode_responses=False)
    with RedisLock(client, label, ttl=3) as lock:
        assert client.exists(lock.key)
        # There may be a hold-off: a test before this one may have restarted the nodes.
        assert not RedisLock(own.url, label, ttl=3).acquire(timeout=2)
    assert client.get(lock.key) is None
    client.close()


def test_user_and_password_of_the_url_hold_for_all_nodes(own, label) -> None:
    for node in own.nodes:
        with node.client() as client:
            client.acl_setuser(
                "worker", enabled=True, passwords=["+p@s,s"], keys="*", commands=["+@all"]
            )
    at = own.url.removeprefix("redis+cluster://")
    for name in names_on(own, label).values():
        lock = RedisLock(f"redis+cluster://worker:p%40s%2Cs@{at}", name)
        assert lock.acquire(timeout=0)
        assert lock.release()
    with pytest.raises(LockUnavailable, match=r"WRONGPASS|invalid username"):
        RedisLock(f"redis+cluster://worker:other@{at}", label).acquire(timeout=0)


def test_what_managed_services_refuse_is_not_needed(own, label) -> None:
    for node in own.nodes:
        with node.client() as client:
            grant(client, "workers", "-info", "-select", "+cluster|slots")
    lock = RedisLock(as_user(own.url, "workers"), label, ttl=3)
    assert lock.acquire(timeout=0)
    assert lock.release()
    own.failover(lock.key)
    assert lock.acquire(timeout=10)
    assert lock.release()


# -- which node has which slot, without a server ------------------------------------------------


HERE = ("here", 7000)


def told(*ranges: tuple[int, int, str], epoch: int = 1) -> SlotMap:
    replies = [[low, high, [host.encode(), 1, b"id"]] for low, high, host in ranges]
    return slot_map([replies, b"cluster_state:ok\r\ncluster_current_epoch:%d\r\n" % epoch], HERE)


def test_slots_without_a_node_have_none() -> None:
    slots = told((0, 99, "a"), (200, 16383, "b"))
    assert (slots.owners[99], slots.owners[100], slots.owners[200]) == (("a", 1), None, ("b", 1))
    assert slots.primaries == (("a", 1), ("b", 1))


def test_a_node_that_does_not_know_its_address_is_where_it_was_asked() -> None:
    replies = [[0, 16383, [b"", 7001, b"id"], [None, 7002, b"id"], [b"::1", 7003, b"id", []]]]
    slots = slot_map([replies, b""], HERE)
    assert slots.primaries == (("here", 7001),)
    assert slots.replicas == {("here", 7002): ("here", 7001), ("::1", 7003): ("here", 7001)}
    assert slots.epoch == 0


class Told(Topology):
    """A cluster whose nodes say what a test lets them say."""

    def __init__(self, **answers: Any) -> None:
        hosts = tuple((host, 1) for host in answers)
        super().__init__(Nodes(hosts, lambda host, port: lambda *given: redis.ConnectionPool()), 0)
        self.answers = answers

    def node(self, host: Any) -> Any:
        node = super().node(host)
        node.replies = lambda *given, **more: self._say(host[0])  # type: ignore[method-assign]
        return node

    def _say(self, host: str) -> Any:
        slots = self.answers.get(host)
        if slots is None:
            raise LockUnavailable("", None, "no answer")
        ranges = [
            [slot, slot, [owner[0].encode(), owner[1], b"id"]]
            for slot, owner in enumerate(slots.owners)
            if owner
        ]
        return [ranges, b"cluster_current_epoch:%d\r\n" % slots.epoch]


def test_of_several_answers_the_newest_counts() -> None:
    old, new = told((0, 9, "a"), epoch=3), told((0, 9, "b"), epoch=4)
    nodes = Told(a=new, b=new, c=new)
    nodes.look(1.0, "")
    nodes.answers.update(a=old, c=None)
    for _ in range(10):  # they are asked in random order
        assert nodes.look(1.0, "").owners[0] == ("b", 1)


def test_a_cluster_that_was_made_anew_is_believed() -> None:
    nodes = Told(a=told((0, 9, "a"), epoch=30))
    nodes.look(1.0, "")
    nodes.answers.update(a=told((0, 9, "b"), epoch=2))
    assert nodes.look(1.0, "").owners[0] == ("b", 1)


def after_a_change(before: SlotMap, after: SlotMap, changed_at: float | None = None) -> Told:
    nodes = Told(a=before, b=before)
    nodes.look(1.0, "")
    nodes.node(("a", 1)).watch.changed_at = changed_at
    nodes.answers.update(a=after, b=after)
    nodes.look(1.0, "")
    return nodes


def test_who_takes_over_from_a_node_that_is_gone_holds_off_and_who_is_given_slots_not() -> None:
    nodes = after_a_change(
        told((0, 9, "a"), (10, 19, "b"), (20, 29, "c")),
        told((0, 9, "a2"), (10, 14, "b"), (15, 19, "c"), (20, 29, "c"), epoch=2),
    )
    assert nodes.node(("a2", 1)).watch.changed_at is not None
    assert nodes.node(("c", 1)).watch.changed_at is None
    assert nodes.node(("b", 1)).watch.changed_at is None


def test_slots_without_a_node_before_are_held_off() -> None:
    nodes = after_a_change(told((0, 9, "a")), told((0, 19, "a"), epoch=2))
    assert nodes.node(("a", 1)).watch.changed_at is not None


def test_a_hold_off_goes_with_its_slots() -> None:
    before, after = told((0, 9, "a"), (10, 19, "b")), told((0, 4, "a"), (5, 19, "b"), epoch=2)
    assert after_a_change(before, after, 5.0).node(("b", 1)).watch.changed_at == 5.0


def test_a_node_that_left_is_forgotten() -> None:
    nodes = after_a_change(told((0, 9, "a"), (10, 19, "x")), told((0, 19, "a"), epoch=2))
    nodes.node(("x", 1))
    nodes.look(1.0, "")
    assert ("x", 1) not in nodes._nodes


def test_while_no_node_has_a_slot_locks_are_unavailable(label) -> None:
    with RedisServer("--cluster-enabled", "yes", port=free_port_with_bus()) as alone:
        store = server_at(source_from_url(f"redis+cluster://127.0.0.1:{alone.port}"))
        with pytest.raises(LockUnavailable, match="a hash slot has no node"):
            store.run(calls.acquire(make_claim(label, ttl=5)))
        with pytest.raises(LockUnavailable, match="a hash slot has no node"):
            store.replies([("TIME",)])
        store.close()


def test_wherever_a_look_at_the_slots_is_interrupted_a_later_one_looks(store, monkeypatch):
    monkeypatch.setattr(topology, "LONGEST_LOOK", 0.5)
    nodes, asked = store.nodes, Counter()

    def look() -> SlotMap:
        return nodes.look(6.0, "")

    look()
    for where, _ in each_place(look, ("celery_redislock.servers.topology",)):
        before = nodes.known
        eventually(lambda before=before: look() is not before, where)
        asked[where.partition(",")[0]] += 1
    assert {"look", "_newest"} <= asked.keys()
