"""`doctor --workers`: whether real workers hold what the server has."""

from __future__ import annotations

import json

import pytest
from celery import Celery

from tests.support.looking import run
from tests.support.servers import apart
from tests.support.waiting import eventually
from tests.support.workers import make_app


@pytest.fixture
def own(conf, own_redis):
    """Doctor looks at all locks that are there, and asks all workers."""
    return apart(conf, own_redis)


@pytest.fixture
def examine(own):
    """The findings about workers, as (level, what)."""
    app = Celery("doctor", set_as_current=False)
    app.conf.update({k: v for k, v in own.items() if not k.startswith("test_")})

    def examine():
        found = json.loads(run(app, "doctor", "--workers", "--json").output)
        return [(each["level"], each["what"]) for each in found if each["check"] == "workers"]

    yield examine
    app.close()


def test_workers_and_server_are_compared(
    examine, own, own_redis, start_worker, journal, label, queue
):
    worker = start_worker(queues=queue, concurrency=3, pool="threads", conf=own)
    sender = make_app({k: v for k, v in own.items() if not k.startswith("test_")})
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
    with own_redis.client() as client:
        locks = client.scan_iter("redislock:*:lock:*")
        (key,) = [each for each in locks if results[0].id in client.get(each)]
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
    assert ("unknown", "no worker answered") in examine()
