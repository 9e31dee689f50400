"""The lock server away, frozen, or back and empty: at acquire, while running, at release."""

from __future__ import annotations

import time

import pytest
from celery import Celery

from celery_redislock import LockUnavailable, RedisLock, SingletonTask
from tests.support.lateness import elapsed
from tests.support.waiting import eventually, never
from tests.support.workers import make_app


@pytest.fixture
def locks_on(start_worker, queue):
    """Starts a worker whose locks, and nothing else, are on this server."""

    def start(server, **options):
        conf = {"redislock_url": f"{server.url}/0", **options.pop("conf", {})}
        return start_worker(queues=queue, conf=conf, **options)

    return start


def test_an_unreachable_server_defers_the_task_until_it_is_back(
    locks_on, own_redis, sender, queue, journal, label
):
    worker = locks_on(own_redis)
    own_redis.kill()
    result = sender.send_task("skip", [label, 0.1], queue=queue)
    eventually(lambda: "is deferred for" in worker.log(), "it is deferred, and says so")
    assert not journal.read(label, "start")
    own_redis.start()
    assert result.get(timeout=40)
    assert journal.count(label, "start") == 1


def test_an_outage_puts_a_task_that_was_deferred_before_off_no_longer_than_another(
    locks_on, own_redis, sender, queue, label
):
    worker = locks_on(own_redis)
    own_redis.kill()
    deferred = {"redislock": {"deferrals": 10, "since": time.time(), "chain": "c", "step": 10}}
    result = sender.send_task("skip", [label, 0.1], queue=queue, headers=deferred)
    eventually(lambda: "is deferred for 1." in worker.log(), "it is deferred for a second or so")
    own_redis.start()
    assert result.get(timeout=30)


def test_a_task_that_expires_as_it_waits_for_the_server_ends_so_and_does_not_vanish(
    start_worker, own_redis, rabbitmq, conf, queue, journal, label
):
    """RabbitMQ would drop the message with which it is deferred."""
    conf = {**conf, "broker_url": rabbitmq.url}
    start_worker(queues=queue, conf={**conf, "redislock_url": f"{own_redis.url}/0"}, concurrency=1)
    own_redis.kill()
    with make_app({k: v for k, v in conf.items() if not k.startswith("test_")}) as app:
        result = app.send_task("queued_late", [label], queue=queue, expires=0.8)
        eventually(lambda: result.state == "REVOKED", "its end is stored")
    assert not journal.read(label, "start")


def test_a_task_that_would_expire_before_it_is_run_again_ends_so_at_once(
    start_worker, rabbitmq, conf, queue, journal, label
):
    """RabbitMQ would drop the message with which it is deferred, some time in that minute."""
    conf = {**conf, "broker_url": rabbitmq.url}
    worker = start_worker(queues=queue, conf=conf, concurrency=2)
    with make_app({k: v for k, v in conf.items() if not k.startswith("test_")}) as app:
        holder = app.send_task("defer_long", [label, 20], queue=queue)
        eventually(lambda: journal.count(label, "start") == 1, "one has the lock")
        second = app.send_task("defer_long", [label], queue=queue, expires=30)
        eventually(lambda: second.state == "REVOKED", "its end is stored", 15)
        assert holder.state != "SUCCESS", "it ended before the lock was free"
        eventually(lambda: "ends as expired" in worker.log(), "it is said, after it is stored")
    assert f"[{second.id}] deferred" not in worker.log(), "it is said once what becomes of it"
    assert journal.count(label, "start") == 1


def test_a_task_that_expires_soon_is_tried_again_before_that_though_the_server_is_long_away(
    locks_on, own_redis, sender, queue, label
):
    """It would be put off for a minute, and has a few seconds left."""
    worker = locks_on(own_redis)
    own_redis.kill()
    outages = {"redislock": {"v": 2, "deferrals": 6, "outages": 6, "since": time.time()}}
    result = sender.send_task("skip", [label, 0.1], queue=queue, headers=outages, expires=12)
    eventually(lambda: "is deferred for" in worker.log(), "it is deferred")
    own_redis.start()
    assert result.get(timeout=30)


def test_a_copy_behind_its_own_run_does_not_end_that_as_expired(
    start_worker, conf, sender, queue, journal, label
):
    """The run that has the lock gives the task its result."""
    worker = start_worker(queues=queue, conf=conf, concurrency=2)
    sent = {"task_id": label, "queue": queue}
    sender.send_task("defer_long", [label, 2], **sent)
    eventually(lambda: journal.count(label, "start") == 1, "it runs")
    sender.send_task("defer_long", [label, 2], **sent, expires=0.9)
    eventually(lambda: "redelivered for" in worker.log(), "the copy meets its own run")
    eventually(lambda: journal.count(label, "end") == 1, "the run ends")
    assert "ends as expired" not in worker.log()


def test_an_unreachable_server_lets_a_task_run_without_its_lock_if_it_says_so(
    locks_on, own_redis, sender, queue, label
):
    worker = locks_on(own_redis)
    own_redis.kill()
    result = sender.send_task("runs_unlocked", [label, 0.1], queue=queue)
    assert result.get(timeout=30) == [label, 0]
    assert "WITHOUT its lock" in worker.log()


def test_an_unreachable_server_fails_a_task_if_it_says_so(
    locks_on, own_redis, sender, queue, label
):
    locks_on(own_redis)
    own_redis.kill()
    result = sender.send_task("raises_unlocked", [label, 0.1], queue=queue)
    with pytest.raises(LockUnavailable) as caught:
        result.get(timeout=30)
    assert label not in caught.value.key
    assert "raises_unlocked" in caught.value.key
    assert caught.value.reason


@pytest.mark.parametrize("name", ["skip", "runs_unlocked", "raises_unlocked"])
def test_a_task_that_could_not_take_its_lock_is_not_said_to_keep_it(
    locks_on, own_redis, sender, queue, label, name
):
    worker = locks_on(own_redis)
    own_redis.kill()
    result = sender.send_task(name, [label, 0.1], queue=queue)
    if name == "skip":
        eventually(lambda: "is deferred for" in worker.log(), "it is deferred, and says so")
        own_redis.start()
    result.get(timeout=40, propagate=False)
    assert result.ready()
    assert "could not release" not in worker.log()
    assert "expires within" not in worker.log()


def test_a_frozen_server_blocks_nobody_for_long(locks_on, own_redis, sender, queue, label):
    locks_on(own_redis)
    own_redis.stop()
    sent_at = time.monotonic()
    result = sender.send_task("raises_unlocked", [label, 0.1], queue=queue)
    try:
        with pytest.raises(LockUnavailable):
            result.get(timeout=30)
        # A third of the ttl of 6 s, for the acquire, and as much for giving back what may
        # have been taken; then a margin for a busy machine.
        assert elapsed(sent_at) < 8
    finally:
        own_redis.resume()


def test_the_body_goes_on_through_an_outage_and_keeps_its_lock(
    locks_on, redis_server, proxy, sender, queue, journal, label
):
    worker = locks_on(proxy)
    result = sender.send_task("skip", [label, 6.0], queue=queue)
    eventually(lambda: journal.read(label, "start"), "it runs")
    proxy.cut_off()
    eventually(lambda: "could not extend" in worker.log(), "the heartbeat met the outage")
    proxy.reconnect()
    eventually(lambda: "answers again" in worker.log(), "the heartbeat got through")
    assert result.get(timeout=20)
    assert journal.read(label, "end")[0].data == {"lost": False}


def test_a_server_that_comes_back_empty_gives_the_lock_to_its_holder_and_not_to_another(
    locks_on, own_redis, sender, queue, journal, label
):
    worker = locks_on(own_redis, concurrency=3)
    first = sender.send_task("wait", [label, 8.0], queue=queue)
    eventually(lambda: journal.read(label, "start"), "it runs")
    # Every child has talked to the server, so each would notice another one.
    others = [sender.send_task("wait", [label, 0.1], queue=queue) for _ in range(2)]
    own_redis.restart_empty()
    eventually(lambda: "acquired again" in worker.log(), "the holder took its lock again")
    for result in (first, *others):
        assert result.get(timeout=40)
    assert journal.read(label, "end")[0].data == {"lost": False}
    assert journal.overlaps(label) == []


def test_a_new_task_after_an_empty_restart_waits_for_the_holders(
    locks_on, own_redis, sender, queue, journal, label
):
    """The holder cannot be reached by its heartbeat at once; the newcomer must not be faster."""
    locks_on(own_redis, concurrency=2)
    first = sender.send_task("skip", [label, 6.0], queue=queue)
    eventually(lambda: journal.read(label, "start"), "it runs")
    own_redis.kill()
    duplicate = sender.send_task("skip", [label, 0.1], queue=queue)
    own_redis.start()
    assert first.get(timeout=30)
    assert duplicate.get(timeout=30, propagate=False)
    assert journal.overlaps(label) == []
    assert journal.read(label, "end")[0].data == {"lost": False}


def test_an_outage_beyond_the_ttl_is_a_lost_lock(locks_on, proxy, sender, queue, journal, label):
    locks_on(proxy)
    result = sender.send_task("watches_lock", [label], queue=queue)
    eventually(lambda: journal.read(label, "start"), "it runs")
    proxy.cut_off()
    assert result.get(timeout=30).startswith("lost")


def test_an_outage_at_the_release_ends_in_a_log_line(
    locks_on, proxy, sender, queue, journal, label
):
    worker = locks_on(proxy)
    result = sender.send_task("skip", [label, 3.0], queue=queue)
    eventually(lambda: journal.read(label, "start"), "it runs")
    proxy.cut_off()
    assert result.get(timeout=30), "the task does not fail for it"
    eventually(lambda: "could not release" in worker.log(), "it says so")
    assert "expires within 6 s" in worker.log()


def test_a_worker_starts_while_the_server_is_away(
    start_worker, own_redis, sender, queue, journal, label
):
    own_redis.kill()
    conf = {"redislock_url": f"{own_redis.url}/0"}
    worker = start_worker(queues=queue, conf=conf)
    assert "does not answer yet" in worker.log()
    result = sender.send_task("skip", [label, 0.1], queue=queue)
    own_redis.start()
    assert result.get(timeout=40)


def test_a_worker_warns_of_a_server_that_may_evict_locks(start_worker, own_redis, queue):
    own_redis.client().config_set("maxmemory", "50mb")
    own_redis.client().config_set("maxmemory-policy", "allkeys-lru")
    worker = start_worker(queues=queue, conf={"redislock_url": f"{own_redis.url}/0"})
    assert "maxmemory-policy allkeys-lru" in worker.log()


def test_a_worker_does_not_warn_of_a_server_that_will_not(start_worker, own_redis, queue):
    own_redis.client().config_set("maxmemory", "50mb")
    worker = start_worker(queues=queue, conf={"redislock_url": f"{own_redis.url}/0"})
    assert "maxmemory" not in worker.log()


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


def test_a_foreign_value_is_held_and_said_and_never_deleted(
    start_worker, sender, queue, client, label
):
    worker = start_worker(queues=queue)

    @sender.task(base=SingletonTask, name="skip", lock_key=["label"], shared=False)
    def skip(label, seconds=0.2, how="return"): ...

    key = skip.lock_key_for(label)
    client.set(key, "not ours")
    result = sender.send_task("skip", [label], queue=queue)
    eventually(lambda: result.state == "REVOKED", "it is skipped")
    eventually(lambda: "a foreign value" in worker.log(), "it is said")
    assert client.get(key) == "not ours"
    assert skip.break_lock(label) is False
    never(lambda: client.get(key) != "not ours", "it was deleted", 0.5)
    client.delete(key)


def test_a_process_that_saw_the_server_away_lets_the_holders_go_first(own_redis, label):
    """Its first connection is to the new server; that the old one was away is all it knows."""
    own_redis.kill()
    newcomer = RedisLock(own_redis.url, label, ttl=6)
    with pytest.raises(LockUnavailable):
        newcomer.acquire(0)
    own_redis.start()
    with pytest.raises(LockUnavailable, match="no new locks for"):
        newcomer.acquire(0)
    assert newcomer.acquire(10), "after a third of the ttl it may"
    newcomer.release()
