"""What travels with a message beside the task: the token of a delivery, the count of deferrals.

The token is minted once for each delivery, in the worker's main process, and handed to the pool
in the message's *properties*: there a retry does not copy it into the next message, as it
would a header. The deferrals travel in a header, and are taken out before the body runs.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Final

from ._lock import new_token

KEY: Final = "redislock"


def stamp(request_dict: dict[str, Any]) -> str:
    """Mint the token of a delivery and put it where the pool will find it."""
    token = new_token()
    mark = {"token": token, "received": time.time()}
    request_dict["properties"] = {**(request_dict.get("properties") or {}), KEY: mark}
    return token


@dataclasses.dataclass(slots=True)
class Delivery:
    """One delivery of a task's message.

    Attributes:
        token: the delivery's token.
        received: Unix time at which the worker got it, or None if nobody noted it.
        deferrals: how often the task was deferred before.
        since: Unix time at which the task first met a held lock, or None.
    """

    token: str
    received: float | None = None
    deferrals: int = 0
    since: float | None = None

    @classmethod
    def take_from(cls, request: Any) -> Delivery:
        """Read a running task's delivery, and take our header out of its request."""
        mark = (request.properties or {}).get(KEY) or {}
        header = request.__dict__.pop(KEY, None)
        if request.headers:
            header = request.headers.pop(KEY, header)
        if not isinstance(header, dict):
            header = {}
        return cls(
            token=mark.get("token") or new_token(),
            received=mark.get("received"),
            deferrals=int(header.get("deferrals", 0)),
            since=header.get("since"),
        )

    def next_header(self) -> dict[str, Any]:
        """The header of the message that this delivery is deferred to."""
        since = time.time() if self.since is None else self.since
        return {KEY: {"deferrals": self.deferrals + 1, "since": since}}

    @property
    def waited(self) -> float:
        """Seconds since the task first met a held lock, by the clocks of the machines involved."""
        return 0.0 if self.since is None else max(time.time() - self.since, 0.0)

    @property
    def long_ago(self) -> bool:
        """Whether the broker may have delivered another copy since: no visibility timeout is
        shorter than a second.
        """
        return self.received is None or time.time() - self.received >= 1.0
