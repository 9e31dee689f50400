"""`doctor --workers`: whether real workers hold what the server has."""

from __future__ import annotations

import json

import pytest
from celery import Celery

from celery_redislock import SingletonTask
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


@pytest.fixture
def seen_by(own):
    """The findings about workers, as (level, what), of an app with these settings and tasks."""
    apps = []

    def seen_by(tasks=("skip",), **more):
        app = Celery("doctor", set_as_current=False)
        app.conf.update({k: v for k, v in {**own, **more}.items() if not k.startswith("test_")})
        apps.append(app)
        for name in tasks:
            app.task(lambda_body, base=SingletonTask, name=name, shared=False)
        found = json.loads(run(app, "doctor", "--workers", "--json").output)
        return [(each["level"], each["what"]) for each in found if each["check"] == "workers"]

    yield seen_by
    for app in apps:
        app.close()


def lambda_body(label):
    """Nothing."""


def test_workers_that_have_their_locks_elsewhere_are_named(
    own, own_redis, start_worker, label, queue, seen_by
):
    """They are idle, and would run the same tasks at once."""
    url, two = own_redis.url, {}
    by_name = {**own, "redislock_url": f"{url.replace('127.0.0.1', 'localhost')}/0"}
    settings = {
        "here": own,
        "by name": by_name,
        "database": {**own, "redislock_url": f"{url}/7"},
        "prefix": {**own, "redislock_prefix": label},
    }
    for name, conf in settings.items():
        two[name] = start_worker(queues=queue, conf=conf).node

    def named(found):
        return {name: any(node in what for _, what in found) for name, node in two.items()}

    def from_here():
        found = seen_by()
        return all(named(found)[name] for name in ("database", "prefix")) and found

    found = eventually(from_here, "those two are named", 60)
    assert {level for level, _ in found} == {"error"}, "and not that all agree"
    assert [name for name, is_named in named(found).items() if is_named] == ["database", "prefix"]
    (database,) = (what for _, what in found if two["database"] in what)
    assert f":{own_redis.port}/7, prefix 'redislock', and not on redis://" in database
    (prefix,) = (what for _, what in found if two["prefix"] in what)
    assert f"prefix {label!r}, and not on" in prefix
    assert "the locks of skip on" in prefix

    def of_another_project():
        found = seen_by(["not.theirs"])
        return found and found[0][0] == "ok" and found

    found = eventually(of_another_project, "their tasks are not ours", 60)
    assert not any(named(found).values())

    def from_elsewhere():
        found = seen_by((), redislock_url=f"{url}/7")
        return {name for name, is_named in named(found).items() if is_named} == {
            *("here", "by name", "prefix")
        }

    eventually(from_elsewhere, "asked with another database, it names the others", 60)
