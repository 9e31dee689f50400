"""What happens in a course: drawn beforehand, from a stream of its own, so that a failing course is
made smaller by leaving out calls and faults.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Collection
from typing import Any

from .tasks import Spec, Version, specs


@dataclasses.dataclass(frozen=True)
class Event:
    """A call, an operation, or a fault.

    Attributes:
        at: seconds since the course began.
        kind: what it is.
        args: more of it.
    """

    at: float
    kind: str
    args: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.at:8.3f} {self.kind} {' '.join(map(str, self.args))}"


@dataclasses.dataclass(frozen=True)
class Plan:
    """A course's plan.

    Attributes:
        seed: the seed from which it was drawn.
        shape: "dense": milliseconds and one key, which finds races; or "long": minutes, which finds
            storms and lateness.
        workers: how many workers there are; `children`: of each; `prefetch`: of each.
        visibility: the broker's visibility timeout; None if it is like RabbitMQ.
        ttl: of every lock.
        limit: of every lock.
        replicas: how many must confirm each acquisition.
        events: what happens.
        deployed: the tasks as a release has them that is deployed meanwhile.
        also: which of `WINGS` it has.
        schedule: names the streams of scheduling and delays.
    """

    seed: int
    shape: str
    workers: int
    children: int
    prefetch: int
    visibility: float | None
    ttl: float
    limit: int | str
    replicas: int
    specs: tuple[Spec, ...]
    events: tuple[Event, ...]
    deployed: tuple[Version, ...] = ()
    also: frozenset[str] = frozenset()
    schedule: int = 0

    @property
    def tasks(self) -> tuple[Version, ...]:
        """The tasks, as they are at first."""
        return tuple(Version(each.name, each, self.ttl, self.limit) for each in self.specs)

    def __str__(self) -> str:
        broker = "RabbitMQ" if self.visibility is None else f"Redis, {self.visibility:.0f} s"
        return (
            f"seed {self.seed}, {self.shape}: {self.workers} workers of {self.children}, prefetch"
            f" {self.prefetch}, broker like {broker}, ttl {self.ttl}, limit {self.limit},"
            f" {len(self.events)} events{''.join(f', {name}' for name in sorted(self.also))}"
        )


#: What a fault may be, with the chance of each beside the others.
FAULTS = {
    "kill child": 5, "stop child": 2, "kill worker": 2, "shut down": 2, "lose broker": 3,
    "lose requests": 3, "lose replies": 3, "late": 3, "cut": 3, "double": 2,
    "restart": 1, "restart empty": 1, "full": 2, "read only": 1, "stop server": 2, "broker away": 1,
}  # fmt: skip
#: Those that each have a stream of their own, with the share of the plans with faults that have it:
#: a new one changes the other plans as little as possible.
MORE_FAULTS = {
    "fail over": 0.12, "shut down cold": 0.1, "worker's clock": 0.1, "server's clock": 0.1,
    "no replica": 0.1, "late replica": 0.1, "deploy": 0.12,
}  # fmt: skip


#: What some plans have, too, with their share. Each has a stream of its own: the rest of a plan is
#: as it would be without it.
WINGS = {
    "looks": 0.3,  # operators list the locks
    "crowd": 0.05,  # many coroutines of one process wait for a lock each
    "large messages": 0.1,  # which the lock server refuses
    "offer_for": 0.3,  # what no worker takes ends soon
    "limit falls": 0.5,  # and rises again, if it is a callable
    "discreet server": 0.1,  # it does not tell its id, and closes idle connections
}


def draw(
    seed: int,
    faults: bool | None = None,
    suspends: bool | None = None,
    wanted: Collection[str] = (),
    is_plain: bool = False,
) -> Plan:
    """The plan of this seed.

    Args:
        seed: the seed.
        faults: whether there are faults; None if the seed says so.
        suspends: whether operators suspend something, likewise.
        wanted: what it has in any case, of what has a stream of its own.
        is_plain: it has nothing else of `WINGS`.
    """
    r = random.Random(f"{seed} plan")
    shape = r.choice(["dense", "long"])
    limit = r.choice([1, 1, 1, 1, 2, "callable"])
    known = specs(limit)
    few = tuple(dict.fromkeys(r.choice(known) for _ in range(r.choice([1, 2, 3, 4, 5]))))
    has_faults = r.random() < 0.6 if faults is None else faults
    events = _calls(r, shape, few)
    last = events[-1].at
    of_operators = random.Random(f"{seed} suspensions")
    if of_operators.random() < 0.5 if suspends is None else suspends:
        events += _suspensions(of_operators, shape, few, last)
    if has_faults:
        kinds, weights = list(FAULTS), list(FAULTS.values())
        some = r.choices(kinds, weights, k=r.choice([1, 2, 3]))
        events += [_fault(r, shape, r.choice(some)) for _ in range(r.choice([1, 2, 4, 8]))]
    for kind, share in MORE_FAULTS.items():
        of_kind = random.Random(f"{seed} {kind}")
        if kind in wanted or (of_kind.random() < share and has_faults):
            events += [_fault(of_kind, shape, kind) for _ in range(of_kind.choice([1, 1, 2]))]
    streams = {name: random.Random(f"{seed} {name}") for name in WINGS}
    also = frozenset(
        name
        for name, share in WINGS.items()
        if (streams[name].random() < share and not is_plain) or name in wanted
    )
    for name in [each for each in _MORE if each in also]:
        events = _MORE[name](streams[name], shape, last, events)
    events.sort(key=lambda event: event.at)
    return Plan(
        seed, shape,
        workers=r.choice([1, 1, 2, 3]),
        children=r.choice([1, 2, 4, 8]),
        prefetch=r.choice([1, 4, 16]),
        visibility=r.choice([None, None, 3600.0, 60.0]),
        ttl=r.choice([2.0, 6.0, 30.0]),
        limit=limit,
        replicas=int(any("replica" in event.kind for event in events)),
        specs=few,
        events=tuple(events),
        deployed=_deployed(random.Random(f"{seed} release"), few)
        * any(event.kind == "deploy" for event in events),
        also=also,
    )  # fmt: skip


def _calls(r: random.Random, shape: str, few: tuple[Spec, ...]) -> list[Event]:
    events = []
    dense = shape == "dense"
    keys = "a" if dense else r.choice(["a", "ab", "abc"])
    lengths = [0.0, 0.001, 0.005, 0.02] if dense else [0.05, 0.5, 0.5, 2.0, 2.0, 7.0, 45.0]
    gaps = [0.0, 0.0, 0.002, 0.01] if dense else [0.0, 0.0, 0.01, 1.0, 3.0, 10.0]
    at = 0.0
    for _ in range(r.choice([6, 12, 24, 40] if dense else [6, 12, 20])):
        at += r.choice(gaps) * r.random()
        kinds = ["call", "chain", "chord", "lock", "coroutines", "operate"]
        kind = r.choices(kinds, [20, 1, 1, 1, 0.5, 1])[0]
        key, seconds = r.choice(keys), r.choice(lengths)
        if kind == "call":
            options: dict[str, Any] = {}
            if r.random() < 0.1:
                options["countdown"] = r.choice([0.01, 1, 5])
            if r.random() < 0.05 and not dense:
                options["expires"] = r.choice([2, 10, 60])
            if r.random() < 0.1:
                options["priority"] = r.randrange(10)
            does = _does(r, dense)
            events.append(Event(at, "call", (r.choice(few).name, key, seconds, does, options)))
        elif kind in ("chain", "chord"):
            names = [r.choice(few).name for _ in range(r.choice([2, 3]))]
            events.append(Event(at, kind, (names, key, seconds)))
        elif kind == "lock":
            events.append(Event(at, "lock", (key, seconds, r.choice([None, 0, 1.0]))))
        elif kind == "coroutines":
            events.append(Event(at, kind, (key, min(seconds, 2.0), r.choice([1, 2, 4]))))
        else:
            what = r.choice(["list", "list", "drop", "break", "list"])
            events.append(Event(at, what, (key, r.choice([1, 4, 12, 40]))))
    return events


def _suspensions(r: random.Random, shape: str, few: tuple[Spec, ...], last: float) -> list[Event]:
    """What an operator suspends, sets anew and resumes: a task, or a lock by its name."""
    events: list[Event] = []
    dense = shape == "dense"
    targets = [("task", each.name) for each in few] + [("lock", "a"), ("lock", "b")]
    for target in r.choices(targets[: -1 if dense else None], k=r.choice([1, 1, 2, 4])):
        at = r.uniform(0.0, last * 0.8)
        for _ in range(r.choice([1, 1, 1, 2, 3])):
            seconds = r.choice([0.5, 2, 7, 20, 90, 400])
            events.append(Event(round(at, 4), "suspend", (*target, seconds)))
            at += r.uniform(0.0, seconds) * r.choice([0.02, 0.3, 1])
        if r.random() < 0.5:
            events.append(Event(round(at, 4), "resume", target))
    return events


def _looks(r: random.Random, shape: str, last: float, events: list[Event]) -> list[Event]:
    after = 0.5 if shape == "dense" else 30.0
    at = [r.uniform(0.0, last + after) for _ in range(r.choice([2, 5, 10]))]
    return [*events, *(Event(round(each, 4), "look") for each in at)]


def _crowd(r: random.Random, shape: str, last: float, events: list[Event]) -> list[Event]:
    args = (r.choice([16, 32, 45]), r.choice([0.5, 3.0]))
    return [*events, Event(round(r.uniform(0.0, last), 4), "crowd", args)]


def _large(r: random.Random, shape: str, last: float, events: list[Event]) -> list[Event]:
    """Some calls with messages that are as large as this."""
    return [
        dataclasses.replace(event, args=(*event.args[:4], {**event.args[4], "size": 100_000}))
        if event.kind == "call" and r.random() < 0.2
        else event
        for event in events
    ]


_MORE: dict[str, Callable[[random.Random, str, float, list[Event]], list[Event]]] = {
    "looks": _looks, "crowd": _crowd, "large messages": _large,
}  # fmt: skip


def _does(r: random.Random, dense: bool) -> list[Any]:
    """What a body does beside taking time."""
    what = r.choices(
        ["", "retry", "pause", "pause and retry", "describe", "raise", "replace"],
        [24, 4, 2, 2, 2, 2, 1],
    )[0]
    countdown = r.choice([0, 0, 0.01] if dense else [0, 1, 6])
    seconds = r.choice([0.5, 4])
    return [what, countdown, seconds] if what else []


def _deployed(r: random.Random, few: tuple[Spec, ...]) -> tuple[Version, ...]:
    """The tasks of a later release: some have other options."""
    made = []
    for each in few:
        limit: int | str = r.choice([1, 1, 1, 2, "callable"])
        spec = each if r.random() < 0.2 else r.choice(specs(limit))
        if spec not in specs(limit):
            limit = 1
        key = r.choice(["{key}", "{key}", "{key}", "{key}", "other {key}", ""])
        made.append(Version(each.name, spec, r.choice([2.0, 6.0, 30.0]), limit, key))
    return tuple(made)


def _fault(r: random.Random, shape: str, kind: str) -> Event:
    most = 0.5 if shape == "dense" else 40.0
    at = r.uniform(0.0, most)
    which, waits = r.randrange(100), r.choice([0, 1, 2, 3, 5, 8, 13, 21])
    seconds = r.choice([0.05, 0.5, 1.0, 3.0, 12.0])
    share = r.choice([0.02, 0.1, 0.4])
    return Event(round(at, 4), kind, (which, waits, seconds, share))


def pairs(plan: Plan) -> set[tuple[str, str]]:
    """What this plan has together: policies with options, and each of these with faults."""
    faults = {event.kind for event in plan.events if event.kind in IS_FAULT}
    return {
        pair
        for each in plan.specs
        for pair in [
            (each.policy, each.option),
            *((what, fault) for fault in faults for what in (each.policy, each.option)),
        ]
    }


def all_pairs() -> set[tuple[str, str]]:
    """The pairs that plans have, sooner or later."""
    known = specs(1)
    return {(each.policy, each.option) for each in known} | {
        (what, fault) for each in known for what in (each.policy, each.option) for fault in IS_FAULT
    }


#: Kinds of events that are faults.
IS_FAULT = frozenset({*FAULTS, *MORE_FAULTS})
