"""How long two hold one lock when the network splits, and when each is told:

    python -m tests.proofs.hosts [--rounds N] [--only GLOB] [--json FILE]
    python -m tests.proofs.hosts --write FILE...

On three hosts A, B and C are a lock server and a client each. What leads, a master or a primary,
is on A. First A is cut off from B and C for some seconds. Locks were held on A and on C before, and
the other hosts ask for them; new ones are asked for on both sides. Then, in rounds of their own,
A's link is slow or lossy, or A and B alone are apart, while all hosts take and release locks.

As root only: the hosts are network namespaces, see `network`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from .document import write
from .figures import CutFigures, TroubleFigures, cut_figures, table, trouble_figures, wrong
from .network import why_not
from .rounds import KINDS, TROUBLES, TTL, Cut, cut_round, trouble_round

#: Lock servers that are tried on bad links: one of each kind.
ON_BAD_LINKS = ("one", "sentinel-1", "cluster-1", "quorum")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rounds. 1 if a promise is broken."""
    options = _parser().parse_args(arguments)
    if options.write:
        write(options.write)
        return 0
    reason = why_not()
    if reason is not None:
        print(f"skipped: {reason}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    kinds = [each for each in KINDS if fnmatchcase(each, options.only)]
    if not kinds:
        sys.exit(f"no lock server has such a name. There are: {', '.join(KINDS)}")
    report = Report()
    for name in kinds:
        report.cut(name, options.rounds, options.cut)
    for name in kinds:
        for trouble in TROUBLES if name in ON_BAD_LINKS and options.trouble else ():
            report.trouble(name, trouble, options.trouble)
    report.print(options.cut)
    if options.json:
        options.json.write_text(json.dumps(report.as_json(options.cut), indent=1))
    return bool(report.problems)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.proofs.hosts",
        description="Splits a network of three hosts, and measures who holds what. As root only.",
    )
    parser.add_argument("--rounds", type=int, default=1, help="cuts of each lock server")
    parser.add_argument("--cut", type=float, default=15.0, help="seconds of a cut (default: 15)")
    parser.add_argument(
        "--trouble", type=float, default=8.0, help="seconds of a bad link; 0 for none (default: 8)"
    )
    parser.add_argument("--only", metavar="GLOB", default="*", help=f"some of: {', '.join(KINDS)}")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all figures there")
    parser.add_argument(
        "--write", metavar="FILE", type=Path, nargs="+",
        help="only write the tables of docs/servers.md, from such files",
    )  # fmt: skip
    return parser


class Report:
    """What was seen so far, which it says as it goes."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._cuts: list[CutFigures] = []
        self._troubles: list[TroubleFigures] = []
        self.problems: list[str] = []

    def cut(self, name: str, rounds: int, seconds: float) -> None:
        kind, cuts = KINDS[name], []
        for number in range(rounds):
            self._say(f"{name}: A is cut off, {number + 1} of {rounds}")
            cuts.append(cut_round(kind, seconds))
        self.add_cuts(name, cuts)

    def add_cuts(self, name: str, cuts: Sequence[Cut]) -> None:
        for cut in cuts:
            self.problems += wrong(KINDS[name], cut.events, cut.ended_at)
        self._cuts += cut_figures(KINDS[name], cuts)

    def trouble(self, name: str, trouble: str, seconds: float) -> None:
        self._say(f"{name}: link of A: {trouble}")
        seen = trouble_round(KINDS[name], trouble, seconds)
        self.problems += wrong(KINDS[name], seen.events, seen.ended_at)
        self._troubles.append(trouble_figures(KINDS[name], trouble, seen))

    def _say(self, what: str) -> None:
        print(f"{time.monotonic() - self._began:6.0f} s  {what}", flush=True)

    def print(self, cut_for: float) -> None:
        print(f"\nA is cut off for {cut_for:g} s; ttl {TTL:g} s; times in seconds after the cut\n")
        print(table(CutFigures.HEAD, (each.row() for each in self._cuts)))
        if self._troubles:
            print("\n" + table(TroubleFigures.HEAD, (each.row() for each in self._troubles)))
        print("\n".join(("", *(f"wrong: {each}" for each in self.problems or ["nothing"]))))

    def as_json(self, cut_for: float) -> dict[str, object]:
        return {
            "cut_for": cut_for,
            "ttl": TTL,
            "cuts": [dataclasses.asdict(each) for each in self._cuts],
            "troubles": [dataclasses.asdict(each) for each in self._troubles],
            "wrong": list(self.problems),
        }


if __name__ == "__main__":
    sys.exit(main())
