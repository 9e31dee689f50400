"""Looks at what the Redis broker holds, again and again, and writes down where each message is.

Kombu's Redis transport takes a message from its list with BRPOP, and only then notes in `unacked`
that a worker has it. A worker that is killed in between loses the message. With what is written
here the checker can tell that loss from ours.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable
from typing import Any

import redis

from tests.proofs.history import History

#: Seconds between two looks.
LOOK_EVERY = 0.05
QUEUE, UNACKED, NOWHERE = "queue", "unacked", "nowhere"


class Recorder:
    """A thread that writes a `place` for each change that it sees: the message's `tag`, its task's
    `id`, `where` it is now, and `since` when it may have been there.

    Args:
        history: where that is written.
        client: of the broker's database. It is not faulted.
        queues: the lists that workers take messages from.
    """

    def __init__(self, history: History, client: redis.Redis, queues: Iterable[str]) -> None:
        self._history = history
        self._client = client
        self._queues = list(queues)
        self._places: dict[str, str] = {}
        self._ids: dict[str, str] = {}
        self._looked_at = time.monotonic()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    def __enter__(self) -> Recorder:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(LOOK_EVERY):
            self.look()

    def look(self) -> None:
        """Look once."""
        began = time.monotonic()
        *queues, unacked = self._ask()
        now: dict[str, str] = dict.fromkeys(unacked, UNACKED)
        for message in (each for queue in queues for each in queue):
            tag, task_id = _tag_and_id(json.loads(message))
            self._ids[tag] = task_id
            now[tag] = QUEUE
        self._learn_ids(now)
        for tag in {**self._places, **now}:
            where = now.get(tag, NOWHERE)
            if tag in self._ids and where != self._places.get(tag):
                self._write(tag, where)
        self._places = {tag: where for tag, where in now.items() if tag in self._ids}
        self._looked_at = began

    def _ask(self) -> list[Any]:
        with self._client.pipeline(transaction=True) as pipe:
            for queue in self._queues:
                pipe.lrange(queue, 0, -1)
            pipe.hkeys("unacked")
            return list(pipe.execute())

    def _learn_ids(self, tags: Iterable[str]) -> None:
        """Of messages that were never seen in a queue."""
        new = [tag for tag in tags if tag not in self._ids]
        for tag, value in zip(new, self._client.hmget("unacked", new) if new else (), strict=True):
            if value is not None:
                _, self._ids[tag] = _tag_and_id(json.loads(value)[0])

    def _write(self, tag: str, where: str) -> None:
        about = {"id": self._ids[tag], "tag": tag, "where": where}
        self._history.write("place", since=self._looked_at, **about)


def _tag_and_id(message: Any) -> tuple[str, str]:
    return message["properties"]["delivery_tag"], (message.get("headers") or {}).get("id") or ""
