"""The one heartbeat of a process, between several servers and many who wait."""

from __future__ import annotations

import threading

from celery_redislock import RedisLock
from tests.support.waiting import eventually, never


def test_a_server_that_hangs_costs_no_lock_on_another(redis_server, own_redis, label):
    hung = RedisLock(own_redis.url, label, ttl=30)
    healthy = RedisLock(redis_server.url, label, ttl=1)
    assert hung.acquire(0)
    own_redis.stop()
    try:
        with healthy:
            # Let the first one's extension come due, and hang.
            hung._lease.next_beat = 0.0
            never(lambda: healthy.lost, "the healthy server's lock was lost", 4.0)
    finally:
        own_redis.resume()
        hung.release()


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
    never(lambda: asked() - before > 2 * waiting, "they ask without a pause", 2.0)
    holder.release()
    for thread in threads:
        thread.join(60)
    assert got == [True] * waiting
