"""What tests of the commands share: locks in every state, and the package as it is installed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result

from celery_redislock import SingletonTask
from celery_redislock.app.entries import Entry
from celery_redislock.ops.cli import redislock
from celery_redislock.protocol import calls, holders, rooms
from celery_redislock.protocol.claims import Acquired, Claim, Parking
from celery_redislock.protocol.keys import lock_keys

ROOT = Path(__file__).parents[2]


def installed(folder: Path) -> str:
    """A folder for PYTHONPATH with the package's entry points, as `pip install` writes them: the
    environment of the tests may have been made before they were there.
    """
    text = (ROOT / "pyproject.toml").read_text()
    (points,) = re.findall(r'\[project.entry-points."celery.commands"\]\n((?:\w+ = .*\n)+)', text)
    info = folder / "celery_redislock-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: celery-redislock\nVersion: 0.1.0\n"
    )
    (info / "entry_points.txt").write_text("[celery.commands]\n" + points.replace('"', ""))
    return str(folder)


def make_app(url: str, prefix: str, **conf: Any) -> Celery:
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
        redislock, arguments, obj=context, **more
    )
    for stream in ("output_bytes", "stdout_bytes", "stderr_bytes"):  # in click 8.1, two are one
        written = getattr(result, stream, None)
        if written:
            setattr(result, stream, re.sub(rb"(?m)^Redis: .*\n", b"", written, count=1))
    return result


def claim(app: Any, task: str, label: str, **more: Any) -> Claim:
    """The claim of a run of this task."""
    given = {"task_id": f"id-of-{label}", "token": f"token-of-{label}", "node": "w@one", **more}
    options = app.tasks[task].lock_options
    name = app.tasks[task].lock_name([label], {})
    prefix = app.conf.redislock_prefix
    value = holders.encode(
        given["token"],
        ttl_ms=60_000,
        task=task,
        task_id=given["task_id"],
        node=given["node"],
        queued=given.get("queued", False),
        label=given.get("lock_label"),
    )
    keys = lock_keys(prefix, name, options.lock_limit)
    return Claim(keys, given["token"], 60.0, value, given["task_id"])


def take(app: Any, task: str, label: str, **more: Any) -> tuple[Claim, Acquired]:
    """Hold the lock of that call, for a minute."""
    made = claim(app, task, label, **more)
    reply = app.tasks[task].app_locks.server.run(calls.acquire(made))
    assert isinstance(reply, Acquired)
    return made, reply


def park(app: Any, task: str, label: str, task_id: str) -> None:
    """Let another call of the task wait for the lock."""
    made = claim(app, task, label, task_id=task_id, token=f"token-of-{task_id}")
    entry = Entry.of(app.tasks[task], [label], {}, {"task_id": task_id, "headers": {}})
    app.tasks[task].app_locks.server.run(rooms.park(made, Parking(entry.dump())))
