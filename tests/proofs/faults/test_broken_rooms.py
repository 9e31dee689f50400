"""The bench notices a broken waiting room, limit or pause: each of these breaks a promise, and the
real ones do not.
"""

from __future__ import annotations

import contextlib
import time
import uuid

import pytest

from tests.proofs.faults import steps
from tests.proofs.faults.breakages import OF_ROOMS
from tests.proofs.faults.checker import DUE, NOISE
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
        fault = Fault(name="scenes", inject=scenes[0] if breakage else inject)
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
def standing_still_at(stage, step):
    """The next process that comes to this step stands still there. Gives what waits for it."""
    armed = steps.arm(stage.history, step)
    try:
        yield lambda: await_step(stage, step)[-1]
    finally:
        armed.unlink(missing_ok=True)
        steps.let_go(stage.history, step)


def a_crash_before_a_message_is_published(stage):
    strike_at(stage, "offered", kill_child_at)


def a_newcomer_that_meets_a_free_lock_and_a_room(stage):
    with standing_still_at(stage, "offered") as offered:
        send(stage, "queue", 3.0)
        stage.await_inside()
        await_event(stage, send(stage, "queue", 0.1), "parked")
        offered()
        await_event(stage, send(stage, "skip", 0.1), "start", "conflict")


def a_message_that_a_room_publishes_twice(stage):
    with standing_still_at(stage, "offered") as offered:
        send(stage, "queue", 0.5)
        stage.await_inside()
        waiting = send(stage, "queue", 0.1)
        offered()
        await_event(stage, waiting, "stored")  # others have published it again
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
    with standing_still_at(stage, "offered") as offered:
        first = send(stage, "retry_coalesced", 3.0, retries=1, countdown=0)
        stage.await_inside()
        await_event(stage, send(stage, "retry_coalesced", 0.1, retries=0), "parked")
        offered()
        eventually(
            lambda: [
                event
                for event in stage.history.events("parks", "start")
                if event.id == first and event.get("attempt") != 0
            ],
            "the retry has come",
        )


def calls_that_come_steadily(stage):
    """For longer than `max_wait`, and what is allowed beyond that."""
    until = time.monotonic() + 1.5 + DUE + NOISE + 1.0
    while time.monotonic() < until:
        send(stage, "debounce_steadily", 0.05)
        stage.pause(0.1, 0.3)


def a_burst_of_calls(stage):
    for _ in range(4):
        send(stage, "debounce", 0.05)
        stage.pause(0.2, 0.3)


def a_soft_limit_while_it_is_parked(stage):
    send(stage, "queue", 8.0)  # the next one is to fail before this one ends
    stage.await_inside()
    with standing_still_at(stage, "parked") as there:
        send(stage, "queue", 0.1)
        soft_limit_at(stage, there())


def a_soft_limit_once_it_is_next(stage):
    """Its message is published after it has failed."""
    with standing_still_at(stage, "parked") as there:
        send(stage, "queue", 1.0)
        stage.await_inside()
        waiting = send(stage, "queue", 0.1)
        here = there()
        with standing_still_at(stage, "offered") as offered:
            offered()
            soft_limit_at(stage, here)
            await_event(stage, waiting, "failed")


def a_soft_limit_while_another_copy_is_under_way(stage):
    """A room published it again, as the first copy is late, and the second copy fails."""
    with standing_still_at(stage, "offered") as offered:
        send(stage, "queue", 0.5)
        stage.await_inside()
        waiting = send(stage, "queue", 0.1)
        offered()
        with standing_still_at(stage, "asking") as asking:
            soft_limit_at(stage, asking())
            await_event(stage, waiting, "failed")
    eventually(lambda: len(received(stage, waiting)) >= 3, "both copies have come", 10)


SCENES = {
    "removed_when_published": (a_crash_before_a_message_is_published, "vanished"),
    "published_once": (a_crash_before_a_message_is_published, "left"),
    "newcomers_overtake": (a_newcomer_that_meets_a_free_lock_and_a_room, "overtook"),
    "nobody_publishes": (two_that_wait, "left"),
    "copies_run": (a_message_that_a_room_publishes_twice, "twice"),
    "one_too_many": (three_at_once, "limit"),
    "pause_is_forgotten": (some_with_pauses_between, "pause"),
    "old_replaces_new": (a_retry_that_meets_what_came_since, "newest"),
    "failed_waits_on": (a_soft_limit_while_it_is_parked, "failed, ran"),
    "max_wait_begins_anew": (calls_that_come_steadily, "max wait"),
    "quiet_time_is_the_first_calls": (a_burst_of_calls, "not quiet"),
    "nobody_waits_for_quiet": (a_burst_of_calls, "not quiet"),
}


def test_there_is_a_scene_for_each_broken_room():
    assert set(SCENES) == set(OF_ROOMS)


@pytest.mark.parametrize("breakage", SCENES)
def test_a_broken_room_is_noticed(wrong, breakage):
    scene, rule = SCENES[breakage]
    # A late machine may keep it from doing harm: an answer is late, and others publish it.
    tries = (wrong(scene, breakage=breakage) for _ in range(3))
    assert any(rule in found for found in tries)


def test_the_real_rooms_pass(wrong):
    scenes = [scene for scene, _ in SCENES.values()]
    assert wrong(*scenes) == set()


@pytest.mark.parametrize(
    "scene", [a_soft_limit_once_it_is_next, a_soft_limit_while_another_copy_is_under_way]
)
def test_who_fails_does_not_run_after_that(wrong, scene):
    assert wrong(scene) == set()
