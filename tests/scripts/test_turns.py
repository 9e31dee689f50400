"""Whose turn it is in a waiting room: `turns.lua` in each script that it is a part of, on a real
server and in memory.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import pytest

from celery_redislock.protocol import calls, holders, rooms
from celery_redislock.protocol.claims import (
    Acquired,
    Busy,
    Done,
    Parking,
    Reserved,
    Settled,
    Turn,
    to_ms,
)
from celery_redislock.protocol.notes import ENDED
from celery_redislock.protocol.rooms import RECEIVED_FOR
from celery_redislock.protocol.tokens import new_token
from tests.scripts.a_room import BESIDE_WAITERS, OFFERS, PAUSE, TTL, UNKNOWN, Room

# -- a turn is given ----------------------------------------------------------------------------


def test_who_settles_gives_the_first_who_waits_its_turn(room: Room) -> None:
    holder = room.take("holder")
    room.park("a", "b")
    reply = room.settle(holder)
    offered = room.offered(reply, "a")
    assert reply.ours
    assert (offered.publish, offered.again, offered.gives_up) == (True, False, False)
    assert room.turns == {"a": offered.token}
    assert PAUSE - 1 < room.left() <= PAUSE
    assert room.waiting == ["a", "b"], "it stays there until it has the lock"
    assert reply.due_in == pytest.approx(room.left(), abs=0.5)
    assert room.due_in == pytest.approx(room.left(), abs=0.5)


def test_a_turn_tells_when_the_task_arrived_by_the_servers_clock(room: Room) -> None:
    holder = room.take("holder")
    room.park("a", age=7.0)
    offered = room.offered(room.settle(holder), "a")
    seconds, _ = room.client.time()
    assert offered.arrived == pytest.approx(seconds - 7, abs=2)


def test_whose_turn_it_is_holds_the_lock_and_is_queued(room: Room) -> None:
    holder = room.take("holder")
    room.park("a")
    room.settle(holder)
    for how in ("try", "wait", "woken", "last"):
        reply = room.ask("newcomer", how)
        assert (reply.relation, reply.offered) == ("other", None)
        assert reply.holder is not None
        assert reply.holder.queued
        assert (reply.holder.task, reply.holder.task_id) == ("pkg.task", room.task_id("a"))
        assert 0 < reply.remaining <= PAUSE


def test_who_settles_and_has_nobody_behind_it_gives_nothing(room: Room) -> None:
    assert room.settle(room.take("holder")) == Settled(True)
    holder = room.take("holder")
    room.park("a")
    room.take("a", kept=room.offered(room.settle(holder), "a").token)
    assert room.due_in is None


def test_a_turn_is_given_only_if_the_lock_is_free(room: Room) -> None:
    room.take("holder")
    room.park("a")
    assert room.give_up("other").offered is None
    assert room.look().offered is None
    assert room.turns == {}


def test_who_finds_the_lock_free_does_not_overtake_who_waits(room: Room) -> None:
    for how in ("try", "wait", "woken", "last"):
        holder = room.take("holder")
        room.park("a")
        room.client.delete(holder.keys.lock)  # it died
        reply = room.ask("newcomer", how)
        assert reply.relation == "other"
        assert reply.holder is not None
        assert reply.holder.task_id == room.task_id("a")
        offered = room.offered(reply, "a")
        assert offered.publish
        assert room.due_in == pytest.approx(room.left(), abs=0.5)
        room.give_up("a", offered.token)


def test_who_would_keep_a_free_lock_for_its_message_does_not_overtake_who_waits(room: Room) -> None:
    room.take("holder")
    room.park("a")
    room.client.delete(room.keys.lock)
    reply = room.store.run(calls.reserve(room.claim("newcomer"), 10))
    assert isinstance(reply, Busy)
    offered = room.offered(reply, "a")
    room.give_up("a", offered.token)
    assert room.store.run(calls.reserve(room.claim("newcomer"), 10)) == Reserved()


def test_who_cannot_publish_gives_a_turn_that_others_publish(room: Room) -> None:
    holder = room.take("holder")
    room.park("a")
    reply = room.settle(holder, publishes=False)
    given = room.offered(reply, "a")
    assert not given.publish
    assert reply.due_in == 0
    offered = room.offered(room.look(), "a")
    assert (offered.publish, offered.again) == (True, False)
    assert offered.token == given.token == room.turns["a"]
    assert room.look().offered is None, "its message is under way"


def test_a_turn_of_somebody_else_is_not_given_back(room: Room) -> None:
    holder = room.take("holder")
    room.park("a", "b")
    offered = room.offered(room.settle(holder), "a")
    assert not room.settle(room.claim("stranger")).ours
    assert not room.settle(holder).ours
    assert not room.give_up("b").ours
    assert room.turns == {"a": offered.token}
    assert room.waiting == ["a"]


# -- a turn is taken over -----------------------------------------------------------------------


def test_the_message_takes_its_turn_over_by_the_token(room: Room) -> None:
    holder = room.take("holder")
    room.park("a", "b")
    claim = room.take("a", kept=room.offered(room.settle(holder), "a").token)
    assert json.loads(room.client.get(room.keys.lock))["token"] == claim.token
    assert room.left() > TTL - 10
    assert room.waiting == ["b"]
    assert room.due_in == pytest.approx(TTL, abs=5)


def test_the_message_takes_its_turn_over_by_its_id_if_the_token_lapsed(room: Room) -> None:
    holder = room.take("holder")
    room.park("a", "b")
    first = room.offered(room.settle(holder), "a").token
    room.turn_lapses()
    assert room.offered(room.look(), "a").token != first
    room.take("a", kept=first)
    assert room.waiting == ["b"]


def test_the_message_takes_a_free_lock_if_its_turn_lapsed(room: Room) -> None:
    holder = room.take("holder")
    room.park("a", "b")
    token = room.offered(room.settle(holder), "a").token
    room.turn_lapses()
    room.take("a", kept=token)
    assert room.waiting == ["b"]


def test_a_message_whose_turn_went_to_another_meets_a_holder(room: Room) -> None:
    holder = room.take("holder")
    room.park("a", "b")
    token = room.offered(room.settle(holder), "a").token
    room.give_up("a", token)
    assert room.turns.keys() == {"b"}
    assert room.ask("a", kept=token).relation == "other"


def test_a_message_whose_copy_has_run_meanwhile_does_not_run_because_it_is_its_turn(
    room: Room,
) -> None:
    """The one was just being parked when the other found the lock free."""
    room.settle(room.take("a"), note=ENDED, always=True)
    holder = room.take("other")
    room.park("a", "b")
    token = room.offered(room.settle(holder), "a").token
    assert isinstance(room.store.run(calls.acquire(room.claim("a", token))), Done)
    room.offered(room.give_up("a", token), "b")
    assert room.waiting == ["b"]


def test_who_gives_its_turn_up_gives_it_to_the_next(room: Room) -> None:
    holder = room.take("holder")
    room.park("a", "b")
    token = room.offered(room.settle(holder), "a").token
    reply = room.give_up("a", token)
    assert reply.ours
    room.offered(reply, "b")
    assert room.waiting == ["b"]
    assert room.aside == set()


def test_a_message_that_comes_too_early_waits_on_where_it_was(room: Room) -> None:
    holder = room.take("holder")
    room.park("a", "b")
    room.offered(room.settle(holder), "a")
    room.turn_lapses()
    room.offered(room.look(), "a")
    room.turn_lapses()
    room.client.set(room.keys.lock, "a foreign value")
    room.park("a")
    assert room.waiting == ["a", "b"]
    room.client.delete(room.keys.lock)
    assert not room.offered(room.look(), "a").again, "its turns count anew"


def test_who_is_parked_while_it_is_its_turn_need_not_wait(room: Room) -> None:
    holder = room.take("holder")
    room.park("a")
    room.settle(holder)
    assert room.store.run(rooms.park(room.claim("a"), Parking(room.entry("a")))) == Turn({})


def test_who_replaces_the_one_whose_turn_it_is_has_the_turn(room: Room) -> None:
    holder = room.take("holder")
    room.park("a", kind="pkg.task")
    room.park("b")
    token = room.offered(room.settle(holder), "a").token
    reply = room.store.run(
        rooms.park(room.claim("newer"), Parking(room.entry("newer"), kind="pkg.task"))
    )
    assert reply == Turn({room.entry_id("a"): room.entry("a")})
    assert room.turns == {}
    room.take("newer")
    assert room.waiting == ["b"]
    assert not room.give_up("a", token).ours


# -- a turn that nobody takes -------------------------------------------------------------------


def test_a_turn_that_lapsed_is_offered_again_for_twice_as_long(room: Room) -> None:
    holder = room.take("holder")
    room.park("a")
    tokens = {room.offered(room.settle(holder), "a").token}
    for number in range(1, OFFERS):
        room.turn_lapses()
        look = room.look()
        offered = room.offered(look, "a")
        assert (offered.publish, offered.again) == (True, True)
        pause = PAUSE * 2**number
        assert pause - 1 < room.left() <= pause
        assert look.due_in == pytest.approx(pause, abs=1)
        tokens.add(offered.token)
    assert len(tokens) == OFFERS
    assert room.aside == set()


def offer_often(room: Room, *tasks: str) -> list[str]:
    """Park these; the first is offered its turn as often as may be, and does not come."""
    holder = room.take("holder")
    room.park(*tasks)
    tokens = [room.offered(room.settle(holder), tasks[0]).token]
    room.turn_lapses()
    for _ in range(OFFERS - 1):
        tokens.append(room.offered(room.look(), tasks[0]).token)
        room.turn_lapses()
    return tokens


def test_what_was_offered_four_times_is_set_aside_and_the_next_has_its_turn(room: Room) -> None:
    offer_often(room, "a", "b")
    look = room.look()
    assert [*look.aside] == [room.entry_id("a")]
    assert not room.offered(look, "b").again
    assert (room.waiting, room.aside) == (["b"], {"a"})


def test_a_room_whose_last_entry_is_set_aside_is_empty(room: Room) -> None:
    offer_often(room, "a")
    look = room.look()
    assert ([*look.aside], look.offered, look.due_in) == ([room.entry_id("a")], None, None)
    assert (room.waiting, room.aside, room.due_in) == ([], {"a"}, None)
    room.take("newcomer")


@pytest.mark.parametrize("question", ["acquire", "reserve", "settle", "park"])
def test_only_who_looks_sets_aside_for_it_says_so(room: Room, question: str) -> None:
    offer_often(room, "a", "b")
    reply = {
        "acquire": lambda: room.ask("newcomer"),
        "reserve": lambda: room.store.run(calls.reserve(room.claim("newcomer"), 10)),
        "settle": lambda: room.give_up("newcomer"),
        "park": lambda: room.store.run(
            rooms.park(room.claim("newcomer"), Parking(room.entry("newcomer")))
        ),
    }[question]()
    token = room.offered(reply, "b").token
    assert (room.waiting[:2], room.aside) == (["a", "b"], set())
    assert room.due_in is not None
    assert room.due_in <= 0, "somebody is to look at once"
    room.take("b", kept=token)
    assert room.due_in <= 0
    look = room.look()
    assert ([*look.aside], look.offered) == ([room.entry_id("a")], None)


def test_what_was_set_aside_leaves_when_its_task_takes_the_lock(room: Room) -> None:
    tokens = offer_often(room, "a")
    room.look()
    assert room.aside == {"a"}
    room.take("a", kept=tokens[0])
    assert (room.waiting, room.aside) == ([], set())


def test_what_was_set_aside_leaves_also_when_a_copy_from_elsewhere_takes_the_lock(
    room: Room,
) -> None:
    offer_often(room, "a")
    room.look()
    room.take("a")
    assert room.aside == set()


def test_what_was_set_aside_and_is_parked_again_is_set_aside_no_more(room: Room) -> None:
    tokens = offer_often(room, "a")
    room.look()
    room.take("other")
    assert room.ask("a", kept=tokens[0]).relation == "other"
    room.park("a")
    assert (room.waiting, room.aside) == (["a"], set())


def test_what_was_set_aside_leaves_when_its_task_ends_without_a_run(room: Room) -> None:
    tokens = offer_often(room, "a")
    room.look()
    assert not room.give_up("a", tokens[-1]).ours
    assert room.aside == set()


def test_what_cannot_be_read_is_set_aside_by_who_met_it(room: Room) -> None:
    holder = room.take("holder")
    room.park("a", "b")
    token = room.offered(room.settle(holder), "a").token
    kept = dataclasses.replace(room.claim("a"), token=token)
    reply = room.settle(kept, take_out=room.entry_id("a"), aside=True)
    room.offered(reply, "b")
    assert (room.waiting, room.aside) == (["b"], {"a"})


def test_what_was_set_aside_is_put_back_behind_the_others(room: Room) -> None:
    offer_often(room, "a", "b")
    token = room.offered(room.look(), "b").token
    claim = room.take("b", kept=token)
    room.park("c")
    assert room.store.run(rooms.put_back(room.keys, room.entry_id("a"), TTL))
    assert (room.waiting, room.aside) == (["c", "a"], set())
    assert room.due_in is not None
    assert room.due_in <= 0, "somebody is to look at once"
    assert not room.store.run(rooms.put_back(room.keys, room.entry_id("a"), TTL))
    room.take("c", kept=room.offered(room.settle(claim), "c").token)
    room.client.delete(room.keys.lock)
    offered = room.offered(room.look(), "a")
    assert offered.again, "it may have run elsewhere meanwhile"
    room.take("a", kept=offered.token)
    assert (room.waiting, room.aside) == ([], set())


def test_what_was_never_set_aside_cannot_be_put_back(room: Room) -> None:
    room.take("holder")
    room.park("a")
    assert not room.store.run(rooms.put_back(room.keys, room.entry_id("a"), TTL))
    assert room.waiting == ["a"]


def test_who_leaves_gives_up_a_turn_of_which_it_has_not_heard(room: Room) -> None:
    holder = room.take("holder")
    room.park("a", "b")
    room.offered(room.settle(holder), "a")
    room.offered(room.give_up("a", new_token()), "b")
    assert (room.waiting, room.turns.keys()) == (["b"], {"b"})


# -- a message that a worker has ----------------------------------------------------------------


def test_a_message_that_a_worker_received_is_not_sent_again_nor_set_aside(room: Room) -> None:
    holder = room.take("holder")
    room.park("a")
    room.turn_lapses_in_a_busy_worker(room.settle(holder), "a")
    for _ in range(3 * OFFERS):
        assert room.note_received("a"), "the worker says so again and again"
        room.pass_time(PAUSE)
        look = room.look()
        assert (look.offered, [*look.aside]) == (None, [])
    room.take("a")
    assert (room.waiting, room.aside) == ([], set())


def test_a_lock_is_not_shut_for_one_whose_worker_has_no_room_for_it(room: Room) -> None:
    """Its turn has lapsed: others go before it, and it comes when it can, at its place."""
    holder = room.take("holder")
    room.park("a", "b")
    room.turn_lapses_in_a_busy_worker(room.settle(holder), "a")
    token = room.offered(room.look(), "b").token
    claim = room.take("b", kept=token)
    assert room.settle(claim).offered is None, "nobody else waits"
    newcomer = room.take("newcomer")
    room.park("a")
    assert room.waiting == ["a"]
    room.offered(room.settle(newcomer), "a")


def test_one_that_comes_while_others_are_away_gets_no_second_message(room: Room) -> None:
    """The lock is free, and all before it are away: it takes the lock itself."""
    holder = room.take("holder")
    room.park("a", "b")
    room.turn_lapses_in_a_busy_worker(room.settle(holder), "a")
    room.take("b")
    assert room.waiting == ["a"]


def test_one_that_is_parked_as_the_lock_gets_free_asks_again(room: Room) -> None:
    holder = room.take("holder")
    room.park("a", "b")
    room.turn_lapses_in_a_busy_worker(room.settle(holder), "a")
    room.offered(room.look(), "b")
    assert isinstance(room.ask("a"), Busy)
    room.turn_lapses()
    assert isinstance(room.store.run(rooms.park(room.claim("a"), Parking(room.entry("a")))), Turn)


def test_a_message_that_was_offered_as_often_as_may_be_and_received_is_not_set_aside(
    room: Room,
) -> None:
    offer_often(room, "a", "b")
    assert room.note_received("a")
    look = room.look()
    room.offered(look, "b")
    assert [*look.aside] == []
    room.pass_time(RECEIVED_FOR + 1)
    assert [*room.look().aside] == [room.entry_id("a")]


def test_that_a_worker_has_a_message_is_not_believed_for_ever(room: Room) -> None:
    holder = room.take("holder")
    room.park("a")
    room.offered(room.settle(holder), "a")
    room.note_received("a")
    room.pass_time(RECEIVED_FOR + 1)
    offered = room.offered(room.look(), "a")
    assert (offered.publish, offered.again) == (True, True)


def test_nothing_is_noted_of_a_message_whose_entry_is_gone(room: Room) -> None:
    holder = room.take("holder")
    room.park("a")
    token = room.offered(room.settle(holder), "a").token
    room.take("a", kept=token)
    assert not room.note_received("a")
    assert not room.client.exists(room.keys.entries)


# -- an entry that not everybody can publish ----------------------------------------------------


def test_a_turn_that_one_worker_cannot_publish_is_kept_for_another(room: Room) -> None:
    holder = room.take("holder")
    room.park("a", "b")
    token = room.offered(room.settle(holder), "a").token
    for _ in range(2 * OFFERS):
        look = room.look(declined="a", aside_after=60.0)
        assert (look.offered, [*look.aside], look.due_in) == (None, [], 0)
        assert room.turns == {"a": token}
        offered = room.offered(room.look(), "a")
        assert (offered.publish, offered.token) == (True, token)
    assert room.left() <= PAUSE
    room.take("a", kept=token)


def test_of_several_that_one_worker_cannot_publish_each_is_offered_to_it_once(make_room) -> None:
    room = make_room(2)
    holders = [room.take(f"holder{number}") for number in range(2)]
    room.park("a", "b")
    for holder in holders:
        room.settle(holder, publishes=False)
    room.offered(room.look(), "a")
    room.offered(room.look(declined="a"), "b")
    assert room.look(declined="b", passed_over="a").offered is None
    room.offered(room.look(), "a")


def test_one_that_no_worker_can_publish_is_set_aside_after_a_while(room: Room) -> None:
    holder = room.take("holder")
    room.park("a", "b")
    room.offered(room.settle(holder), "a")
    waited = 0.0
    while waited < UNKNOWN - PAUSE:
        look = room.look(declined="a", aside_after=60.0)
        assert ([*look.aside], room.turns.keys()) == ([], {"a"}), f"after {waited} s"
        room.turn_lapses()
        waited += PAUSE
        assert room.offered(room.look(), "a").publish
    room.pass_time(PAUSE + 1)
    look = room.look(declined="a", aside_after=60.0)
    assert [*look.aside] == [room.entry_id("a")]
    room.offered(look, "b")
    assert (room.waiting, room.aside, room.turns.keys()) == (["b"], {"a"}, {"b"})


def test_the_turn_of_one_that_nobody_can_publish_is_free_at_once(room: Room) -> None:
    holder = room.take("holder")
    room.park("a", "b")
    room.offered(room.settle(holder), "a")
    room.pass_time(UNKNOWN + 1)
    assert room.offered(room.look(), "a").publish
    assert room.look(declined="a").offered is None
    assert room.turns.keys() == {"a"}
    look = room.look(declined="a", aside_after=60.0)
    room.offered(look, "b")
    assert ([*look.aside], room.turns.keys()) == ([room.entry_id("a")], {"b"})


def test_one_that_was_sent_once_and_that_nobody_can_publish_now_is_set_aside_too(
    room: Room,
) -> None:
    """Who sent it is gone, or died before it could decline."""
    holder = room.take("holder")
    room.park("a", "b")
    room.offered(room.settle(holder), "a")
    for _ in range(30):
        room.turn_lapses()
        assert room.offered(room.look(), "a").publish
        if room.look(declined="a", aside_after=60.0).aside:
            break
    assert room.aside == {"a"}


def test_one_that_others_may_know_is_never_set_aside_for_being_declined(room: Room) -> None:
    holder = room.take("holder")
    room.park("a", "b")
    room.offered(room.settle(holder), "a")
    for _ in range(2 * OFFERS):
        assert [*room.look(declined="a").aside] == []
        room.pass_time(UNKNOWN)
        assert room.offered(room.look(), "a").publish
    assert room.waiting == ["a", "b"]


def test_behind_one_that_nobody_could_publish_the_next_waits_less_for_one_who_can(
    room: Room,
) -> None:
    holder = room.take("holder")
    room.park("a", "b")
    room.offered(room.settle(holder), "a")
    room.pass_time(UNKNOWN + 1)
    room.offered(room.look(declined="a", aside_after=60.0), "b")
    assert [*room.look(declined="b", aside_after=60.0).aside] == []
    room.pass_time(PAUSE + 1)
    room.offered(room.look(), "b")
    assert [*room.look(declined="b", aside_after=60.0).aside] == [room.entry_id("b")]


# -- who gives up -------------------------------------------------------------------------------


def test_one_gives_up_behind_another_that_waits_for_ever(room: Room) -> None:
    room.take("holder")
    room.park("a")
    room.park("b", give_up=20)
    assert room.due_in == pytest.approx(20, abs=1)
    assert room.look().offered is None
    room.pass_time(20.5)
    look = room.look()
    offered = room.offered(look, "b")
    assert (offered.gives_up, offered.publish, offered.again) == (True, True, False)
    assert room.turns == {}
    assert room.waiting == ["a", "b"], "its message may be lost"
    assert look.due_in == pytest.approx(PAUSE, abs=1)
    assert not room.give_up("b").ours
    assert room.waiting == ["a"]


def test_a_give_up_whose_message_does_not_come_is_sent_again_and_not_for_ever(room: Room) -> None:
    room.take("holder")
    room.park("a", give_up=1)
    room.pass_time(1.5)
    for number in range(OFFERS):
        look = room.look()
        offered = room.offered(look, "a")
        assert (offered.gives_up, offered.again) == (True, number > 0)
        assert look.due_in == pytest.approx(PAUSE * 2**number, abs=1)
        assert room.look().offered is None
        room.pass_time(PAUSE * 2**number + 0.5)
    look = room.look()
    assert ([*look.aside], look.offered, look.due_in) == ([room.entry_id("a")], None, None)
    assert (room.waiting, room.aside) == ([], {"a"})


def test_a_give_up_that_a_worker_received_is_neither_sent_again_nor_set_aside(room: Room) -> None:
    holder = room.take("holder")
    room.park("a", give_up=1)
    room.park("b")
    room.pass_time(1.5)
    room.offered(room.look(), "a")
    for _ in range(2 * OFFERS):
        assert room.note_received("a")
        room.pass_time(2 * PAUSE)
        look = room.look()
        assert (look.offered, [*look.aside]) == (None, [])
    room.offered(room.settle(holder), "b")
    room.pass_time(RECEIVED_FOR + 1)
    assert room.offered(room.look(), "a").gives_up


def test_who_gives_up_just_now_gets_no_turn(room: Room) -> None:
    holder = room.take("holder")
    room.park("a", give_up=1)
    room.park("b")
    room.pass_time(1.5)
    assert room.offered(room.look(), "a").gives_up
    room.offered(room.settle(holder), "b")


def test_who_gives_up_and_finds_the_lock_free_runs(room: Room) -> None:
    holder = room.take("holder")
    room.park("a", give_up=1)
    room.pass_time(1.5)
    assert room.offered(room.look(), "a").gives_up
    room.settle(holder)
    room.take("a")
    assert room.waiting == []
    assert not room.client.exists(room.keys.deadlines)


def test_who_has_its_turn_in_time_does_not_give_up(room: Room) -> None:
    holder = room.take("holder")
    room.park("a", give_up=60)
    room.take("a", kept=room.offered(room.settle(holder), "a").token)
    room.pass_time(61)
    assert room.look().offered is None
    assert not room.client.exists(room.keys.deadlines)


# -- several slots ------------------------------------------------------------------------------


def test_of_several_slots_each_is_given_to_another(make_room: Callable[..., Room]) -> None:
    room = make_room(3)
    holders = [room.take(f"holder{number}") for number in range(3)]
    room.park("a", "b", "c", "d")
    tokens = {}
    for holder, task in zip(holders, "abc", strict=True):
        tokens[task] = room.offered(room.settle(holder), task).token
        assert room.turns == tokens
    assert room.look().offered is None
    assert room.ask("newcomer").offered is None
    for task, token in reversed(tokens.items()):
        room.take(task, kept=token)
    assert room.waiting == ["d"]


def test_one_that_has_its_turn_gets_no_second_slot(make_room: Callable[..., Room]) -> None:
    room = make_room(2)
    holders = [room.take(f"holder{number}") for number in range(2)]
    room.park("a")
    token = room.offered(room.settle(holders[0]), "a").token
    assert room.settle(holders[1]).offered is None
    assert room.look().offered is None
    assert room.turns == {"a": token}
    room.take("newcomer")  # nobody waits for the other slot
    room.take("a", kept=token)


def test_beside_a_turn_that_lapsed_the_next_keeps_its_own(make_room: Callable[..., Room]) -> None:
    room = make_room(2)
    holders = [room.take(f"holder{number}") for number in range(2)]
    room.park("a", "b")
    room.offered(room.settle(holders[0]), "a")
    token = room.offered(room.settle(holders[1]), "b").token
    room.client.delete(room.slots[0])
    assert room.offered(room.look(), "a").again
    assert room.turns["b"] == token


# -- beside those who wait in a pool slot -------------------------------------------------------


def test_a_turn_is_short_while_pool_slots_wait(room: Room) -> None:
    holder = room.take("holder")
    room.park("a")
    room.ask("waiter", "wait")
    room.offered(room.settle(holder), "a")
    assert 0 < room.left() <= BESIDE_WAITERS


def test_a_waiter_goes_first_once_the_first_did_not_take_its_turn(room: Room) -> None:
    """Its message may need the pool slot."""
    holder = room.take("holder")
    room.park("a")
    waiter = room.claim("waiter")
    assert isinstance(room.store.run(calls.acquire(waiter, "wait")), Busy)
    room.offered(room.settle(holder), "a")
    room.turn_lapses()
    assert room.ask("newcomer").offered is not None, "one that does not wait does not"
    room.turn_lapses()
    assert isinstance(room.store.run(calls.acquire(waiter, "woken")), Acquired)
    assert room.waiting == ["a"]


@pytest.fixture
def reserved_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a tenth of a second a machine may be late."""
    monkeypatch.setattr(calls, "RESERVE", 60.0)


@pytest.mark.usefixtures("reserved_for_a_minute")
def test_a_release_wakes_a_waiter_once_the_first_did_not_take_its_turn(room: Room) -> None:
    holder = room.take("holder")
    room.park("a")
    room.ask("waiter", "wait")
    room.offered(room.settle(holder), "a")
    room.turn_lapses()
    second = room.take("second", "woken")
    assert room.settle(second).offered is None
    assert json.loads(room.client.get(room.keys.lock)) == {"token": "", "reserved": True}
    assert room.client.llen(room.keys.wake) == 1
    assert room.due_in is not None, "the room is not forgotten"
    assert room.due_in <= 61


@pytest.mark.usefixtures("reserved_for_a_minute")
def test_a_release_wakes_a_waiter_if_nobody_in_the_room_can_come(room: Room) -> None:
    holder = room.take("holder")
    room.park("a")
    room.turn_lapses_in_a_busy_worker(room.settle(holder), "a")
    second = room.take("second")
    room.ask("waiter", "wait")
    assert room.settle(second).offered is None
    assert room.client.llen(room.keys.wake) == 1


def test_steady_waiters_do_not_keep_a_turn_from_one_whose_message_was_lost(room: Room) -> None:
    holder = room.take("holder")
    room.park("a")
    room.ask("waiter", "wait")
    room.offered(room.settle(holder), "a")
    room.turn_lapses()
    waiter = room.take("waiter", "woken")
    room.ask("another waiter", "wait")
    room.pass_time(PAUSE)
    assert room.offered(room.settle(waiter), "a").publish
    assert 0 < room.left() <= BESIDE_WAITERS


def test_an_entry_whose_turn_has_not_been_yet_goes_before_a_waiter(room: Room) -> None:
    holder = room.take("holder")
    room.park("a")
    room.ask("waiter", "wait")
    room.offered(room.settle(holder), "a")
    assert not room.client.exists(room.keys.wake)


# -- orders of an operator ----------------------------------------------------------------------


def test_a_turn_can_be_broken_and_is_given_again(room: Room) -> None:
    holder = room.take("holder")
    room.park("a")
    token = room.offered(room.settle(holder), "a").token
    broken = room.store.run(calls.break_lock(room.keys, TTL))
    assert broken is not None
    assert broken.queued
    assert room.due_in is not None
    assert room.due_in <= 0
    assert room.offered(room.look(), "a").token != token


def test_whoever_waits_or_is_set_aside_can_be_dropped(room: Room) -> None:
    offer_often(room, "a", "b")
    token = room.offered(room.look(), "b").token
    room.park("c", give_up=100)
    dropped = room.drop_all()
    assert dropped == {room.entry_id(task): room.entry(task) for task in "abc"}
    assert (room.waiting, room.aside) == ([], set())
    assert not room.client.exists(room.keys.deadlines)
    assert room.look().ended.keys() == dropped.keys()
    assert room.give_up("b", token).ours


def test_a_turn_is_no_message_that_may_take_long(room: Room) -> None:
    """Who waits does so in its pool slot for the one, and in Redis for the other."""
    holder = room.take("holder")
    room.park("a")
    token = room.offered(room.settle(holder), "a").token
    assert not room.ask("other").for_message
    room.give_up("a", token)
    queued = room.claim("queued")
    value = holders.encode(queued.token, ttl_ms=to_ms(TTL), task_id="queued", queued=True)
    assert (
        room.store.run(calls.reserve(dataclasses.replace(queued, value=value), TTL)) == Reserved()
    )
    assert room.ask("other").for_message
