"""What the history of a torture says of the lock. Pure.

| kind | what happened |
|---|---|
| enter | the acquire has returned |
| ask | the client is about to ask whether the lock is still its own |
| step | it did something that the lock protects |
| leave | it is about to release |
| unavailable | the lock's server did not answer in time |
| stop | it was stopped by the referee |

The order of writing is the truth. The file is also the resource that the lock protects: a step
takes effect when it stands there, however long its client was stopped before that.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable

from tests.proofs.history import Event


@dataclasses.dataclass
class Section:
    """A client's time inside, in positions of the history.

    Attributes:
        begin: where it entered.
        end: where it left; if it never did, after everything.
        fence: the lock's fence, 0 if it has none.
        steps: where each of its steps took effect.
        sure_since: for each step, the latest time at which the lock did not deny it: where the
            client began to ask, or if it did not ask, the step itself.
    """

    begin: int
    end: int
    fence: int
    steps: list[int] = dataclasses.field(default_factory=list)
    sure_since: list[int] = dataclasses.field(default_factory=list)

    def steps_since(self, position: int) -> bool:
        return bool(self.steps) and self.steps[-1] > position

    def sure_after(self, position: int) -> bool:
        """Whether it did a step, and the lock did not deny it as late as after this."""
        return bool(self.sure_since) and self.sure_since[-1] > position


class Fate(enum.IntEnum):
    """What became of one who was inside together with another. The worse, the higher."""

    TOLD = 1  # did no further step
    TOO_LATE = 2  # asked, was the holder, and did its step after the other had come in
    UNKNOWING = 3  # went on, and had no way to know, or the lock itself said "yours" to both


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a history says.

    Attributes:
        sections: how often a client entered.
        unknowing: sections of `Fate.UNKNOWING`: both believed that they were the only one.
        too_late: sections of `Fate.TOO_LATE`, which only a fence can catch.
        told: sections of `Fate.TOLD`.
        mixed: steps after another's step in the middle of the own section, on a resource that
            takes everything.
        mixed_past_fence: the same on a resource that refuses a lower fence than it has seen;
            None if the lock has no fence.
        fences_out_of_order: sections that came after another and have no higher fence.
        most_inside: how many were inside at once.
        unavailable: how often the lock's server did not answer in time.
        stops: how often a client was stopped.
    """

    sections: int
    unknowing: int
    too_late: int
    told: int
    mixed: int
    mixed_past_fence: int | None
    fences_out_of_order: int
    most_inside: int
    unavailable: int
    stops: int

    @property
    def double(self) -> int:
        """Sections that somebody else came into, whatever became of that."""
        return self.unknowing + self.too_late + self.told


def judge(history: Iterable[Event]) -> Verdict:
    """What the history says of the lock, from its order alone."""
    records = list(history)
    sections = _sections(records)
    fates, most_inside = _fates(sections)
    counts = [list(fates.values()).count(fate) for fate in (*reversed(Fate),)]
    steps = [(r.client, r.section, r.fence) for r in records if r.kind == "step"]
    fenced = any(section.fence for section in sections)
    return Verdict(
        len(sections),
        *counts,
        mixed=_mixed(steps, fenced=False),
        mixed_past_fence=_mixed(steps, fenced=True) if fenced else None,
        fences_out_of_order=_fences_out_of_order(sections) if fenced else 0,
        most_inside=most_inside,
        unavailable=sum(r.kind == "unavailable" for r in records),
        stops=sum(r.kind == "stop" for r in records),
    )


def _sections(records: list[Event]) -> list[Section]:
    """The sections, in the order in which they were entered."""
    found: dict[tuple[int, int], Section] = {}
    asked: dict[int, int] = {}
    for position, record in enumerate(records):
        key = record.client, record.get("section")
        if record.kind == "enter":
            found[key] = Section(position, len(records), record.fence)
        elif record.kind == "ask":
            asked[record.client] = position
        elif record.kind == "step":
            found[key].steps.append(position)
            found[key].sure_since.append(asked.pop(record.client, position))
        elif record.kind == "leave":
            found[key].end = position
            asked.pop(record.client, None)
    return list(found.values())


def _fates(sections: list[Section]) -> tuple[dict[int, Fate], int]:
    """What became of each who lost the lock to another, by where it entered."""
    fates: dict[int, Fate] = {}
    inside: list[Section] = []
    most_inside = 0
    for later in sections:
        inside = [each for each in inside if each.end > later.begin]
        for earlier in inside:
            loser, fate = _fate(earlier, later)
            fates[loser.begin] = max(fate, fates.get(loser.begin, fate))
        inside.append(later)
        most_inside = max(most_inside, len(inside))
    return fates, most_inside


def _fate(earlier: Section, later: Section) -> tuple[Section, Fate]:
    """Who of two that were inside at once was not the holder, and what became of it."""
    both_since = later.begin
    sure = earlier.sure_after(both_since), later.sure_after(both_since)
    if all(sure):
        return earlier, Fate.UNKNOWING
    # The later one may be the loser: stopped after the server gave it the lock, before it entered.
    loser = later if sure == (True, False) else earlier
    return loser, Fate.TOO_LATE if loser.steps_since(both_since) else Fate.TOLD


def _mixed(steps: list[tuple[int, int, int]], *, fenced: bool) -> int:
    """Steps that the resource takes in the middle of a section, after another's step."""
    mixed = highest = 0
    seen: set[tuple[int, int]] = set()
    before: tuple[int, int] | None = None
    for client, number, fence in steps:
        if fenced and fence < highest:
            continue
        highest = max(highest, fence)
        section = client, number
        mixed += section in seen and section != before
        seen.add(section)
        before = section
    return mixed


def _fences_out_of_order(sections: list[Section]) -> int:
    """Sections that came after another had ended, and have no higher fence.

    Left out is one that has not asked, or did not get as far as a step: it may have got the lock
    long before it entered.
    """
    wrong = highest = 0
    ended: list[Section] = []
    running: list[Section] = []
    for section in sections:
        ended = [each for each in running if each.end < section.begin]
        running = [each for each in running if each.end > section.begin]
        highest = max([highest, *(each.fence for each in ended)])
        wrong += section.sure_since != section.steps and section.fence <= highest
        running.append(section)
    return wrong
