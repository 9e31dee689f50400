"""Records of somebody who may write the lock's keys, and not send tasks by the broker."""

from __future__ import annotations

import json
import pickle
import time
from base64 import b64encode
from pathlib import Path

import pytest

from celery_redislock import SingletonTask
from celery_redislock.app.entries import Entry, NotOurs
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.protocol.rooms import UNTAKEN_AFTER
from celery_redislock.tasks.room import look_after
from tests.behaviour.looking import Room, untaken
from tests.support.waiting import eventually, never
from tests.support.workers import make_app

QUEUE = "forged"
QUEUED = "queued_named"
LINK = {"task": "plain", "args": ["L"], "kwargs": {}, "options": {"queue": QUEUE}}
CHORD = {**LINK, "options": {"queue": QUEUE, "link_error": [LINK]}, "chord_size": 1}


@pytest.fixture(scope="module")
def worker(start_module_worker):
    return start_module_worker(queues=QUEUE, concurrency=2)


@pytest.fixture
def keys(label):
    return lock_keys("redislock", f"named:{label}")


def record(task_id, args, task=QUEUED, **options):
    """An entry without a seal."""
    options = {"task_id": task_id, "queue": QUEUE, "headers": {}, **options}
    body = json.dumps([args, {}, options])
    return Entry(task, task_id, "application/json", "utf-8", body)


def plant(client, keys, *entries, age=0):
    """Put them into the room, which is due. The first was published first `age` seconds ago."""
    for entry in entries:
        client.rpush(keys.room, f"{entry.task_id}:0.0")
        client.hset(keys.entries, f"{entry.task_id}:0.0", f"||{entry.dump()}")
    if age:
        first = int((time.time() - age) * 1000)
        client.zadd(keys.sent, {f"{entries[0].task_id}:0.0": first})
    client.zadd(keys.rooms, {keys.lock_id: int(time.time() * 1000)})


#: Of each forged record: its task, its options, and why it is refused.
FORGED = {
    "unlocked": ("plain", {}, "plain takes no lock"),
    "of_celery": ("celery.chord_unlock", {}, "celery.chord_unlock takes no lock"),
    "other_lock": ("skip", {}, "its arguments give another lock"),
    "lacks_arguments": ("named", {}, "its arguments give no lock"),
    "link": (QUEUED, {"link": [LINK]}, "it brings callbacks"),
    "link_error": (QUEUED, {"link_error": [LINK]}, "it brings callbacks"),
    "chain": (QUEUED, {"chain": [LINK]}, "it brings callbacks"),
    "chord": (QUEUED, {"chord": LINK, "group_id": "g"}, "it brings callbacks"),
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_record_that_no_worker_has_parked_runs_no_task_of_its_choice(
    worker, sender, client, journal, label, keys, kind
):
    task, options, why = FORGED[kind]
    args = [] if kind == "lacks_arguments" else [label, 0.0]
    forged = record(f"{label}-forged", args, task, **options)
    honest = record(f"{label}-next", [label, 0.0])
    plant(client, keys, forged, honest, age=UNTAKEN_AFTER + 1)
    assert sender.AsyncResult(honest.task_id).get(timeout=30)[0] == label, "the next runs"
    line, *_ = eventually(lambda: untaken(worker.log(), forged.task_id), "it is said")
    assert why in line
    assert task in line
    assert keys.lock in line
    assert client.zrange(keys.sent, 0, -1) == [f"{forged.task_id}:0.0"], "it is not dropped"
    never(lambda: sender.AsyncResult(forged.task_id).ready(), "it has run", 0.3)
    assert [run.task_id for run in journal.read(label, "start")] == [honest.task_id]
    client.delete(keys.room, keys.entries, keys.sent)


def test_a_record_runs_no_other_task_by_its_headers(worker, sender, client, journal, label, keys):
    headers = {"task": "plain", "id": f"{label}-other", "tenant": "t"}
    forged = record(f"{label}-forged", [label, 0.0], headers=headers)
    plant(client, keys, forged)
    assert sender.AsyncResult(forged.task_id).get(timeout=30)[0] == label
    (run,) = journal.read(label, "start")
    assert run.task_id == forged.task_id
    assert f"{QUEUED}[{forged.task_id}] received" in worker.log()


def test_a_parked_message_that_was_changed_is_refused_and_one_with_callbacks_runs_as_it_came(
    worker, sender, client, journal, label, keys
):
    link = sender.signature("plain", [f"{label}-link", 0.0], queue=QUEUE, immutable=True)
    sender.send_task(QUEUED, [label, 3.0], queue=QUEUE)
    eventually(lambda: journal.read(label, "start"), "it runs")
    waits = sender.send_task(QUEUED, [label, 0.0], queue=QUEUE, link=link)
    changed = sender.send_task(QUEUED, [label, 0.0], queue=QUEUE)
    room = Room(client, keys.lock)
    eventually(lambda: room.ids() == [waits.id, changed.id], "both wait")
    field = f"{changed.id}:0.0"
    head, text = client.hget(keys.entries, field).split("{", 1)
    entry = json.loads("{" + text)
    args, kwargs, options = json.loads(entry["body"])
    options["link"] = [{**LINK, "args": [f"{label}-evil", 0.0]}]
    entry["body"] = json.dumps([args, kwargs, options])
    client.hset(keys.entries, field, head + json.dumps(entry))
    client.zadd(keys.sent, {field: int((time.time() - UNTAKEN_AFTER - 1) * 1000)})
    assert waits.get(timeout=30)[0] == label
    eventually(lambda: journal.read(f"{label}-link", "start"), "its callback runs")
    line, *_ = eventually(lambda: untaken(worker.log(), changed.id), "it is said")
    assert "its seal is not valid" in line
    assert "it brings callbacks" in line
    assert not journal.read(f"{label}-evil")
    client.delete(keys.room, keys.entries, keys.sent)


@pytest.mark.parametrize(
    ("sealed_with", "link", "is_published"),
    [("old", [], True), ("old", [LINK], False), ("new", [LINK], True)],
)
def test_after_a_new_password_of_the_broker_what_brings_callbacks_is_left_to_workers_with_the_old(
    conf, client, redis_server, queue, label, sealed_with, link, is_published
):
    settings = {k: v for k, v in conf.items() if not k.startswith("test_")}
    # A user without a password, such as this server's, may log in with any.
    old, new = (
        {**settings, "broker_url": settings["broker_url"].replace("//", f"//default:{password}@")}
        for password in ("old", "new")
    )
    with make_app(new) as app, make_app(old) as before, redis_server.client(db=1) as broker:

        @app.task(base=SingletonTask, name="after", lock_key=["label"], lock_headers=["tenant"])
        def task(label):
            """Never runs."""

        headers = {"tenant": "t"}
        keys = task.lock_keys_for([label], {}, headers)
        options = {"task_id": label, "queue": queue, "link": link, "headers": headers}
        entry = Entry.of(task, [label], {}, options)
        plant(client, keys, entry.sealed(before if sealed_with == "old" else app, keys.lock))
        look_after(app, keys, 5.0)
        assert broker.llen(queue) == is_published
        before.tasks.register(task)
        look_after(before, keys, 5.0)
        assert broker.llen(queue) == 1
        broker.delete(queue)
        client.delete(keys.lock, keys.room, keys.entries, keys.rooms, keys.sent)


def test_a_record_of_what_was_replaced_stores_no_result_of_an_unlocked_task(
    worker, sender, client, label, keys
):
    """And a chord in it does not call its body, or that one's errbacks."""
    ended = {
        "unlocked": record(f"{label}-unlocked", [label], "plain"),
        "chord": record(f"{label}-chord", [label], chord=CHORD, group_id=label),
        "honest": record(f"{label}-honest", [label]),
    }
    for each in ended.values():
        text = json.dumps(["its successor", f"||{each.dump()}"])
        client.hset(keys.ended, f"{each.task_id}:0.0", text)
    plant(client, keys, record(f"{label}-next", [label, 0.0]))
    eventually(lambda: not client.exists(keys.ended), "they are looked at", 30)
    assert sender.AsyncResult(ended["honest"].task_id).state == "REVOKED"
    for kind in ("unlocked", "chord"):
        assert sender.AsyncResult(ended[kind].task_id).state == "PENDING"
        (line,) = [each for each in worker.log().splitlines() if ended[kind].task_id in each]
        assert "ERROR" in line
        assert "its seal is not valid" in line


class Runs:
    """Writes a file as it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self):
        return Path.touch, (self._path,)


def test_a_pickle_without_a_seal_is_not_read(conf, tmp_path):
    settings = {"accept_content": ["json", "pickle"], "broker_url": conf["broker_url"]}
    with make_app(settings) as app:
        body = b64encode(pickle.dumps([[Runs(tmp_path / "ran")], {}, {"task_id": "x"}])).decode()
        entry = Entry("t", "x", "application/x-python-serialize", "base64:binary", body)
        with pytest.raises(NotOurs, match="pickle"):
            entry.content(app)
        assert entry.arguments(app) is None
        assert not (tmp_path / "ran").exists()
        entry.sealed(app, "a lock").content(app)
        assert (tmp_path / "ran").exists()
