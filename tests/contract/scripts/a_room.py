"""A lock, its waiting room, and what a test of the scripts does with them."""

from __future__ import annotations

import json
from typing import Any

import redis

from celery_redislock.protocol import calls, holders, rooms
from celery_redislock.protocol.claims import (
    Acquired,
    Busy,
    Claim,
    Look,
    Offered,
    Parked,
    Parking,
    Place,
    Settled,
    to_ms,
)
from celery_redislock.protocol.entries import slot_of
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.protocol.tokens import new_token
from celery_redislock.servers.server import Server
from tests.contract.changed_scripts import set_clock

#: Seconds, as `room.lua` has them: for how long a free lock is kept for a task that was published
#: now, the same while pool slots wait, and after how long a task that does not come goes last.
KEPT = 5.0
#: For one that the caller cannot publish.
FOR_OTHERS = 3.0
BESIDE_WAITERS = 1.0
GOES_LAST = 60.0
LONGEST_PAUSE = 600.0
TTL = 300.0
#: Seconds after which `look` names a task that no worker takes.
A_DAY = 86400.0
#: The name of the tasks, and their pending slot.
TASK = "pkg.task"
SLOT = slot_of(TASK)


class Room:
    """A lock, its room, and what a test does with them. Its time passes only by `pass_time`."""

    def __init__(self, store: Server, client: redis.Redis, label: str, limit: int = 1) -> None:
        self.store = store
        self.client = client
        self.label = label
        self.keys = lock_keys("redislock", label, limit)
        self.slots = (self.keys.lock, *self.keys.slots)
        seconds, micros = client.time()
        self.set_time(seconds * 1000 + micros // 1000)

    def set_time(self, ms: int) -> None:
        """It is this Unix time in ms, and nothing has expired."""
        self.now = ms
        set_clock(self.client, self.keys, ms)

    def pass_time(self, seconds: float) -> None:
        """So many seconds pass. Nobody extends a lock meanwhile."""
        passed = to_ms(seconds)
        self.set_time(self.now + passed)
        for slot in self.slots:
            left = self.client.pttl(slot)
            if 0 <= left <= passed:
                self.client.delete(slot)
            elif left > 0:
                self.client.pexpire(slot, left - passed)

    def dies(self) -> None:
        """The holder's lock lapses."""
        self.client.delete(self.keys.lock)

    # -- tasks ------------------------------------------------------------------------------------

    def task_id(self, task: str) -> str:
        return f"{task}-{self.label}"

    def entry_id(self, task: str) -> str:
        return f"{self.task_id(task)}:0.0"

    def entry(self, task: str) -> str:
        return json.dumps({"task": TASK, "task_id": self.task_id(task)})

    def claim(
        self, task: str, attempt: int = 0, says: dict[str, Any] | None = None, **options: Any
    ) -> Claim:
        """A delivery's of the task with that name. `says`: what the lock's value says beside."""
        token, task_id = new_token(), self.task_id(task)
        run = {"task": TASK, "task_id": task_id, "attempt": attempt, **(says or {})}
        value = holders.encode(token, ttl_ms=to_ms(TTL), **run)
        return Claim(self.keys, token, TTL, value, task_id, attempt, task=TASK, **options)

    def lock_claim(self) -> Claim:
        """A `RedisLock`'s, which cannot publish tasks."""
        token = new_token()
        return Claim(self.keys, token, TTL, holders.encode(token, ttl_ms=to_ms(TTL)))

    # -- questions --------------------------------------------------------------------------------

    def take(self, task: str, how: str = "try", **options: Any) -> Claim:
        claim = self.claim(task, **options)
        reply = self.store.run(calls.acquire(claim, how))
        assert isinstance(reply, Acquired), reply
        return claim

    def take_all(self) -> list[Claim]:
        """One holder in each slot."""
        return [self.take(f"holder{number}") for number in range(len(self.slots))]

    def ask(self, task: str, how: str = "try", **options: Any) -> Busy:
        reply = self.store.run(calls.acquire(self.claim(task, **options), how))
        assert isinstance(reply, Busy), reply
        return reply

    def parks(self, task: str, member: str = "", **options: Any) -> Any:
        """The reply to a task that is parked as this member; "" for its own id."""
        options.setdefault("replace", (holders.successor_text(TASK, self.task_id(task)), None))
        parking = Parking(self.entry(task), member or self.entry_id(task), **options)
        return self.store.run(rooms.park(self.claim(task), parking))

    def park(self, *tasks: str, **options: Any) -> None:
        for task in tasks:
            reply = self.parks(task, **options)
            assert isinstance(reply, Parked), reply

    def replaces(self, task: str, **options: Any) -> list[str]:
        """Whom this one replaces in the pending slot."""
        reply = self.parks(task, SLOT, **options)
        assert {*reply.replaced.values()} <= {self.entry(each) for each in self._names(reply)}
        return self._names(reply)

    def settle(self, claim: Claim, **options: Any) -> Settled:
        return self.store.run(calls.settle(claim, calls.Release(**options)))

    def leave(self, task: str, member: str = "") -> Settled:
        """The delivery of that task ends without a run."""
        place = Place(member or self.entry_id(task), self.entry_id(task))
        return self.settle(self.claim(task), leaves=place)

    def look(self, *passed_over: str, longest: float = A_DAY) -> Look:
        """Somebody looks who cannot publish these members."""
        return self.store.run(rooms.look(self.keys, TTL, longest, self._ids(passed_over)))

    def drop(self, *members: str) -> dict[str, str]:
        """Drop these members; or some, if none are named."""
        return self.store.run(rooms.drop(self.keys, TTL, "", 600, self._ids(members)))

    def drop_all(self) -> dict[str, str]:
        """What was parked by those who waited, by their ids."""
        dropped: dict[str, str] = {}
        while some := self.drop():
            dropped |= some
        return dropped

    def published(self, reply: Any, task: str, member: str = "") -> Offered:
        """What the reply says of that task, which is to be published."""
        assert reply.offered is not None, reply
        expected = (member or self.entry_id(task), self.entry_id(task))
        assert reply.offered.place[:2] == expected
        assert reply.offered.entry == self.entry(task)
        return reply.offered

    # -- what is there ----------------------------------------------------------------------------

    @property
    def waiting(self) -> list[str]:
        """Who waits, in order: names of tasks, or the slot."""
        members = self.client.lrange(self.keys.room, 0, -1)
        fields = {each.removeprefix("#") for each in self.client.hkeys(self.keys.entries)}
        assert fields == set(members)
        assert set(self.client.zrange(self.keys.sent, 0, -1)) <= set(members)
        return [each.removesuffix(f"-{self.label}:0.0") for each in members]

    @property
    def under_way(self) -> dict[str, float]:
        """For how many seconds each message is under way."""
        found = self.client.zrange(self.keys.sent, 0, -1, withscores=True)
        return {m.removesuffix(f"-{self.label}:0.0"): (self.now - at) / 1000 for m, at in found}

    @property
    def due_in(self) -> float | None:
        """Seconds until a worker looks."""
        due = self.client.zscore(self.keys.rooms, self.keys.lock_id)
        return None if due is None else (due - self.now) / 1000

    def _ids(self, members: tuple[str, ...]) -> list[str]:
        return [each if each[0] == "=" or ":" in each else self.entry_id(each) for each in members]

    def _names(self, reply: Any) -> list[str]:
        return [each.removesuffix(f"-{self.label}:0.0") for each in reply.replaced]
