"""What the lock server did not hear as a task ended, it hears once it answers."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
from celery import Celery
from celery.app.trace import build_tracer, trace_task

from celery_redislock import (
    Coalesce,
    Debounce,
    LockUnavailable,
    Policy,
    Queue,
    Replace,
    SingletonTask,
    Skip,
    Wait,
)
from celery_redislock.app.delivery import KEY
from celery_redislock.app.housekeeper import housekeeper
from celery_redislock.protocol import notes
from celery_redislock.protocol.tokens import new_token
from celery_redislock.servers.scripts import sha_of, text_of
from tests.contract.clocks import clock
from tests.support.waiting import eventually


@pytest.fixture
def app(proxy):
    app = Celery("unheard", set_as_current=False)
    app.conf.update(redislock_url=f"{proxy.url}/0", broker_url="memory://", task_ignore_result=True)
    return app


def run(task: Any, task_id: str, stamp: Any = None, **info: Any) -> None:
    """Run it as a worker does."""
    app = task.app
    task.__trace__ = build_tracer(task.name, task, app=app)
    request = {"id": task_id, "hostname": "w@h", "callbacks": info.pop("callbacks", None)}
    request["delivery_info"] = {"routing_key": "q", **info}
    if stamp is not None:
        request["properties"] = {KEY: stamp}
    trace_task(task, task_id, (task_id,), {}, request, app=app)


def test_a_lock_is_released_long_before_its_ttl_is_over(app, proxy, client, label, caplog):
    @app.task(base=SingletonTask, shared=False, name="cuts", lock_ttl=600)
    def cuts(label):
        proxy.cut_off()

    run(cuts, label)
    assert "could not release" in caplog.text
    assert client.exists(cuts.lock_key_for(label))
    proxy.reconnect()
    eventually(lambda: not client.exists(cuts.lock_key_for(label)), "it is released")


def test_a_lock_that_was_never_confirmed_is_not_released_again(app, proxy, label):
    """It expires by its ttl, and an outage of an hour must not keep all tasks of that hour."""

    @app.task(base=SingletonTask, shared=False, name="put_off")
    def put_off(label):
        """Never run."""

    proxy.cut_off()
    before = len(housekeeper._frees._heap)  # other tests' servers may be away for ever
    run(put_off, label)
    assert len(housekeeper._frees._heap) <= before


def test_a_late_release_says_what_became_of_the_run_since(app, proxy, client, label):
    """Celery has published what follows it by then: a copy is not to run."""

    @app.task(base=SingletonTask, shared=False, name="cuts", lock_ttl=600)
    def cuts(label):
        proxy.cut_off()

    @app.task(shared=False, name="follows")
    def follows():
        """Nothing."""

    run(cuts, label, callbacks=[follows.si()], redelivered=True)
    proxy.reconnect()
    eventually(lambda: not client.exists(cuts.lock_key_for(label)), "it is released")
    eventually(lambda: not housekeeper.is_busy, "all is done")
    (note,) = client.keys(f"*:done:*{label}*")
    assert client.get(note).startswith(notes.lasting(notes.ENDED))


def test_a_copy_of_what_was_skipped_does_not_run_when_the_lock_is_free(
    app, proxy, client, label, caplog
):
    class Skips(Policy):
        def act(self, conflict: Any) -> Any:
            proxy.cut_off()
            return conflict.skip()

    @app.task(base=SingletonTask, shared=False, name="skips", on_conflict=Skips())
    def skips(label):
        """Never run."""

    caplog.set_level(logging.INFO, "celery_redislock")
    client.set(skips.lock_key_for(label), '{"token":"somebody"}', px=60_000)
    run(skips, label, redelivered=True)
    assert f"skips[{label}] skipped" in caplog.text
    assert not client.keys(f"*:done:*{label}*")
    proxy.reconnect()
    eventually(lambda: client.keys(f"*:done:*{label}*"), "a note for the copy is left")


#: The policies that put tasks into the room.
PARKS = {
    "queue": Queue(), "wait": Wait(timeout=5, then=Skip()), "coalesce": Coalesce(),
    "replace": Replace(grace=60), "debounce": Debounce(quiet=1, max_wait=2),
}  # fmt: skip
HELD = '{"token":"somebody","task":"t","task_id":"another"}'
KEPT = '{"token":"somebody","task":"t","task_id":"another","queued":true}'


@pytest.fixture
def parks(app, proxy, client, redis_server, label):
    """Delivers a task whose place in the room the server gives it, and does not say so."""
    ran: list[str] = []
    # A script that the server does not know yet is sent as a text.
    with redis_server.client() as to_load:
        to_load.script_load(text_of("park"))

    def parks(on_redis_error, policy):
        options = {"on_redis_error": on_redis_error, "on_conflict": policy, "lock_ttl": 3}

        @app.task(base=SingletonTask, shared=False, name="parks", lock_key="{label}", **options)
        def parks(label):
            ran.append(label)

        app.conf.task_ignore_result = False
        app.conf.result_backend = "cache+memory://"
        is_kept = isinstance(policy, Wait)
        client.set(parks.lock_key_for(label), KEPT if is_kept else HELD, px=60_000)
        proxy.lose_replies(to=sha_of("park").encode())
        stamp = {"token": new_token(), "queue": "q", "received": clock(), "worker": "w"}
        run(parks, label, redelivered=False, stamp=stamp)
        assert proxy.lost
        proxy.heal()
        return parks.keys_of_call((label,), {}), ran, app.AsyncResult(label)

    return parks


@pytest.mark.parametrize("name", PARKS)
@pytest.mark.parametrize("on_redis_error", ["run", "raise"])
def test_what_goes_on_though_it_may_be_in_the_room_does_not_run_from_there(
    parks, client, label, name, on_redis_error
):
    keys, ran, result = parks(on_redis_error, PARKS[name])
    assert not client.exists(keys.room, keys.entries)
    assert ran == ([label] if on_redis_error == "run" else [])
    assert result.state == ("SUCCESS" if on_redis_error == "run" else "FAILURE")
    assert client.get(keys.done_by(f"{label}:0.0")), "a copy that was published does not run"


@pytest.mark.parametrize("on_redis_error", ["run", "raise"])
def test_what_cannot_leave_the_room_in_an_outage_leaves_it_afterwards(
    parks, client, proxy, label, on_redis_error
):
    def cut_off():
        eventually(lambda: client.keys(f"*:room:{label}"), "it is in the room")
        eventually(lambda: proxy.lost, "and its answer is lost")
        proxy.cut_off()

    cuts = threading.Thread(target=cut_off)
    cuts.start()
    keys, ran, result = parks(on_redis_error, Queue())
    cuts.join()
    assert ran == ([label] if on_redis_error == "run" else [])
    eventually(lambda: not client.exists(keys.room, keys.entries), "it leaves the room")
    assert result.state == ("SUCCESS" if on_redis_error == "run" else "FAILURE")


def test_a_lock_that_nobody_knows_to_have_is_given_back(app, proxy, client, label):
    """The request for it was carried out, and its answer and the release got lost."""

    @app.task(base=SingletonTask, shared=False, name="unsure", on_redis_error="raise", lock_ttl=600)
    def unsure(label):
        """Never run."""

    run(unsure, f"{label}-before")  # connections, and scripts
    key = unsure.lock_key_for(label)
    proxy.lose_replies()
    run(unsure, label)
    assert client.exists(key)
    proxy.heal()
    eventually(lambda: not client.exists(key), "it is given back, long before its ttl")


def test_a_reservation_for_what_was_not_sent_is_given_back(app, proxy, client, label):
    @app.task(
        base=SingletonTask, shared=False, name="unsent", on_redis_error="raise", lock_ttl=600,
        lock_scope="queued",
    )  # fmt: skip
    def unsent(label):
        """Never run."""

    unsent.delay(f"{label}-before")
    key = unsent.lock_key_for(label)
    proxy.lose_replies()
    with pytest.raises(LockUnavailable):
        unsent.delay(label)
    assert client.exists(key)
    proxy.heal()
    eventually(lambda: not client.exists(key), "it is given back", 10)
