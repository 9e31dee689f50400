"""The seal of a parked message: who has it, and what it allows."""

from __future__ import annotations

import pickle
from base64 import b64encode
from pathlib import Path

import pytest

from celery_redislock import SingletonTask
from celery_redislock.app.entries import Entry, ForgedEntry, NotOurs, Waiter
from celery_redislock.inspection.rooms import named
from celery_redislock.protocol.keys import lock_keys
from celery_redislock.tasks import room
from celery_redislock.tasks.room import look_after
from tests.support.workers import make_app

LINK = {"task": "plain", "args": ["L"], "kwargs": {}, "options": {}}


def plant(client, keys, entry):
    """Put it into the room."""
    client.rpush(keys.room, f"{entry.task_id}:0.0")
    client.hset(keys.entries, f"{entry.task_id}:0.0", f"||{entry.dump()}")


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
        assert named("x", entry.dump(), app).args is None
        assert not (tmp_path / "ran").exists()
        entry.sealed(app, "a lock").content(app)
        assert (tmp_path / "ran").exists()


def test_what_this_process_parked_is_believed_unread_but_not_in_the_room_of_another_lock(conf):
    with make_app({"broker_url": conf["broker_url"]}) as app:

        @app.task(name="plain_one")
        def task():
            """Never runs."""

        keys, other = lock_keys("redislock", "one"), lock_keys("redislock", "other")
        options = {"task_id": "x", "headers": {}}
        entry = Entry.of(task, [], {}, options).sealed(app, keys.lock)
        waiter = Waiter(task, [], {}, options, {})
        room.note_parked(entry.dump(), entry, waiter)
        assert room._read(app, keys, entry.dump(), unknown=False)[1] is waiter
        with pytest.raises(ForgedEntry):
            room._read(app, other, entry.dump(), unknown=False)
