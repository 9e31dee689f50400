"""The waiting room's scripts on a real Redis, through the real store, beside a list in memory.

Tasks come, are refused, wait, have their turns, are published, come again, run, give up, end or
die, in any order; messages are lost and doubled, and turns lapse. After each step the server has
what the list says, and in the end each task has had what its policy promises.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, ClassVar

import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from celery_redislock.protocol import calls, holders, rooms
from celery_redislock.protocol.claims import (
    Acquired,
    Busy,
    Claim,
    Done,
    Full,
    Offered,
    Older,
    Parked,
    Parking,
    Turn,
    to_ms,
)
from celery_redislock.protocol.keys import LockKeys, lock_keys
from celery_redislock.protocol.tokens import new_token
from celery_redislock.servers.server import Server

#: Seconds. Nothing lapses by itself in a test: who dies, and a turn that nobody takes, is deleted.
TTL = 600.0
#: What a task's policy is called, and how many may then wait.
POLICIES = {"queue": None, "queue of two": 2, "queue for a while": None, "coalesce": None}
#: Seconds for which one waits with a policy that gives up. A rule says when they are over.
FOR_A_WHILE = 3000.0
#: As `turns.lua` says.
OFFERS = 4
#: How it may begin: what takes several steps would seldom come up in a row.
SCENES = (
    *("nothing", "nothing", "turn", "spent", "aside", "received"),
    *("gives up", "gives up and is received", "copied"),
)


@dataclasses.dataclass(eq=False)
class Task:
    """A task, and what has become of it.

    Attributes:
        task_id: its id.
        policy: what it does when it is refused.
        arrived: when it did, counted in tasks.
        began: it has waited or run before: those that came since are newer.
        end: "", or "ran", "replaced", "turned away", "revoked", "gave up".
        offers: how often it had its turn, or was to give up.
        state: as `turns.lua` calls it: "u", "r", "g" or "h"; "" for none.
        is_over: its time to wait is over, and nobody has looked since.
        has_deadline: it gives up at some time.
    """

    task_id: str
    policy: str
    arrived: int
    began: bool = False
    end: str = ""
    offers: int = 0
    state: str = ""
    is_over: bool = False
    has_deadline: bool = False

    @property
    def entry_id(self) -> str:
        return f"{self.task_id}:0.0"

    @property
    def entry(self) -> str:
        return json.dumps({"task": "job", "task_id": self.task_id})

    @property
    def is_with_a_worker(self) -> bool:
        return self.state in ("r", "h")

    def forget_turns(self) -> None:
        self.offers, self.state, self.is_over = 0, "", False


@dataclasses.dataclass(eq=False)
class Message:
    """A message that was published from the room.

    Attributes:
        task: whose.
        token: under which the lock is kept for it, or "".
        gives_up: it is not to wait on.
    """

    task: Task
    token: str = ""
    gives_up: bool = False


class RoomMachine(RuleBasedStateMachine):
    """Whatever can happen around one lock and its room.

    Set from outside: the store, a client, and the set that notes what was met.
    """

    store: Server
    client: redis.Redis
    met: ClassVar[set[str]]

    @initialize(limit=st.integers(1, 3), scene=st.sampled_from(SCENES))
    def open(self, limit: int, scene: str) -> None:
        self.keys: LockKeys = lock_keys("room", new_token(), limit)
        self.tasks: list[Task] = []
        self.waiting: list[Task] = []
        self.aside: list[Task] = []
        self.turns: dict[Task, str] = {}
        self.inside: dict[Task, Claim] = {}
        self.refused: list[tuple[Task, Claim]] = []
        self.under_way: list[Message] = []
        if scene != "nothing":
            self._begin(limit, scene)

    def _begin(self, limit: int, scene: str) -> None:
        """All slots are taken, and two wait, in some state."""
        for _ in range(limit + 2):
            self.one_is_sent("queue for a while" if "gives up" in scene else "queue")
        if scene == "copied":  # its other copy runs just before it is parked
            self.one_ends(0, publishes=True)
            task, _ = self.refused[0]
            self._comes(Message(task))
            self.one_ends(list(self.inside).index(task), publishes=True)
            self.one_is_sent("queue")
        while self.refused:
            self.a_refused_one_is_parked(0)
        if "gives up" in scene:
            self.ones_time_is_over(0)
            self.somebody_looks(arrives=True, declines=False)
            if "received" in scene:
                self.a_worker_has_a_message(0)
                self.ones_time_is_over(0)
            return
        self.one_ends(0, publishes=True)
        if scene == "copied":
            self.a_message_comes(0, doubled=True)
        if scene in ("spent", "aside", "received"):
            self.a_turn_lapses(0)
            self.nobody_takes_turns(OFFERS if scene == "aside" else OFFERS - 1)
        if scene == "received":
            self.a_worker_has_a_message(0)

    # -- what happens ---------------------------------------------------------------------

    @rule(policy=st.sampled_from(sorted(POLICIES)))
    def one_is_sent(self, policy: str) -> None:
        number = len(self.tasks) + 1
        task = Task(f"task {number}", policy, number)
        self.tasks.append(task)
        self._comes(Message(task))

    @precondition(lambda self: self.under_way)
    @rule(which=st.integers(0, 9), doubled=st.booleans())
    def a_message_comes(self, which: int, doubled: bool) -> None:
        message = self.under_way[which % len(self.under_way)]
        if not doubled:
            self.under_way.remove(message)
        self._comes(message)

    @precondition(lambda self: self.under_way)
    @rule(which=st.integers(0, 9))
    def a_worker_has_a_message(self, which: int) -> None:
        message = self.under_way[which % len(self.under_way)]
        task = message.task
        state = self.client.hget(self.keys.entries, f"#{task.entry_id}") or "|||"
        # Only of the message that was sent for it: one that was parked again waits for another.
        is_its_own = (task.state in ("g", "h")) is (message.token == "")
        is_its_own = is_its_own and state != "|||" and message.token in state
        noted = self.store.run(
            rooms.note_received(self.keys, task.entry_id, message.token, TTL), once=True
        )
        assert noted is (task in self.waiting and is_its_own)
        if noted:
            task.state = "h" if task.state in ("g", "h") else "r"

    @precondition(lambda self: self.refused)
    @rule(which=st.integers(0, 9))
    def a_refused_one_is_parked(self, which: int) -> None:
        self._parks(*self.refused.pop(which % len(self.refused)))

    @precondition(lambda self: self.inside)
    @rule(which=st.integers(0, 9), publishes=st.sampled_from([True, True, True, False]))
    def one_ends(self, which: int, publishes: bool) -> None:
        task = list(self.inside)[which % len(self.inside)]
        claim = self.inside.pop(task)
        assert task.end == "", "it has run before"
        task.end = "ran"
        reply = self.store.run(
            calls.settle(claim, calls.Release(note="1", always=True, publishes=publishes))
        )
        assert reply.ours
        self._is_offered(reply.offered, publishes)

    @precondition(lambda self: self.inside)
    @rule(which=st.integers(0, 9))
    def one_dies_and_its_message_comes_back(self, which: int) -> None:
        task = list(self.inside)[which % len(self.inside)]
        self._free(self.inside.pop(task).token)
        task.began = True
        self.under_way.append(Message(task))

    @precondition(lambda self: self.turns)
    @rule(which=st.integers(0, 9))
    def a_turn_lapses(self, which: int) -> None:
        task = list(self.turns)[which % len(self.turns)]
        self._free(self.turns.pop(task))
        if task in self.waiting and task.state not in ("r", "g", "h"):
            self._is_late(task)

    @rule(arrives=st.booleans(), declines=st.sampled_from([False, False, False, True]))
    def somebody_looks(self, arrives: bool, declines: bool) -> None:
        """What is published need not arrive, or who looks cannot publish it."""
        expected = self._sets_aside()
        look = self.store.run(rooms.look(self.keys, TTL))
        self._met("look", look.offered)
        assert look.ended == {}
        assert [*look.aside] == [task.entry_id for task in expected]
        offered = self._is_to_give_up(look.offered) or self._is_unpublished(look.offered)
        offered = offered or self._is_offered(look.offered, sends=False)
        if offered is None or not look.offered or not look.offered.publish:
            return
        if arrives and not declines:
            self._send(look.offered)
        elif declines and not look.offered.gives_up:
            self._declines(offered)

    @rule(times=st.integers(1, OFFERS + 1))
    def nobody_takes_turns(self, times: int) -> None:
        for _ in range(times):
            self.somebody_looks(arrives=False, declines=False)
            while self.turns:
                self.a_turn_lapses(0)

    @precondition(lambda self: any(self._may_give_up(task) for task in self.waiting))
    @rule(which=st.integers(0, 9))
    def ones_time_is_over(self, which: int) -> None:
        """It has waited for as long as it would; or its message, as one that gives up, did not
        come.
        """
        able = [task for task in self.waiting if self._may_give_up(task)]
        task = able[which % len(able)]
        task.is_over = True
        self.client.zadd(self.keys.deadlines, {task.entry_id: 0})
        if task.state == "g":
            self._is_late(task)

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 9))
    def one_is_revoked(self, which: int) -> None:
        task = self.waiting[which % len(self.waiting)]
        task.end = task.end or "revoked"
        self.under_way = [each for each in self.under_way if each.task is not task]
        self.refused = [(other, claim) for other, claim in self.refused if other is not task]
        self._leaves(task)

    @precondition(lambda self: self.turns)
    @rule(which=st.integers(0, 9))
    def somebody_settles_what_is_anothers(self, which: int) -> None:
        task = list(self.turns)[which % len(self.turns)]
        stranger = Claim(self.keys, new_token(), TTL, "", task.task_id)
        reply = self.store.run(calls.settle(stranger))
        assert not reply.ours
        self._is_offered(reply.offered)

    @precondition(lambda self: self.aside)
    @rule(which=st.integers(0, 9))
    def one_is_put_back(self, which: int) -> None:
        task = self.aside.pop(which % len(self.aside))
        assert self.store.run(rooms.put_back(self.keys, task.entry_id, TTL))
        assert not self.store.run(rooms.put_back(self.keys, task.entry_id, TTL))
        task.forget_turns()
        task.offers = 1  # it may have run elsewhere meanwhile: its result is looked up
        self.waiting.append(task)

    # -- what must hold -------------------------------------------------------------------

    @invariant()
    def the_server_holds_what_the_list_says(self) -> None:
        if not hasattr(self, "keys"):
            return
        asks, slots = self.client.pipeline(transaction=False), self._slots()
        asks.lrange(self.keys.room, 0, -1).hgetall(self.keys.entries).hkeys(self.keys.aside)
        asks.zrange(self.keys.deadlines, 0, -1).zscore(self.keys.rooms, self.keys.lock_id)
        for slot in slots:
            asks.get(slot).pttl(slot)
        room, entries, aside, limited, noted, *held = asks.execute()
        order = [task.entry_id for task in self.waiting]
        assert room == order
        assert {field for field in entries if field[0] not in "#|"} == set(order)
        assert {field[1:] for field in entries if field[0] == "#"} <= set(order)
        if noted is not None and not noted.is_integer():
            of_a_kind = [task.entry_id for task in self.waiting if task.policy == "coalesce"]
            listed = json.loads(entries.get("|c|", "[]"))
            assert [each for each in listed if each in set(of_a_kind)] == of_a_kind
        assert set(aside) == {task.entry_id for task in self.aside}
        assert set(limited) == {task.entry_id for task in self.waiting if task.has_deadline}
        standing = [json.loads(value) for value in held[::2] if value]
        turns = {each["turn"]: each["token"] for each in standing if "turn" in each}
        assert turns == {task.entry_id: token for task, token in self.turns.items()}
        tokens = sorted(each["token"] for each in standing)
        assert tokens == sorted(
            [*self.turns.values(), *(claim.token for claim in self.inside.values())]
        )
        assert -1 not in held[1::2], "it would not lapse"
        assert noted is not None or not self.waiting, "nobody would look after them"

    def teardown(self) -> None:
        """Whatever happened, everybody who waits has a run or gives up, and nothing is left."""
        if not hasattr(self, "keys"):
            return
        for _ in range(20 * (1 + len(self.tasks))):
            if not (self.waiting or self.inside or self.refused or self.under_way or self.aside):
                break
            while self.inside:
                self.one_ends(0, publishes=True)
            while self.refused:
                self.a_refused_one_is_parked(0)
            for _ in list(self.under_way):
                self.a_message_comes(0, doubled=False)
            while self.turns:
                self.a_turn_lapses(0)
            if not self.waiting:
                while self.aside:
                    self.one_is_put_back(0)
            for task in self.waiting:
                if task.is_with_a_worker:  # that worker died, and so it is not believed any more
                    task.state = "g" if task.state == "h" else ""
                    self.client.hset(
                        self.keys.entries, f"#{task.entry_id}", f"{task.offers}||{task.state}|0|"
                    )
                if task.state == "g":
                    able = [each for each in self.waiting if self._may_give_up(each)]
                    assert task in able, "its give-up is forgotten"
                    self.ones_time_is_over(able.index(task))
            self.somebody_looks(arrives=True, declines=False)
            self.the_server_holds_what_the_list_says()
        assert [task for task in self.tasks if not task.end] == []
        keys = self.keys
        left = (keys.room, keys.entries, keys.ended, keys.deadlines, keys.aside)
        assert self.client.exists(*left, *self._slots()) == 0
        assert self.client.zscore(self.keys.rooms, self.keys.lock_id) is None
        newest = [task for task in self.tasks if task.policy == "coalesce"][-1:]
        assert [task.end for task in newest if task.end == "replaced"] == [], "the last has a run"

    # -- whose turn it is -------------------------------------------------------------------

    def _is_spent(self, task: Task) -> bool:
        is_on_its_way = task.is_with_a_worker or (task.state == "g" and not task.is_over)
        return task.offers >= OFFERS and not is_on_its_way and task not in self.turns

    def _able(self) -> list[Task]:
        """Who may be given a turn."""
        return [
            task
            for task in self.waiting
            if task not in self.turns
            and not self._is_spent(task)
            and (task.state not in ("r", "g", "h") or (task.state == "g" and task.is_over))
        ]

    def _sets_aside(self) -> list[Task]:
        """What a look does first."""
        spent = [task for task in self.waiting if self._is_spent(task)]
        for task in spent:
            self.waiting.remove(task)
            task.has_deadline = False
            self.aside.append(task)
        return spent

    def _may_give_up(self, task: Task) -> bool:
        if task.state == "g" and task in self.turns:
            return False  # a turn is shorter than it takes until that is sent again
        return task.has_deadline

    def _is_to_give_up(self, offered: Offered | None) -> Task | None:
        over = sorted(
            (task for task in self.waiting if task.is_over), key=lambda task: task.entry_id
        )
        while over and over[0].state == "h":  # a worker has its message
            over.pop(0).is_over = False
        if not over:
            return None
        task = over[0]
        assert offered is not None, f"{task} is to give up"
        assert (offered.entry_id, offered.gives_up) == (task.entry_id, True)
        again = task.state == "g"
        assert offered.again is again
        task.offers, task.state, task.is_over = (task.offers if again else 0) + 1, "g", False
        return task

    def _is_unpublished(self, offered: Offered | None) -> Task | None:
        able = {task.entry_id: task for task in self.turns if task.state == "u"}
        if not able:
            return None
        assert offered is not None, f"{able} are to be published"
        assert offered.entry_id in able, f"{able} are to be published, not {offered.entry_id}"
        task = able[offered.entry_id]
        assert (offered.token, offered.publish) == (self.turns[task], True)
        task.offers, task.state = task.offers + 1, ""
        return task

    def _is_offered(
        self, offered: Offered | None, publishes: bool = True, sends: bool = True
    ) -> Task | None:
        """Whose turn it is now, if a slot is free: the first who has none and does not come."""
        able = self._able()
        if self._is_full() or not able:
            assert offered is None
            return None
        task = able[0]
        assert offered is not None, f"it is the turn of {task}"
        assert (offered.entry_id, offered.entry) == (task.entry_id, task.entry)
        assert offered.again is (task.offers > 0)
        assert not offered.gives_up
        self.turns[task] = offered.token
        assert offered.publish is publishes
        task.offers, task.state = task.offers + publishes, "" if publishes else "u"
        if sends and offered.publish:
            self._send(offered)
        return task

    def _send(self, offered: Offered) -> None:
        found = [each for each in self.waiting if each.entry_id == offered.entry_id]
        assert found, f"{offered.entry_id} does not wait"
        (task,) = found
        self.under_way.append(Message(task, offered.token, offered.gives_up))

    def _declines(self, task: Task) -> None:
        look = self.store.run(rooms.look(self.keys, TTL, task.entry_id, aside_after=60.0))
        task.offers, task.state = max(task.offers - 1, 0), "u"
        assert [*look.aside] == [], "it waits for one who can"
        others = {each for each in self.turns if each.state == "u" and each is not task}
        if self._is_to_give_up(look.offered):
            return
        if others:
            assert look.offered is not None
            assert look.offered.entry_id in {each.entry_id for each in others}
            (other,) = (each for each in others if each.entry_id == look.offered.entry_id)
            other.offers, other.state = other.offers + 1, ""
            return
        self._is_offered(look.offered)

    # -- how a task meets the lock ----------------------------------------------------------

    def _comes(self, message: Message) -> None:
        task, token = message.task, new_token()
        value = holders.encode(token, ttl_ms=to_ms(TTL), task="job", task_id=task.task_id)
        claim = Claim(self.keys, token, TTL, value, task.task_id, kept=message.token)
        reply = self.store.run(calls.acquire(claim))
        self._met("acquire", reply)
        if task.end:
            assert isinstance(reply, Done)
            self._leaves(task, message.token)
        elif task in self.inside:
            assert (type(reply), _relation(reply)) == (Busy, "own")
            self.under_way.append(message)  # it is looked at again when that one has ended
        elif task in self.turns or self._may_go(task):
            assert isinstance(reply, Acquired)
            self.turns.pop(task, None)
            self._is_out(task)
            self.inside[task] = claim
        else:
            assert (type(reply), _relation(reply)) == (Busy, "other")
            self._is_offered(reply.offered)
            if message.gives_up:
                task.end = "gave up"
                self.store.ask(calls.mark_done(claim), once=True)
                self._leaves(task, message.token)
            else:
                self.refused.append((task, claim))

    def _may_go(self, task: Task) -> bool:
        """Whether it finds a free slot, which is nobody else's."""
        if self._is_full():
            return False
        before = self.waiting[: self.waiting.index(task)] if task in self.waiting else self.waiting
        return not any(other in before for other in self._able())

    def _parks(self, task: Task, claim: Claim) -> None:
        limit = POLICIES[task.policy]
        kind = "c" if task.policy == "coalesce" else ""
        reply = self.store.run(
            rooms.park(
                claim,
                Parking(
                    task.entry,
                    kind=kind,
                    limit=limit,
                    give_up=FOR_A_WHILE if task.policy == "queue for a while" else None,
                    in_front=task.began,
                    began=task.began,
                    arrived=float(task.arrived),
                ),
            )
        )
        self._met("park", reply)
        same = [other for other in self.waiting if kind and other.policy == task.policy]
        newer = [other for other in same if other.arrived > task.arrived and not task.began]
        replaced = [] if task.began else [other for other in same if other is not task]
        is_free = self._may_go(task)
        if task in self.inside or task in self.turns or is_free:
            assert reply == Turn({})
            self._comes(Message(task))
        elif task in self.waiting:
            assert isinstance(reply, Parked)
            assert reply.replaced == {}
            task.offers, task.state = 0, ""
            self._is_offered(reply.offered)
        elif newer:
            assert reply == Older(newer[0].task_id)
            self.store.ask(calls.mark_done(claim), once=True)
            task.end = task.end or "replaced"
            self._leaves(task)
        elif limit is not None and len(self.waiting) >= limit:
            assert isinstance(reply, Full)
            self.store.ask(calls.mark_done(claim), once=True)
            task.end = task.end or "turned away"
            self._leaves(task)
        else:
            self._takes_its_place(task, same, replaced)
            task.has_deadline = task.policy == "queue for a while"
            assert isinstance(reply, Turn | Parked)
            assert reply.replaced == {other.entry_id: other.entry for other in replaced}
            for other in replaced:
                other.end = other.end or "replaced"
                self.store.ask(rooms.forget_ended(self.keys, other.entry_id, TTL))
            turn = self._may_go(task)
            assert type(reply) is (Turn if turn else Parked)
            if isinstance(reply, Parked):
                self._is_offered(reply.offered)
            else:
                self._comes(Message(task))
        task.began = True

    def _leaves(self, task: Task, token: str = "") -> None:
        """It ends without a run, and gives up what is kept for its message."""
        token = self.turns.get(task, token) or new_token()
        claim = Claim(self.keys, token, TTL, "", task.task_id)
        reply = self.store.run(calls.settle(claim, calls.Release(take_out=task.entry_id)))
        assert reply.ours is (task in self.turns)
        self.turns.pop(task, None)
        self._is_out(task)
        self._is_offered(reply.offered)

    def _is_out(self, task: Task) -> None:
        self.waiting = [other for other in self.waiting if other is not task]
        self.aside = [other for other in self.aside if other is not task]
        task.forget_turns()
        task.has_deadline = False

    def _takes_its_place(self, task: Task, same: list[Task], replaced: list[Task]) -> None:
        self._is_out(task)
        if same:
            self.waiting.insert(self.waiting.index(same[0]), task)
        elif task.began:
            self.waiting.insert(0, task)
        else:
            self.waiting.append(task)
        for other in replaced:
            self.turns.pop(other, None)
            self.waiting.remove(other)

    def _is_full(self) -> bool:
        return len(self.inside) + len(self.turns) == 1 + len(self.keys.slots)

    def _slots(self) -> tuple[str, ...]:
        return (self.keys.lock, *self.keys.slots)

    def _is_late(self, task: Task) -> None:
        """Its message is not waited for any more."""
        field = f"#{task.entry_id}"
        state = self.client.hget(self.keys.entries, field)
        assert state is not None, f"what is known of the turns of {task} is forgotten"
        offers, first, flag, _, tokens = state.split("|")
        self.client.hset(self.keys.entries, field, f"{offers}|{first}|{flag}|0|{tokens}")

    def _free(self, token: str) -> None:
        """What stands under this token lapses."""
        slots = [
            key
            for key in self._slots()
            if (value := self.client.get(key)) and json.loads(value)["token"] == token
        ]
        assert len(slots) == 1, f"{token} stands in {slots}"
        self.client.delete(slots[0])

    def _met(self, question: str, reply: Any) -> None:
        self.met.add(f"{question}: {type(reply).__name__} {_relation(reply)}".strip())
        if isinstance(reply, Offered) and reply.gives_up:
            self.met.add(f"{question}: gives up")


def _relation(reply: Any) -> str:
    return getattr(reply, "relation", "")
