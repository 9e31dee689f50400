"""The app of a solo worker that counts this package's Python calls in its main thread."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from celery import Celery

import celery_redislock
from celery_redislock import SingletonTask

CONF: dict[str, Any] = json.loads(os.environ.get("TEST_CONF", "{}"))
OURS = str(Path(celery_redislock.__file__).parent)

app = Celery("counted")
app.conf.update({k: v for k, v in CONF.items() if not k.startswith("test_")})
calls = 0


def count(frame: Any, event: str, argument: Any) -> None:
    global calls
    if event == "call" and frame.f_code.co_filename.startswith(OURS):
        calls += 1


@app.task(name="count")
def begin() -> None:
    global calls
    calls = 0
    sys.setprofile(count)


@app.task(name="counted")
def end() -> int:
    sys.setprofile(None)
    return calls


@app.task(name="runs", base=SingletonTask, lock_key="{key}:{n}")
def runs(key: str, n: int) -> None: ...


@app.task(name="is_skipped", base=SingletonTask, lock_key="{key}")
def is_skipped(key: str, n: int) -> None: ...
