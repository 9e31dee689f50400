"""What is asked of the server does not grow with how many wait, or are held."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from celery_redislock.protocol import calls, rooms
from celery_redislock.protocol.claims import Extension, Parked, Parking
from celery_redislock.protocol.rooms import DROP_COUNT
from celery_redislock.servers.node import Node
from celery_redislock.servers.server import Server
from celery_redislock.servers.urls import source_from_url
from tests.scripts.a_room import TTL, Room
from tests.support.servers import RedisServer

#: How long a room is: more than any script looks at in one step, and some times that.
LENGTHS = (70, 400)
#: They read all of a key, or of the server, which does nothing else meanwhile.
READS_ALL = {"HGETALL", "HKEYS", "HVALS", "SMEMBERS", "KEYS", "SORT"}


@pytest.fixture
def own_store(own_redis: RedisServer) -> Iterator[Server]:
    store = Node(source_from_url(own_redis.url))
    yield store
    store.close()


class LongRoom(Room):
    """A room of so many behind a holder, one of them of a kind, and one that gives up."""

    def __init__(self, store: Server, client: redis.Redis, length: int) -> None:
        super().__init__(store, client, f"room-{length}")
        self.holder = self.take("holder")
        self.park("a", "b")
        self.park("of a kind", kind="k")
        self.park(*(f"q{number}" for number in range(length - 4)))
        self.park("brief", give_up=1000)

    def ends(self) -> None:
        self.offered(self.settle(self.holder), "a")

    def dies(self) -> None:
        self.client.delete(self.keys.lock)

    def coalesces(self) -> None:
        reply = self.store.run(
            rooms.park(self.claim("newer"), Parking(self.entry("newer"), kind="k"))
        )
        assert isinstance(reply, Parked)
        assert list(reply.replaced) == [self.entry_id("of a kind")]

    def one_gives_up(self) -> None:
        assert self.offered(self.look(), "brief").gives_up

    def is_extended(self) -> None:
        extension = Extension(self.holder, self.holder.opening, 0, retake=False)
        assert self.store.run_all([calls.extend(extension)], ttl=30.0)

    def some_are_dropped(self) -> None:
        assert len(self.store.run(rooms.drop(self.keys, TTL, "", 1.0))) == DROP_COUNT

    def is_due(self) -> None:
        now = self.store.ask(rooms.server_time(self.keys.lock))
        assert self.store.ask(rooms.due_rooms([self.keys.rooms], 600, now))


#: What is done, after what.
OPERATIONS: dict[str, tuple[Callable[[LongRoom], Any], ...]] = {
    "a newcomer is refused": (lambda room: room.ask("newcomer"),),
    "a newcomer is refused a free lock": (LongRoom.dies, lambda room: room.ask("newcomer")),
    "one is parked": (lambda room: room.park("newcomer"),),
    "one is coalesced": (LongRoom.coalesces,),
    "a release gives a turn": (LongRoom.ends,),
    "a message takes its turn over": (LongRoom.ends, lambda room: room.take("a")),
    "one that waits is revoked": (lambda room: room.give_up("q7"),),
    "a stranger settles": (lambda room: room.give_up("stranger"),),
    "somebody looks": (LongRoom.look,),
    "one gives up": (lambda room: room.pass_time(1001), LongRoom.one_gives_up),
    "an extension": (LongRoom.is_extended,),
    "which rooms are due": (LongRoom.is_due,),
    "some are dropped": (LongRoom.some_are_dropped,),
}


def asked(client: redis.Redis, call: Callable[[], Any]) -> list[list[str]]:
    """The commands that the server did meanwhile, those of scripts, not the scripts themselves."""
    found = []
    with client.monitor() as monitor:
        call()
        client.echo("that is all")
        for told in monitor.listen():
            if "that is all" in told["command"]:
                return found
            command = told["command"].split(" ")
            # "": redis-py 5 does not know a script's text for an argument.
            if command[0] not in ("HELLO", "CLIENT", "SELECT", "INFO", "EVAL", "EVALSHA", ""):
                found.append(command)
    return found


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_long_room_takes_no_more_commands_than_a_short_one(
    own_store: Server, own_redis: RedisServer, operation: str
) -> None:
    *before, last = OPERATIONS[operation]
    found = []
    with own_redis.client() as client:
        for length in LENGTHS:
            here = LongRoom(own_store, client, length)
            for step in before:
                step(here)
            found.append(asked(client, lambda here=here: last(here)))  # type: ignore[misc]
    short, long = ([command[0] for command in commands] for commands in found)
    assert short == long
    assert long
    assert not READS_ALL & set(long)
    assert [each for each in found[1] if each[0] == "LRANGE" and each[3] == "-1"] == []


def test_who_does_not_wait_is_not_looked_for_in_the_room(
    own_store: Server, own_redis: RedisServer
) -> None:
    """To look for what is not there is to read all of it."""
    with own_redis.client() as client:
        here = LongRoom(own_store, client, LENGTHS[0])
        found = asked(client, lambda: here.give_up("stranger"))
        client.delete(here.keys.lock, here.keys.room)  # the others' entries are still there
        found += asked(client, lambda: here.take("newcomer"))
    assert {command[0] for command in found} & {"LREM", "LPOS"} == set()


# -- the lists of those of a kind ---------------------------------------------------------------


def replaced(room: Room, task: str, **options: Any) -> list[str]:
    """Whom this one replaces."""
    reply = room.store.run(
        rooms.park(room.claim(task), Parking(room.entry(task), kind="k", **options))
    )
    assert isinstance(reply, Parked), reply
    return [each.removesuffix(f"-{room.label}:0.0") for each in reply.replaced]


def test_one_of_a_kind_is_found_among_many(room: Room) -> None:
    room.take("holder")
    room.park("a", "b")
    assert replaced(room, "first") == []
    room.park("c")
    room.park("other", kind="another")
    assert replaced(room, "second") == ["first"]
    assert room.waiting == ["a", "b", "second", "c", "other"]


def test_one_that_has_begun_goes_before_those_of_its_kind_and_all_are_replaced(
    room: Room,
) -> None:
    room.take("holder")
    replaced(room, "newer")
    room.park("a")
    assert replaced(room, "begun", began=True) == []
    assert replaced(room, "begun before", began=True) == []
    assert room.waiting == ["begun before", "begun", "newer", "a"]
    assert replaced(room, "newest") == ["begun before", "begun", "newer"]
    assert room.waiting == ["newest", "a"]


def test_who_is_replaced_is_named_before_anything_is_changed(room: Room) -> None:
    """The key of its done note must be declared."""
    room.take("holder")
    replaced(room, "first")
    parking = Parking(room.entry("third"), kind="k")
    call = rooms.park(room.claim("third"), parking)
    named = room.store.run(dataclasses.replace(call, read=lambda reply, at: reply, wider=None))
    assert named == [b"notes", room.entry_id("first").encode()]
    assert room.waiting == ["first"]
    assert replaced(room, "second") == ["first"], "it was faster"
    wider = call.wider(named)
    assert isinstance(room.store.run(wider), Parked)
    assert room.waiting == ["third"]
    for task in ("first", "second"):
        assert room.client.exists(room.keys.done_by(room.entry_id(task)))


def test_what_was_put_back_is_the_last_of_its_kind(room: Room) -> None:
    room.take("holder")
    replaced(room, "first")
    room.settle(room.claim("first"), take_out=room.entry_id("first"), aside=True)
    assert replaced(room, "second") == []
    room.store.run(rooms.put_back(room.keys, room.entry_id("first"), TTL))
    assert room.waiting == ["second", "first"]
    assert replaced(room, "third") == ["second", "first"]
    assert room.waiting == ["third"]


def test_an_empty_room_leaves_no_lists(room: Room) -> None:
    holder = room.take("holder")
    replaced(room, "only")
    token = room.offered(room.settle(holder), "only").token
    room.take("only", kept=token)
    assert not room.client.exists(room.keys.entries)
    replaced(room, "next")
    assert room.drop_all().keys() == {room.entry_id("next")}
    assert not room.client.exists(room.keys.entries)


def test_of_a_kind_may_be_a_task_with_any_id(room: Room) -> None:
    room.take("holder")
    earlier: list[str] = []
    for task in ('a "quoted" one', "|k|", "näxt, [1]", "#", "|"):
        assert replaced(room, task) == earlier
        earlier = [task]


def test_who_was_of_a_kind_and_is_lost_is_not_replaced(room: Room) -> None:
    """The server has evicted the list of ids, or the entries, and kept the other."""
    room.take("holder")
    replaced(room, "first")
    room.client.delete(room.keys.entries)
    assert replaced(room, "second") == []
    room.client.delete(room.keys.room)
    assert replaced(room, "third") == ["second"]
    assert room.waiting == ["third"]


# -- in steps -----------------------------------------------------------------------------------


def test_more_than_fit_into_one_step_are_dropped(room: Room) -> None:
    room.take("holder")
    tasks = [f"q{number}" for number in range(DROP_COUNT + 3)]
    room.park(*tasks)
    for task in tasks[:3]:
        room.settle(room.claim(task), take_out=room.entry_id(task), aside=True)
    dropped = room.drop_all()
    assert dropped.keys() == {room.entry_id(task) for task in tasks}
    assert (room.waiting, room.aside) == ([], set())


def test_many_that_were_replaced_are_told_of_in_steps_and_soon(room: Room) -> None:
    room.take("holder")
    tasks = [f"q{number}" for number in range(DROP_COUNT + 3)]
    room.park(*tasks)
    room.drop_all()
    told = set()
    look = room.look()
    while look.ended:
        assert len(look.ended) <= DROP_COUNT
        told |= look.ended.keys()
        for entry_id in look.ended:
            room.store.ask(rooms.forget_ended(room.keys, entry_id, TTL))
        if len(look.ended) == DROP_COUNT:
            assert look.due_in == 0
        look = room.look()
    assert told == {room.entry_id(task) for task in tasks}
    assert look.due_in is None


def test_those_that_workers_have_do_not_keep_the_next_from_giving_up(room: Room) -> None:
    """They are passed over in steps, and the room is due until the one is found."""
    room.take("holder")
    tasks = [f"q{number}" for number in range(2 * DROP_COUNT)]
    room.park(*tasks, give_up=1)
    room.park("late", give_up=2)
    room.pass_time(3)
    for task in tasks:
        field = f"#{room.entry_id(task)}"
        room.client.hset(room.keys.entries, field, "1||h|9999999999999|")
    for _ in range(2):
        look = room.look()
        assert (look.offered, look.due_in) == (None, 0)
    assert room.offered(room.look(), "late").gives_up


def test_whose_entries_are_lost_are_dropped(room: Room) -> None:
    room.take("holder")
    tasks = [f"q{number}" for number in range(DROP_COUNT + 3)]
    room.park(*tasks)
    room.client.delete(room.keys.entries)
    dropped = room.drop_all()
    assert dropped == {room.entry_id(task): "" for task in tasks}
    assert not room.client.exists(room.keys.room)


@pytest.mark.parametrize("kind", ["", "k"])
def test_a_server_without_memory_takes_out_who_waits(
    own_store: Server, own_redis: RedisServer, kind: str
) -> None:
    """What frees memory comes first: the server refuses other commands then."""
    with own_redis.client() as client:
        room = Room(own_store, client, "r")
        holder = room.take("holder")
        room.park("newer", kind=kind)
        for task in ("revoked", "aside", "dropped"):
            room.park(task, kind=kind, began=True)
        room.settle(room.claim("aside"), take_out=room.entry_id("aside"), aside=True)
        client.set("big", "x" * 1_000_000)
        client.config_set("maxmemory", "1mb")
        room.give_up("revoked")
        room.settle(room.claim("newer"), take_out=room.entry_id("newer"), aside=True)
        dropped = room.drop_all()
        assert len(dropped) == 3
        assert room.settle(holder).ours


def test_a_server_without_memory_drops_what_was_set_aside(
    own_store: Server, own_redis: RedisServer
) -> None:
    with own_redis.client() as client:
        room = Room(own_store, client, "r")
        room.take("holder")
        room.park("aside")
        room.settle(room.claim("aside"), take_out=room.entry_id("aside"), aside=True)
        client.set("big", "x" * 1_000_000)
        client.config_set("maxmemory", "1mb")
        assert len(room.drop_all()) == 1
        assert room.aside == set()
