"""Makes the pictures of docs/policies.md, and the moving one of docs/index.md.

Of docs/policies.md: the same burst of calls, under each policy, for real.

A Redis server, a worker with four pool slots, and for each policy one task with one lock. The
calls, and the bodies and the worker in `timeline_app.py`, write down what happens;
`timeline_svg.py` draws it. Of docs/index.md: a run of the demo, which `timeline_demo.py` draws.

From the top of the repository:

    python -m docs.make_timelines           # records and draws: `make pictures`
    python -m docs.make_timelines --draw    # draws again what was recorded
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis
from celery import Celery
from celery.result import AsyncResult

from celery_redislock import (
    Coalesce,
    Debounce,
    Defer,
    LockError,
    Policy,
    Queue,
    Raise,
    Replace,
    Skip,
    Wait,
)
from docs import timeline_demo
from docs.timeline_svg import Event, Recording, draw

PICTURES = Path(__file__).parent / "pictures"
RECORDED = PICTURES / "timelines.json"
DEMO = PICTURES / "demo.json"

#: By the picture's name: the policy, and how the page writes it.
POLICIES: dict[str, tuple[Policy, str]] = {
    "skip": (Skip(), "Skip()"),
    "skip-result": (Skip(result="skipped"), 'Skip(result="skipped")'),
    "defer": (Defer(delay=0.5), "Defer(delay=0.5)"),
    "wait": (Wait(), "Wait()"),
    "queue": (Queue(), "Queue()"),
    "coalesce": (Coalesce(), "Coalesce()"),
    "debounce": (Debounce(quiet=0.5), "Debounce(quiet=0.5)"),
    "raise": (Raise(), "Raise()"),
    "replace": (Replace(grace=0), "Replace(grace=0)"),
}
#: Seconds after the first at which the calls are sent, and that a body takes: longer where it is
#: to be ended before.
BURST = (0.0, 0.25, 0.5, 0.75, 1.6)
BODY = 1.0
BODIES = {"replace": 2.5}
SLOTS = 4
#: Where the worker takes its notes: a list on the server of the results.
NOTES = "timeline"

# -- the recording ----------------------------------------------------------------------------


def record(sender: Celery, server: redis.Redis, name: str) -> Recording:
    """Send the burst to one policy's task, and write down what becomes of it.

    Args:
        sender: an app with the worker's broker and result backend.
        server: the server on which the worker takes its notes.
        name: the policy's name.
    """
    server.delete(NOTES)
    sent: dict[str, float] = {}
    began = time.monotonic()
    for due in BURST:
        time.sleep(max(began + due - time.monotonic(), 0))
        at = time.monotonic()
        sent[sender.send_task(name).id] = at
        _await_notes(server)  # the worker may be late: the others must meet the first
    results = [sender.AsyncResult(task_id) for task_id in sent]
    for result in results:
        result.get(timeout=60, propagate=False)
    notes = _settled(server, len(sent))

    calls = {task_id: call for call, task_id in enumerate(sent, 1)}
    ended = {calls[r.id]: _told(r, calls) for r in results}
    events = [Event(at - began, calls[task_id], "sent") for task_id, at in sent.items()]
    events += [Event(at - began, calls[task_id], what) for at, task_id, what in notes]
    events += list(_replaced(events, results, calls))
    events += list(_terminated(events))
    events.sort(key=lambda event: event.at)
    return Recording(POLICIES[name][1], SLOTS, events, ended)


def _await_notes(server: redis.Redis) -> None:
    """Wait until a call is in its slot."""
    give_up = time.monotonic() + 30
    while not server.llen(NOTES):
        if time.monotonic() > give_up:
            raise RuntimeError("the first call did not arrive")
        time.sleep(0.005)


def _settled(server: redis.Redis, calls: int) -> list[Any]:
    """The notes, once every call has left its slot: results are there a moment before."""
    give_up = time.monotonic() + 30
    while True:
        notes = [json.loads(line) for line in server.lrange(NOTES, 0, -1)]
        said = {
            what: collections.Counter(task_id for _, task_id, it_was in notes if it_was == what)
            for what in ("arrives", "leaves", "starts", "ends")
        }
        # Of one that is killed nothing more is heard.
        killed = said["starts"] - said["ends"] - said["leaves"]
        left = said["leaves"] + killed
        if len(left) == calls and left == said["arrives"]:
            return notes
        if time.monotonic() > give_up:
            raise RuntimeError(f"the calls did not come to an end: {notes}")
        time.sleep(0.05)


def _told(result: AsyncResult, calls: dict[str, int]) -> tuple[str, str]:
    """A call's state, and what its result says."""
    error = result.result
    if not isinstance(error, LockError) or error.holder is None:
        return result.state, f'"{error}"' if error else ""
    other = calls[str(error.holder.task_id)]
    what = "takes its place" if other > calls[result.id] else "has the lock"
    return result.state, f"call {other} {what}"


def _replaced(events: list[Event], results: list[AsyncResult], calls: dict[str, int]) -> Any:
    """When a call was replaced in the waiting room: when the one that its result names came."""
    started = {event.call for event in events if event.what == "starts"}
    for result in results:
        holder = getattr(result.result, "holder", None)
        call = calls[result.id]
        if holder is not None and calls[holder.task_id] > call and call not in started:
            other = calls[holder.task_id]
            # It starts at once if the lock was released just then.
            came = ("coalesced", "debounced", "replacing", "starts")
            at = min(e.at for e in events if e.call == other and e.what in came)
            yield Event(at, call, "replaced")


def _terminated(events: list[Event]) -> Iterator[Event]:
    """When a body ended that was terminated, and its slot was left, as far as it did not say so."""
    starts = [event for event in events if event.what == "starts"]
    for call in {event.call for event in starts} - {e.call for e in events if e.what == "ends"}:
        since = max(event.at for event in starts if event.call == call)
        left = [e.at for e in events if e.call == call and e.what == "leaves" and e.at > since]
        at = min([*left, *(event.at for event in starts if event.at > since)])
        yield Event(at, call, "ends")
        if not left:
            yield Event(at, call, "leaves")


def record_all(names: list[str]) -> dict[str, Recording]:
    """Record these policies, on a server and a worker of their own."""
    from tests.support.servers import RedisServer
    from tests.support.workers import Worker, make_app

    with RedisServer() as server, server.client(db=2) as client:
        conf = {
            "broker_url": f"{server.url}/1",
            "result_backend": f"{server.url}/2",
            "redislock_url": f"{server.url}/0",
            "broker_connection_retry_on_startup": True,
            "worker_prefetch_multiplier": 1,
        }
        worker = Worker(conf=conf, app="docs.timeline_app", concurrency=SLOTS)
        try:
            worker.ready()
            sender = make_app(conf)
            return {name: record(sender, client, name) for name in names}
        finally:
            worker.close()


def draw_all(recordings: dict[str, Recording], folder: Path) -> None:
    """Draw these recordings, all on the same axis."""
    span = math.ceil(max(recording.end for recording in recordings.values()))
    for name, recording in recordings.items():
        (folder / f"{name}.svg").write_text(draw(recording, span), encoding="utf-8")


def draw_demo(recorded: Path, folder: Path) -> None:
    """Draw a run of the demo."""
    picture = timeline_demo.draw(timeline_demo.Recorded.load(recorded))
    (folder / "demo.svg").write_text(picture, encoding="utf-8")


def load(path: Path = RECORDED) -> dict[str, Recording]:
    """What was recorded last."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return {name: Recording.load(each) for name, each in data.items()}


def save(recordings: dict[str, Recording], path: Path = RECORDED) -> None:
    lines = [f"{json.dumps(name)}: {json.dumps(r.dump())}" for name, r in recordings.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--draw", action="store_true", help="draw again what was recorded")
    if not parser.parse_args().draw:
        PICTURES.mkdir(exist_ok=True)
        save(record_all(list(POLICIES)))
        demo = (sys.executable, "-m", "examples.demo", "--record", str(DEMO))
        subprocess.run(demo, check=True)
    draw_all(load(), PICTURES)
    draw_demo(DEMO, PICTURES)


if __name__ == "__main__":
    main()
