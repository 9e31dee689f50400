"""How long two hold one lock when the network splits, and when each is told.

On three hosts A, B and C are a lock server and a client each. What leads, a master or a primary,
is on A. First A is cut off from B and C for some seconds. Locks were held on A and on C before, and
the other hosts ask for them; new ones are asked for on both sides.

As root only: the hosts are network namespaces, see `network`.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.proofs.harness import Options, Proof, Result, Table, least, middle, most

from .judge import Holding, ended_before, twice, wrong
from .network import why_not
from .rounds import (
    KINDS,
    MEANWHILE,
    ON_A,
    ON_C,
    Cut,
    cut_round,
)


@dataclasses.dataclass
class Group:
    """A group of locks in a round in which A was cut off. Times are in seconds from the cut.

    Attributes:
        locks: how many.
        until: for each lock that was lost, when its holder was last told that it is held.
        told: and when it was told that it is lost. In between it asks the server once more.
        anew: for each lock that was acquired after the cut, when.
        twice: for each two that held a lock at a time, how long.
        fences: of these, in how many the later one's fence was higher.
    """

    locks: int = 0
    until: list[float] = dataclasses.field(default_factory=list)
    told: list[float] = dataclasses.field(default_factory=list)
    anew: list[float] = dataclasses.field(default_factory=list)
    twice: list[float] = dataclasses.field(default_factory=list)
    fences: int = 0

    def __iadd__(self, other: Group) -> Group:
        for field in dataclasses.fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            setattr(self, field.name, mine + theirs)
        return self


def groups_of(cut: Cut) -> dict[str, Group]:
    """The figures of a round, for each group of locks."""
    held = ended_before(cut.events, cut.ended_at)
    return {group: _group(cut, names, held) for group, names in cut.groups.items()}


def _group(cut: Cut, names: Sequence[str], held: Sequence[Holding]) -> Group:
    found = Group(len(names))
    for name in names:
        of_name = [each for each in held if each.name == name]
        before = [each for each in of_name if each.since < cut.cut_at and each.told is not None]
        after = [each for each in of_name if each.since >= cut.cut_at]
        found.until += [each.until - cut.cut_at for each in before]
        found.told += [each.told - cut.cut_at for each in before if each.told is not None]
        found.anew += [each.since - cut.cut_at for each in after[:1]]
    for each in twice([each for each in held if each.name in names]):
        found.twice.append(each.seconds)
        found.fences += each.fence_rose
    return found


# -- the plug-in -----------------------------------------------------------------------------

CUTS = (
    *("lock server", "the cut-off holder believes until", "at most", "is told at most after"),
    *("another has the lock after, at least", "held twice", "for at most"),
    *("new locks held twice", "the newer fence is higher"),
)


class Hosts(Proof):
    name = "hosts"
    about = "splits a network of three hosts, and shows who holds what; as root, ten minutes"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--rounds", type=int, default=1, help="cuts of each lock server (default: 1)")
        add("--cut", type=float, default=15.0, help="seconds of a cut (default: 15)")

    def why_not(self) -> str | None:
        return why_not()

    def trials(self, options: Options) -> Sequence[str]:
        numbers = range(1, options.rounds + 1)
        return [f"{kind}: A is cut off, {n}" for kind in KINDS for n in numbers]

    def run(
        self, trial: str, seed: int, options: Options, history: Path, shared: None
    ) -> tuple[Any, Sequence[str]]:
        kind = KINDS[trial.partition(":")[0]]
        seen = cut_round(kind, history, options.cut)
        return groups_of(seen), list(wrong(kind.label, kind.longest, seen.events, seen.ended_at))

    def tables(self, results: Sequence[Result]) -> Sequence[Table]:
        cuts: dict[str, dict[str, Group]] = {}
        for result in results:
            groups = cuts.setdefault(result.trial.partition(": ")[0], {})
            for group, found in result.figures.items():
                groups[group] = groups.get(group, Group())
                groups[group] += found
        rows = [_cut_row(name, groups) for name, groups in cuts.items()]
        return [Table("docs/inside/servers.md#split", CUTS, rows)]


def _cut_row(name: str, groups: dict[str, Group]) -> Sequence[Any]:
    # The one server is on A. So who is cut off from it is on C.
    cut_off, fresh = groups[ON_C if name == "one" else ON_A], groups[MEANWHILE]
    both = [*groups[ON_A].twice, *groups[ON_C].twice, *fresh.twice]
    rose = sum(each.fences for each in groups.values())
    return (
        *(KINDS[name].label, middle(cut_off.until), most(cut_off.until), most(cut_off.told)),
        *(least(cut_off.anew), f"{len(cut_off.twice)} of {cut_off.locks}"),
        *(most([*cut_off.twice, *fresh.twice]), f"{len(fresh.twice)} of {fresh.locks}"),
        f"{rose} of {len(both)}" if both else "-",
    )
