"""Reservations that a worker's pool processes could not free."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_redislock.app.delivery import Kept
from celery_redislock.protocol.claims import to_ms
from celery_redislock.protocol.keys import LockKeys, lock_keys
from celery_redislock.tasks.ends import End
from celery_redislock.worker import kept as module
from celery_redislock.worker.kept import Reservations
from tests.support.waiting import eventually


class Over:
    """A request whose task has ended, and for whose message a lock was reserved."""

    __hash__ = object.__hash__

    def __init__(self, store: Any, keys: LockKeys, token: str | None) -> None:
        self.task = SimpleNamespace(app_locks=SimpleNamespace(server=store))
        self.lock_keys = keys
        self.settled: list[End] = []
        self._kept = None if token is None else Kept(keys.lock_id, token)

    def unsettled(self) -> Kept | None:
        return self._kept

    def settle(self, end: End) -> None:
        self.settled.append(end)


@pytest.fixture
def reservations(monkeypatch) -> Any:
    """They look at once. Nobody else looks after this worker's rooms."""
    monkeypatch.setattr(module, "LOOK_EVERY", 0.0)
    return Reservations()


def test_what_is_still_reserved_in_any_slot_is_freed_and_nothing_else(
    reservations, store, raw, label
):
    keys = lock_keys(label, "three at once", 3)
    for slot, token in zip((keys.lock, *keys.slots), ("run", "second", "third"), strict=True):
        raw.set(slot, f'{{"token":"{token}","queued":true}}', px=to_ms(60))
    requests = [Over(store, keys, token) for token in ("third", "second", "gone", None)]
    for each in requests:
        reservations.add(each)
    eventually(lambda: not reservations._requests, "none is remembered for ever")
    freed = [each.settled for each in requests]
    assert freed == [[End.CANNOT_RUN], [End.CANNOT_RUN], [], []]
