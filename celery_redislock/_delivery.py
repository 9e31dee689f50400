"""What travels with a message beside the task: the token of a delivery, the count of deferrals.

The token is minted once for each delivery, in the worker's main process, and handed to the pool
in the message's *properties*: there a retry does not copy it into the next message, as it
would a header. The deferrals travel in a header, and are taken out before the body runs. So does
the reservation: which lock, and the token under which it is kept for the message.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ._lock import new_token

KEY: Final = "redislock"


def stamp(request_dict: dict[str, Any], events: bool = False) -> str:
    """Mint the token of a delivery and put it where the pool will find it.

    Args:
        request_dict: the request.
        events: whether the worker sends events.
    """
    token = new_token()
    mark: dict[str, Any] = {"token": token, "received": time.time()}
    if events:
        mark["events"] = True
    request_dict["properties"] = {**(request_dict.get("properties") or {}), KEY: mark}
    return token


class Reservation(NamedTuple):
    """A lock that is kept for a message: the mark of its keys, and the token."""

    mark: str
    token: str

    @property
    def header(self) -> dict[str, Any]:
        return {"reserved": [self.mark, self.token]}

    @classmethod
    def of(cls, header: Any) -> Reservation | None:
        """What a message's header says of it."""
        if not isinstance(header, Mapping):
            return None
        found = header.get("reserved")
        if not isinstance(found, list | tuple) or len(found) != 2:
            return None
        mark, token = found
        return cls(mark, token) if isinstance(mark, str) and isinstance(token, str) else None


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Delivery:
    """One delivery of a task's message.

    Attributes:
        token: the delivery's token.
        received: Unix time at which the worker got it, or None if nobody noted it.
        first_received: the same of the task's first delivery, however often it was deferred; None
            for a retry and for a replacement, which are older than they look.
        redelivered: the broker said that it had delivered the message before, or a deferral did.
        deferrals: how often the task was deferred before.
        outages: how often in a row, up to now, because the lock server was not available.
        since: Unix time at which the task first met a held lock, or None.
        chain: which chain of deferrals the message belongs to, or None. Copies of a message
            belong to the same, at the same step, and only one of them goes on with it.
        step: the message's place in the chain.
        parked: it comes from a waiting room.
        copied: it was put into one, perhaps: there may be another copy of its message.
        gave_up: it waited there for as long as it would.
        reservation: the lock that is kept for the message, or None.
        events: the worker that runs it sends events.
    """

    token: str
    received: float | None = None
    first_received: float | None = None
    redelivered: bool = False
    deferrals: int = 0
    outages: int = 0
    since: float | None = None
    chain: str | None = None
    step: int = 0
    parked: bool = False
    copied: bool = False
    gave_up: bool = False
    reservation: Reservation | None = None
    events: bool = False

    @classmethod
    def take_from(cls, request: Any) -> Delivery:
        """Read a running task's delivery, and take our header out of its request."""
        mark = (request.properties or {}).get(KEY) or {}
        header = request.__dict__.pop(KEY, None)
        if request.headers:
            header = request.headers.pop(KEY, header)
        if not isinstance(header, dict):
            header = {}
        received = mark.get("received")
        found = cls(
            token=mark.get("token") or new_token(),
            received=received,
            redelivered=bool((request.delivery_info or {}).get("redelivered")),
            events=bool(mark.get("events")),
        )
        if not request.retries and not request.replaced_task_nesting:
            found.first_received = header.get("first_received", received)
        if header:
            found._read(header)
        return found

    def _read(self, header: Mapping[str, Any]) -> None:
        self.redelivered = self.redelivered or bool(header.get("redelivered"))
        self.deferrals = int(header.get("deferrals", 0))
        self.outages = int(header.get("outages", 0))
        self.since = header.get("since")
        self.chain = header.get("chain")
        self.step = int(header.get("step", 0))
        self.parked = bool(header.get("parked"))
        self.gave_up = bool(header.get("gave_up"))
        self.reservation = Reservation.of(header)

    def next_step(self, chain: str) -> int:
        """The step of that chain that this delivery is deferred to."""
        return self.step + 1 if chain == self.chain else 1

    def next_header(self, chain: str, *, outage: bool) -> dict[str, Any]:
        """The header of the message that this delivery is deferred to."""
        header = {
            "deferrals": self.deferrals + 1,
            "outages": self.outages + 1 if outage else 0,
            "since": time.time() if self.since is None else self.since,
            "first_received": self.first_received,
            "redelivered": self.redelivered or self.copied,
            "chain": chain,
            "step": self.next_step(chain),
        }
        if self.reservation is not None:  # the server may have been away
            header.update(self.reservation.header)
        return {KEY: header}

    def parked_header(self) -> dict[str, Any]:
        """The header of the message of a task that waited in a room. It may be published twice,
        so each is a copy.
        """
        header = {
            "deferrals": self.deferrals,
            "since": time.time() if self.since is None else self.since,
            "first_received": self.first_received,
            "redelivered": True,
            "parked": True,
        }
        return {KEY: header}

    @property
    def met_lock(self) -> bool:
        """Whether it, or an earlier one of its task, met a held lock, and so may have ended in an
        event that stands for a state.
        """
        return bool(self.deferrals or self.parked or self.redelivered)

    @property
    def waited(self) -> float:
        """Seconds since the task first met a held lock, by the clocks of the machines involved."""
        return 0.0 if self.since is None else max(time.time() - self.since, 0.0)

    @property
    def age(self) -> float:
        """Seconds since the worker got it; without end if nobody noted when."""
        return float("inf") if self.received is None else time.time() - self.received
