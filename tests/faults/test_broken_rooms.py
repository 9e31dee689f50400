"""The bench notices a broken waiting room, limit or pause: each of seven breaks a promise, and the
real ones do not.
"""

from __future__ import annotations

import contextlib

import pytest

from tests.faults import steps
from tests.faults.breakages import OF_ROOMS
from tests.faults.faults import kill_child_at, soft_limit_at, strike_at
from tests.faults.history import History
from tests.faults.run import play
from tests.faults.stage import Fault, Stage
from tests.support.waiting import eventually


@pytest.fixture
def wrong(tmp_path):
    """Plays scenes, with or without something broken, and gives the rules that were broken."""

    def wrong(*scenes, breakage=None):
        def inject(stage):
            for scene in scenes:
                scene(stage)
                ids = set(stage.load.sent)
                eventually(lambda ids=ids: not ids & stage.watcher.open(), "it is over", 20)

        history = History(tmp_path / f"{breakage}.jsonl")
        # Where who released stands still, others would soon hand over.
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
def standing_after_the_release(stage):
    """The lock is free, and who released it has not handed it over yet."""
    armed = steps.arm(stage.history, "released")
    try:
        yield lambda: await_step(stage, "released")
    finally:
        armed.unlink(missing_ok=True)
        steps.let_go(stage.history, "released")


def a_crash_between_hand_over_and_publishing(stage):
    strike_at(stage, "handed over", kill_child_at)


def a_newcomer_that_meets_a_free_lock_and_a_room(stage):
    with standing_after_the_release(stage) as free:
        send(stage, "queue", 3.0)
        stage.await_inside()
        await_event(stage, send(stage, "queue", 0.1), "parked")
        free()
        await_event(stage, send(stage, "skip", 0.1), "start", "conflict")


def two_that_wait(stage):
    for seconds in (2.0, 0.3, 0.3):
        send(stage, "queue", seconds)


def three_at_once(stage):
    for _ in range(2):
        send(stage, "two", 3.0, key="t")
    eventually(lambda: len(stage.inside()) == 2, "two run")
    await_event(stage, send(stage, "two", 0.3, key="t"), "start", "conflict")


def two_with_a_pause_between(stage):
    for _ in range(2):
        send(stage, "pause", 0.1)


def a_retry_that_meets_what_came_since(stage):
    with standing_after_the_release(stage) as free:
        first = send(stage, "retry_coalesced", 3.0, retries=1, countdown=0)
        stage.await_inside()
        await_event(stage, send(stage, "retry_coalesced", 0.1, retries=0), "parked")
        free()
        eventually(
            lambda: [
                event
                for event in stage.history.events("parks", "start")
                if event.id == first and event.get("attempt") != 0
            ],
            "the retry has come",
        )


def a_soft_limit_while_it_is_parked(stage):
    send(stage, "queue", 3.0)
    stage.await_inside()
    armed = steps.arm(stage.history, "parked")
    try:
        send(stage, "queue", 0.1)
        here = await_step(stage, "parked")[-1]
        soft_limit_at(stage, here)
    finally:
        armed.unlink(missing_ok=True)
        steps.let_go(stage.history, "parked")


SCENES = {
    "removed_at_hand_over": (a_crash_between_hand_over_and_publishing, "vanished"),
    "newcomers_overtake": (a_newcomer_that_meets_a_free_lock_and_a_room, "overtook"),
    "nobody_hands_over": (two_that_wait, "left"),
    "one_too_many": (three_at_once, "limit"),
    "pause_is_forgotten": (two_with_a_pause_between, "pause"),
    "old_replaces_new": (a_retry_that_meets_what_came_since, "newest"),
    "failed_waits_on": (a_soft_limit_while_it_is_parked, "failed, ran"),
}


UNDISTURBED = ("newcomers_overtake", "old_replaces_new")


def test_there_is_a_scene_for_each_broken_room():
    assert set(SCENES) == set(OF_ROOMS)


@pytest.mark.parametrize("breakage", SCENES)
def test_a_broken_room_is_noticed(wrong, breakage):
    scene, rule = SCENES[breakage]
    assert rule in wrong(scene, breakage=breakage)


def test_the_real_rooms_pass(wrong):
    scenes = [scene for scene, _ in SCENES.values()]
    assert wrong(*scenes) == set()
