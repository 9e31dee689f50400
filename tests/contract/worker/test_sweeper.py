"""Who looks after the waiting rooms: of the workers that know the same tasks, one at a time."""

from __future__ import annotations

from celery_redislock.app.housekeeper import housekeeper
from celery_redislock.worker.sweeper import Sweeper


def looks(client, sweeper: Sweeper) -> int:
    """How many rooms' lists one sweep reads."""

    def read() -> int:
        return int(client.info("commandstats").get("cmdstat_zrangebyscore", {}).get("calls", 0))

    before = read()
    sweeper.sweep()
    housekeeper.finish()
    return read() - before


def test_one_of_a_fleets_workers_looks_and_the_others_need_not(make_app, own_redis):
    app, client = make_app(redislock_url=own_redis.url), own_redis.client()
    ours, other = Sweeper(app), Sweeper(app)
    assert looks(client, ours) >= 1000, "each bucket's rooms"
    assert looks(client, other) < 1000, "another one has looked"
    client.delete(ours._turn)  # two seconds later
    assert looks(client, other) >= 1000
    client.close()
