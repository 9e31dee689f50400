"""The bench notices a broken waiting room, limit or pause: each of these breaks a promise, and the
real ones do not.
"""

from __future__ import annotations

import contextlib
import time
import uuid

import pytest

from tests.proofs.faults import steps, turns
from tests.proofs.faults.breakages import OF_ROOMS
from tests.proofs.faults.faults import kill_child_at, soft_limit_at, strike_at
from tests.proofs.faults.history import History
from tests.proofs.faults.run import play
from tests.proofs.faults.stage import Fault, Stage
from tests.support.waiting import eventually


@pytest.fixture
def wrong(tmp_path):
    """Plays scenes, with or without something broken, and gives the rules that were broken."""

    def wrong(*scenes, breakage=None):
        def inject(stage):
            for scene in scenes:
                scene(stage)
                ids = set(stage.load.sent)
                eventually(lambda ids=ids: stage.watcher.over(ids), "it is over", 20)
                # The next one's first task is to run at once: after some there is a pause.
                eventually(lambda: not stage.locks_left(), "its locks are free", 20)

        history = History(tmp_path / f"{breakage}-{uuid.uuid4().hex}.jsonl")
        # Where who gave the turn stands still, others would soon offer it again.
        conf = {"bench_sweep_every": 60} if breakage in UNDISTURBED else {}
        fault = Fault(name="scenes", inject=scenes[0] if breakage else inject, conf=conf)
        stage = Stage(
            fault,
            history,
            pool="prefork",
            broker="redis",
            acks="early",
            seed="1",
            busy=False,
            breakage=breakage,
        )
        if breakage in UNDISTURBED:
            stage.ttl = 10.0  # a machine that stands still for two seconds lets none lapse
        return {violation.rule for violation in play(stage).violations}

    return wrong


def send(stage, task, seconds, **kwargs):
    kwargs = {"key": "k", "seconds": seconds, "how": "return", **kwargs}
    return stage.send(task, kwargs=kwargs, expires=None)


def await_event(stage, task_id, *kinds):
    def found():
        return [e for e in stage.history.events(*kinds) if e.get("id") == task_id]

    return eventually(found, f"{kinds} of {task_id}")[0]


def await_step(stage, name):
    def found():
        return [event for event in stage.history.events("step") if event.name == name]

    return eventually(found, f"a process stands still: {name}")


@contextlib.contextmanager
def standing_before_the_turn_is_published(stage):
    """Somebody has the turn, and whoever gave it has not published its message yet."""
    armed = steps.arm(stage.history, "given")
    try:
        yield lambda: await_step(stage, "given")
    finally:
        armed.unlink(missing_ok=True)
        steps.let_go(stage.history, "given")


def a_crash_between_the_turn_and_its_message(stage):
    strike_at(stage, "given", kill_child_at)


def a_newcomer_that_meets_a_free_lock_and_a_room(stage):
    with standing_before_the_turn_is_published(stage) as given:
        send(stage, "queue", 3.0)
        stage.await_inside()
        await_event(stage, send(stage, "queue", 0.1), "parked")
        given()
        time.sleep(turns.PAUSE + 0.2)  # it lapses
        await_event(stage, send(stage, "skip", 0.1), "start", "conflict")


def a_message_that_a_room_publishes_twice(stage):
    with standing_before_the_turn_is_published(stage) as given:
        send(stage, "queue", 0.5)
        stage.await_inside()
        waiting = send(stage, "queue", 0.1)
        given()
        await_event(stage, waiting, "stored")  # the next offer has published it
    with contextlib.suppress(AssertionError):  # who stood still may have found that it has run
        eventually(lambda: len(received(stage, waiting)) >= 3, "both copies have come", 10)


def received(stage, task_id):
    return [event for event in stage.history.events("received") if event.id == task_id]


def two_that_wait(stage):
    for seconds in (2.0, 0.3, 0.3):
        send(stage, "queue", seconds)


def three_at_once(stage):
    for _ in range(2):
        send(stage, "two", 3.0, key="t")
    eventually(lambda: len(stage.inside()) == 2, "two run")
    await_event(stage, send(stage, "two", 0.3, key="t"), "start", "conflict")


def some_with_pauses_between(stage):
    # On a machine that is late enough, some begin no sooner than they would with the pause.
    for _ in range(5):
        send(stage, "pause", 0.1)


def a_retry_that_meets_what_came_since(stage):
    with standing_before_the_turn_is_published(stage) as given:
        first = send(stage, "retry_coalesced", 3.0, retries=1, countdown=0.3)
        stage.await_inside()
        await_event(stage, send(stage, "retry_coalesced", 0.1, retries=0), "parked")
        given()
        eventually(
            lambda: [
                event
                for event in stage.history.events("parks", "start")
                if event.id == first and event.get("attempt") != 0
            ],
            "the retry has come",
        )


def a_soft_limit_while_it_is_parked(stage):
    send(stage, "queue", 8.0)  # the next one is to fail before this one ends
    stage.await_inside()
    armed = steps.arm(stage.history, "parked")
    try:
        send(stage, "queue", 0.1)
        here = await_step(stage, "parked")[-1]
        soft_limit_at(stage, here)
    finally:
        armed.unlink(missing_ok=True)
        steps.let_go(stage.history, "parked")


def a_soft_limit_once_it_has_its_turn(stage):
    """The message of its turn is published after it has failed."""
    armed = steps.arm(stage.history, "parked")
    try:
        send(stage, "queue", 1.0)
        stage.await_inside()
        waiting = send(stage, "queue", 0.1)
        here = await_step(stage, "parked")[-1]
        with standing_before_the_turn_is_published(stage) as given:
            given()
            soft_limit_at(stage, here)
            await_event(stage, waiting, "failed")
    finally:
        armed.unlink(missing_ok=True)
        steps.let_go(stage.history, "parked")


SCENES = {
    "removed_with_the_turn": (a_crash_between_the_turn_and_its_message, "vanished"),
    "turns_are_offered_once": (a_crash_between_the_turn_and_its_message, "left"),
    "newcomers_overtake": (a_newcomer_that_meets_a_free_lock_and_a_room, "overtook"),
    "nobody_gives_turns": (two_that_wait, "left"),
    "copies_run": (a_message_that_a_room_publishes_twice, "twice"),
    "one_too_many": (three_at_once, "limit"),
    "pause_is_forgotten": (some_with_pauses_between, "pause"),
    "old_replaces_new": (a_retry_that_meets_what_came_since, "newest"),
    "failed_waits_on": (a_soft_limit_while_it_is_parked, "failed, ran"),
}


UNDISTURBED = ("newcomers_overtake", "old_replaces_new")


def test_there_is_a_scene_for_each_broken_room():
    assert set(SCENES) == set(OF_ROOMS)


@pytest.mark.parametrize("breakage", SCENES)
def test_a_broken_room_is_noticed(wrong, breakage):
    scene, rule = SCENES[breakage]
    # A late machine may keep it from doing harm: an answer is late, and others give the turn.
    tries = (wrong(scene, breakage=breakage) for _ in range(3))
    assert any(rule in found for found in tries)


def test_the_real_rooms_pass(wrong):
    scenes = [scene for scene, _ in SCENES.values()]
    assert wrong(*scenes) == set()


def test_who_fails_once_it_has_its_turn_does_not_run_after_that(wrong):
    assert wrong(a_soft_limit_once_it_has_its_turn) == set()
