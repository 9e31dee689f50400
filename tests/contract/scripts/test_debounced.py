"""A task that waits until no newer call comes, and what else may have the lock meanwhile."""

from __future__ import annotations

from celery_redislock.protocol import calls, rooms
from celery_redislock.protocol.claims import Acquired, Busy, Parked, Parking
from tests.contract.scripts.test_reservations import delivery


def test_a_lock_that_is_kept_for_a_pool_slot_does_not_end_the_quiet_time(store, label):
    holder, waiter, call = (delivery(label, each) for each in ("holder", "waiter", "call"))
    assert isinstance(store.run(calls.acquire(holder)), Acquired)
    assert isinstance(store.run(calls.acquire(waiter, "wait")), Busy)
    store.run(calls.settle(holder))
    parking = Parking("entry", member="=pkg.task", quiet=(5.0, 60.0))
    assert isinstance(store.run(rooms.park(call, parking)), Parked)
