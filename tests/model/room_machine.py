"""The waiting room's scripts on a real Redis, through the real store, beside a list in memory.

Tasks come, are refused, wait, are published, come again, run, end or die, in any order; messages
are lost and doubled. After each step what stands on the server is what the list says, and in the
end each task has had what its policy promises.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, ClassVar

import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from celery_redislock import _holder
from celery_redislock._keys import LockKeys, lock_keys
from celery_redislock._lock import new_token
from celery_redislock._store import (
    Acquired,
    Busy,
    Claim,
    Done,
    Full,
    Older,
    Parked,
    Store,
    Turn,
    to_ms,
)

#: Seconds. Nothing lapses in a test: who dies is deleted.
TTL = 600.0
#: What a task's policy is called, and how many may then wait.
POLICIES = {"queue": None, "queue of two": 2, "coalesce": None}


@dataclasses.dataclass(eq=False)
class Task:
    """A task, and what has become of it.

    Attributes:
        task_id: its id.
        policy: what it does when it is refused.
        received: when it was, counted in tasks.
        began: it has waited or run before: those that came since are newer.
        end: "", or "ran", "replaced", "turned away", "revoked".
    """

    task_id: str
    policy: str
    received: int
    began: bool = False
    end: str = ""

    @property
    def entry_id(self) -> str:
        return f"{self.task_id}:0.0"


class RoomMachine(RuleBasedStateMachine):
    """Whatever can happen around one lock and its room.

    Set from outside: the store, a client, and the set that notes what was met.
    """

    store: Store
    client: redis.Redis
    met: ClassVar[set[str]]

    @initialize(limit=st.integers(1, 3))
    def open(self, limit: int) -> None:
        self.keys: LockKeys = lock_keys("room", new_token(), limit)
        self.tasks: list[Task] = []
        self.waiting: list[Task] = []
        self.inside: dict[Task, Claim] = {}
        self.refused: list[tuple[Task, Claim]] = []
        self.under_way: list[Task] = []
        self.replies: set[str] = set()

    # -- what happens ---------------------------------------------------------------------

    @rule(policy=st.sampled_from(sorted(POLICIES)))
    def one_is_sent(self, policy: str) -> None:
        task = Task(new_token(), policy, len(self.tasks) + 1)
        self.tasks.append(task)
        self._comes(task)

    @precondition(lambda self: self.under_way)
    @rule(which=st.integers(0, 9), doubled=st.booleans())
    def a_message_comes(self, which: int, doubled: bool) -> None:
        task = self.under_way[which % len(self.under_way)]
        if not doubled:
            self.under_way.remove(task)
        self._comes(task)

    @precondition(lambda self: self.refused)
    @rule(which=st.integers(0, 9))
    def a_refused_one_is_parked(self, which: int) -> None:
        self._parks(*self.refused.pop(which % len(self.refused)))

    @precondition(lambda self: self.inside)
    @rule(which=st.integers(0, 9))
    def one_ends(self, which: int) -> None:
        task = list(self.inside)[which % len(self.inside)]
        reply = self.store.release(self.inside.pop(task), "1", always=True)
        assert reply == (True, bool(self.waiting))
        assert task.end == "", "it has run before"
        task.end = "ran"

    @precondition(lambda self: self.inside)
    @rule(which=st.integers(0, 9))
    def one_dies_and_its_message_comes_back(self, which: int) -> None:
        task = list(self.inside)[which % len(self.inside)]
        token = self.inside.pop(task).token
        (slot,) = [key for key in self._slots() if self._token_in(key) == token]
        self.client.delete(slot)
        task.began = True
        self.under_way.append(task)

    @rule(arrives=st.booleans())
    def somebody_hands_over(self, arrives: bool) -> None:
        following = self.store.hand_over(self.keys, TTL)
        assert following.ended == {}
        if not self.waiting or self._is_full():
            assert following.entry_id == ""
            return
        first = self.waiting[0]
        assert (following.entry_id, following.entry) == (first.entry_id, first.task_id)
        if arrives:  # else it was lost on its way, or who handed over died
            self.under_way.append(first)

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 9))
    def one_is_revoked(self, which: int) -> None:
        task = self.waiting.pop(which % len(self.waiting))
        task.end = task.end or "revoked"
        self.under_way = [other for other in self.under_way if other is not task]
        self.refused = [(other, claim) for other, claim in self.refused if other is not task]
        self._leaves(task)

    # -- what must hold -------------------------------------------------------------------

    @invariant()
    def the_server_holds_what_the_list_says(self) -> None:
        if not hasattr(self, "keys"):
            return
        order = [task.entry_id for task in self.waiting]
        assert self.client.lrange(self.keys.room, 0, -1) == order
        entries = set(self.client.hkeys(self.keys.entries)) - {"#"}
        assert entries == set(order)
        tokens = {self._token_in(key) for key in self._slots()} - {None}
        assert tokens == {claim.token for claim in self.inside.values()}
        noted = self.client.zscore(self.keys.rooms, self.keys.mark) is not None
        assert noted or not self.waiting, "nobody would look after them"

    def teardown(self) -> None:
        """Whatever happened, everybody who waits has a run, and nothing is left."""
        if not hasattr(self, "keys"):
            return
        for _ in range(10 * len(self.tasks)):
            if not (self.waiting or self.inside or self.refused or self.under_way):
                break
            while self.inside:
                self.one_ends(0)
            while self.refused:
                self.a_refused_one_is_parked(0)
            self.somebody_hands_over(arrives=True)
            for _ in list(self.under_way):
                self.a_message_comes(0, doubled=False)
            self.the_server_holds_what_the_list_says()
        assert [task for task in self.tasks if not task.end] == []
        left = (self.keys.room, self.keys.entries, self.keys.ended, self.keys.corrupt)
        assert self.client.exists(*left, *self._slots()) == 0
        assert self.client.zscore(self.keys.rooms, self.keys.mark) is None
        newest = [task for task in self.tasks if task.policy == "coalesce"][-1:]
        assert [task.end for task in newest if task.end == "replaced"] == [], "the last has a run"

    # -- how a task meets the lock ----------------------------------------------------------

    def _comes(self, task: Task) -> None:
        token = new_token()
        value = _holder.encode(token, ttl_ms=to_ms(TTL), task_id=task.task_id)
        claim = Claim(self.keys, token, TTL, value, task.task_id)
        reply = self.store.acquire(claim)
        self._met("acquire", reply)
        if task.end:
            assert isinstance(reply, Done)
            if task in self.waiting:  # another copy had its run meanwhile
                self.waiting.remove(task)
                self._leaves(task)
        elif task in self.inside:
            assert (type(reply), _relation(reply)) == (Busy, "own")
            self.under_way.append(task)  # it is looked at again when that one has ended
        elif self._is_full():
            assert (type(reply), _relation(reply)) == (Busy, "other")
            self.refused.append((task, claim))
        elif self.waiting and self.waiting[0] is not task:
            assert (type(reply), _relation(reply)) == (Busy, "queued")
            self.refused.append((task, claim))
        else:
            assert isinstance(reply, Acquired)
            was_waiting = task in self.waiting
            if was_waiting:
                self.waiting.remove(task)
            self.inside[task] = claim
            wants = was_waiting and bool(self.waiting) and not self._is_full()
            assert reply.room_waits is wants

    def _parks(self, task: Task, claim: Claim) -> None:
        limit = POLICIES[task.policy]
        kind = "c" if task.policy == "coalesce" else ""
        reply = self.store.park(
            claim,
            task.task_id,
            kind=kind,
            limit=limit,
            in_front=task.began,
            began=task.began,
            received=task.received,
        )
        self._met("park", reply)
        same = [other for other in self.waiting if kind and other.policy == task.policy]
        newer = [other for other in same if other.received > task.received and not task.began]
        replaced = [] if task.began else [other for other in same if other is not task]
        if task in self.inside or (
            not self._is_full() and (not self.waiting or self.waiting[0] is task)
        ):
            assert reply == Turn({})
            self._comes(task)
        elif task in self.waiting:
            assert reply == Parked({})
        elif newer:
            assert reply == Older(newer[0].task_id)
            self.store.mark_done(claim)
            task.end = task.end or "replaced"
        elif limit is not None and len(self.waiting) >= limit:
            assert isinstance(reply, Full)
            self.store.mark_done(claim)
            task.end = task.end or "turned away"
        else:
            self._takes_its_place(task, same, replaced)
            assert isinstance(reply, Turn | Parked)
            assert reply.replaced == {other.entry_id: other.task_id for other in replaced}
            for other in replaced:
                other.end = other.end or "replaced"
                self.store.forget_ended(self.keys, other.entry_id, TTL)
            turn = not self._is_full() and self.waiting[0] is task
            assert type(reply) is (Turn if turn else Parked)
            if turn:
                self._comes(task)
        task.began = True

    def _leaves(self, task: Task) -> None:
        following = self.store.hand_over(self.keys, TTL, take_out=task.entry_id)
        if self.waiting and not self._is_full():
            assert following.entry_id == self.waiting[0].entry_id
            self.under_way.append(self.waiting[0])
        else:
            assert following.entry_id == ""

    def _takes_its_place(self, task: Task, same: list[Task], replaced: list[Task]) -> None:
        if same:
            self.waiting.insert(self.waiting.index(same[0]), task)
        elif task.began:
            self.waiting.insert(0, task)
        else:
            self.waiting.append(task)
        self.waiting = [other for other in self.waiting if other not in replaced]

    def _is_full(self) -> bool:
        return len(self.inside) == 1 + len(self.keys.slots)

    def _slots(self) -> tuple[str, ...]:
        return (self.keys.lock, *self.keys.slots)

    def _token_in(self, key: str) -> Any:
        value = self.client.get(key)
        return None if value is None else json.loads(value)["token"]

    def _met(self, question: str, reply: Any) -> None:
        self.met.add(f"{question}: {type(reply).__name__} {_relation(reply)}".strip())


def _relation(reply: Any) -> str:
    return getattr(reply, "relation", "")
