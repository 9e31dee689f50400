"""Done notes: forgotten once the broker has heard that the message is done, and not before."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from tests.behaviour.deliveries.conftest import await_line
from tests.behaviour.ends_stage import IMPATIENT, needs_impatience
from tests.support.servers import Proxy
from tests.support.waiting import eventually, never
from tests.support.workers import make_app

APP = "tests.contract.worker.forgetful"
#: Processes that run tests side by side share the brokers.
QUEUE = f"notes-{os.getpid()}"
#: Seconds: what is left of a note that stays is more.
LONG = 500
POOLS = ("prefork", "solo")


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def broker(request, redis_server):
    """The URL of each broker, in turn."""
    if request.param == "redis":
        return f"{redis_server.url}/1"
    return request.getfixturevalue("rabbitmq").url


@pytest.fixture(scope="module")
def sender(conf, broker):
    settings = {k: v for k, v in conf.items() if not k.startswith("test_")}
    with make_app({**settings, "broker_url": broker}) as app:
        yield app


@pytest.fixture(scope="module")
def shared(start_module_worker, broker):
    """The queue of a worker with this pool, which forgets soon."""
    started = {}

    def shared(pool):
        if pool not in started:
            where = {"queues": f"{QUEUE}-{pool}", "pool": pool}
            conf = {"broker_url": broker, "worker_prefetch_multiplier": 4}
            slots = 1 if pool == "solo" else 2
            started[pool] = start_module_worker(app=APP, concurrency=slots, conf=conf, **where)
        return started[pool]

    return shared


@pytest.fixture
def threads(shared):
    return shared("threads")


@pytest.fixture
def send(sender):
    """Sends to the shared worker with this pool."""
    return lambda name, *args, pool="threads": sender.send_task(name, args, queue=f"{QUEUE}-{pool}")


@pytest.fixture
def start(start_worker, queue, broker):
    """Starts a worker of this test's own, which forgets soon."""

    def start(**options):
        conf = {"broker_url": broker, **options.pop("conf", {})}
        return start_worker(app=APP, queues=queue, **{"concurrency": 1, **options, "conf": conf})

    return start


@pytest.fixture
def send_here(sender, queue):
    return lambda name, *args: sender.send_task(name, args, queue=queue)


@pytest.fixture
def notes_of(client):
    """The seconds that the done notes of a task's attempts have still to live."""

    def notes_of(result):
        keys = client.scan_iter(f"redislock:*:done:*:{result.id}:*", count=10_000)
        return [client.pttl(key) / 1000 for key in keys]

    return notes_of


@pytest.fixture
def stays(notes_of):
    """Fails if a task's one note does not live for longer than others, or not for much longer."""

    def stays(result, seconds=3.5):
        (left,) = eventually(lambda: notes_of(result), "a done note is left")
        assert left > LONG
        never(lambda: not notes_of(result), "the note was forgotten", seconds)

    return stays


@pytest.mark.parametrize("pool", POOLS)
def test_a_note_is_forgotten_once_its_message_is_acknowledged(shared, send, notes_of, pool, label):
    shared(pool)
    # In a solo worker `skip` is acknowledged after its body, too.
    results = [send(("skip", "late")[n % 2], f"{label}-{n}", pool=pool) for n in range(6)]
    assert results[-1].get(timeout=60)
    assert notes_of(results[-1])
    for result in results:
        assert result.get(timeout=60)
    eventually(lambda: not any(map(notes_of, results)), "the notes are forgotten")


@needs_impatience
def test_the_note_of_a_worker_that_is_killed_stays_and_the_copy_does_not_run(
    start, send_here, stays, journal, label, broker
):
    """Between the end of the run and the acknowledgement."""
    conf = {"broker_transport_options": IMPATIENT} if broker.startswith("redis") else {}
    first = start(conf=conf)
    result = send_here("late", label, None)
    (entry,) = eventually(lambda: journal.read(label, "start"), "it runs")
    first.signal(signal.SIGSTOP)  # its main process acknowledges nothing
    journal.let_go(result.id)
    assert result.get(timeout=30)
    for pid in (first.pid, entry.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    second = start(conf=conf)
    await_line(second, result.id, "already done")
    stays(result)
    assert journal.count(label, "start") == 1


@pytest.fixture
def way(broker):
    """A way to the broker that can be cut off."""
    proxy = Proxy(int(broker.rpartition(":")[2].partition("/")[0]))
    yield proxy
    proxy.close()


def test_a_note_stays_if_the_connection_is_lost_after_the_acknowledgement(
    start, send_here, stays, label, broker, way
):
    """The broker may not have heard it."""
    conf = {"broker_url": way.in_front_of(broker), "test_remembered": 3.0}
    worker = start(pool="threads", conf=conf)
    result = send_here("late", label)
    assert result.get(timeout=30)
    way.cut_off()
    await_line(worker, "Connection to broker lost")
    way.reconnect()
    stays(result, 5.0)
