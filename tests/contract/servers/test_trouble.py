"""What goes wrong on the way to a server: it is in trouble, is late, is cut off, comes back."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_redislock import LockUnavailable
from celery_redislock.protocol import calls, holders
from celery_redislock.protocol.claims import EXTENDED, NOT_OURS, RETAKEN, Acquired, Busy, Extension
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.servers import scripts
from celery_redislock.servers.connections import TRUSTED
from celery_redislock.servers.node import Node
from celery_redislock.servers.server import Server
from celery_redislock.servers.talk import operation_timeout
from celery_redislock.servers.urls import source_from_url
from tests.contract.claims import (
    busy,
    extended,
    extension,
    keep,
    make_claim,
    names_apart,
    outcomes,
    taken,
)
from tests.support.interrupts import cut_short_at
from tests.support.servers import Proxy, RedisServer, free_port
from tests.support.waiting import eventually


def test_whoever_is_woken_has_the_lock_before_it_could_ask(own_redis, own_store, label) -> None:
    holder, waiter = make_claim(label), make_claim(label)
    taken(own_store.run(calls.acquire(holder)))
    with Proxy(own_redis.port) as proxy, own_redis.client() as client:
        behind = Node(source_from_url(f"redis://127.0.0.1:{proxy.port}"))
        busy(behind.run(calls.acquire(waiter, "wait")))
        replies: list[Any] = []
        thread = threading.Thread(
            target=lambda: replies.append(
                behind.block(calls.acquire(waiter, "woken"), waiter.keys.wake, 20)
            )
        )
        thread.start()
        eventually(lambda: client.info("clients")["blocked_clients"], "it sleeps in the server")
        proxy.to_server.block()
        own_store.run(calls.settle(holder))
        thread.join(30)
        assert taken(replies[0]).value == client.get(waiter.keys.lock)
        behind.close()


def every_operation(store: Server, name: str, ttl: float) -> dict[str, Callable[[], Any]]:
    claim = make_claim(name, ttl=ttl)
    return {
        "acquire": lambda: store.run(calls.acquire(claim), hold_off=0),
        "wait": lambda: store.run(calls.acquire(claim, "wait"), hold_off=0),
        "extend": lambda: extended(store, Extension(claim, claim.value, 1, True)),
        "release": lambda: store.run(calls.settle(claim, calls.Release(note="1", always=True))),
        "keep": lambda: store.run(keep(claim, holders.held_for_retry(claim.value), ttl)),
        "break_lock": lambda: store.run(calls.break_lock(claim.keys, ttl)),
        "holder": lambda: store.ask(calls.holder_of(claim.keys, ttl)),
    }


def test_scripts_that_the_server_forgot_are_sent_again(own_store, own_redis, label) -> None:
    claims = [make_claim(name) for name in names_apart(label, 3)]
    with own_redis.client() as client:
        client.script_flush()
        replies = [taken(own_store.run(calls.acquire(claim))) for claim in claims]
        client.script_flush()
        wanted = [extension(claim, reply) for claim, reply in zip(claims, replies, strict=True)]
        assert outcomes(extended(own_store, *wanted)) == [EXTENDED] * 3
        client.script_flush()
        assert own_store.run(calls.settle(claims[0])).ours
        client.script_flush()
        kept = keep(claims[1], holders.held_for_retry(replies[1].value), 30)
        assert own_store.run(kept).ours
        client.script_flush()
        assert own_store.run(calls.break_lock(claims[2].keys, 30)) is not None
        client.script_flush()
        assert outcomes(extended(own_store, *wanted)) == [RETAKEN, NOT_OURS, NOT_OURS]


@contextlib.contextmanager
def full_server(tmp_path: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    with RedisServer("--maxmemory-policy", "noeviction") as server, server.client() as client:
        client.set("big", "x" * 1_000_000)
        client.config_set("maxmemory", "1mb")
        yield server.url, lambda: client.config_set("maxmemory", "0")


@contextlib.contextmanager
def replica(tmp_path: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    away = ("--replicaof", "127.0.0.1", str(free_port()))
    with RedisServer(*away) as server, server.client() as client:
        yield server.url, lambda: client.replicaof("no", "one")


@contextlib.contextmanager
def stale_replica(tmp_path: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    away = ("--replicaof", "127.0.0.1", str(free_port()))
    options = (*away, "--replica-serve-stale-data", "no")
    with _Reachable(*options) as server, server.client() as client:
        yield server.url, lambda: client.replicaof("no", "one")


@contextlib.contextmanager
def guarded_server(tmp_path: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    with RedisServer() as server, server.client() as client:
        client.config_set("requirepass", "secret")
        yield server.url, lambda: client.config_set("requirepass", "")


@contextlib.contextmanager
def loading_server(tmp_path: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """A server that loads for as long as the test likes: it pauses after each key."""
    folder = ("--dir", str(tmp_path), "--dbfilename", "dump.rdb")
    with RedisServer(*folder, "--rdbcompression", "no") as server, server.client() as client:
        client.mset({f"key{number}": "x" * 2000 for number in range(2000)})
        client.save()
    slow = ("--key-load-delay", "10000", "--loading-process-events-interval-bytes", "1024")
    with _Reachable(*folder, *slow) as server, server.client() as client:

        def finish() -> None:
            client.config_set("key-load-delay", 0)
            eventually(lambda: RedisServer.answers(server), "it has loaded")

        yield server.url, finish


@contextlib.contextmanager
def silent_port(tmp_path: Path) -> Iterator[tuple[str, None]]:
    """Nobody listens there."""
    yield f"redis://127.0.0.1:{free_port()}", None


@contextlib.contextmanager
def other_protocol(tmp_path: Path) -> Iterator[tuple[str, None]]:
    """Something listens there that is no Redis."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(100)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    threading.Thread(target=serve, daemon=True).start()
    yield f"redis://127.0.0.1:{listener.getsockname()[1]}", None
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


class _Reachable(RedisServer):
    """A server that is up once it says anything at all."""

    def answers(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            pytest.skip("this redis-server does not know these options")
        try:
            socket.create_connection(("127.0.0.1", self.port), 5).close()
        except OSError:
            return False
        return True


TROUBLE: dict[Any, str] = {
    full_server: "OOM|used memory",
    replica: "(?i)read.?only",
    stale_replica: "MASTERDOWN|Link with MASTER",
    guarded_server: "(?i)auth",
    loading_server: "(?i)loading|no new locks for",
    silent_port: "(?i)refused",
    other_protocol: "Protocol|Invalid|Connection",
}
#: What a server in that trouble can do all the same.
POSSIBLE = {
    full_server: {"wait", "extend", "release", "keep", "break_lock", "holder"},
    replica: {"break_lock", "holder"},  # there was nothing to break
}


def error_of(operation: Callable[[], Any]) -> LockUnavailable | None:
    try:
        reply = operation()
    except LockUnavailable as error:
        return error
    if isinstance(reply, list) and isinstance(reply[0], LockUnavailable):
        return reply[0]  # one of several locks
    return None


@pytest.mark.parametrize("trouble", TROUBLE, ids=lambda trouble: trouble.__name__)
def test_what_a_server_in_trouble_says_is_told_and_soon(tmp_path, label, trouble) -> None:
    ttl = 1.2
    with trouble(tmp_path) as (url, relieve):
        store = Node(source_from_url(url))

        def told_soon(operation: Callable[[], Any], name: str) -> bool:
            started = time.monotonic()
            error = error_of(operation)
            is_soon = time.monotonic() - started < 3
            if error is None:
                assert name in POSSIBLE.get(trouble, ()), f"{name} was possible"
                return is_soon
            assert error.key == lock_keys("redislock", label).lock
            return is_soon and bool(re.search(TROUBLE[trouble], error.reason))

        for name, operation in every_operation(store, label, ttl).items():
            # A tenth of a second without an answer is a timeout, also where the machine is late.
            assert any(told_soon(operation, name) for _ in range(3)), name
        if relieve:
            relieve()
            claim = make_claim(label, ttl=ttl)
            taken(store.run(calls.acquire(claim)))
            assert store.run(calls.settle(claim)).ours
        store.close()


def test_a_replica_that_is_promoted_while_it_is_asked_gives_the_lock(label, tmp_path) -> None:
    with replica(tmp_path) as (url, promote):
        store = Node(source_from_url(url))
        claim = make_claim(label, ttl=6)
        timer = threading.Timer(0.2, promote)
        timer.start()
        taken(store.run(calls.acquire(claim)))
        timer.join()
        store.close()


def test_a_frozen_server_blocks_nobody_for_longer_than_a_third_of_the_ttl(
    own_store, own_redis, label
) -> None:
    ttl = 6  # two seconds are a third, and a late machine has more
    taken(own_store.run(calls.acquire(make_claim(f"{label}warm", ttl=ttl))))
    operations = every_operation(own_store, label, ttl)
    for name in ("acquire", "extend"):  # the others try in the same way
        own_redis.stop()
        started = time.monotonic()
        error = error_of(operations[name])
        own_redis.resume()
        assert "timeout" in error.reason.lower(), name
        assert time.monotonic() - started < ttl - 1, name
    claim = make_claim(f"{label}2", ttl=ttl)
    taken(own_store.run(calls.acquire(claim)))
    assert own_store.run(calls.settle(claim)).ours


def test_a_frozen_server_ends_a_wait_soon_after_its_time(own_store, own_redis, label) -> None:
    holder, claim = make_claim(label, ttl=30), make_claim(label, ttl=1.5)
    taken(own_store.run(calls.acquire(holder)))

    def answers(kind: type) -> bool:
        """On a busy machine a server that runs may be late, too."""
        try:
            return isinstance(
                own_store.block(calls.acquire(claim, "woken"), claim.keys.wake, 0.05), kind
            )
        except LockUnavailable:
            return False

    eventually(lambda: answers(Busy), "the server has the script")
    own_redis.stop()
    started = time.monotonic()
    with pytest.raises(LockUnavailable):
        own_store.block(calls.acquire(claim, "woken"), claim.keys.wake, 0.3)
    assert time.monotonic() - started < 5
    own_redis.resume()
    own_store.run(calls.settle(holder))
    eventually(lambda: answers(Acquired), "it is free")


@pytest.mark.parametrize("idle", [0.0, 2 * TRUSTED])
def test_a_connection_that_the_server_closed_costs_no_lock(own_redis, own_store, label, idle):
    """Used again at once it fails, and there is another try; later it is looked at before."""
    claim = make_claim(label)
    taken(own_store.run(calls.acquire(claim)))
    with own_redis.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
    idling = own_store._connections["main", operation_timeout(30.0)]._idle
    idling[:] = [(connection, used_at - idle) for connection, used_at in idling]
    assert own_store.run(calls.settle(claim), once=bool(idle)).ours


# -- exchanges that are cut short -------------------------------------------------------------


class SlowProxy(Proxy):
    """A way to the server on which answers are still under way when one looks for them."""

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        class Slow:
            def sendall(self, data: bytes) -> None:
                time.sleep(0.0007)
                sink.sendall(data)

            def __getattr__(self, name: str) -> Any:
                return getattr(sink, name)

        super()._pump(source, Slow())  # type: ignore[arg-type]


@pytest.fixture
def slow_proxy(redis_server: RedisServer) -> Iterator[SlowProxy]:
    with SlowProxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def slow_store(slow_proxy: SlowProxy) -> Iterator[Server]:
    store = Node(source_from_url(slow_proxy.url))
    yield store
    store.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("connected", [True, False])
def test_an_answer_that_nobody_read_is_never_taken_for_the_next_one(
    slow_proxy, slow_store, label, connected
) -> None:
    claims = [make_claim(f"{label}{number}", ttl=300, task_id=str(number)) for number in range(2)]
    for claim in claims:
        taken(slow_store.run(calls.acquire(claim)))
    step, goes_on = 0, True
    while goes_on:
        step += 2 if connected else 8  # each gap spans some, and a handshake has many
        if not connected:
            slow_proxy.cut_off()
            slow_proxy.reconnect()
        goes_on = cut_short_at(step, lambda: slow_store.ask(calls.holder_of(claims[0].keys, 300)))
        assert slow_store.ask(calls.holder_of(claims[1].keys, 300)).task_id == "1", f"step {step}"
    assert step > 50


# -- a server that comes back -----------------------------------------------------------------


def test_a_server_that_came_back_empty_gives_no_new_lock_for_a_third_of_the_ttl(
    own_store, own_redis, label
) -> None:
    # A server counts whole seconds: a few tenths after a start late in one, it says one.
    eventually(lambda: time.time() % 1 < 0.2, "the start of a second")
    taken(own_store.run(calls.acquire(make_claim(label, ttl=15))))
    eventually(lambda: time.time() % 1 > 0.8, "the end of a second")
    own_redis.kill()
    gone = time.monotonic()
    own_redis.start()
    eventually(lambda: 0.3 < time.time() % 1 < 0.8, "its uptime is a second")
    claim = make_claim(label, ttl=15)
    with pytest.raises(LockUnavailable, match="no new locks for"):
        own_store.run(calls.acquire(claim), hold_off=0)
    taken(own_store.run(calls.acquire(claim)))
    assert time.monotonic() - gone >= 5.0


def test_what_a_server_that_came_back_empty_forgot_is_taken_again_at_once(
    own_store, own_redis, label
) -> None:
    claim, newcomer = make_claim(label, ttl=60), make_claim(label, ttl=60)
    reply = taken(own_store.run(calls.acquire(claim)))
    own_redis.restart_empty()

    def is_retaken() -> bool:
        with contextlib.suppress(LockUnavailable):
            return outcomes(extended(own_store, extension(claim, reply))) == [RETAKEN]
        return False

    eventually(is_retaken, "it is taken again")
    with pytest.raises(LockUnavailable, match="no new locks for"):
        own_store.run(calls.acquire(newcomer), hold_off=0)


def test_who_found_the_server_away_at_first_holds_off_too(own_redis, label) -> None:
    own_redis.kill()
    store = Node(source_from_url(own_redis.url))
    with pytest.raises(LockUnavailable):
        store.run(calls.acquire(make_claim(label, ttl=0.5)))
    own_redis.start()
    with pytest.raises(LockUnavailable, match="no new locks for"):
        store.run(calls.acquire(make_claim(label, ttl=30)), hold_off=0)
    store.close()


def test_a_server_that_was_only_out_of_reach_gives_locks_at_once(redis_server, label) -> None:
    with RedisServer() as server, Proxy(server.port) as proxy:
        store = Node(source_from_url(proxy.url))
        taken(store.run(calls.acquire(make_claim(label))))
        proxy.cut_off()
        with pytest.raises(LockUnavailable):
            store.run(calls.acquire(make_claim(f"{label}2", ttl=0.5)))
        proxy.reconnect()
        taken(store.run(calls.acquire(make_claim(f"{label}2")), hold_off=0))
        store.close()


def test_another_server_under_the_same_address_gives_no_new_lock_at_once(label) -> None:
    with RedisServer() as first, RedisServer() as second, Proxy(first.port) as proxy:
        store = Node(source_from_url(proxy.url))
        taken(store.run(calls.acquire(make_claim(label))))
        proxy.cut_off()
        proxy.target_port = second.port
        proxy.reconnect()
        with pytest.raises(LockUnavailable, match="no new locks for"):
            store.run(calls.acquire(make_claim(label)), hold_off=0)
        store.close()


def without_info(server: RedisServer) -> None:
    """Do not tell which server this is, from now on."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-info")


def without_info_and_marked(server: RedisServer) -> None:
    """Do not tell it; but keep a mark, which a server before Redis 7 may give to its replicas."""
    with server.client() as client:
        if int(client.info()["redis_version"].split(".")[0]) < 7:
            pytest.skip("a server before Redis 7 gets no mark")
    without_info(server)


def test_a_server_that_does_not_tell_which_it_is_is_held_off_after_a_restart(
    own_redis, label
) -> None:
    without_info_and_marked(own_redis)
    store = Node(source_from_url(own_redis.url))
    for number in range(2):
        for each in range(2):
            taken(store.run(calls.acquire(make_claim(f"{label}{number}-{each}", ttl=0.6))))
        own_redis.restart_empty()
        without_info(own_redis)
        with pytest.raises(LockUnavailable, match="no new locks for"):
            store.run(calls.acquire(make_claim(label)), hold_off=0)
    store.close()


def test_each_of_those_who_share_a_mark_notices_a_restart(own_redis, label) -> None:
    """A forked process knows its parent's. The mark that one leaves then must not fool others."""
    without_info_and_marked(own_redis)
    parent, child = (Node(source_from_url(own_redis.url)) for _ in range(2))
    taken(parent.run(calls.acquire(make_claim(label))))
    child.watch._mark = parent.watch._mark
    own_redis.restart_empty()
    without_info(own_redis)
    for store in (parent, child, parent):
        with pytest.raises(LockUnavailable, match="no new locks for"):
            store.run(calls.acquire(make_claim(label)), hold_off=0)
    parent.close()
    child.close()


def test_a_replica_that_is_promoted_is_held_off_if_it_does_not_tell_which_it_is(label) -> None:
    """It has all that was on disk or in the stream of commands before."""
    with RedisServer() as first:
        without_info(first)
        with Proxy(first.port) as proxy:
            store = Node(source_from_url(proxy.url))
            taken(store.run(calls.acquire(make_claim(label))))
            with RedisServer("--replicaof", "127.0.0.1", str(first.port)) as second:
                with second.client() as client:
                    eventually(lambda: client.info()["master_link_status"] == "up", "it follows")
                    taken(store.run(calls.acquire(make_claim(f"{label}2"))))
                    client.replicaof("NO", "ONE")
                without_info(second)
                proxy.cut_off()
                proxy.target_port = second.port
                proxy.reconnect()
                with pytest.raises(LockUnavailable, match="no new locks for"):
                    store.run(calls.acquire(make_claim(f"{label}3")), hold_off=0)
            store.close()


#: How a connection ends without a restart of the server.
CLOSES: dict[str, Callable[[RedisServer, Proxy], None]] = {
    "killed": lambda server, proxy: kill_clients(server),
    "cut": lambda server, proxy: cut(proxy),
    "forgotten": lambda server, proxy: proxy.forget(),
}


def cut(proxy: Proxy) -> None:
    proxy.cut_off()
    proxy.reconnect()


def kill_clients(server: RedisServer) -> None:
    with server.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)


@pytest.mark.parametrize("how", CLOSES)
def test_a_server_that_does_not_tell_which_it_is_gives_locks_though_connections_end(
    own_redis, label, how
) -> None:
    """Else no task would run any more where they end within a third of the ttl."""
    without_info_and_marked(own_redis)
    with Proxy(own_redis.port) as proxy:
        store = Node(source_from_url(proxy.url))
        for number in range(3):
            claim = make_claim(f"{label}{number}", ttl=60)
            taken(store.run(calls.acquire(claim), hold_off=0))
            CLOSES[how](own_redis, proxy)
            assert store.run(calls.settle(claim)).ours
            CLOSES[how](own_redis, proxy)
        store.close()


def test_a_restart_that_is_told_by_a_break_alone_is_held_off(own_redis, label, monkeypatch) -> None:
    """The scripts of a server before Redis 7 may be known to its replicas."""
    monkeypatch.setattr(scripts, "MARK", "return redis.UNKNOWN and '%s'")
    without_info(own_redis)
    store = Node(source_from_url(own_redis.url))
    taken(store.run(calls.acquire(make_claim(label))))
    kill_clients(own_redis)
    with pytest.raises(LockUnavailable, match="no new locks for"):
        store.run(calls.acquire(make_claim(f"{label}2")), hold_off=0)
    store.close()
