"""The bench notices what is broken on purpose."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.proofs.history import Event, History, read
from tests.proofs.wire import lock_key, name_of
from tests.support.waiting import eventually

from .broken import BROKEN, scripts
from .checker import check
from .stage import Fault, Stage

#: So many scenes are played at once.
AT_ONCE = 8


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


def a_call_under_a_suspension(stage, key):
    with stage.operator.suspends({"lock": lock_key(key)}, 60.0):
        await_event(stage, send(stage, key, "skip", 0.1), "start", "conflict")


def a_lock_that_a_stranger_deletes(stage, key):
    stage.body_of(send(stage, key, "skip", 5.0))
    with stage.locks.client(timeout=5) as client:
        client.delete(lock_key(key))
    send(stage, key, "defer", 0.5)


#: What each breakage breaks, and the rule that finds it. The strangers break nothing in scripts.
SCENES = {
    "no_heartbeat": (a_body_longer_than_the_ttl, "overlap"),
    "plain_del": (one_that_gives_up_its_place_while_another_one_holds_the_lock, "overlap"),
    "token_is_task_id": (a_message_that_is_delivered_again_while_it_runs, "overlap"),
    "no_suspension": (a_call_under_a_suspension, "suspended"),
    "skip_on_redelivery": (a_message_that_is_delivered_again_while_it_runs, "own duplicate"),
    "stranger_deletes_lock": (a_lock_that_a_stranger_deletes, "overlap"),
}
STRANGERS = ("stranger_deletes_lock",)


# -- the play ---------------------------------------------------------------------------------


def play(path, scenes):
    """Play these scenes, each with the lock of its name. Gives the history."""

    def inject(stage):
        def play_one(name):
            with contextlib.suppress(AssertionError):  # in vain it waits for what the scene needs
                scenes[name](stage, name)

        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(play_one, scenes))

    stage = Stage(
        Fault(name="scenes", inject=inject, drain=10.0),
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
    return list(read(path))


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
    return {violation.rule for violation in check(only(play, name)).violations}


@pytest.fixture(scope="module")
def first_play(tmp_path_factory):
    scenes = {name: scene for name, (scene, _) in SCENES.items()}
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


@pytest.mark.parametrize(("after", "lost"), [(15.5, False), (9.0, True)])
def test_what_came_back_may_be_lost_with_the_worker_that_took_it(after, lost):
    """Its first worker died, too. Kombu's Redis transport noted nothing of the second one's."""
    case = {
        "fault": "soak", "pool": "prefork", "broker": "redis", "acks_late": True, "ttl": 2.0,
        "allows": [], "visibility": 15,
    }  # fmt: skip
    events = [
        Event("case", 0.0, case),
        *(Event("worker", 0.0, {"main": main}) for main in (1, 2)),
        Event("sent", 1.0, {"id": "a", "task": "defer", "key": "k"}),
        Event("received", 1.1, {"id": "a", "main": 1, "tag": "t", "redelivered": False}),
        Event("dead", 1.5, {"pids": [1]}),
        Event("dead", 1.1 + after, {"pids": [2]}),
        Event("result", 60.0, {"id": "a", "state": "PENDING"}),
        Event("drained", 60.0, {"fences": {}}),
        Event("quiet", 60.0, {"keys": {}, "rooms": {}}),
    ]
    found = {violation.rule for violation in check(events).violations}
    assert ("vanished" in found) is lost


@pytest.mark.parametrize("expires", [1.0, None])
def test_what_is_put_off_until_its_result_is_due_may_expire(expires):
    """RabbitMQ drops it then. One that does not expire must not vanish."""
    case = {
        "fault": "soak", "pool": "prefork", "broker": "rabbitmq", "acks_late": True, "ttl": 2.0,
        "allows": [], "visibility": None,
    }  # fmt: skip
    of = {"id": "a", "main": 1}
    events = [
        Event("case", 0.0, case),
        Event("worker", 0.0, {"main": 1}),
        Event("sent", 1.0, {"id": "a", "task": "coalesce", "key": "k", "expires": expires}),
        Event("received", 1.5, {**of, "tag": "t", "redelivered": True}),
        Event("asks", 1.6, {**of, "pid": 2, "token": "x", "entry": "a:0.0", "key": "k"}),
        Event("refused", 1.7, {**of, "pid": 2, "token": "x", "entry": "a:0.0", "key": "k"}),
        Event("published", 1.8, {**of, "pid": 2}),
        Event("acked", 1.9, {**of, "tag": "t"}),
        Event("result", 60.0, {"id": "a", "state": "PENDING"}),
        Event("drained", 60.0, {"fences": {}}),
        Event("quiet", 60.0, {"keys": {}, "rooms": {}}),
    ]
    found = {violation.rule for violation in check(events).violations}
    assert ("vanished" in found) is (expires is None)
