"""What a lock costs, in figures that no machine changes: commands, round trips, memory."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from celery import Celery

from celery_redislock import LockConflict, RedisLock, SingletonTask, TaskSkipped
from celery_redislock.lock import sources
from celery_redislock.lock.greenlets import Alarm
from celery_redislock.protocol import waiting
from celery_redislock.protocol.canonical import digest
from celery_redislock.protocol.claims import Claim, to_ms
from celery_redislock.protocol.holders import encode
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.protocol.tokens import new_token
from celery_redislock.servers.scripts import sha_of, text_of
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

SCRIPTS = {sha_of(name): name for name in ("acquire", "extend", "settle", "park", "reserve")}
#: What connections begin with; how the worker that looks after rooms asks, and a test.
OTHERS = ("HELLO", "CLIENT", "SELECT", "ZRANGEBYSCORE", "INFO", "KEYS")


#: What a worker reads every two seconds of each task that it has parked.
LOOKS = ["HEXISTS", "HGET", "GET", "GET"]


@contextlib.contextmanager
def sent_to(server: RedisServer, about: str = "") -> Iterator[list[str]]:
    """The commands that the server is sent in here with this text in them, scripts by name; not
    what scripts do.
    """
    sent: list[str] = []
    with server.client() as client, server.client().monitor() as monitor:
        yield sent
        end = new_token()
        client.echo(end)
        while end not in (line := monitor.next_command())["command"]:
            if line["client_type"] == "lua" or about not in line["command"]:
                continue
            name, *rest = line["command"].split() or OTHERS  # redis-py 5 does not read every line
            if name in OTHERS:
                continue
            sent.append(SCRIPTS.get(rest[0], rest[0]) if name == "EVALSHA" else name)
    while "HEXISTS" in sent:
        first = sent.index("HEXISTS")
        assert sent[first : first + len(LOOKS)] == LOOKS
        del sent[first : first + len(LOOKS)]


@pytest.fixture
def lock(own_redis, label) -> Iterator[RedisLock]:
    """A lock whose connection is open, on a server that knows the scripts."""
    lock = RedisLock(own_redis.url, label, timeout=0)
    with lock, own_redis.client() as client:
        for name in SCRIPTS.values():
            client.script_load(text_of(name))
    yield lock
    lock._server.close()


# -- outside of tasks -------------------------------------------------------------------------


def test_who_does_not_get_a_lock_asks_once(lock, own_redis, label):
    with lock, sent_to(own_redis) as sent:
        assert not RedisLock(own_redis.url, label).acquire(0)
    assert sent == ["acquire"]


def test_a_new_lock_of_a_known_url_opens_no_connection(own_redis, label):
    """Though nothing else has kept the last one's. Those of very many URLs are not kept."""

    def use(url: str) -> None:
        with RedisLock(url, label):
            pass
        gc.collect()

    with own_redis.client() as client:
        use(own_redis.url)
        before = client.info("stats")["total_connections_received"]
        for _ in range(3):
            use(own_redis.url)
        assert client.info("stats")["total_connections_received"] == before
        for db in range(1, 16):
            use(f"{own_redis.url}/{db}")
        assert client.info("clients")["connected_clients"] <= sources.KEPT + 1


def test_a_lock_that_is_handed_over_takes_three_commands(lock, own_redis, label):
    """Ask, go to sleep, and ask again when woken. The last two are one round trip."""
    waiting = RedisLock(own_redis.url, label)
    keys = lock_keys("redislock", label)
    got = []
    thread = threading.Thread(target=lambda: got.append(waiting.acquire(20)))
    with sent_to(own_redis, about=keys.fence[:-5]) as sent:
        with lock, own_redis.client() as client:
            thread.start()
            eventually(lambda: client.info("clients")["blocked_clients"], "it sleeps")
        thread.join(20)
    assert got == [True]
    assert sent == ["acquire", "acquire", "BLPOP", "settle", "acquire"]


def test_a_long_wait_is_a_row_of_sleeps_and_stays_on_the_list(lock, own_redis, label, monkeypatch):
    monkeypatch.setattr(waiting, "MAX_BLOCK", 0.2)
    with lock, sent_to(own_redis) as sent:
        assert not RedisLock(own_redis.url, label).acquire(1.5)
    sleeps = sent.count("BLPOP")
    row = ["acquire", *["BLPOP", "acquire"] * sleeps]
    assert sleeps > 2
    # Who wakes after its time was over, and is on the list, says goodbye.
    assert sent in (row, [*row, "acquire"])


def test_the_connection_thread_and_scripts_are_there_once_for_all_locks(own_redis, label):
    with RedisLock(own_redis.url, label):
        pass
    threads = threading.active_count()
    with own_redis.client() as client:
        connections = client.info("stats")["total_connections_received"]
        with sent_to(own_redis) as sent:
            for number in range(20):
                with RedisLock(own_redis.url, f"{label}{number}"):
                    pass
        # The monitor's, and the one that ends it.
        assert client.info("stats")["total_connections_received"] - connections <= 3
    assert sent == ["acquire", "settle"] * 20
    assert threading.active_count() <= threads


@pytest.mark.parametrize("ttl_beside", [None, 3600.0])
def test_a_lock_that_is_soon_released_does_not_wake_the_heartbeat(
    lock, own_redis, label, monkeypatch, ttl_beside
):
    """Now and then, more often where the machine is busy; not for nearly every pair. The same
    beside a lock whose extension is due much later.
    """
    rings = []
    ring = Alarm.ring
    monkeypatch.setattr(Alarm, "ring", lambda alarm: (rings.append(alarm), ring(alarm)))
    lock.ttl = 2.0
    beside = contextlib.nullcontext()
    if ttl_beside is not None:
        beside = RedisLock(own_redis.url, f"{label}-beside", ttl=ttl_beside)
    with beside:
        until, pairs = time.monotonic() + 3.0, 0
        while time.monotonic() < until:
            with lock:
                pairs += 1
    assert pairs > 100
    assert len(rings) <= pairs / 4


# -- tasks in a worker ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lock_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        for name in ("acquire", "settle", "park"):
            with server.client() as client:
                client.script_load(text_of(name))
        yield server


@pytest.fixture(scope="module")
def worker(start_module_worker, lock_server):
    queue = "costs"
    start_module_worker(queues=queue, pool="solo", conf={"redislock_url": f"{lock_server.url}/0"})
    return queue


@pytest.fixture(scope="module")
def prefork_worker(start_module_worker, lock_server):
    queue = f"costs-{new_token()}"
    conf = {"redislock_url": f"{lock_server.url}/0"}
    return start_module_worker(queues=queue, concurrency=1, conf=conf), queue


@pytest.fixture
def send(worker, sender):
    def send(name: str, label: str, *args: object):
        return sender.send_task(name, [label, *args], queue=worker)

    # It is connected, and the server knows what is common to all.
    assert send("skip", new_token(), 0.0).get(timeout=30)
    return send


def lock_name(task: str, label: str) -> str:
    """The name of the task's lock. Not only its bucket tells its keys from others': a thousandth of
    all locks share that, and the tests of this module share a server.
    """
    return f"{task}:v1:{digest({'label': label})}"


def holder(server: RedisServer, name: str, label: str) -> RedisLock:
    return RedisLock(server.url, lock_name(name, label), timeout=0)


def test_a_run_costs_two_round_trips(send, lock_server, label):
    with sent_to(lock_server, about=lock_name("skip", label)) as sent:
        assert send("skip", label, 0.0).get(timeout=20)
    assert sent == ["acquire", "settle"]


@pytest.mark.parametrize("name", ["skip", "skip_result", "refuse"])
def test_a_duplicate_that_is_turned_away_costs_one_round_trip(send, lock_server, label, name):
    """Noted for other copies of its message all the same."""
    with holder(lock_server, name, label) as held:
        with sent_to(lock_server, lock_name(name, label)) as sent:
            for _ in range(3):
                with contextlib.suppress(TaskSkipped, LockConflict):
                    assert send(name, label).get(timeout=20) == "skipped"
        with lock_server.client() as client:
            assert len(client.keys(held.key.replace(":lock:", ":done:") + ":*")) == 3
    assert sent == ["acquire"] * 3


@pytest.mark.parametrize(
    "name",
    ["skip", "skip_result", "refuse", "queued", "coalesced", "replaced_sometime", "defer_long"],
)
def test_a_duplicate_sends_little_through_the_pools_pipe(
    prefork_worker, sender, lock_server, label, name
):
    """Celery would send tens of KB of a task that ends with an exception, its tracer's frames."""
    worker, queue = prefork_worker
    (child,) = worker.children()

    def told() -> int:
        """What the pool process has written, but for its log lines: sockets are not counted."""
        counts = Path(f"/proc/{child}/io").read_text().splitlines()
        fields = dict(line.split(": ") for line in counts)
        own = [line for line in worker.log().splitlines(True) if "ForkPoolWorker" in line]
        return int(fields["wchar"]) - sum(len(line.encode()) for line in own)

    def run() -> int:
        """And what it has written when the run of a task has begun behind all others."""
        assert sender.send_task("skip", [new_token(), 0.0], queue=queue).get(timeout=20)
        return told()

    run()
    of_a_run = -run() + run()
    with holder(lock_server, name, label):
        before = run()
        sender.send_task(name, [label], queue=queue)
        assert run() - before - of_a_run <= 1024


@pytest.mark.parametrize(
    ("name", "mark", "costs"),
    [
        ("defer_long", "", ["acquire"]),
        ("queued", "room", ["acquire", "park"]),
        ("coalesced", "room", ["acquire", "park"]),
        ("replaced_sometime", "room", ["acquire", "park"]),
        ("wait", "waiters", ["acquire", "acquire", "BLPOP"]),
    ],
)
def test_a_duplicate_that_will_run_costs_as_many_as_it_must(
    send, lock_server, label, name, mark, costs
):
    with holder(lock_server, name, label), sent_to(lock_server, lock_name(name, label)) as sent:
        send(name, label, 0.0)
        with lock_server.client() as client:
            if mark:
                eventually(
                    lambda: client.keys(f"*:{mark}:{lock_name(name, label)}"), "it is put by"
                )
            else:  # one after the other
                assert send("skip", new_token(), 0.0).get(timeout=20)
            if name == "wait":
                eventually(lambda: client.info("clients")["blocked_clients"], "it sleeps")
    assert sent == costs


@pytest.mark.parametrize("name", ["queued", "coalesced"])
def test_a_duplicate_after_one_that_waits_is_parked_at_once(send, lock_server, label, name):
    def send_some(number):
        for _ in range(number):
            send(name, label, 0.0)
        assert send("skip", new_token(), 0.0).get(timeout=20)  # one after the other

    with holder(lock_server, name, label):
        send_some(1)
        with sent_to(lock_server, lock_name(name, label)) as sent:
            send_some(3)
    # For one that is replaced, "HDEL" follows sometime: its result is stored. The server need not
    # ask for its done note.
    assert [each for each in sent if each != "HDEL"] == ["park"] * 3


# -- memory -----------------------------------------------------------------------------------


#: Bytes of the buffer that redis-py without hiredis makes to read an answer.
READ_SIZE = 65536


def grown(act: Callable[[], object], times: int) -> tuple[float, int]:
    """Bytes that each time leaves behind, and the most that one time needs."""
    for _ in range(50):
        act()
    tracemalloc.start()
    try:
        act()
        before = held()
        tracemalloc.reset_peak()
        base = tracemalloc.get_traced_memory()[0]
        act()
        most = tracemalloc.get_traced_memory()[1] - base
        for _ in range(times):
            act()
        return (held() - before) / times, most
    finally:
        tracemalloc.stop()


def held() -> int:
    """Bytes that are allocated, but for those of the tests' own tools, which have threads."""
    gc.collect()
    others = tracemalloc.Filter(False, "*/tests/support/*")
    return sum(each.size for each in tracemalloc.take_snapshot().filter_traces([others]).traces)


def test_a_pair_needs_little_memory_and_leaves_none(lock):
    def pair() -> None:
        lock.acquire(0)
        lock.release()

    left, most = grown(pair, 300)
    assert left < 50
    assert most < 10_000 + READ_SIZE


def test_a_run_needs_little_memory_and_leaves_none(lock_server):
    app = Celery("costs", set_as_current=False)
    app.conf.update(redislock_url=lock_server.url, redislock_eager=True)

    @app.task(base=SingletonTask, name="costs.run")
    def run(number):
        return number

    app.finalize()
    left, most = grown(lambda: run.apply([5]), 200)
    assert left < 100
    assert most < 20_000 + READ_SIZE


def test_a_claim_says_no_more_than_it_must(label):
    """What goes over the wire for a run: 20 % more is to be noticed."""
    token = new_token()
    value = encode(token, ttl_ms=to_ms(30), task="pkg.task", task_id=token, node="celery@host")
    claim = Claim(lock_keys("redislock", label), token, 30.0, value, token)
    assert len(claim.value) < 260
