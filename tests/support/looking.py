"""What tests of the commands and the page share: an app to look at, locks in every state as Redis
has them, and the commands themselves. The formats are those of docs/inside/redis.md.
"""

from __future__ import annotations

import functools
import json
import os
import re
import time
import uuid
import zlib
from pathlib import Path
from typing import Any

import redis
from celery import Celery
from celery.bin.base import CLIContext
from celery.bin.celery import celery
from click.testing import CliRunner, Result

from celery_redislock import SingletonTask

ROOT = Path(__file__).parents[2]


def make_app(url: str | None, prefix: str, **conf: Any) -> Celery:
    """An app with a few tasks, and keys of its own."""
    app = Celery("looked-at", set_as_current=False)
    defaults = {"broker_url": "memory://", "result_backend": "cache+memory://"}
    app.conf.update({**defaults, "redislock_url": url, "redislock_prefix": prefix, **conf})

    def body(self: Any, label: str, number: int = 0) -> None:
        """Nothing."""

    def task(name: str, **options: Any) -> None:
        options = {"base": SingletonTask, "lock_key": ["label"], **options}
        app.task(name=name, bind=True, shared=False, **options)(body)

    task("sync")
    task("report", on_conflict="queue")
    task("several", lock_limit=2, on_conflict="skip")
    task("unique", lock_scope="queued+running")
    task("account", lock_key="account:{label}")

    def plain() -> None:
        """Nothing, without a lock."""

    app.task(name="plain", shared=False)(plain)
    app.finalize()
    return app


def run(
    app: Any, *arguments: str, columns: int = 1000, no_color: bool = True, **more: Any
) -> Result:
    """One command, in this process, on a terminal with so many columns. Its output is what it
    prints after the line on stderr that says where it looks.
    """
    context = CLIContext(app=app, no_color=no_color, workdir=None)
    result = CliRunner(env={"COLUMNS": str(columns)}).invoke(
        celery.commands["redislock"], arguments, obj=context, **more
    )
    for stream in ("output_bytes", "stdout_bytes", "stderr_bytes"):  # in click 8.1, two are one
        written = getattr(result, stream, None)
        if written:
            setattr(result, stream, re.sub(rb"(?m)^Redis: .*\n", b"", written, count=1))
    return result


def told(app: Any, *arguments: str) -> Any:
    """What a command that succeeds tells programs."""
    result = run(app, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


class Lock:
    """A lock's keys in Redis: `lock["room"]` is the key of its waiting room, and so on.

    Attributes:
        key: the lock's own key.
        bucket: what its keys begin with, and those that its bucket shares.
        name: the lock's name.
        value: what is stored under `key`, if `take` stored it.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.bucket, _, self.name = key.partition(":lock:")
        self.value: dict[str, Any] = {}

    def __getitem__(self, kind: str) -> str:
        return f"{self.bucket}:{kind}:{self.name}"

    @property
    def runs(self) -> str:
        """The key of the history of its task's runs."""
        return f"{self.bucket}:history:{self.value['task']}"


def lock_named(prefix: str, name: str) -> Lock:
    """The lock with this name, in ASCII and not too long."""
    return Lock(f"{prefix}:{{{zlib.crc32(name.encode()) % 1024}}}:lock:{name}")


def lock_of(app: Any, task: str, label: str) -> Lock:
    """The lock of a call of this task."""
    return Lock(app.tasks[task].lock_key_for(label))


@functools.lru_cache(maxsize=64)
def _client(url: str) -> Any:
    of = redis.RedisCluster if "+cluster" in url else redis.Redis
    return of.from_url(url.replace("+cluster", "").split(",")[0], decode_responses=True)


def client_of(app: Any) -> Any:
    """A client of the app's lock server."""
    return _client(app.conf.redislock_url)


def take(
    app: Any,
    task: str,
    label: str,
    *,
    age: float = 0.0,
    ttl: float = 600.0,
    lock_label: str | None = None,
    history: bool = False,
    **more: Any,
) -> Lock:
    """Hold the lock of that call. Nobody extends it.

    Args:
        app, task, label: which call.
        age: seconds for which it has been held.
        ttl: seconds for which it will be.
        lock_label: what `lock_label` made of the call.
        history: whether the run is in the history, too.
        more: other fields of the value.
    """
    lock, fence = lock_of(app, task, label), time.time_ns() // 1000 - int(age * 1e6)
    lock.value = {
        "token": uuid.uuid4().hex,
        "v": 2,
        "task": task,
        "task_id": f"id-of-{label}",
        "attempt": 0,
        "nesting": 0,
        "node": "w@one",
        "pid": os.getpid(),
        "ttl_ms": int(ttl * 1000),
        **({} if lock_label is None else {"label": lock_label}),
        "fence": fence,
        "acquired_at": fence / 1e6,
        **more,
    }
    text, client = json.dumps(lock.value, separators=(",", ":")), client_of(app)
    slots = ("lock", "lock2") if task == "several" else ("lock",)
    assert any(client.set(lock[each], text, px=int(ttl * 1000), nx=True) for each in slots), (
        "it is free"
    )
    if history:
        client.zadd(f"{lock.bucket}:history", {task: time.time() * 1000})
        client.rpush(lock.runs, text, f"1|{lock.name}")
    return lock


def store(app: Any, lock: Lock, **fields: Any) -> None:
    """Change these fields of a lock's value."""
    lock.value.update(fields)
    text = json.dumps(lock.value, separators=(",", ":"))
    client_of(app).set(lock.key, text, keepttl=True)


def keep(app: Any, lock: Lock, why: str = "held") -> None:
    """Keep a lock that was held, for its task's retry, or "cooling" after its run."""
    store(app, lock, token="", **{why: True})


def end(app: Any, lock: Lock, how: str = "succeeded", took: float = 90.0) -> None:
    """The end of a run in the history; its lock is free then."""
    turned_away = lock.value.get("turned_away")
    count = f"|{turned_away}" if turned_away else ""
    client_of(app).rpush(lock.runs, f"{lock.value['fence']}|{int(took * 1000)}|{how}{count}")
    client_of(app).delete(lock.key)


def runs_without(app: Any, lock: Lock, why: str = "it expired") -> None:
    """The run goes on without the lock that it took, and says so."""
    until = f"{(time.time() + 600) * 1000:.0f}"
    text = json.dumps({**lock.value, "lost": why}, separators=(",", ":"))
    client_of(app).hset(lock["lost"], str(lock.value["fence"]), f"{until}|{text}")


def park(
    app: Any,
    task: str,
    label: str,
    task_id: str,
    *,
    lock_label: str | None = None,
    age: float = 0.0,
    quiet: float | None = None,
    **options: Any,
) -> Lock:
    """Let another call of the task wait for the lock.

    Args:
        app, task, label: which call.
        task_id: its id.
        lock_label: what `lock_label` made of it.
        age: seconds for which it has waited.
        quiet: seconds for which it waits for newer calls, in its task's pending slot.
        options: more of its message.
    """
    lock, client, now = lock_of(app, task, label), client_of(app), time.time() * 1000
    header = {"redislock": {} if lock_label is None else {"label": lock_label}}
    content = [[label], {}, {"task_id": task_id, "headers": header, **options}]
    parked = {
        "task": task,
        "task_id": task_id,
        "content_type": "application/json",
        "encoding": "utf-8",
        "body": json.dumps(content),
    }
    member, arrived = f"{task_id}:0.0", now - age * 1000
    if quiet is not None:
        member, due = f"={task}", now + quiet * 1000
        state = f"{due:.0f}|{arrived:.0f}||{task_id}:0.0"
        client.hset(lock["entries"], f"#{member}", state)
        client.zadd(f"{lock.bucket}:rooms", {f"1|{lock.name}": due})
    client.hset(lock["entries"], member, f"|{arrived:.3f}|{json.dumps(parked)}")
    client.rpush(lock["room"], member)
    return lock


def untaken(app: Any, lock: Lock, *task_ids: str, since: float = 120.0) -> None:
    """As if these calls, which wait, had first been published so many seconds ago."""
    at = (time.time() - since) * 1000
    client_of(app).zadd(lock["sent"], {f"{each}:0.0": at for each in task_ids})


def every_state(app: Any) -> None:
    """Locks of `make_app` in every state, one or two of each, and tasks that wait for them."""
    client, prefix = client_of(app), app.conf.redislock_prefix
    take(app, "sync", "held")
    keep(app, take(app, "sync", "retries"))
    keep(app, take(app, "sync", "cools"), "cooling")
    client.set(lock_of(app, "sync", "woken").key, '{"token":"","reserved":true}', ex=60)
    take(app, "unique", "sent", queued=True)
    take(app, "several", "both", age=3600)
    take(app, "several", "both", task_id="another")
    take(app, "report", "awaited")
    for each in ("second", "third"):
        untaken(app, park(app, "report", "awaited", each, age=7200), each)
    take(app, "sync", "ends", by=["sync", "newer"])
    park(app, "sync", "ends", "newer", age=1800)
    park(app, "report", "left", "next")
    run(app, "break", "--force", take(app, "sync", "broken").key)
    client.set(lock_named(prefix, "text").key, "not ours")
    client.rpush(lock_named(prefix, "a list").key, "not ours")
