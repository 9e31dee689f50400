"""How many calls of functions of ours are made by an uncontended delivery, by a skipped duplicate,
and by a pair of acquire and release. In a process of its own, in which nobody listens:

    python -m tests.support.call_counts redis://localhost
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any
from uuid import uuid4

from celery import Celery
from celery.app.trace import build_tracer

from celery_redislock import RedisLock, SingletonTask


def calls_of_ours(do: Callable[[], object]) -> Counter[str]:
    """How often each module of ours is called, once all is warm."""
    for _ in range(5):
        do()
    calls: Counter[str] = Counter()

    def look(frame: FrameType, event: str, argument: object) -> None:
        # Not by the module's name: a dataclass's own methods are nobody's lines.
        _, ours, name = frame.f_code.co_filename.rpartition("/celery_redislock/")
        if event == "call" and ours:
            calls[name] += 1

    sys.setprofile(look)
    try:
        do()
    finally:
        sys.setprofile(None)
    return calls


def count(url: str) -> dict[str, Counter[str]]:
    """The calls of each, by module.

    Args:
        url: of the lock server.
    """
    app = Celery("counted", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.redislock_url = url

    @app.task(base=SingletonTask, lock_key=["account"], shared=False)
    def counted(account: int) -> int:
        return account

    task: Any = app.tasks[counted.name]
    task.__trace__ = build_tracer(task.name, task, app=app)

    def deliver() -> None:
        """As a pool process does it. The message has waited for long, so it leaves a done note."""
        token, task_id = uuid4().hex, str(uuid4())
        mark = {"token": token, "received": 0.0, "queue": "celery"}
        info = {"exchange": "", "routing_key": "celery", "redelivered": False}
        request = {
            "id": task_id, "task": task.name, "retries": 0, "delivery_info": info,
            "properties": {"redislock": mark}, "hostname": "here", "is_eager": False,
        }  # fmt: skip
        task.__trace__(task_id, [5], {}, request)

    lock = RedisLock(url, str(uuid4()))

    def pair() -> None:
        lock.acquire()
        lock.release()

    counts = {"pair": calls_of_ours(pair), "delivery": calls_of_ours(deliver)}
    with RedisLock(url, task.lock_name([5], {}), timeout=0):
        counts["duplicate"] = calls_of_ours(deliver)
    return counts


if __name__ == "__main__":
    print(json.dumps(count(sys.argv[1])))
