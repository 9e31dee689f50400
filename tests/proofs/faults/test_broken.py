"""The bench notices what is broken on purpose, and passes the same scenes where nothing is."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.proofs.history import Event, History, read
from tests.proofs.wire import lock_key, name_of
from tests.support.waiting import eventually

from .broken import BROKEN, scripts
from .checker import DUE, NOISE, check
from .faults import kill_child_at, soft_limit_at
from .stage import Fault, Stage
from .witness import stop_at

#: So many scenes are played at once.
AT_ONCE = 4


# -- the scenes: each with a lock of its own --------------------------------------------------


def send(stage, key, task, seconds, **kwargs):
    kwargs = {"key": key, "seconds": seconds, "how": "return", **kwargs}
    return stage.send(task, kwargs=kwargs, expires=None)


def await_event(stage, task_id, *kinds, count=1):
    def found():
        return [e for e in stage.history.events(*kinds) if e.get("id") == task_id]

    eventually(lambda: len(found()) >= count, f"{kinds} of {task_id}")
    return found()[-1]


def a_body_longer_than_the_ttl(stage, key):
    stage.body_of(send(stage, key, "skip", 2.5 * stage.ttl))
    await_event(stage, send(stage, key, "wait_then_defer", 0.3), "start")


def one_that_gives_up_its_place_while_another_one_holds_the_lock(stage, key):
    """The holder's next heartbeat takes the lock again, perhaps before anybody comes: try again."""
    stage.body_of(send(stage, key, "skip", 5.0))
    for _ in range(3):
        waiting = send(stage, key, "queue_briefly", 0.1)
        await_event(stage, waiting, "out")
        met = await_event(stage, send(stage, key, "skip", 0.5), "start", "conflict")
        if met.kind == "start":
            break


def a_message_that_is_delivered_again_while_it_runs(stage, key):
    task_id = send(stage, key, "skip", 4.0)
    stage.body_of(task_id)
    kwargs = {"key": key, "seconds": 1.0, "how": "return"}
    stage.app.send_task("skip", kwargs=kwargs, task_id=task_id, queue=stage.queue)
    await_event(stage, task_id, "received", count=2)
    await_event(stage, task_id, "took", "refused", count=2)


def a_lock_that_a_stranger_deletes(stage, key):
    stage.body_of(send(stage, key, "skip", 5.0))
    with stage.locks.client(timeout=5) as client:
        client.delete(lock_key(key))
    send(stage, key, "defer", 0.5)


def a_room_that_a_stranger_deletes(stage, key):
    with stop_at(stage.history, "offered", key) as offered:
        two_that_wait(stage, key)
        here = offered.reached()
        lock, kinds = lock_key(key), ("room", "entries", "sent")
        with stage.locks.client(timeout=5) as client:
            client.delete(*(lock.replace(":lock:", f":{kind}:") for kind in kinds))
        kill_child_at(stage, here, offered)


def two_that_wait(stage, key):
    """One runs, and another one waits for it."""
    stage.body_of(send(stage, key, "queue", 3.0))
    waiting = send(stage, key, "queue", 0.1)
    await_event(stage, waiting, "parked")
    return waiting


def a_crash_before_a_message_is_published(stage, key):
    with stop_at(stage.history, "offered", key) as offered:
        two_that_wait(stage, key)
        kill_child_at(stage, offered.reached(), offered)


def a_newcomer_that_meets_a_free_lock_and_a_room(stage, key):
    with stop_at(stage.history, "offered", key) as offered:
        two_that_wait(stage, key)
        offered.reached()
        await_event(stage, send(stage, key, "skip", 0.1), "start", "conflict")


def a_message_that_a_room_publishes_twice(stage, key):
    with stop_at(stage.history, "offered", key) as offered:
        waiting = two_that_wait(stage, key)
        offered.reached()
        await_event(stage, waiting, "stored")  # others have published it again
    await_event(stage, waiting, "received", count=3)


def three_at_once(stage, key):
    for _ in range(2):
        stage.body_of(send(stage, key, "two", 4.0))
    await_event(stage, send(stage, key, "two", 0.3), "start", "conflict")


def some_with_pauses_between(stage, key):
    # On a machine that is late enough, some begin no sooner than they would with the pause.
    for _ in range(5):
        send(stage, key, "pause", 0.1)


def a_retry_that_meets_what_came_since(stage, key):
    with stop_at(stage.history, "offered", key) as offered:
        first = send(stage, key, "retry_coalesced", 3.0, retries=1, countdown=0)
        stage.body_of(first)
        newer = send(stage, key, "retry_coalesced", 0.1, retries=0)
        await_event(stage, newer, "parked")
        offered.reached()
        eventually(
            lambda: [
                event
                for event in stage.history.events("parks", "start")
                if event.id == first and event.get("attempt") != 0
            ],
            "the retry has come",
        )


def calls_that_come_steadily(stage, key):
    """For longer than `max_wait`, and what is allowed beyond that."""
    until = time.monotonic() + 1.5 + DUE + NOISE + 1.5
    while time.monotonic() < until:
        send(stage, key, "debounce_steadily", 0.05)
        stage.pause(0.1, 0.3)


def a_burst_of_calls(stage, key):
    for _ in range(4):
        send(stage, key, "debounce", 0.05)
        stage.pause(0.2, 0.3)


def a_soft_limit_while_it_is_parked(stage, key):
    stage.body_of(send(stage, key, "queue", 5.0))  # the next one is to fail before this one ends
    with stop_at(stage.history, "parked", key) as parked:
        send(stage, key, "queue", 0.1)
        soft_limit_at(stage, parked.reached(), parked)


def a_soft_limit_once_it_is_next(stage, key):
    """Its message is published after it has failed."""
    with stop_at(stage.history, "parked", key) as parked:
        stage.body_of(send(stage, key, "queue", 3.0))
        waiting = send(stage, key, "queue", 0.1)
        here = parked.reached()
        with stop_at(stage.history, "offered", key) as offered:
            offered.reached()
            soft_limit_at(stage, here, parked)
            await_event(stage, waiting, "failed")


def a_soft_limit_while_another_copy_is_under_way(stage, key):
    """A room published it again, as the first copy is late, and the second copy fails."""
    with stop_at(stage.history, "offered", key) as offered:
        waiting = two_that_wait(stage, key)
        offered.reached()
        with stop_at(stage.history, "asking", key) as asking:
            soft_limit_at(stage, asking.reached(), asking)
            await_event(stage, waiting, "failed")
    await_event(stage, waiting, "received", count=3)


#: What each breakage breaks, and the rule that finds it. The strangers break nothing in scripts.
SCENES = {
    "no_heartbeat": (a_body_longer_than_the_ttl, "overlap"),
    "plain_del": (one_that_gives_up_its_place_while_another_one_holds_the_lock, "overlap"),
    "token_is_task_id": (a_message_that_is_delivered_again_while_it_runs, "overlap"),
    "skip_on_redelivery": (a_message_that_is_delivered_again_while_it_runs, "own duplicate"),
    "stranger_deletes_lock": (a_lock_that_a_stranger_deletes, "overlap"),
    "stranger_deletes_room": (a_room_that_a_stranger_deletes, "vanished"),
    "nobody_looks": (a_crash_before_a_message_is_published, "left"),
    "newcomers_overtake": (a_newcomer_that_meets_a_free_lock_and_a_room, "overtook"),
    "copies_run": (a_message_that_a_room_publishes_twice, "twice"),
    "two_one_too_many": (three_at_once, "limit"),
    "pause_is_forgotten": (some_with_pauses_between, "pause"),
    "old_replaces_new": (a_retry_that_meets_what_came_since, "newest"),
    "failed_waits_on": (a_soft_limit_while_it_is_parked, "left"),
    "max_wait_begins_anew": (calls_that_come_steadily, "max wait"),
    "quiet_time_is_the_first_calls": (a_burst_of_calls, "not quiet"),
    "nobody_waits_for_quiet": (a_burst_of_calls, "not quiet"),
}
STRANGERS = ("stranger_deletes_lock", "stranger_deletes_room")
#: The same scenes with nothing broken, and two more.
SOUND = {
    f"sound.{scene.__name__}": scene
    for scene in (
        *(scene for name, (scene, _) in SCENES.items() if name not in STRANGERS),
        *(a_soft_limit_once_it_is_next, a_soft_limit_while_another_copy_is_under_way),
    )
}


# -- the play ---------------------------------------------------------------------------------


def play(path, scenes):
    """Play these scenes, each with the lock of its name. Gives the history, and which scenes came
    to nothing.
    """
    failed = {}

    def inject(stage):
        def play_one(name):
            try:
                scenes[name](stage, name)
            except AssertionError as exc:  # it has waited in vain for what the scene needs
                failed[name] = exc

        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(play_one, scenes))

    stage = Stage(
        Fault(name="scenes", inject=inject),
        History(path),
        pool="prefork",
        broker="redis",
        acks="early",
        seed="1",
        busy=False,
        broken=scripts(),
        concurrency=2 * AT_ONCE,
    )
    with stage:
        stage.play()
    stage.history.close()
    return list(read(path)), failed


def only(events: list[Event], name: str) -> list[Event]:
    """What is written of the lock with this name, and of no lock."""
    ids = {e.id for e in events if e.kind == "sent" and e.key == name}
    runs = {e.run for e in events if e.kind == "start" and e.id in ids}
    tokens = {e.token for e in events if e.kind == "took" and e.id in ids}

    def is_about(event: Event) -> bool:
        key = event.get("key")
        if key is not None and name not in (key, name_of(key)):
            return False
        for of, known in (("id", ids), ("run", runs), ("token", tokens)):
            if event.get(of) is not None and event.kind not in ("took", "refused", "asks"):
                return event.get(of) in known
        return True

    def narrowed(event: Event) -> Event:
        kept = {
            field: {key: each for key, each in value.items() if name in f"{key} {each}"}
            for field, value in event.fields.items()
            if isinstance(value, dict)
        }
        return Event(event.kind, event.at, {**event.fields, **kept})

    return [narrowed(event) for event in events if is_about(event)]


def rules_broken(play, name):
    events, _ = play
    return {violation.rule for violation in check(only(events, name)).violations}


@pytest.fixture(scope="module")
def first_play(tmp_path_factory):
    scenes = {**{name: scene for name, (scene, _) in SCENES.items()}, **SOUND}
    return play(tmp_path_factory.mktemp("play") / "first", scenes)


def test_there_is_a_scene_for_each_breakage():
    assert {*BROKEN, *STRANGERS} == set(SCENES)


@pytest.mark.parametrize("name", SCENES)
def test_what_is_broken_is_noticed(first_play, tmp_path, name):
    scene, rule = SCENES[name]
    found = rules_broken(first_play, name)
    if rule not in found:
        # A late machine may keep it from doing harm: an answer is late, and others publish it.
        found = rules_broken(play(tmp_path / "again", {name: scene}), name)
    assert rule in found


@pytest.mark.parametrize("name", SOUND)
def test_nothing_is_noticed_where_nothing_is_broken(first_play, tmp_path, name):
    the_play = first_play
    # In the first play all scenes share one pool: on a late machine one waits long for a slot.
    if name in the_play[1] or rules_broken(the_play, name):
        the_play = play(tmp_path / "again", {name: SOUND[name]})
    assert rules_broken(the_play, name) == set()
    assert name not in the_play[1]
