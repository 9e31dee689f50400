"""The page beside real workers: what it draws of them, and a run that it ends."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from celery import Celery
from celery.exceptions import TaskRevokedError, WorkerLostError

from celery_redislock.ops.web import hub, orders, queues
from celery_redislock.servers import looking
from tests.support.servers import RedisServer, apart
from tests.support.site import TOKEN, Site, messages
from tests.support.waiting import eventually
from tests.support.workers import is_running, make_app


@pytest.fixture(scope="module")
def conf(conf):
    """A server of this file's own: the page tells of all locks and queues that are there."""
    with RedisServer() as server:
        yield apart(conf, server)


@pytest.fixture(scope="module")
def sender(conf):
    return make_app({k: v for k, v in conf.items() if not k.startswith("test_")})


@pytest.fixture
def site(conf):
    """A page that sees what the workers do, with all rights."""
    app = Celery("page", set_as_current=False)
    app.conf.update({k: v for k, v in conf.items() if not k.startswith("test_")})
    with Site(app, TOKEN) as site:
        yield site
    app.close()


class Watched:
    """What a viewer has been told, by now."""

    def __init__(self, site: Site) -> None:
        self.items: dict[int, dict] = {}
        self._told = messages(site)
        self._take(next(self._told))
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        for message in self._told:
            self._take(message)

    def _take(self, message: dict) -> None:
        self.items.update({item["id"]: item for item in message.get("past", ())})

    def of(self, kind: str, label: str) -> list[dict]:
        items = list(self.items.values())
        found = [each for each in items if each["kind"] == kind and label in each["lock"]]
        return sorted(found, key=lambda item: item["began"])


def test_each_run_is_drawn_once_and_no_wait_outlasts_its_room(
    site, start_worker, sender, journal, label, queue
):
    start_worker("-E", queues=queue, concurrency=2)
    watched = Watched(site)
    name = f"named:{label}"

    def send(seconds):
        return sender.send_task("queued_named", [label, seconds], queue=queue)

    results = [send(60.0)]
    eventually(lambda: watched.of("run", name), "the first run is drawn")
    results += [send(0.3) for _ in range(3)]
    eventually(lambda: len(watched.of("wait", name)) == 3, "those who wait are drawn")
    os.kill(journal.read(label, "start")[0].pid, signal.SIGKILL)
    with pytest.raises(WorkerLostError):
        results[0].get(timeout=30)
    for result in results[1:]:
        result.get(timeout=30)

    ran = [entry.task_id for entry in journal.read(label, "start")]
    # A worker that loses a child says that the task failed, and the history that its process died.
    wanted = list(zip(ran, ["died", *["succeeded"] * 3], strict=True))

    def is_drawn():
        runs, waits = watched.of("run", name), watched.of("wait", name)
        told = [(run["task_id"], run.get("how")) for run in runs]
        return all("ended" in each for each in (*runs, *waits)) and told == wanted

    eventually(is_drawn, "all have ended on the page, and it says how", 30)
    began = {run["task_id"]: run["began"] for run in watched.of("run", name)}
    for wait in watched.of("wait", name):
        assert wait["ended"] <= began[wait["task_id"]] + 5


def test_a_run_is_ended_by_who_says_so(
    site, start_worker, sender, journal, label, queue, caplog, monkeypatch
):
    monkeypatch.setattr(orders, "ANSWERS", 6.0)
    worker = start_worker(queues=queue, concurrency=1)
    result = sender.send_task("queued_named", [label, 60.0], queue=queue)
    eventually(lambda: journal.read(label, "start"), "it runs")
    (pid,) = (entry.pid for entry in journal.read(label, "start"))
    (shown,) = site.http.get("/api/lock", params={"name": f"named:{label}"}).json()["locks"]
    order = {"key": shown["key"], "holder": shown["holder"], "by": "anna"}
    allowed = {"authorization": f"Bearer {TOKEN}"}
    answer = site.http.post("/api/locks/end", json=order, headers=allowed)
    assert answer.json()["answered"] == [worker.node]
    with pytest.raises(TaskRevokedError):
        result.get(timeout=20)
    eventually(lambda: not is_running(pid), "its process is gone")

    def is_free():
        return not site.http.get("/api/lock", params={"name": f"named:{label}"}).json()["locks"]

    eventually(is_free, "its lock is free")
    assert "was revoked and terminated by anna at 127.0.0.1" in caplog.text
    again = site.http.post("/api/locks/end", json=order, headers=allowed)
    assert again.status_code == 409


def test_a_queue_that_nobody_reads_is_named_until_a_worker_reads_it(
    site, start_worker, sender, journal, label, queue, monkeypatch
):
    monkeypatch.setattr(looking, "UNTAKEN_AFTER", 1)
    monkeypatch.setattr(queues, "WAITED", 1.0)
    monkeypatch.setattr(hub, "LOOK_AT_QUEUES", 0.5)
    start_worker(queues=f"{queue}-other", concurrency=1)
    own = start_worker(queues=queue, concurrency=1)
    holder = sender.send_task("queued_named", [label, 60.0], queue=f"{queue}-other")
    eventually(lambda: journal.read(label, "start"), "it runs")
    result = sender.send_task("queued_named", [label, 0.1], queue=queue)

    def waits():
        return site.http.get("/api/lock", params={"name": f"named:{label}"}).json()["room"]

    (waiting,) = eventually(waits, "the other waits")
    own.close()
    holder.revoke(terminate=True)
    told = (each["unread"] for each in messages(site) if "unread" in each)
    (unread,) = next(each for each in told if each)
    assert (unread["task"], unread["queue"], unread["count"]) == ("queued_named", queue, 1)
    assert unread["since"] > journal.read(label, "start")[0].at
    assert waiting["task_id"] == result.id

    start_worker(queues=queue, concurrency=1)
    assert result.get(timeout=60)
    assert next(each for each in told if not each) == []
