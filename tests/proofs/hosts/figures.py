"""What the rounds come to: figures, their tables, and what is wrong with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any

from .history import Event, Holding, answers, holdings, twice
from .rounds import MEANWHILE, Cut, Kind, Trouble


@dataclasses.dataclass
class CutFigures:
    """One group of locks over all rounds in which A was cut off. Times are in seconds from the cut.

    Attributes:
        kind: the lock server.
        held: where the locks were held before.
        locks: how many.
        until: for each lock that was lost, when its holder was last told that it is held.
        told: and when it was told that it is lost. In between it asks the server once more.
        anew: for each lock that was acquired after the cut, when.
        twice: for each two that held a lock at a time, how long.
        fences: of these, in how many the later one's fence was higher.
    """

    kind: str
    held: str
    locks: int = 0
    until: list[float] = dataclasses.field(default_factory=list)
    told: list[float] = dataclasses.field(default_factory=list)
    anew: list[float] = dataclasses.field(default_factory=list)
    twice: list[float] = dataclasses.field(default_factory=list)
    fences: int = 0

    HEAD = (
        *("lock server", "held", "locks", "lost", "believed until", "at most", "told at most"),
        *("acquired anew after", "at least", "held twice", "for", "at most", "fence rose"),
    )

    def add(self, cut: Cut, held: Sequence[Holding]) -> None:
        """Count a round."""
        names = cut.groups[self.held]
        self.locks += len(names)
        for name in names:
            of_name = [each for each in held if each.name == name]
            self._add_first(cut, of_name)
        for each in twice([each for each in held if each.name in names]):
            self.twice.append(each.seconds)
            self.fences += each.fence_rose

    def _add_first(self, cut: Cut, held: Sequence[Holding]) -> None:
        """Count what happened to a lock: to its first holder, and who had it then."""
        before = [each for each in held if each.since < cut.cut_at and each.told is not None]
        after = [each for each in held if each.since >= cut.cut_at]
        self.until += [each.until - cut.cut_at for each in before]
        self.told += [each.told - cut.cut_at for each in before if each.told is not None]
        self.anew += [each.since - cut.cut_at for each in after[:1]]

    def row(self) -> tuple[Any, ...]:
        is_new = self.held == MEANWHILE
        return (
            *(self.kind, self.held, self.locks, "-" if is_new else len(self.told)),
            *(middle(self.until), most(self.until), most(self.told)),
            *(("-", "-") if is_new else (middle(self.anew), least(self.anew))),
            *(len(self.twice), middle(self.twice), most(self.twice)),
            f"{self.fences} of {len(self.twice)}" if self.twice else "-",
        )


def cut_figures(kind: Kind, cuts: Sequence[Cut]) -> list[CutFigures]:
    """The figures of one lock server, for each group of locks."""
    found = [CutFigures(kind.label, group) for group in cuts[0].groups]
    for cut in cuts:
        held = _ended_before(cut.events, cut.ended_at)
        for each in found:
            each.add(cut, held)
    return found


def _ended_before(events: Iterable[Event], ended_at: float) -> list[Holding]:
    """The holdings as they were then."""
    return [
        dataclasses.replace(each, until=min(each.until, ended_at))
        for each in holdings(events)
        if each.since < ended_at
    ]


@dataclasses.dataclass
class TroubleFigures:
    """One lock server while A's link was bad.

    Attributes:
        kind: the lock server.
        trouble: what was wrong with the link.
        asked: acquire requests.
        taken, busy: how many of these took the lock, and found it held.
        on_a, on_b, on_c: the part of a host's requests, in percent, that found the lock
            unavailable.
        lost: holders that were told that they lost their lock.
        twice: two that held a lock at a time.
        longest: for how many seconds at most.
    """

    kind: str
    trouble: str
    asked: int
    taken: int
    busy: int
    on_a: float
    on_b: float
    on_c: float
    lost: int
    twice: int
    longest: float

    HEAD = (
        *("lock server", "link of A", "asked", "taken", "busy", "unavailable on A, %"),
        *("on B, %", "on C, %", "lost", "held twice", "for at most"),
    )

    def row(self) -> tuple[Any, ...]:
        numbers = (self.kind, self.trouble, self.asked, self.taken, self.busy)
        shares = (f"{each:.0f}" for each in (self.on_a, self.on_b, self.on_c))
        return (*numbers, *shares, self.lost, self.twice, most([self.longest] * self.twice))


def trouble_figures(kind: Kind, trouble: str, seen: Trouble) -> TroubleFigures:
    held = _ended_before(seen.events, seen.ended_at)
    both = twice(held)
    asked = answers(seen.events, seen.began_at)
    return TroubleFigures(
        kind=kind.label,
        trouble=trouble,
        asked=sum(asked.values()),
        taken=asked["taken"],
        busy=asked["busy"],
        on_a=_unavailable(seen, "A"),
        on_b=_unavailable(seen, "B"),
        on_c=_unavailable(seen, "C"),
        lost=sum(each.told is not None for each in held),
        twice=len(both),
        longest=max((each.seconds for each in both), default=0.0),
    )


def _unavailable(seen: Trouble, host: str) -> float:
    """The part of the acquire requests on this host, in percent."""
    events = (each for each in seen.events if each.get("host") == host)
    asked = answers(events, seen.began_at)
    return 100 * asked["unavailable"] / max(sum(asked.values()), 1)


# -- what is wrong ---------------------------------------------------------------------------


def wrong(kind: Kind, events: Iterable[Event], ended_at: float) -> Iterator[str]:
    """What breaks a promise: two hold a lock for too long, or a fence that did not rise."""
    for each in twice(_ended_before(events, ended_at)):
        if each.seconds > kind.longest:
            yield f"{kind.label}: two held {each.name} for {each.seconds:.2f} s"
        if not each.fence_rose:
            yield f"{kind.label}: the fence of {each.name} did not rise"


def middle(seconds: Sequence[float]) -> str:
    return f"{median(seconds):.1f}" if seconds else "-"


def most(seconds: Sequence[float]) -> str:
    return f"{max(seconds):.1f}" if seconds else "-"


def least(seconds: Sequence[float]) -> str:
    return f"{min(seconds):.1f}" if seconds else "-"


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Columns that are as wide as they must be."""
    lines = [head, *rows]
    widths = [max(len(str(each)) for each in column) for column in zip(*lines, strict=True)]
    return "\n".join(_line(line, widths) for line in lines)


def _line(cells: Sequence[Any], widths: Sequence[int]) -> str:
    first, *others = (
        str(cell).ljust(width) if number < 2 else str(cell).rjust(width)
        for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join((first, *others)).rstrip()
