"""`lock_label`: what a lock is called for people, wherever its key is shown."""

from __future__ import annotations

import json
import re

import pytest

from celery_redislock import TaskSkipped
from tests.behaviour.apps.labelled import app
from tests.behaviour.looking import listed
from tests.support.waiting import eventually

QUEUE = "labelled"
APP = "tests.behaviour.apps.labelled"


@pytest.fixture(scope="module", autouse=True)
def worker(start_module_worker):
    theirs = {"plain": {"lock_key": ["label"], "lock_label": "their {label}"}}
    conf = {"redislock_tasks": theirs}
    return start_module_worker(app=APP, queues=QUEUE, concurrency=3, conf=conf)


@pytest.fixture(scope="module")
def tasks(conf):
    app.conf.update({k: v for k, v in conf.items() if not k.startswith("test_")})
    return app.tasks


@pytest.fixture
def record_of(client, locks_of):
    """What a task's lock says."""

    def record_of(task_id):
        (key,) = locks_of(task_id)
        return json.loads(client.get(key))

    return record_of


def said(worker, result):
    """The line about the end of this task's conflict."""
    pattern = rf"redislock: \w+\[{result.id}\] .*$"
    found = eventually(lambda: re.findall(pattern, worker.log(), re.M), "it is said")
    (line,) = found
    return line


def test_the_holder_the_body_the_errors_and_the_log_have_it(
    worker, hold_open, send, record_of, journal, label
):
    order = f"order {label}\\n"
    holder = hold_open("skips")
    assert record_of(holder.id)["label"] == order
    (entry,) = journal.read(label, "label")
    assert entry.data == [order, order]
    with pytest.raises(TaskSkipped) as caught:
        (duplicate := send("skips", label)).get(timeout=20)
    assert caught.value.holder.label == order
    assert f"skips[{holder.id}] ({order}) on " in str(caught.value)
    line = said(worker, duplicate)
    assert line.startswith(f"redislock: skips[{duplicate.id}] ({order}) skipped: ")
    assert f"is held by skips[{holder.id}] ({order}) on {worker.node}" in line


def test_one_that_waits_has_it_and_so_has_the_list(
    conf, redis_server, hold_open, send, client, label
):
    hold_open("queues")
    waits = send("queues", label)
    order = f"order {label}\\n"

    def rows():
        found = listed(APP, {**conf, "redislock_url": f"{redis_server.url}/0"})
        return [each for each in found if each["label"] == order and each["waiting"]]

    (row,) = eventually(rows, "it waits")
    assert row["task"] == "queues"
    head, _, name = row["key"].partition(":lock:")
    entry = client.hget(f"{head}:entries:{name}", f"{waits.id}:0.0")
    body = json.loads(json.loads(entry.split("|", 2)[2])["body"])
    assert body[2]["headers"]["redislock"]["label"] == order
