"""`self.lock.describe`: what a run says of itself is seen with its holder."""

from __future__ import annotations

import json

import pytest

from celery_redislock import TaskSkipped
from tests.behaviour.apps.house import house
from tests.behaviour.conftest import HOUSE
from tests.support.looking import run
from tests.support.waiting import eventually

QUEUE = "described"
FIRST, SECOND = (f'page {number} of "2", 100 % ✓' for number in (1, 2))


@pytest.fixture(scope="module", autouse=True)
def worker(start_module_worker):
    return start_module_worker(app=HOUSE, queues=QUEUE, concurrency=2)


@pytest.fixture
def app(conf, redis_server):
    """The worker's app, as an operator has it."""
    with house({**conf, "redislock_url": f"{redis_server.url}/0"}) as app:
        yield app


def test_a_heartbeat_brings_it_and_the_next_one_what_is_said_then(
    app, send, worker, journal, label
):
    task = app.tasks["describes"]
    first = send("describes", label, "describe and stand")

    def said():
        holder = task.lock_holder(label)
        return holder and holder.description

    eventually(lambda: said() == FIRST, "a heartbeat brings it")
    journal.let_go(first.id)
    eventually(lambda: said() == SECOND, "the next heartbeat brings the next")
    holder = task.lock_holder(label)
    assert str(holder).endswith(f": {SECOND}")
    assert type(holder).from_dict(holder.to_dict()) == holder

    with pytest.raises(TaskSkipped) as skipped:
        send("describes", label).get(timeout=20)
    assert skipped.value.holder.description == SECOND
    assert f": {SECOND}" in worker.log()
    table, rows = run(app, "list").stdout, json.loads(run(app, "list", "--json").stdout)
    assert SECOND in table
    assert [row["description"] for row in rows if row["task_id"] == first.id] == [SECOND]

    journal.let_go(first.id)
    assert first.get(timeout=20) == label
    assert said() is None
