"""What travels with a message beside the task: our header, and the token of its delivery.

The worker's main process mints one token for each delivery, and passes it to the pool in the
message's *properties*: a retry copies headers into the next message, but not properties. In the
same way it passes the queue that the message came from, which only it knows. The header says what
is kept for the message (a reservation from when it was sent, or a place in a waiting room), by lock
id and token. So any process that has the message can settle that, even if the task has changed
since. The header is removed before the body runs.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ..protocol.claims import Place
from ..protocol.clock import clock
from ..protocol.entries import id_of
from ..protocol.holders import Holder
from ..protocol.keys import LockKeys, limit_of_lock_id, name_of_lock_id
from ..protocol.tokens import new_token
from .brokers import Origin
from .formats import is_newer

KEY: Final = "redislock"
#: Tells this worker's deliveries from those of others. A forked copy of it has the same `clock`.
WORKER: Final = new_token()[:16]
#: The version of the header, see `formats`.
VERSION: Final = 2


def attempt_of(raw: Mapping[str, Any]) -> tuple[str, int, int]:
    """Which attempt a request is: the task's id, how many retries, how many replacements."""
    return raw.get("id") or "", raw.get("retries") or 0, raw.get("replaced_task_nesting") or 0


def is_from_newer(raw: Mapping[str, Any]) -> bool:
    """Whether a newer release wrote the message's header. We then read nothing of it."""
    header = raw.get(KEY)
    return isinstance(header, Mapping) and is_newer(
        "messages, which go back to their queue", header.get("v", 1), VERSION
    )


class Source(NamedTuple):
    """Where a message came from."""

    queue: str | None  # to publish the message to again; None if there is none, or it is not known
    fanout: bool = False  # a copy of the message went to each queue of a fanout exchange


def restore_route(raw: Mapping[str, Any]) -> None:
    """Give a message that we published the route of its first one: a retry is sent with it."""
    header = raw.get(KEY)
    if not isinstance(header, Mapping) or is_from_newer(raw):
        return
    route = header.get("route")
    # Anybody may write a header, and no error may reach the worker's consumer.
    if isinstance(route, list | tuple) and all(isinstance(each, str) for each in route):
        raw["delivery_info"].update(zip(("exchange", "routing_key"), route, strict=False))


def stamp(
    raw: dict[str, Any],
    events: bool,
    content_type: str | None,
    origin: Origin,
    source: Source,
) -> str:
    """Mint a delivery's token, and put it and what the worker knows into the pool's request."""
    token = new_token()
    stamped: dict[str, Any] = {
        "token": token,
        "received": clock(),
        "worker": WORKER,
        "queue": source.queue,
    }
    if source.fanout:
        stamped["fanout"] = True
    if events:
        stamped["events"] = True
    if content_type:
        stamped["content_type"] = content_type
    if origin.sent is not None:
        stamped["sent"] = origin.sent
    if origin.redelivered:
        stamped["redelivered"] = True
    raw["properties"] = {**(raw.get("properties") or {}), KEY: stamped}
    return token


def hand_on_done_key(raw: Mapping[str, Any], key: str) -> None:
    """Leave the key of the run's done note for `done_key_of`, in this very process."""
    stamped = (raw.get("properties") or {}).get(KEY)
    if isinstance(stamped, dict):
        stamped["done_key"] = key


def done_key_of(raw: Mapping[str, Any]) -> str | None:
    """The key that the run of this request has handed on, if any."""
    key: str | None = raw["properties"][KEY].get("done_key")
    return key


def replaces_another(raw: Mapping[str, Any]) -> bool:
    """Whether, by our header, the message replaces one that may come back."""
    header = raw.get(KEY)
    if not isinstance(header, Mapping):
        return False
    return bool(header.get("redelivered") or header.get("deferrals") or header.get("parked"))


def take_header(raw: dict[str, Any]) -> Any:
    """Take our header out of a request, so that a retry does not copy it into the next message."""
    header = raw.pop(KEY, None)
    headers = raw.get("headers")
    if isinstance(headers, Mapping) and KEY in headers:
        # A new dict: the old one may be the user's or the caller's.
        raw["headers"] = {k: v for k, v in headers.items() if k != KEY}
    return header


class Kept(NamedTuple):
    """What is reserved for a message: the lock, or a place in a waiting room, or both."""

    lock_id: str  # see `LockKeys`
    token: str  # under which the lock is kept; "" if no lock is kept
    place: Place | None = None  # in the waiting room that the message came from

    @property
    def header(self) -> dict[str, Any]:
        """The part of our header that names it."""
        part: dict[str, Any] = {"kept": [self.lock_id, self.token]}
        if self.place is not None:
            part.update(parked=self.place.member, receipt=self.place.receipt)
        return part

    def is_of(self, keys: LockKeys) -> bool:
        """Whether it is of this lock, whatever its limit was."""
        return name_of_lock_id(self.lock_id) == keys.name

    def has_more_slots(self, keys: LockKeys) -> bool:
        """Whether its lock has more slots than the lock with these keys."""
        try:
            return limit_of_lock_id(self.lock_id) > len(keys.slots) + 1
        except ValueError:  # anybody may write a header
            return False

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Kept | None:
        """The reservation or room place that these headers name; None if they name none."""
        header = raw.get(KEY)
        if not isinstance(header, Mapping) or is_from_newer(raw):
            return None
        pair = header.get("kept")
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            return None
        lock_id, token = pair
        if not isinstance(lock_id, str) or not isinstance(token, str) or not lock_id:
            return None
        task_id, attempt, nesting = attempt_of(raw)
        member = header.get("parked")
        if not isinstance(member, str):
            return cls(lock_id, token)
        receipt = header.get("receipt")  # earlier releases do not say it
        receipt = receipt if isinstance(receipt, str) else ""
        return cls(lock_id, token, Place(member, id_of(task_id, nesting, attempt), receipt))


# Not frozen: making one would take six times as long.
@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Delivery:
    """What is known of one delivery of a message. Whatever is learned makes a new `Delivery`."""

    token: str
    received: float | None = None  # when the worker got the message, on `clock`, if noted
    worker: str = ""  # `WORKER` of the worker that got it; "" if the task met another one before
    #: Unix time at which the task first met a worker, by the lock server's clock; None while that
    #: is not known.
    arrived: float | None = None
    #: The task may have begun: the broker said that the message, or the one that was deferred to
    #: it, had been delivered before; or the lock server said that another copy runs, or has run.
    began: bool = False
    copied: bool = False  # another copy of the message may exist, or have existed
    deferrals: int = 0  # how often the task was deferred before
    outages: int = 0  # how many of the last deferrals in a row were for the lock server's outage
    behind: int = 0  # how many of them were behind another run of the task
    since: float | None = None  # Unix time when it first met a held lock or was deferred
    gave_up: bool = False  # the task's time in the waiting room is over
    parked: bool = False  # the message comes from a waiting room
    #: If a suspension was the last reason to put the task off or to park it: that, as text.
    suspended: str | None = None
    sent: str = ""  # the identity of the message, which all copies of it share; "" if it has none
    content_type: str | None = None
    events: bool = False  # the worker that runs the task sends events
    queue: str | None = None  # see `Source`, also for `fanout`
    fanout: bool = False
    route: tuple[str | None, str | None] = (None, None)  # the first exchange and routing key
    replaced_by: Holder | None = None  # the task that replaced this one, which therefore ends

    @classmethod
    def take_from(cls, raw: dict[str, Any]) -> Delivery:
        """Read a delivery from its request, and take our header out of the request."""
        properties = raw.get("properties") or {}
        stamped = properties.get(KEY) or {}
        info = raw.get("delivery_info") or {}
        header = take_header(raw) if KEY in raw or raw.get("headers") else None
        redelivered = bool(stamped.get("redelivered") or info.get("redelivered"))
        delivery = cls(
            token=stamped.get("token") or new_token(),
            received=stamped.get("received"),
            worker=stamped.get("worker", ""),
            began=redelivered,
            copied=redelivered,
            # Most of kombu's transports give each message a tag when it is sent.
            sent=str(stamped.get("sent", properties.get("delivery_tag")) or ""),
            content_type=stamped.get("content_type"),
            events=bool(stamped.get("events")),
            queue=stamped.get("queue"),
            fanout=bool(stamped.get("fanout")),
            route=(info.get("exchange"), info.get("routing_key")),
        )
        if isinstance(header, Mapping):
            delivery._read(header)
        return delivery

    def _read(self, header: Mapping[str, Any]) -> None:
        is_copy = bool(header.get("redelivered"))
        self.copied = self.copied or is_copy
        # Earlier releases do not say whether a copy has begun. One straight from a room has not;
        # one that was put off since may be all that is left of a run.
        self.began = self.began or bool(header.get("began", is_copy and "parked_at" not in header))
        self.deferrals = int(header.get("deferrals", 0))
        self.outages = int(header.get("outages", 0))
        self.behind = int(header.get("behind", 0))
        self.since = header.get("since")
        self.arrived = header.get("arrived")
        if self.arrived is not None:
            self.worker = ""
        self.gave_up = bool(header.get("gave_up"))
        self.parked = bool(header.get("parked"))
        suspended = header.get("suspended")
        self.suspended = suspended if isinstance(suspended, str) else None
        # This replaces the broker's tag, which only this copy has.
        self.sent = header.get("sent") or ""
        by = header.get("replaced_by")
        if isinstance(by, Mapping):
            self.replaced_by = Holder.from_dict(by)

    def next_header(
        self,
        kept: Kept | None,
        *,
        copied: bool,
        outage: bool = False,
        behind: bool = False,
        suspended: str | None = None,
    ) -> dict[str, Any]:
        """The header of the message to which this delivery is deferred, and this one's reservation
        or place moves: `copied` if another copy of this message may exist, `outage` if the lock
        server is not available, `behind` if another run of the task has the lock, `suspended` if
        operators have suspended that.
        """
        return self._header(
            deferrals=self.deferrals + 1,
            outages=self.outages + 1 if outage else 0,
            behind=self.behind + 1 if behind else 0,
            redelivered=self.copied or copied,
            suspended=suspended,
            **({} if kept is None else kept.header),
        )

    def replaced_header(self, by: Holder) -> dict[str, Any]:
        """The header for the message of a task that was replaced, and ends with a result."""
        return self._header(redelivered=True, replaced_by=by.to_dict())

    def parked_header(
        self,
        broker: str,
        label: str | None = None,
        has_result: bool = False,
        suspended: str | None = None,
    ) -> dict[str, Any]:
        """The header for the message of a task that waits in a room, and belongs to the broker with
        this digest. It may be published twice, so it is called a copy. `has_result`: the task ends
        with a result if it is replaced, which the worker knows that ends it. `suspended`: it waits
        for that.
        """
        more: dict[str, Any] = {} if label is None else {"label": label}
        if has_result:
            more["has_result"] = True
        return self._header(
            deferrals=self.deferrals,
            redelivered=True,
            parked=True,
            broker=broker,
            parked_at=time.time(),
            suspended=suspended,
            **more,
        )

    def _header(self, **more: Any) -> dict[str, Any]:
        """The header of the task's next message."""
        header = {
            "v": VERSION,
            "began": self.began,
            "since": time.time() if self.since is None else self.since,
            "arrived": self.arrived,
            "sent": self.sent,
            "route": self.route,
        }
        return {KEY: {**header, **more}}

    @property
    def cannot_come_back(self) -> bool:
        """Whether a requeued message would reach other workers, too."""
        return self.fanout and self.queue is None

    @property
    def met_lock(self) -> bool:
        """Whether the task met a held lock, so that monitors may show an event of ours for it."""
        return bool(self.deferrals or self.parked or self.copied)

    @property
    def waited(self) -> float:
        """Seconds since `since`, by the clocks of the machines involved."""
        return 0.0 if self.since is None else max(time.time() - self.since, 0.0)

    @property
    def age(self) -> float:
        """Seconds since the worker got the message; infinite if nobody noted when."""
        return float("inf") if self.received is None else clock() - self.received

    @property
    def receipt(self) -> str:
        """Which worker first got the task, and when, as `scripts/park.lua` reads it; or ""."""
        if self.received is None or not self.worker:
            return ""
        return f"{self.worker}:{self.received * 1e6:.0f}"
