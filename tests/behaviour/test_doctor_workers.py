"""`doctor --workers`: whether real workers hold what the server has."""

from __future__ import annotations

import json

import pytest
from celery import Celery

from tests.support.looking import run
from tests.support.waiting import eventually


@pytest.fixture
def examine(conf, redis_server):
    """The findings about workers, as (level, what)."""
    app = Celery("doctor", set_as_current=False)
    told = {name: conf[name] for name in ("broker_url", "result_backend")}
    app.conf.update(told, redislock_url=f"{redis_server.url}/0")

    def examine():
        found = json.loads(run(app, "doctor", "--workers", "--json").output)
        return [(each["level"], each["what"]) for each in found if each["check"] == "workers"]

    yield examine
    app.close()


def test_workers_and_server_are_compared(
    examine, start_worker, sender, journal, client, locks_of, label, queue
):
    worker = start_worker(queues=queue, concurrency=3, pool="threads")
    results = [
        sender.send_task(name, [label, 60.0], queue=queue)
        for name in ("queued_long", "two_at_once", "two_at_once")
    ]
    eventually(lambda: journal.count(label, "start") == 3, "they run, two of them in one lock")
    eventually(
        lambda: any("agree on" in what for level, what in examine() if level == "ok"),
        "both say the same",
    )
    # Its heartbeat comes each 20 s: until then the worker does not know.
    (key,) = locks_of(results[0].id)
    value = client.get(key)
    stolen = json.loads(value) | {"token": "another", "task_id": "thief", "node": worker.node}
    client.set(key, json.dumps(stolen), ex=60)

    def compared():
        found = dict(map(reversed, examine()))  # a worker may answer too late
        return any(results[0].id in what for what in found) and found

    found = eventually(compared, "the worker answers")
    (ours,) = (what for what in found if results[0].id in what)
    assert (found[ours], "the server says no" in ours) == ("error", True)
    (theirs,) = (what for what in found if "thief" in what)
    assert found[theirs] == "warning"
    assert worker.node in theirs
    assert not any(each.id in what for each in results[1:] for what in found), "the slots agree"
    worker.kill()
    assert ("unknown", "no worker answered") in examine() or "nodes that did not answer" in str(
        examine()
    ), "other tests' workers may answer"
