"""The page beside real workers: what it draws of them, and a run that it ends."""

from __future__ import annotations

import os
import signal

import pytest
from celery import Celery
from celery.exceptions import TaskRevokedError, WorkerLostError

from tests.support.servers import RedisServer, apart
from tests.support.site import TOKEN, Site, messages
from tests.support.waiting import eventually
from tests.support.workers import is_running, make_app

QUEUE = "page"


@pytest.fixture(scope="module")
def server():
    """A server of this file's own: the page tells of all locks and queues that are there."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def conf(conf, server):
    return apart(conf, server)


@pytest.fixture(scope="module")
def sender(conf):
    return make_app({k: v for k, v in conf.items() if not k.startswith("test_")})


@pytest.fixture(scope="module")
def worker(start_module_worker):
    return start_module_worker("-E", queues=QUEUE, concurrency=2)


@pytest.fixture
def site(conf):
    """A page that sees what the workers do, with all rights."""
    app = Celery("page", set_as_current=False)
    app.conf.update({k: v for k, v in conf.items() if not k.startswith("test_")})
    with Site(app, TOKEN) as site:
        yield site
    app.close()


def test_each_run_is_drawn_once_and_it_says_how_it_ended(worker, site, send, journal, label):
    name = f"named:{label}"
    results = [send("queued_named", label, 60.0)]
    eventually(lambda: journal.read(label, "start"), "the first runs")
    results += [send("queued_named", label, 0.3) for _ in range(3)]
    eventually(lambda: len(site.lock(name=name)["room"]) == 3, "the others wait")

    os.kill(journal.read(label, "start")[0].pid, signal.SIGKILL)
    with pytest.raises(WorkerLostError):
        results[0].get(timeout=30)
    for result in results[1:]:
        result.get(timeout=30)

    ran = [entry.task_id for entry in journal.read(label, "start")]
    # A worker that loses a child says that the task failed, and the history that its process died.
    wanted = list(zip(ran, ["died", *["succeeded"] * 3], strict=True))

    def drawn():
        """What a viewer who comes now is told of this lock's runs."""
        told = next(messages(site))["runs"]
        runs = sorted((run for run in told if run["name"] == name), key=lambda run: run["began"])
        return [(run["task_id"], run.get("how")) for run in runs]

    eventually(lambda: drawn() == wanted, "all have ended on the page, and it says how", 30)


def test_a_run_is_ended_by_who_says_so(worker, site, send, journal, label, caplog):
    def ended(label):
        result = send("queued_named", label, 60.0)
        eventually(lambda: journal.read(label, "start"), "it runs")
        (shown,) = site.lock(name=f"named:{label}")["locks"]
        order = {"key": shown["key"], "holder": shown["holder"], "by": "anna"}
        answer = site.order(order, TOKEN, "end")
        with pytest.raises(TaskRevokedError):
            result.get(timeout=20)
        (pid,) = (entry.pid for entry in journal.read(label, "start"))
        eventually(lambda: not is_running(pid), "its process is gone")
        eventually(lambda: not site.lock(name=f"named:{label}")["locks"], "its lock is free")
        assert site.order(order, TOKEN, "end").status_code == 409
        return answer.json()["answered"]

    # A worker that is late for two seconds is not named; not so each time.
    assert any(ended(f"{label}-{each}") == [worker.node] for each in range(3))
    assert "was revoked and terminated by anna at 127.0.0.1" in caplog.text
