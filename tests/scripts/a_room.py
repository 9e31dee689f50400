"""A lock, its waiting room, and what a test of the scripts does with them."""

from __future__ import annotations

import dataclasses
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
    Settled,
    to_ms,
)
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.protocol.tokens import new_token
from celery_redislock.servers.server import Server

#: Seconds, as `turns.lua` has them: how long the first turn lasts, how long one does that pool
#: slots wait behind, and after how long an entry is set aside that nobody can publish.
PAUSE = 5.0
BESIDE_WAITERS = 1.0
UNKNOWN = 60.0
#: So often is a turn offered.
OFFERS = 4
TTL = 300.0


class Room:
    """A lock, its room, and what a test does with them."""

    def __init__(self, store: Server, client: redis.Redis, label: str, limit: int = 1) -> None:
        self.store = store
        self.client = client
        self.label = label
        self.keys = lock_keys("redislock", label, limit)
        self.slots = (self.keys.lock, *self.keys.slots)

    def claim(self, task: str, kept: str = "", **options: Any) -> Claim:
        """A delivery's of the task with that name."""
        token, task_id = new_token(), self.task_id(task)
        value = holders.encode(token, ttl_ms=to_ms(TTL), task="pkg.task", task_id=task_id)
        return Claim(self.keys, token, TTL, value, task_id, kept=kept, **options)

    def task_id(self, task: str) -> str:
        return f"{task}-{self.label}"

    def entry_id(self, task: str) -> str:
        return f"{self.task_id(task)}:0.0"

    def entry(self, task: str) -> str:
        return json.dumps({"task": "pkg.task", "task_id": self.task_id(task)})

    def take(self, task: str, how: str = "try", kept: str = "") -> Claim:
        claim = self.claim(task, kept)
        reply = self.store.run(calls.acquire(claim, how))
        assert isinstance(reply, Acquired), reply
        return claim

    def ask(self, task: str, how: str = "try", kept: str = "") -> Busy:
        reply = self.store.run(calls.acquire(self.claim(task, kept), how))
        assert isinstance(reply, Busy), reply
        return reply

    def park(self, *tasks: str, **options: Any) -> None:
        for task in tasks:
            reply = self.store.run(
                rooms.park(self.claim(task), Parking(self.entry(task), **options))
            )
            assert isinstance(reply, Parked), reply

    def settle(self, claim: Claim, **options: Any) -> Settled:
        return self.store.run(calls.settle(claim, calls.Release(**options)))

    def give_up(self, task: str, token: str = "") -> Settled:
        """The delivery of that task ends without a run."""
        kept = dataclasses.replace(self.claim(task), token=token or new_token())
        return self.store.run(calls.settle(kept, calls.Release(take_out=self.entry_id(task))))

    def look(
        self, declined: str = "", aside_after: float | None = None, passed_over: str = ""
    ) -> Look:
        declined = self.entry_id(declined) if declined else ""
        passed = [self.entry_id(task) for task in passed_over]
        return self.store.run(rooms.look(self.keys, TTL, declined, aside_after, passed))

    def drop_all(self) -> dict[str, str]:
        """What was parked by those who waited or were set aside, by their ids."""
        dropped: dict[str, str] = {}
        while some := self.store.run(rooms.drop(self.keys, TTL, "", 600)):
            dropped |= some
        return dropped

    def offered(self, reply: Any, task: str) -> Offered:
        """That task's turn, or its give-up, which the reply tells of."""
        assert reply.offered is not None, reply
        assert reply.offered.entry_id == self.entry_id(task)
        assert reply.offered.entry == self.entry(task)
        return reply.offered

    @property
    def waiting(self) -> list[str]:
        """Who waits, in order."""
        ids = self.client.lrange(self.keys.room, 0, -1)
        fields = self.client.hkeys(self.keys.entries)
        assert {each for each in fields if each[0] not in "#|"} == set(ids)
        assert {each[1:] for each in fields if each[0] == "#"} <= set(ids)
        return [each.removesuffix(f"-{self.label}:0.0") for each in ids]

    @property
    def aside(self) -> set[str]:
        return {
            each.removesuffix(f"-{self.label}:0.0") for each in self.client.hkeys(self.keys.aside)
        }

    @property
    def turns(self) -> dict[str, str]:
        """Whose the slots' turns are, and under which tokens."""
        values = [json.loads(value) for value in map(self.client.get, self.slots) if value]
        found = [value for value in values if "turn" in value]
        turns = {
            value["turn"].removesuffix(f"-{self.label}:0.0"): value["token"] for value in found
        }
        assert len(turns) == len(found), "one has two turns"
        return turns

    def left(self, slot: int = 0) -> float:
        """Seconds for which what stands in a slot stands on."""
        return float(self.client.pttl(self.slots[slot])) / 1000

    @property
    def due_in(self) -> float | None:
        """Seconds until a worker looks. The half of a ms says something else."""
        due = self.client.zscore(self.keys.rooms, self.keys.lock_id)
        seconds, micros = self.client.time()
        return None if due is None else int(due) / 1000 - seconds - micros / 1e6

    def pass_time(self, seconds: float) -> None:
        """Everything is so much older."""
        passed = int(seconds * 1000)
        for key in (*self.slots, self.keys.waiters):
            left = self.client.pttl(key)
            if 0 <= left <= passed:
                self.client.delete(key)
            elif left > 0:
                self.client.pexpire(key, left - passed)
        for key in (self.keys.waiters, self.keys.deadlines):
            for member in self.client.zrange(key, 0, -1):
                self.client.zincrby(key, -passed, member)
        if self.client.zscore(self.keys.rooms, self.keys.lock_id) is not None:
            self.client.zincrby(self.keys.rooms, -passed, self.keys.lock_id)
        for field, state in self.client.hgetall(self.keys.entries).items():
            if field.startswith("#"):
                offers, first, flag, till, tokens = state.split("|")
                first = str(int(first) - passed) if first else ""
                earlier = f"{offers}|{first}|{flag}|{max(int(till) - passed, 0)}|{tokens}"
                self.client.hset(self.keys.entries, field, earlier)

    def note_received(self, name: str) -> bool:
        """A worker has received the message of the entry's last offer."""
        state = self.client.hget(self.keys.entries, f"#{self.entry_id(name)}") or "||||"
        *_, token = ("", *state.split("|")[4].split())
        return self.store.run(
            rooms.note_received(self.keys, self.entry_id(name), token, TTL), once=True
        )

    def turn_lapses(self) -> None:
        """Nobody takes over the turn that stands in the first slot."""
        assert self.turns
        # The stand-in's `TIME` is later in a script than what its expiries count from.
        self.pass_time(self.left() + 0.5)
        assert not self.turns

    def turn_lapses_in_a_busy_worker(self, reply: Any, task: str) -> None:
        """The reply gives that task its turn; a worker receives its message, and has no room."""
        self.offered(reply, task)
        assert self.note_received(task)
        self.turn_lapses()
