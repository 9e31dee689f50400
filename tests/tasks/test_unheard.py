"""What the lock server did not hear as a task ended, it hears once it answers."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from celery import Celery
from celery.app.trace import build_tracer, trace_task

from celery_redislock import Policy, SingletonTask
from celery_redislock.app.housekeeper import housekeeper
from celery_redislock.protocol import notes
from tests.support.waiting import eventually


@pytest.fixture
def app(proxy):
    app = Celery("unheard", set_as_current=False)
    app.conf.update(redislock_url=f"{proxy.url}/0", broker_url="memory://", task_ignore_result=True)
    return app


def run(task: Any, task_id: str, **info: Any) -> None:
    """Run it as a worker does."""
    app = task.app
    task.__trace__ = build_tracer(task.name, task, app=app)
    request = {"id": task_id, "hostname": "w@h", "callbacks": info.pop("callbacks", None)}
    request["delivery_info"] = {"routing_key": "q", **info}
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
