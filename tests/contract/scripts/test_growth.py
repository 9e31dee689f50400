"""What is asked of the server does not grow with how many wait, or are held."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from celery_redislock.protocol import calls, rooms
from celery_redislock.protocol.claims import Extension, Parked, Parking
from celery_redislock.protocol.rooms import DROP_COUNT, ENDED_AGAIN
from celery_redislock.protocol.suspensions import Suspension
from celery_redislock.servers.node import Node
from celery_redislock.servers.server import Server
from celery_redislock.servers.urls import source_from_url
from tests.contract.scripts.a_room import GOES_LAST, SLOT, TASK, TTL, Room
from tests.support.servers import RedisServer

#: How long a room is: more than any script looks at in one step, and some times that.
LENGTHS = (70, 200)
#: They read all of a key, or of the server, which does nothing else meanwhile.
READS_ALL = {"HGETALL", "HKEYS", "HVALS", "SMEMBERS", "KEYS", "SORT"}


@pytest.fixture(scope="module")
def alone() -> Iterator[tuple[Server, redis.Redis]]:
    """A server that nobody else asks meanwhile."""
    with RedisServer() as server, server.client() as client:
        store = Node(source_from_url(server.url))
        yield store, client
        store.close()


class LongRoom(Room):
    """A room of so many behind a holder, one of them in a slot, and one that gives up."""

    def __init__(self, store: Server, client: redis.Redis, name: str, length: int) -> None:
        super().__init__(store, client, f"{name} of {length}")
        self.holder = self.take("holder")
        self.park("a", "b")
        self.replaces("of a slot")
        self.park(*(f"q{number}" for number in range(length - 4)))
        self.park("brief", give_up=1000)

    def ends(self) -> None:
        self.published(self.settle(self.holder), "a")

    def coalesces(self) -> None:
        assert self.replaces("newer") == ["of a slot"]

    def one_gives_up(self) -> None:
        assert self.published(self.look(), "brief").gives_up

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
    "a release publishes one": (LongRoom.ends,),
    "a message takes the lock": (LongRoom.ends, lambda room: room.take("a")),
    "one that waits is revoked": (lambda room: room.leave("q7"),),
    "a stranger settles": (lambda room: room.leave("stranger"),),
    "somebody looks": (LongRoom.look,),
    "somebody looks who cannot publish the first": (LongRoom.ends, lambda room: room.look("a")),
    "one that did not come goes last": (
        LongRoom.ends,
        lambda room: room.pass_time(GOES_LAST + 1),
        lambda room: room.published(room.look(), "a"),
    ),
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
    alone: tuple[Server, redis.Redis], operation: str
) -> None:
    *before, last = OPERATIONS[operation]
    found = []
    for length in LENGTHS:
        here = LongRoom(*alone, operation, length)
        for step in before:
            step(here)
        found.append(asked(alone[1], lambda here=here: last(here)))  # type: ignore[misc]

    short, long = ([command[0] for command in commands] for commands in found)
    assert short == long
    assert long
    assert not READS_ALL & set(long)
    assert [each for each in found[1] if each[0] == "LRANGE" and each[3] == "-1"] == []


def test_who_does_not_wait_is_not_looked_for_in_the_room(alone: tuple[Server, redis.Redis]) -> None:
    """To look for what is not there is to read all of it."""
    client, here = alone[1], LongRoom(*alone, "nobody looks for it", LENGTHS[0])
    found = asked(client, lambda: here.leave("stranger"))
    client.delete(here.keys.lock, here.keys.room)  # the others' entries are still there
    found += asked(client, lambda: here.take("newcomer"))
    assert {command[0] for command in found} & {"LREM", "LPOS"} == set()


def test_who_waits_behind_very_many_that_are_suspended_is_not_looked_for(
    alone: tuple[Server, redis.Redis],
) -> None:
    """Nobody else is served meanwhile."""
    client, here = alone[1], LongRoom(*alone, "its task is suspended", 3000)
    suspended = Suspension(task=TASK, by="anna@host", why="migration")
    here.store.run(calls.suspend([here.keys.suspended], [here.keys.rooms], suspended, 600))
    for call in (lambda: here.settle(here.holder), here.look):
        read = [command for command in asked(client, call) if command[0] == "HGET"]
        assert 2000 <= len(read) < 2 * 2100, "it is asked once or twice who is next"
    client.delete(here.keys.suspended)


def test_whom_one_replaces_is_named_before_anything_is_changed(room: Room) -> None:
    """The key of its done note must be declared."""
    room.take("holder")
    room.replaces("first")
    call = rooms.park(room.claim("third"), Parking(room.entry("third"), SLOT))
    named = room.store.run(dataclasses.replace(call, read=lambda reply, at: reply, wider=None))
    assert named == [b"notes", room.entry_id("first").encode()]
    assert room.replaces("second") == ["first"], "it was faster"
    assert call.wider is not None
    wider = call.wider(named)
    assert wider is not None
    assert isinstance(room.store.run(wider), Parked)
    assert room.waiting == [SLOT]
    for task in ("first", "second"):
        assert room.client.exists(room.keys.done_by(room.entry_id(task)))


def test_a_slot_may_have_a_task_with_any_id(room: Room) -> None:
    room.take("holder")
    earlier: list[str] = []
    for task in ('a "quoted" one', "|k|", "näxt, [1]", "#", "|", "="):
        assert room.replaces(task) == earlier
        earlier = [task]


def test_whose_entry_or_place_is_lost_is_not_replaced(room: Room) -> None:
    """The server has evicted the list of members, or the entries, and kept the other."""
    room.take("holder")
    room.replaces("first")
    room.client.delete(room.keys.entries)
    assert room.replaces("second") == []
    room.client.delete(room.keys.room)
    room.park("a")
    assert room.replaces("third") == []
    assert room.waiting == ["a", SLOT]


# -- in steps -----------------------------------------------------------------------------------


def test_more_than_fit_into_one_step_are_dropped(room: Room) -> None:
    room.take("holder")
    tasks = [f"q{number}" for number in range(DROP_COUNT + 3)]
    room.park(*tasks)
    assert room.drop_all().keys() == {room.entry_id(task) for task in tasks}
    assert room.waiting == []


def test_many_that_were_replaced_are_told_of_in_steps_and_soon(room: Room) -> None:
    room.take("holder")
    tasks = [f"q{number}" for number in range(DROP_COUNT + 3)]
    room.park(*tasks)
    room.drop_all()
    room.pass_time(ENDED_AGAIN)
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


def test_whose_entries_are_lost_are_dropped(room: Room) -> None:
    room.take("holder")
    tasks = [f"q{number}" for number in range(DROP_COUNT + 3)]
    room.park(*tasks)
    room.client.delete(room.keys.entries)
    dropped = room.drop_all()
    assert dropped == {room.entry_id(task): "" for task in tasks}
    assert not room.client.exists(room.keys.room)
