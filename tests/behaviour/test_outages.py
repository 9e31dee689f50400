"""The lock server away, frozen, or back and empty: at acquire, while running, at release."""

from __future__ import annotations

import re
import time

import pytest
from celery import Celery

from celery_redislock import LockUnavailable, SingletonTask
from tests.support.servers import RedisServer
from tests.support.waiting import eventually, never
from tests.support.workers import make_app

QUEUE = "outages"


@pytest.fixture
def locks_on(start_worker, queue):
    """Starts a worker whose locks, and nothing else, are on this server."""

    def start(server, **options):
        conf = {"redislock_url": f"{server.url}/0", **options.pop("conf", {})}
        return start_worker(queues=queue, conf=conf, **options)

    return start


# -- an outage as tasks come ------------------------------------------------------------------


class Outage:
    """What was sent to a worker whose lock server was away, and has ended since.

    Each task has a label of its own, which is its id, too.
    """

    def __init__(self, server, worker, sender):
        self.server, self._sender, self.results = server, sender, {}
        self._worker = worker
        server.kill()
        self._send("skip", "deferred")
        # As what was put off ten times, for whatever reason.
        put_off = {"deferrals": 10, "since": time.time(), "chain": "c", "step": 10}
        self._send("skip", "put-off", headers={"redislock": put_off})
        # It would be put off for a minute, and has less left.
        long = {"v": 2, "deferrals": 6, "outages": 6, "since": time.time()}
        self._send("skip", "expires", headers={"redislock": long}, expires=10)
        self._send("runs_unlocked", "runs")
        self._send("raises_unlocked", "raises")
        for name in ("deferred", "put-off", "expires"):
            eventually(lambda name=name: "is deferred for" in self.said(name), "it is deferred")
        for name in ("runs", "raises"):
            eventually(self.results[name].ready, "it has ended, while the server is away")
        server.start()
        eventually(lambda: all(each.ready() for each in self.results.values()), "all have ended")
        self.log = worker.log()

    def _send(self, task, name, **options):
        task_id = f"{name}-{time.monotonic_ns()}"
        options = {"task_id": task_id, "queue": QUEUE, **options}
        self.results[name] = self._sender.send_task(task, [task_id, 0.1], **options)

    def said(self, name):
        """The lines of the log that name this task."""
        lines = self._worker.log().splitlines()
        return "\n".join(line for line in lines if self.results[name].id in line)


@pytest.fixture(scope="module")
def outage(start_module_worker, sender):
    with RedisServer() as server:
        conf = {"redislock_url": f"{server.url}/0"}
        yield Outage(server, start_module_worker(queues=QUEUE, concurrency=5, conf=conf), sender)


def test_an_unreachable_server_defers_a_task_until_it_is_back(outage, journal):
    result = outage.results["deferred"]
    assert result.get()
    (began,) = journal.read(result.id, "start")
    assert began.data["fence"], "it runs with its lock"


def test_a_task_that_expires_soon_is_tried_again_before_that_though_the_server_is_long_away(outage):
    assert outage.results["expires"].get()


def test_an_unreachable_server_lets_a_task_run_without_its_lock_if_it_says_so(outage):
    result = outage.results["runs"]
    assert result.get() == [result.id, 0]
    assert "WITHOUT its lock" in outage.said("runs")


def test_an_unreachable_server_fails_a_task_if_it_says_so(outage):
    result = outage.results["raises"]
    with pytest.raises(LockUnavailable) as caught:
        result.get()
    assert result.id not in caught.value.key
    assert "raises_unlocked" in caught.value.key
    assert caught.value.reason


def test_a_task_that_could_not_take_its_lock_is_not_said_to_keep_it(outage):
    assert "could not release" not in outage.log
    assert "expires within" not in outage.log


def test_a_frozen_server_blocks_nobody_until_it_goes_on(outage, send, label):
    outage.server.stop()
    try:
        with pytest.raises(LockUnavailable):
            send("raises_unlocked", label, 0.1).get(timeout=60)
    finally:
        outage.server.resume()


# -- what expires -----------------------------------------------------------------------------


def test_a_task_that_expires_as_it_waits_ends_so_and_does_not_vanish(
    start_worker, rabbitmq, own_redis, conf, queue, journal, label
):
    """RabbitMQ would drop the message with which it is deferred."""
    conf = {**conf, "broker_url": rabbitmq.url}
    away = {**conf, "redislock_url": f"{own_redis.url}/0"}
    start_worker(queues=f"{queue}-away", conf=away, concurrency=1)
    worker = start_worker(queues=queue, conf=conf, concurrency=2)
    own_redis.kill()
    with make_app(conf) as app:
        away = app.send_task("queued_late", [f"{label}-away"], queue=f"{queue}-away", expires=0.8)
        holder = app.send_task("defer_long", [label, 30], queue=queue)
        journal.await_start(label, holder.id)
        second = app.send_task("defer_long", [label], queue=queue, expires=40)
        eventually(lambda: second.state == "REVOKED", "it ends at once: it would be put off for 60")
        assert holder.state != "SUCCESS", "it ended before the lock was free"
        eventually(lambda: away.state == "REVOKED", "so ends what waits for the server")
        eventually(lambda: "ends as expired" in worker.log(), "it is said, after it is stored")
        said = re.search(r"(\w+)/\S+ redislock: \S+ ends as expired: it cannot", worker.log())
        assert said[1] == "INFO", "it is its own expiry, and another run that has the lock"
    assert f"[{second.id}] deferred" not in worker.log(), "it is said once what becomes of it"
    assert journal.count(label, "start") == 1
    assert not journal.read(f"{label}-away", "start")


# -- an outage as a task runs -----------------------------------------------------------------


def test_an_outage_is_survived_a_longer_one_is_a_lost_lock_and_one_at_the_release_is_said(
    locks_on, proxy, sender, queue, journal, label
):
    worker = locks_on(proxy, concurrency=1)

    def start(name, *args):
        result = sender.send_task(name, [label, *args], queue=queue)
        journal.await_start(label, result.id)
        proxy.cut_off()
        return result

    kept = start("skip", "stand")
    eventually(lambda: "could not extend" in worker.log(), "the heartbeat met the outage")
    proxy.reconnect()
    eventually(lambda: "answers again" in worker.log(), "the heartbeat got through")
    journal.let_go(kept.id)
    assert kept.get(timeout=20)
    assert journal.read(label, "end")[0].data == {"lost": False}

    lost = start("watches_lock", 60.0)
    assert lost.get(timeout=50).startswith("lost"), "its ttl is over"
    proxy.reconnect()

    unreleased = start("skip", "stand")
    journal.let_go(unreleased.id)
    assert unreleased.get(timeout=30), "the task does not fail for it"
    eventually(lambda: "could not release" in worker.log(), "it says so")
    assert "expires within 6 s" in worker.log()


def test_a_server_that_comes_back_empty_gives_the_lock_to_its_holder_and_not_to_another(
    locks_on, own_redis, sender, queue, journal, label
):
    worker = locks_on(own_redis, concurrency=3)
    first = sender.send_task("wait", [label, "stand"], queue=queue)
    journal.await_start(label, first.id)
    # Every child has talked to the server, so each would notice another one.
    others = [sender.send_task("wait", [label, 0.1], queue=queue) for _ in range(2)]
    own_redis.restart_empty()
    eventually(lambda: "acquired again" in worker.log(), "the holder took its lock again")
    never(lambda: journal.count(label, "start") > 1, "another one has it", 1)
    journal.let_go(first.id)
    for result in (first, *others):
        assert result.get(timeout=60)
    assert journal.read(label, "end")[0].data == {"lost": False}
    assert journal.overlaps(label) == []


def test_a_worker_starts_while_the_server_is_away(locks_on, own_redis, sender, queue, label):
    own_redis.kill()
    worker = locks_on(own_redis)
    assert "does not answer yet" in worker.log()
    result = sender.send_task("skip", [label, 0.1], queue=queue)
    own_redis.start()
    assert result.get(timeout=40)


# -- without a worker -------------------------------------------------------------------------


def test_two_apps_in_one_process_keep_two_servers(redis_server, own_redis):
    apps = []
    for server in (redis_server, own_redis):
        app = Celery("two", broker="memory://", set_as_current=False)
        app.conf.redislock_url = server.url

        @app.task(shared=False, base=SingletonTask, name="t")
        def t(): ...

        apps.append((app.tasks["t"], server))
    for task, server in apps:
        key = task.lock_key_for()
        server.client().set(key, "foreign")
        assert task.lock_holder() is not None
        server.client().delete(key)
        assert task.lock_holder() is None
