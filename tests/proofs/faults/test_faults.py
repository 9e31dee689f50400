"""The bench notices a broken lock: each of six breaks a promise, and the real one does not."""

from __future__ import annotations

import contextlib

import kombu.transport.redis
import pytest

from tests.proofs.faults import (
    test_short_cluster,
    test_short_ends,
    test_short_network,
    test_short_processes,
    test_short_server,
)
from tests.proofs.faults.breakages import BREAKAGES
from tests.proofs.faults.cases import SHORT
from tests.proofs.faults.cluster_faults import Cluster
from tests.proofs.faults.history import History
from tests.proofs.faults.run import play
from tests.proofs.faults.stage import Fault, Stage
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

SHORT_FORM = (
    *(test_short_cluster, test_short_ends, test_short_network),
    *(test_short_processes, test_short_server),
)

needs_impatience = pytest.mark.skipif(
    not hasattr(kombu.transport.redis.Channel, "unacked_restore_throttle"),
    reason="this kombu looks for unacknowledged messages only every 100 s",
)


@pytest.fixture
def wrong(tmp_path):
    """Plays something, with or without the lock broken, and gives the rules that were broken."""

    def wrong(inject, *, pool, acks="early", breakage=None, ttl=2.0, locks=RedisServer):
        history = History(tmp_path / f"{breakage}.jsonl")
        stage = Stage(
            Fault(name=inject.__name__, inject=inject, locks=locks, ttl=ttl),
            history,
            pool=pool,
            broker="redis",
            acks=acks,
            seed="1",
            busy=False,
            breakage=breakage,
        )
        return {violation.rule for violation in play(stage).violations}

    return wrong


def send(stage, task, seconds, **options):
    return stage.send(task, kwargs={"key": "k", "seconds": seconds, "how": "return"}, **options)


def starts(stage):
    return stage.history.events("start")


def told(stage, task_id):
    return [event for event in stage.history.events("took", "refused") if event.id == task_id]


def bodies_longer_than_the_ttl(stage):
    send(stage, "skip", 2 * stage.ttl)
    stage.await_inside()
    send(stage, "defer", 0.3)


def a_holder_that_stands_still_beyond_its_ttl(stage):
    """The next one gets the lock, and a third one asks for it when the first has released."""

    def standing_still(start):
        return stage.standing_still([stage.worker_of(start).pid])

    with contextlib.ExitStack() as until_it_is_told:
        # The first one's body is over when it goes on and not before, however late the stop comes.
        send(stage, "skip", stage.ttl)
        with standing_still(stage.await_inside()):
            send(stage, "wait", stage.ttl)
            eventually(lambda: len(starts(stage)) == 2, "the next one got the lock")
            # Its heartbeat must not bring back what the first one deletes.
            until_it_is_told.enter_context(standing_still(starts(stage)[1]))
            third = send(stage, "defer", 0.1)
        eventually(lambda: told(stage, third), "the third one is told whether the lock is free")


def a_message_that_is_delivered_again_while_it_runs(stage):
    """The broker's visibility timeout is over before the task is."""
    send(stage, "skip", 5.0)
    eventually(lambda: len(stage.history.events("received")) > 1, "it is delivered again")


def a_hard_time_limit_while_another_one_waits(stage):
    send(stage, "skip", 10.0, time_limit=2)
    stage.await_inside()
    waiting = send(stage, "wait", 0.3)
    eventually(lambda: told(stage, waiting), "it waits")


def a_cluster_that_restarts_empty(stage):
    """Another one asks for a held lock before its holder can take it again."""
    send(stage, "skip", 6.0)
    worker = stage.worker_of(stage.await_inside())
    # Its worker meets the server, and so notices that it comes back.
    refused = send(stage, "skip", 0.1)
    eventually(lambda: told(stage, refused), "it is refused")
    with stage.during("restart", unreachable=True), stage.standing_still([worker.pid]):
        stage.locks.switch_off()
        stage.locks.mend()
        newcomer = send(stage, "defer", 0.1)
        with contextlib.suppress(AssertionError):  # it is held off, as it must be
            eventually(lambda: told(stage, newcomer), "it is told that the lock is free", 1.5)


SCENES = {
    "no_heartbeat": (bodies_longer_than_the_ttl, {"pool": "threads"}, "believed"),
    "plain_del": (a_holder_that_stands_still_beyond_its_ttl, {"pool": "solo"}, "overlap"),
    "token_is_task_id": (
        a_message_that_is_delivered_again_while_it_runs,
        {"pool": "solo", "acks": "late"},
        "overlap",
    ),
    "release_before_death": (
        a_hard_time_limit_while_another_one_waits,
        # A heartbeat that would tell the first one comes after three seconds, and not before.
        {"pool": "prefork", "ttl": 10.0},
        "overlap",
    ),
    "skip_on_redelivery": (
        a_message_that_is_delivered_again_while_it_runs,
        {"pool": "threads", "acks": "late"},
        "own duplicate",
    ),
    "no_hold_off": (
        a_cluster_that_restarts_empty,
        # Long enough for the holder to come first: a cluster's nodes refuse all for two seconds.
        {"pool": "solo", "ttl": 18.0, "locks": Cluster},
        "overlap",
    ),
}


def test_there_is_a_scene_for_each_broken_lock():
    assert set(SCENES) == set(BREAKAGES)


@pytest.mark.parametrize(
    "breakage",
    [
        pytest.param(name, marks=[needs_impatience] if how.get("acks") == "late" else [])
        for name, (_, how, _) in SCENES.items()
    ],
)
def test_a_broken_lock_is_noticed_and_the_real_one_passes(wrong, breakage):
    scene, how, rule = SCENES[breakage]
    assert rule in wrong(scene, **how, breakage=breakage)
    assert wrong(scene, **how) == set()


def test_the_short_forms_files_run_the_whole_selection():
    marks = [module.test_no_promise_is_broken.pytestmark[0] for module in SHORT_FORM]
    run = [case.id for mark in marks for case in mark.args[1]]
    assert sorted(run) == sorted(case.id for case in SHORT)
