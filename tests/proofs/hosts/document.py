"""Writes the tables of docs/servers.md from files that `--json` wrote."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.support.figures import write_section

from .figures import CutFigures, TroubleFigures, least, middle, most
from .rounds import KINDS, MEANWHILE, ON_A, ON_C

DOCUMENT = Path(__file__).parents[3] / "docs" / "servers.md"
CUTS = (
    *("lock server", "the cut-off holder believes until", "at most", "is told at most after"),
    *("another has the lock after, at least", "held twice", "for at most"),
    *("new locks held twice", "the newer fence is higher"),
)
TROUBLES = (
    *("lock server", "link of A", "requests", "unavailable on A", "on B", "on C", "held twice"),
)


def write(files: Iterable[Path]) -> None:
    """Write the tables from these files, which have each lock server once."""
    told = [json.loads(path.read_text()) for path in files]
    order = [kind.label for kind in KINDS.values()]
    cuts = [CutFigures(**each) for one in told for each in one["cuts"]]
    troubles = [TroubleFigures(**each) for one in told for each in one["troubles"]]
    cuts.sort(key=lambda each: order.index(each.kind))
    troubles.sort(key=lambda each: order.index(each.kind))
    rows = [_cut_row(label, cuts) for label in dict.fromkeys(each.kind for each in cuts)]
    write_section(DOCUMENT, "split", _markdown(CUTS, rows, left=1))
    rows = [_trouble_row(each) for each in troubles if each.trouble != "none"]
    write_section(DOCUMENT, "bad-links", _markdown(TROUBLES, rows, left=2))


def _cut_row(label: str, cuts: Sequence[CutFigures]) -> Sequence[Any]:
    groups = {each.held: each for each in cuts if each.kind == label}
    # The one server is on A. So who is cut off from it is on C.
    cut_off = groups[ON_C if label == KINDS["one"].label else ON_A]
    fresh = groups[MEANWHILE]
    both = [*groups[ON_A].twice, *groups[ON_C].twice, *fresh.twice]
    rose = sum(each.fences for each in groups.values())
    return (
        *(label, middle(cut_off.until), most(cut_off.until), most(cut_off.told)),
        least(cut_off.anew),
        *(_of(len(cut_off.twice), cut_off.locks), most([*cut_off.twice, *fresh.twice])),
        *(_of(len(fresh.twice), fresh.locks), _of(rose, len(both)) if both else "-"),
    )


def _trouble_row(each: TroubleFigures) -> Sequence[Any]:
    shares = (f"{part:.0f} %" for part in (each.on_a, each.on_b, each.on_c))
    return (each.kind, each.trouble, each.asked, *shares, each.twice)


def _of(part: int, whole: int) -> str:
    return f"{part} of {whole}"


def _markdown(head: Sequence[str], rows: Iterable[Sequence[Any]], left: int) -> str:
    rules = ["---" if number < left else "--:" for number in range(len(head))]
    lines = (" | ".join(map(str, cells)) for cells in (head, *rows))
    first, *others = (f"| {line} |" for line in lines)
    return "\n".join((first, f"|{'|'.join(rules)}|", *others))
