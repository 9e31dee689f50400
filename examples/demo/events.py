"""Events of the demo's processes, which write them to a list on the embedded server.

Times are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Final, cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

_KEY: Final = "demo:events"
#: Seconds that the embedded server may take for an answer.
_PATIENCE: Final = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened.

    Attributes:
        kind: "ready" (a worker), "fired" (a task was sent), "arrived" (in a worker's pool),
            "start" and "end" of a body, "killed"; and as the package's signals say it:
            "acquired", "released", "conflict", "lost".
        at: when, on the monotonic clock.
        node: in which of the demo's processes, such as "one" or "beat".
        pid: in which process of it.
        task_id: the task's id.
        row: the lock that the task is about, as `scenes.ROWS` names it; "" if it was not known
            where the event was written.
        data: what else belongs to this kind.
    """

    kind: str
    at: float
    node: str
    pid: int
    task_id: str = ""
    row: str = ""
    data: dict[str, Any] = dataclasses.field(default_factory=dict)


class Log:
    """The list of events. Written by all processes, read by one."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(
            url,
            socket_timeout=_PATIENCE,
            socket_connect_timeout=_PATIENCE,
            retry=Retry(NoBackoff(), 0),
        )
        self._read = 0

    def answers(self) -> bool:
        """Whether the server is there."""
        try:
            return bool(self._client.ping())
        except redis.RedisError:
            return False

    def write(self, event: Event) -> None:
        self._client.rpush(_KEY, json.dumps(dataclasses.asdict(event)))

    def read_new(self) -> list[Event]:
        """The events that came since the last call, in the order of their times.

        Raises:
            redis.RedisError: the server does not answer.
        """
        lines = cast("list[bytes]", self._client.lrange(_KEY, self._read, -1))
        self._read += len(lines)
        return sorted((Event(**json.loads(line)) for line in lines), key=lambda event: event.at)
