"""How many different lines of ours a worker with a solo pool executes for an uncontended task, from
the receipt of its message to its end: each is cold when the next task comes. In a process of its
own, in which nobody listens:

    python -m tests.support.line_counts redis://localhost
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from types import FrameType
from typing import Any
from uuid import uuid4

from celery import Celery

from celery_redislock import SingletonTask

#: What is done at the first tasks only is not counted.
WARM = 5


class Lines:
    """The lines of ours that this thread executes from `begin` to `end`."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, int]] = set()

    def begin(self) -> None:
        sys.settrace(self._enter)

    def end(self) -> Counter[str]:
        """How many there were, by module."""
        sys.settrace(None)
        return Counter(name for name, _ in self._seen)

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        _, ours, name = frame.f_code.co_filename.rpartition("/celery_redislock/")
        if not ours:
            return None

        def look(frame: FrameType, event: str, argument: object) -> Any:
            if event == "line":
                self._seen.add((name, frame.f_lineno))
            return look

        return look


def count(url: str) -> None:
    """Run a worker, print the lines of one task, and end the process.

    Args:
        url: of the lock server, which is the broker too.
    """
    app = Celery("counted", broker=url, set_as_current=False)
    app.conf.update(
        redislock_url=url, task_ignore_result=True, worker_redirect_stdouts=False,
        task_default_queue=f"counted-{uuid4().hex}",
    )  # fmt: skip
    lines = Lines()

    @app.task(base=SingletonTask, lock_key=["account"], shared=False)
    def counted(account: int) -> None:
        """Do nothing."""

    @app.task(shared=False)
    def begin() -> None:
        lines.begin()

    @app.task(shared=False)
    def end() -> None:
        print(json.dumps(lines.end()), flush=True)
        os._exit(0)

    for each in (*map(counted.s, range(WARM)), begin.s(), counted.s(WARM), end.s()):
        each.apply_async()
    app.Worker(pool="solo", concurrency=1, loglevel="ERROR", quiet=True).start()


if __name__ == "__main__":
    count(sys.argv[1])
