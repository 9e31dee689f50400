"""The waiting room's scripts on a real Redis, through the real store, beside a list in memory.

Tasks come, are refused, wait, are published, come again, run, give up, end or die, in any order;
messages are lost and doubled, and time passes. After each step the server has what the list says,
and in the end each task has had what its policy promises, and the room is empty.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Sequence
from typing import Any, ClassVar

import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from celery_redislock.protocol import calls, notes, rooms
from celery_redislock.protocol.claims import (
    Acquired,
    Busy,
    Claim,
    Done,
    Free,
    Full,
    Offered,
    Older,
    Parked,
    Place,
)
from celery_redislock.protocol.tokens import new_token
from celery_redislock.servers.server import Server
from tests.contract.scripts.a_room import SLOT, TTL, Room

from .moves import move, wander

#: What a task's policy is called, and how it is parked.
POLICIES: dict[str, dict[str, Any]] = {
    "queue": {},
    "queue of two": {"limit": 2},
    "queue for a while": {"give_up": 20.0},
    "coalesce": {},
    "debounce": {"quiet": (5.0, 12.0)},
}
NEWEST = ("coalesce", "debounce")
#: In ms, as `room.lua` has them.
KEPT_FOR, LONGEST_CHANCE, GOES_LAST_AFTER, LONGEST_PAUSE = 5_000, 40_000, 60_000, 600_000
FOR_OTHERS, DECLINED = 3_000, 1
#: It is noon when it begins, in ms.
NOON = 1_700_049_600_000
#: Seconds after which a task that no worker takes is dropped.
OFFERED_FOR = 3600.0
#: So many tasks at once, so that none is behind what a script looks at in one step.
CROWD = 9
#: Which of those who can.
WHICH = range(10)
#: How it begins: the lock's slots, who waits, and whether copies of their messages are under way.
LIMITS, BEHIND, ARE_COPIED = (1, 1, 2, 3), (*POLICIES, "coalesce"), (False, False, True)


@dataclasses.dataclass(eq=False)
class Task:
    """A task, and what has become of it.

    Attributes:
        name: its name; "" for a `RedisLock`.
        policy: what it does when it is refused.
        arrived: when it did, in ms.
        end: "", or "ran", "replaced", "turned away", "revoked", "gave up", "dropped".
        is_revoked: a worker that receives its message drops it.
        is_replaced: a newer one replaced it; if a copy of it ran then, that may go on.
    """

    name: str
    policy: str
    arrived: int
    end: str = ""
    is_revoked: bool = False
    is_replaced: bool = False


@dataclasses.dataclass(eq=False)
class Message:
    """A message. `member`: it was published from the room. `is_copy`: it was delivered before."""

    task: Task
    member: str = ""
    gives_up: bool = False
    is_copy: bool = False


@dataclasses.dataclass(eq=False)
class Member:
    """A member of the room. All times are in ms.

    Attributes:
        name: the member.
        task: the task that has this place.
        due: it is not published before.
        sent: when it was first published, if its message is under way.
        first_call: the first call that has waited for quiet.
        gives_up_at: when its time to wait is over.
        deadline: when it is published, next, as one whose time is over.
        looked_at: those who cannot publish it look again by then.
    """

    name: str
    task: Task
    due: int = 0
    sent: int | None = None
    first_call: int | None = None
    gives_up_at: int | None = None
    deadline: int | None = None
    looked_at: float = 0


class RoomMachine(RuleBasedStateMachine):
    """Whatever can happen around one lock and its room.

    Set from outside: the store, a client, and the set that notes what was met.
    """

    store: Server
    client: redis.Redis
    met: ClassVar[set[str]]

    @initialize(
        limit=st.sampled_from(LIMITS),
        behind=st.lists(st.sampled_from(BEHIND), max_size=4),
        are_copied=st.sampled_from(ARE_COPIED),
    )
    def open(self, limit: int, behind: list[str], are_copied: bool = False) -> None:
        """All slots are taken, and some wait, perhaps with copies of their messages under way."""
        self.room = Room(self.store, self.client, new_token(), limit)
        self.room.set_time(NOON)
        self.tasks: list[Task] = []
        self.waiting: list[Member] = []
        self.inside: dict[Task, tuple[Claim, Message | None]] = {}
        self.refused: list[Message] = []
        self.messages: list[Message] = []
        #: Those that were replaced or dropped, and have no result: their successors, and entries.
        self.ended: dict[str, tuple[str, str]] = {}
        self.ended_at: dict[str, int] = {}
        self.ended_again: set[str] = set()
        for policy in ["queue"] * limit + behind:
            self.one_is_sent(policy, is_late=False)
        while self.refused:
            if are_copied:
                self.messages.append(dataclasses.replace(self.refused[0], is_copy=True))
            self.a_refused_one_is_parked(0)

    # -- what happens -----------------------------------------------------------------------------

    @property
    def has_space(self) -> bool:
        return len(self.waiting) + len(self.refused) < CROWD

    @property
    def able_to_be_lost(self) -> list[Message]:
        """Messages that the room sent: their tasks are still in it."""
        return [message for message in self.messages if message.member and not message.is_copy]

    @property
    def is_looked_after(self) -> bool:
        return self._noted() is not None

    @move(
        "has_space",
        policy=(*POLICIES, *NEWEST, *NEWEST),
        is_late=(False, True),
        after=(0, 1),
    )
    def one_is_sent(self, policy: str, is_late: bool, after: int = 0) -> None:
        """A late one is still with the broker, and was sent before those that overtake it."""
        self._passes(after)
        task = Task(f"task {len(self.tasks) + 1}", policy, self.room.now)
        self.tasks.append(task)
        self.messages.append(Message(task))
        if not is_late:
            self._comes(self.messages.pop())

    @move("messages", which=WHICH, again=("", "", "a copy", "as it was"))
    def a_message_comes(self, which: int, again: str) -> None:
        """Another copy may be under way, or a reply will be lost, so that the same asks again."""
        message = self.messages.pop(which % len(self.messages))
        if again:
            is_copy = message.is_copy or again == "a copy"
            self.messages.append(dataclasses.replace(message, is_copy=is_copy))
        self._comes(message)

    @move("able_to_be_lost", which=WHICH)
    def a_message_is_lost(self, which: int) -> None:
        able = self.able_to_be_lost
        self.messages.remove(able[which % len(able)])

    @move("refused", which=WHICH)
    def a_refused_one_is_parked(self, which: int) -> None:
        self._parks(self.refused.pop(which % len(self.refused)))

    @move("inside", which=WHICH, publishes=(True, True, True, False), unknown=(0, 0, 0, 1, CROWD))
    def one_ends(self, which: int, publishes: bool, unknown: int = 0) -> None:
        task = list(self.inside)[which % len(self.inside)]
        claim, _ = self.inside.pop(task)
        assert task.end != "ran", "it has run before"
        task.end = "ran"
        publishes = publishes and task.name != ""
        reply = self.room.settle(
            claim, note=notes.ENDED if task.name else "", always=True, publishes=publishes
        )
        assert reply.ours
        due = self._next() if publishes else None
        self._is_published(reply.offered, due, is_sent=unknown == 0)
        if due is not None and unknown:
            self._looks(unknown, [due])

    @move("inside", which=WHICH)
    def one_dies_and_its_message_comes_back(self, which: int) -> None:
        task = list(self.inside)[which % len(self.inside)]
        claim, message = self.inside.pop(task)
        (slot,) = (each for each in self.room.slots if claim.token in (self.client.get(each) or ""))
        self.client.delete(slot)
        self._passes(int(TTL * 1000) + 1)  # so long it takes until its lock has expired
        if task.is_replaced:
            task.end = task.end or "replaced"
        if message is not None:
            self.messages.append(dataclasses.replace(message, is_copy=True))

    @move("waiting", which=WHICH)
    def one_is_revoked(self, which: int) -> None:
        self.waiting[which % len(self.waiting)].task.is_revoked = True

    @move(ms=(1, 999, 4_000, 4_999, 5_000, 10_000, 20_000, 60_000, 3_600_000))
    def time_passes(self, ms: int) -> None:
        self._passes(ms)

    @move("is_looked_after", unknown=(0, 0, 0, 1, 2, CROWD))
    def the_room_is_due(self, unknown: int) -> None:
        due = self._noted()
        assert due is not None
        self._passes(max(int(due) - self.room.now, 0))
        self.somebody_looks(unknown)

    @move(unknown=(0, 0, 1, 2, CROWD))
    def somebody_looks(self, unknown: int) -> None:
        """Somebody who cannot publish the first so many."""
        self._looks(unknown, [])

    def _looks(self, unknown: int, passed_over: list[Member]) -> None:
        """Somebody looks, and again for each that it cannot publish."""
        now = self.room.now
        while True:
            for member in passed_over:
                first = member.sent or now
                if first <= now - FOR_OTHERS:
                    first = min(first, now - LONGEST_CHANCE)
                member.due, member.sent = DECLINED, first
                pause = max((now - LONGEST_CHANCE - member.sent) / 2 + 1, 1000)
                member.looked_at = now + min(pause, LONGEST_PAUSE)
            gives_up = self._gives_up(passed_over)
            due = gives_up or self._next(passed_over, looks=True)
            look = self.room.look(*(each.name for each in passed_over), longest=OFFERED_FOR)
            self._met("look", look.offered)
            is_known = len(passed_over) >= unknown
            before = gives_up.due if gives_up is not None else 0
            is_next = gives_up is not None and self._is_next(gives_up)
            if gives_up is not None and before and gives_up.sent is None:
                gives_up.sent = before - KEPT_FOR  # its message did not come
            self._is_published(look.offered, due, is_sent=is_known)
            if gives_up is not None:
                gives_up.deadline = gives_up.due
                if not before and not is_next:
                    gives_up.sent = None  # the lock is not kept for it
            self._stores_results(look.ended)
            self._drops(look.too_long)
            if due is None or is_known:
                break
            passed_over.append(due)
        if due is None and not (look.ended or look.too_long):
            assert look.due_in is None or look.due_in > 0, "it looks without end"

    @move()
    def a_lock_outside_of_tasks_asks(self) -> None:
        """A `RedisLock`, which cannot publish tasks."""
        noted = self._noted()
        is_looked_after = noted is not None and noted > self.room.now - KEPT_FOR
        expected = Acquired if self._may_go(None, is_looked_after) else Busy
        claim = self.room.lock_claim()
        reply = self.store.run(calls.acquire(claim))
        assert type(reply) is expected
        if isinstance(reply, Acquired):
            self.inside[Task("", "", self.room.now)] = (claim, None)
        else:
            assert reply.offered is None

    # -- what must hold ---------------------------------------------------------------------------

    @invariant()
    def each_task_waits_once(self) -> None:
        assert len({member.task for member in self.waiting}) == len(self.waiting)

    @invariant()
    def the_server_holds_what_the_list_says(self) -> None:
        if not hasattr(self, "room"):
            return
        keys, asks = self.room.keys, self.client.pipeline(transaction=False)
        asks.lrange(keys.room, 0, -1).hgetall(keys.entries)
        asks.zrange(keys.sent, 0, -1, withscores=True)
        asks.zrange(keys.deadlines, 0, -1, withscores=True)
        asks.hkeys(keys.ended).mget(self.room.slots)
        order, entries, sent, deadlines, ended, values = asks.execute()
        waiting = {member.name: member for member in self.waiting}
        assert order == [*waiting]
        assert {field.removeprefix("#") for field in entries} == waiting.keys()
        for name, member in waiting.items():
            assert entries[name].endswith(self.room.entry(member.task.name))
            assert entries[f"#{name}"].endswith(f"|{self._id(member.task)}")
        assert dict(sent) == {n: m.sent for n, m in waiting.items() if m.sent is not None}
        assert dict(deadlines) == {n: m.deadline for n, m in waiting.items() if m.deadline}
        assert set(ended) == self.ended.keys()
        held = {value.split('"')[3] for value in values if value}
        assert held == {claim.token for claim, _ in self.inside.values()}
        noted = self._noted()
        if self.waiting or self.ended:
            assert noted is not None, "nobody would look after them"
            assert noted <= max(self.room.now, self._due()), "they are looked after too late"

    def check(self) -> None:
        """Both of these."""
        self.each_task_waits_once()
        self.the_server_holds_what_the_list_says()

    def teardown(self) -> None:
        """Whatever happened, everybody who waits runs, or ends as its policy says."""
        if not hasattr(self, "room"):
            return
        for _ in range(20 * (1 + len(self.tasks))):
            if not (self.inside or self.refused or self.messages or self._noted()):
                break
            while self.inside:
                self.one_ends(0, publishes=True)
            while self.refused:
                self.a_refused_one_is_parked(0)
            for _ in list(self.messages):
                self.a_message_comes(0, again="")
            if self._noted() is not None:
                self.the_room_is_due(0)
            self.the_server_holds_what_the_list_says()
        assert [task for task in self.tasks if not task.end] == []
        of = self.room.keys
        left = (of.room, of.entries, of.ended, of.deadlines, of.sent, *self.room.slots)
        assert self.client.exists(*left) == 0
        assert self._noted() is None
        calls_of_slot = [task for task in self.tasks if task.policy in NEWEST]
        last = max((task.arrived for task in calls_of_slot), default=0)
        newest = {task.end for task in calls_of_slot if task.arrived == last}
        assert newest != {"replaced"}, "the newest has a run"

    # -- who is published -------------------------------------------------------------------------

    def _place_of(self, task: Task) -> Member | None:
        return next((member for member in self.waiting if member.task is task), None)

    def _free(self) -> int:
        return len(self.room.slots) - len(self.inside)

    def _pause(self) -> int:
        """The next has its chance so long after the last one that is under way."""
        count = sum(member.sent is not None for member in self.waiting)
        doubled = KEPT_FOR * 2 ** max(count - len(self.room.slots), 0)
        return min(doubled, LONGEST_CHANCE) if count else 0

    def _opens(self) -> int:
        """When one that was not published yet has its chance."""
        sent = sorted((m.sent for m in self.waiting if m.sent is not None), reverse=True)
        free = self._free()
        return sent[free - 1] + self._pause() if free and len(sent) >= free else 0

    def _next(self, passed_over: Sequence[Member] = (), looks: bool = False) -> Member | None:
        """The first whose time has come, if a slot is free; or, for who looks, that another one
        could not publish.
        """
        has_chance = self._opens() <= self.room.now
        able = (
            member
            for member in self.waiting
            if member not in passed_over
            and (
                (
                    self._free()
                    and member.due <= self.room.now
                    and (has_chance or member.sent is not None)
                )
                or (looks and member.due == DECLINED)
            )
        )
        return next(able, None)

    def _gives_up(self, passed_over: Sequence[Member]) -> Member | None:
        over = [
            (member.deadline, member.name, member)
            for member in self.waiting
            if member.deadline and member.deadline <= self.room.now and member not in passed_over
        ]
        return min(over)[2] if over else None

    def _may_go(self, member: Member | None, is_published: bool = True) -> bool:
        """Whether a slot is free that is not kept for one before: one that was published just now,
        or that the caller publishes instead, or else who looks after the room.
        """
        free, now = self._free(), self.room.now
        has_chance = self._opens() <= now
        before = self.waiting[: self.waiting.index(member)] if member else self.waiting
        for other in before:
            if other.sent is not None:
                free -= other.sent > now - KEPT_FOR
            elif has_chance and other.due <= now:
                free -= is_published
        return free > 0

    def _is_next(self, member: Member) -> bool:
        """Whether all before it are under way."""
        before = itertools.takewhile(lambda each: each is not member, self.waiting)
        return all(each.sent is not None for each in before)

    def _due(self) -> float:
        """The earliest time at which there is something to do in the room."""
        times: list[float] = [m.deadline for m in self.waiting if m.deadline]
        if self._free():
            opens = self._opens()
            times += [m.due if m.sent is not None else max(m.due, opens) for m in self.waiting]
        looked_at = max((member.looked_at for member in self.waiting), default=0)
        return max(min(times, default=float("inf")), looked_at)

    def _is_published(
        self, offered: Offered | None, member: Member | None, is_sent: bool = True
    ) -> None:
        """A reply has this member published. `is_sent`: the caller can do that."""
        if member is None:
            assert offered is None
            return
        now, task = self.room.now, member.task
        assert offered is not None, f"{member} is to be published"
        assert offered.place == Place(member.name, self._id(task))
        assert offered.entry == self.room.entry(task.name)
        assert offered.arrived == task.arrived / 1000
        assert offered.gives_up is (member.gives_up_at is not None and member.gives_up_at <= now)
        age = now - (now if member.sent is None else member.sent)
        assert offered.since == (0 if member.sent is None else max(age, 1) / 1000)
        if age > GOES_LAST_AFTER:
            self.waiting.remove(member)
            self.waiting.append(member)
        member.sent = now if member.sent is None else member.sent
        member.due, member.looked_at = now + min(max(age, KEPT_FOR), LONGEST_PAUSE), 0
        if is_sent:
            self.messages.append(Message(task, member.name, offered.gives_up))

    # -- how a task meets the lock ----------------------------------------------------------------

    def _comes(self, message: Message) -> None:
        task = message.task
        if task.is_revoked:
            task.end = task.end or "revoked"
            self._leaves(message)
        elif task.policy == "debounce" and not message.member:
            self._parks(message, is_first=True)
        else:
            self._asks(message)

    def _asks(self, message: Message, member: str = "") -> None:
        """`member`: it was just put into the room as this."""
        task, member = message.task, member or message.member
        claim = self.room.claim(task.name, member=member)
        reply = self.store.run(calls.acquire(claim))
        self._met("acquire", reply)
        place = self._place_of(task)
        if task.end not in ("", "revoked"):
            assert isinstance(reply, Done)
            self._leaves(message)
        elif task in self.inside:
            assert isinstance(reply, Busy)
            assert reply.relation == "own"
            self.messages.append(dataclasses.replace(message, is_copy=True))
        elif self._may_go(place):
            assert isinstance(reply, Acquired)
            self.waiting = [member for member in self.waiting if member is not place]
            self.inside[task] = (claim, message)
        else:
            assert isinstance(reply, Busy)
            assert reply.relation == "other"
            self._is_published(reply.offered, self._next())
            if message.gives_up:
                self._ends(message, claim, "gave up")
            else:
                self.refused.append(message)

    def _parks(self, message: Message, is_first: bool = False) -> None:
        """`is_first`: its policy has it wait before it asks for the lock."""
        task, now = message.task, self.room.now
        has_begun = message.is_copy or message.member != ""
        takes_slot = task.policy in NEWEST and not has_begun
        name = message.member or (SLOT if takes_slot else self._id(task))
        in_front = message.member != "" or (task.policy in NEWEST and has_begun)
        if place := self._place_of(task):
            name = place.name
        how = dict(POLICIES[task.policy])
        quiet = how.pop("quiet", None)
        quiet = quiet if is_first else None
        there = next((member for member in self.waiting if member.name == name), None)
        is_mine = there is not None and there.task is task
        reply = self.room.parks(
            task.name, name, in_front=in_front, arrived=task.arrived / 1000, quiet=quiet, **how
        )
        self._met("park", reply)
        if task in self.inside or (
            quiet is None and (is_mine or there is None) and self._may_go(there)
        ):
            assert reply == Free({})
            self._asks(message, name)
        elif is_mine:
            assert isinstance(reply, Parked)
            assert reply.replaced == {}
            assert there is not None
            if quiet is None:
                there.due, there.sent, there.deadline = 0, None, there.gives_up_at
            self._is_published(reply.offered, self._next())
        elif there and task.is_replaced:
            assert isinstance(reply, Done)
            self._leaves(message)
        elif there and there.task.arrived > task.arrived:
            assert reply == Older(self.room.task_id(there.task.name))
            self._ends(message, self.room.claim(task.name), "replaced")
        elif there is None and "limit" in how and len(self.waiting) >= how["limit"]:
            assert reply == Full()
            self._ends(message, self.room.claim(task.name), "turned away")
        else:
            member = Member(name, task)
            if quiet is not None:
                wait, longest = (int(seconds * 1000) for seconds in quiet)
                member.first_call = (there and there.first_call) or now
                member.due = min(now + wait, member.first_call + longest)
            if "give_up" in how:
                member.gives_up_at = member.deadline = now + int(how["give_up"] * 1000)
            replaced = self._takes_place(member, there, in_front)
            may_be_next = there is not None or quiet is not None
            if may_be_next and member.due <= now and self._may_go(member):
                assert reply == Free(replaced)
                self._asks(message, name)
            else:
                assert isinstance(reply, Parked)
                assert reply.replaced == replaced
                self._is_published(reply.offered, self._next())

    def _takes_place(self, member: Member, there: Member | None, in_front: bool) -> dict[str, str]:
        """The member enters the room, in the place of the one that is there, whose id and entry
        are returned.
        """
        place = 0 if in_front else len(self.waiting)
        if there is not None:
            place = 0 if in_front else self.waiting.index(there)
            self.waiting.remove(there)
        self.waiting.insert(place, member)
        if there is None:
            return {}
        entry_id, entry = self._id(there.task), self.room.entry(there.task.name)
        there.task.is_replaced = True
        if there.task not in self.inside:
            there.task.end = there.task.end or "replaced"
        self.ended[entry_id] = (self.room.task_id(member.task.name), entry)
        self.ended_at[entry_id] = self.room.now
        return {entry_id: entry}

    # -- how it ends without a run ----------------------------------------------------------------

    def _ends(self, message: Message, claim: Claim, end: str) -> None:
        message.task.end = message.task.end or end
        self.store.run(calls.mark_done(claim), once=True)
        self._leaves(message)

    def _leaves(self, message: Message) -> None:
        """It gives up its place in the room, if it still has it."""
        if message.member:
            reply = self.room.leave(message.task.name, message.member)
            assert not reply.ours
            self.waiting = [
                member
                for member in self.waiting
                if member.name != message.member or member.task is not message.task
            ]
            self._is_published(reply.offered, self._next())

    def _drops(self, names: list[str]) -> None:
        too_old = self.room.now - OFFERED_FOR * 1000
        members = [m for m in self.waiting if m.sent is not None and m.sent <= too_old]
        assert {*names} == {member.name for member in members}
        if not members:
            return
        dropped = {self._id(m.task): self.room.entry(m.task.name) for m in members}
        assert self.room.drop(*names) == dropped
        for member in members:
            self.waiting.remove(member)
            member.task.end = member.task.end or "dropped"
        self.ended |= {entry_id: ("", entry) for entry_id, entry in dropped.items()}
        self.ended_at |= dict.fromkeys(dropped, self.room.now)
        noted = self._noted()
        assert noted is not None
        assert noted <= self.room.now, "their results are to be stored now"

    def _stores_results(self, ended: dict[str, tuple[str, str]]) -> None:
        """Those who should have stored them have died. So has the next one."""
        soon = int(rooms.ENDED_AGAIN * 1000)
        late = {e for e, at in self.ended_at.items() if at + soon <= self.room.now}
        assert ended == {entry_id: self.ended[entry_id] for entry_id in late}
        for entry_id in late & self.ended_again:
            self.store.ask(rooms.forget_ended(self.room.keys, entry_id, TTL))
            del self.ended[entry_id], self.ended_at[entry_id]
        self.ended_at |= dict.fromkeys(late - self.ended_again, self.room.now)
        self.ended_again |= late

    # -- small things -----------------------------------------------------------------------------

    def _id(self, task: Task) -> str:
        return self.room.entry_id(task.name)

    def _passes(self, ms: int) -> None:
        self.room.set_time(self.room.now + ms)

    def _noted(self) -> float | None:
        """When a worker looks after the room next, in ms."""
        return self.client.zscore(self.room.keys.rooms, self.room.keys.lock_id)

    def _met(self, question: str, reply: Any) -> None:
        self.met.add(f"{question}: {type(reply).__name__} {getattr(reply, 'relation', '')}".strip())
        if isinstance(reply, Offered) and reply.gives_up:
            self.met.add(f"{question}: gives up")


def way(machine: RoomMachine, seed: int, steps: int = 40) -> None:
    """The machine without hypothesis."""
    rng = random.Random(seed)
    behind = [rng.choice(BEHIND) for _ in range(rng.randrange(5))]
    machine.open(rng.choice(LIMITS), behind, rng.choice(ARE_COPIED))
    machine.check()
    wander(machine, rng, steps)
    machine.teardown()
