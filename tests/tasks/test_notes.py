"""What a task that ends without its body notes for other copies of its message."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from celery import Celery
from celery.app.trace import build_tracer, trace_task

from celery_redislock import Policy, SingletonTask
from tests.support.waiting import eventually


@pytest.fixture
def app(proxy):
    app = Celery("notes", set_as_current=False)
    app.conf.update(redislock_url=f"{proxy.url}/0", broker_url="memory://", task_ignore_result=True)
    return app


def test_a_note_that_the_server_did_not_hear_is_left_once_it_answers(
    app, proxy, client, label, caplog
):
    """Otherwise a copy that finds the lock free would run what was skipped."""

    class Skips(Policy):
        def act(self, conflict: Any) -> Any:
            proxy.cut_off()
            return conflict.skip()

    @app.task(base=SingletonTask, shared=False, name="skips", on_conflict=Skips())
    def skips(label):
        """Never run."""

    caplog.set_level(logging.INFO, "celery_redislock")
    client.set(skips.lock_key_for(label), '{"token":"somebody"}', px=60_000)
    skips.__trace__ = build_tracer(skips.name, skips, app=app)
    info = {"redelivered": True, "routing_key": "q"}
    request = {"id": label, "hostname": "w@h", "delivery_info": info, "is_eager": False}
    trace_task(skips, label, (label,), {}, request, app=app)
    assert f"skips[{label}] skipped" in caplog.text
    assert not client.keys(f"*:done:*{label}*")
    proxy.reconnect()
    eventually(lambda: client.keys(f"*:done:*{label}*"), "the note is left")
