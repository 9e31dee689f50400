"""A process that sends one contender's tasks, and says how long that took.

Reads requests from its standard input and writes answers to its standard output, a line of JSON
each. It has its own process, since some contenders do work where tasks are sent.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from celery.result import EagerResult

from .celery_app import app


def publish(task: str, first: int, count: int, queue: str) -> dict[str, float]:
    """Send calls with one number each. Returns the seconds and the CPU seconds of one call."""
    send = app.tasks[task].apply_async
    send((first,), queue=queue)  # the first also makes what is made once
    began, cpu = time.perf_counter(), time.process_time()
    for number in range(first + 1, first + count):
        send((number,), queue=queue)
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {"seconds": took / (count - 1), "cpu": cpu / (count - 1)}


def send(task: str, args: list[Any], queue: str) -> dict[str, Any]:
    """Send one call. Returns its id, or what else the sender got."""
    began = time.perf_counter()
    try:
        result = app.tasks[task].apply_async(args, queue=queue)
    except Exception as exc:
        return {"id": None, "outcome": type(exc).__name__}
    took = time.perf_counter() - began
    if result is None or isinstance(result, EagerResult):
        return {"id": None, "outcome": "None" if result is None else result.state}
    return {"id": result.id, "outcome": "sent", "seconds": took}


def main() -> None:
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        do = {"publish": publish, "send": send}[request.pop("do")]
        print(json.dumps(do(**request)), flush=True)


if __name__ == "__main__":
    main()
