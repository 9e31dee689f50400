"""What docs/security.md says of rights and of what is stored, where no other test shows it."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from functools import partial

import pytest
import redis
from celery import Celery

from celery_redislock import RedisLock, SingletonTask, TaskReplaced
from tests.support.servers import RedisServer, free_port
from tests.support.waiting import eventually
from tests.support.workers import Process, make_app

QUEUE = "security"


@pytest.fixture(scope="module")
def lock_server() -> Iterator[RedisServer]:
    """One with few keys: all of them are read while a task runs."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def worker(start_module_worker, lock_server):
    conf = {"redislock_url": f"{lock_server.url}/0"}
    return start_module_worker(queues=QUEUE, concurrency=2, conf=conf)


@pytest.fixture
def client(lock_server) -> Iterator[redis.Redis]:
    with lock_server.client() as client:
        yield client


def stored(client: redis.Redis) -> tuple[str, str]:
    """All names of our keys, and all that is under them."""
    reads = {"string": client.get, "hash": client.hgetall}
    reads |= {"list": lambda key: client.lrange(key, 0, -1)}
    reads |= {"zset": lambda key: client.zrange(key, 0, -1)}
    keys = sorted(client.scan_iter("redislock:*", count=1000))
    values = [reads[kind](key) for key in keys if (kind := client.type(key)) in reads]
    return " ".join(keys), repr(values)


def test_arguments_are_stored_only_while_a_task_waits_in_a_room(
    worker, send, client, journal, label
):
    first = send("queued", label, 2.0)
    eventually(lambda: journal.read(label, "start"), "it has the lock")
    second = send("queued", label, 0.0)
    eventually(lambda: label in stored(client)[1], "it waits")
    for result in (first, second, send("skip", label, 0.0)):
        assert result.get(timeout=30)[0] == label
    eventually(lambda: label not in stored(client)[1], "it is gone")
    assert label not in stored(client)[0]


def test_a_template_stores_them_in_names_and_in_the_history(worker, send, client, label):
    send("named", label, 0.0).get(timeout=30)
    names, values = stored(client)
    assert label in values, "the history names the lock"
    assert f":done:{label}" not in names


def test_who_may_write_the_keys_may_say_of_a_task_that_it_was_replaced(
    worker, send, lock_server, client, journal, label
):
    key = RedisLock(lock_server.url, f"named:{label}").key
    note = 'r["another","its id"]'
    client.set(key.replace(":lock:", ":done:") + f":{label}:0.0", note, ex=60)

    result = send("queued_named", label, 0.0, task_id=label)

    with pytest.raises(TaskReplaced):
        result.get(timeout=30)
    assert not journal.count(label, "start")


def test_a_sender_needs_no_lock_server_for_a_task_that_is_locked_as_it_runs(
    conf, redis_server, queue, label
):
    settings = {k: v for k, v in conf.items() if not k.startswith("test_")}
    nowhere = f"redis://127.0.0.1:{free_port()}"
    with make_app({**settings, "redislock_url": nowhere}) as app:

        @app.task(base=SingletonTask, name="sent_without", lock_key="{label}")
        def task(label):
            """Never runs."""

        task.apply_async((label,), queue=queue)
        with redis_server.client(db=1) as broker:
            assert broker.llen(queue) == 1
            broker.delete(queue)


def test_celery_shows_no_password_of_the_lock_server(start_worker, lock_server, conf, queue):
    secrets = ("in-the-url", "in-the-options", "in-the-sentinels", "of-once")
    with lock_server.client() as client:
        rights = {"keys": ["*"], "channels": ["*"], "commands": ["+@all"]}
        client.acl_setuser("shop", enabled=True, passwords=[f"+{secrets[0]}"], **rights)
    more = {
        "redislock_url": lock_server.url.replace("://", f"://shop:{secrets[0]}@") + "/0",
        "redislock_transport_options": {  # what the URL says wins
            "password": secrets[1],
            "sentinel_kwargs": {"password": secrets[2]},
        },
        "ONCE": {"settings": {"url": f"redis://:{secrets[3]}@127.0.0.1/0"}},
    }
    worker = start_worker(queues=queue, conf=more, app="tests.behaviour.apps.once")
    with make_app(conf) as app:
        asked = app.control.inspect(destination=[worker.node], timeout=5)
        questions = (asked.conf, partial(asked.conf, with_defaults=True), asked.report)
        shown = [repr(eventually(ask, "the worker answers", 60)) for ask in questions]
    report = Process("report", conf={**conf, **more}, app="tests.behaviour.apps.once")
    try:
        assert report.wait(60) == 0
        shown.append(report.log())
    finally:
        report.close()
    for text in shown:
        assert re.search(r"redislock_url'?: '?\*{8}", text), text
    for text in (*shown, worker.log()):
        assert not [secret for secret in secrets if secret in text]


def test_a_masked_setting_has_its_value_for_whoever_reads_it():
    url = "redis://:secret@127.0.0.1/0"
    app = Celery("read", set_as_current=False, broker="memory://")
    app.conf.redislock_url = url
    for each in (app, pickle.loads(pickle.dumps(app))):
        assert each.conf.redislock_url == url
        assert each.conf.table(censored=False)["redislock_url"] == url
        assert "secret" not in each.conf.humanize()
