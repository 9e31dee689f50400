"""The applications of docs/django.md, docs/fastapi.md and docs/recipes.md, with workers."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from celery_redislock import RedisLock
from tests.support.django_project import PROJECT, set_up
from tests.support.programs import python
from tests.support.servers import RedisServer, free_port
from tests.support.waiting import eventually
from tests.support.workers import ROOT, Worker

DB = 8
#: Of a client that leaves before it is answered.
IMPATIENT = httpx.Timeout(20, read=0.5)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer, tmp_path: Path) -> None:
    set_up(monkeypatch, f"{redis_server.url}/{DB}", tmp_path)


def answers(*arguments: str) -> Any:
    done = python(*arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextlib.contextmanager
def worker(app: str) -> Iterator[None]:
    with Worker(conf={}, app=app, concurrency=3) as started:
        started.ready()
        yield


def test_django_many_saves_in_a_row_are_one_task_that_sees_the_last(redis_server, tmp_path):
    assert python(f"{PROJECT}/manage.py", "migrate", "--run-syncdb").returncode == 0
    said = answers("-m", "tests.project.clients.django_client")
    assert said["statuses"] == [202, 202, 202]
    assert said["queued"]
    assert said["price"] == 4, "what was rolled back is not there, and no task was sent for it"
    redis = redis_server.client(db=DB)
    assert redis.llen("celery") == 1

    def entries() -> list[tuple[int, int, int]]:
        with contextlib.closing(sqlite3.connect(tmp_path / "db.sqlite3")) as db:
            return db.execute("SELECT product_id, price, times FROM shop_entry").fetchall()

    with worker("shop"):
        eventually(entries, "the product is in the index")
        eventually(lambda: entries() == [(said["product"], 4, 1)], "with its last price")
        command = python(f"{PROJECT}/manage.py", "rebuild_index")
        assert command.stdout == "rebuilt\n", command.stderr
        assert entries() == [(said["product"], 4, 2)]


def test_django_the_command_and_the_task_exclude_each_other(redis_server):
    with RedisLock(f"{redis_server.url}/{DB}", "shop.index"):
        command = python(f"{PROJECT}/manage.py", "rebuild_index")
    assert command.returncode == 1
    assert re.match("CommandError: the index is being rebuilt: RedisLock", command.stderr)


def test_flask_a_task_has_the_applications_context_and_a_second_one_is_refused(label):
    account = int(label[:8], 16)
    with worker("examples.flask_app"):
        said = answers("-m", "tests.project.clients.flask_client", str(account))
    assert said["statuses"] == [202, 409, 202]
    assert said["same"], "the answer names the task that has the lock"
    assert said["result"] == f"synced {account}"
    assert said["locked"]


def test_fastapi_triggers_coalesce_and_a_second_export_is_refused(label):
    with worker("examples.fastapi_app"):
        said = answers("-m", "tests.project.clients.fastapi_client", str(int(label[:8], 16)))
    assert said["statuses"] == [202, 202, 202, 202, 202, 409]
    assert said["ids"] == 4
    # Which of the pool's processes asks first is open: one that runs may have begun after the last
    # came, and then runs for that one too.
    first, *others = said["states"]
    assert first == "SUCCESS"
    assert set(others) == {"SUCCESS", "REVOKED"}
    assert said["refused"]["task_id"] == said["export"]["task_id"]
    assert said["refused"]["detail"] in ("it waits in the queue", "it is running")
    assert said["exported"] == "SUCCESS"
    assert said["settled"] == "SUCCESS"
    assert said["adjusted"] > 0, "the handler waited for the task"
    assert said["closed"] > 0
    assert said["away"] == [503] * 2


def test_fastapi_a_client_that_disconnects_leaves_no_lock(redis_server, label):
    """While its handler waits for the lock, and while it holds it."""
    account, port = int(label[:8], 16), free_port()
    lock = RedisLock(f"{redis_server.url}/{DB}", f"account:{account}")
    server = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "examples.fastapi_app:api", "--port", str(port)], cwd=ROOT
    )
    try:
        url = f"http://127.0.0.1:{port}/accounts/{account}/adjust"
        fence = eventually(lambda: adjusted(url), "it answers", 30)
        with lock:
            assert lock.fence > fence
            assert httpx.post(url, timeout=20).status_code == 409
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(url, timeout=IMPATIENT)
        assert lock.acquire(timeout=20)
        lock.release()
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}?seconds=2", timeout=IMPATIENT)
        holder = lock.holder()
        assert holder is None or holder.label.startswith("api: adjust ")
        eventually(lambda: not lock.locked(), "the handler has ended")
    finally:
        server.terminate()
        server.wait(20)


def adjusted(url: str) -> int | None:
    try:
        return int(httpx.post(url, timeout=5).json()["fence"])
    except httpx.TransportError:
        return None
