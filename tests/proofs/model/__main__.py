"""Explore the model of the protocol, and print what was seen."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.figures import write_section

from .cases import BROKEN, HOLDS, LIMITS, Case, Row, explored

DOCUMENT = Path(__file__).parent / "README.md"
PARTS = (
    ("Everything holds", HOLDS),
    ("A rule is left out, and something breaks", BROKEN),
    ("What no rule prevents", LIMITS),
)


def show(title: str, cases: Sequence[Case], traces: bool) -> list[Row]:
    """Explore these, and print a table."""
    width = max(len(case.name) for _, part in PARTS for case in part)
    print(f"\n{title:{width + 2}} {'states':>9} {'steps':>10} {'depth':>5} {'s':>6}")
    rows = []
    for case in cases:
        row = explored(case)
        rows.append(row)
        result = row.result
        counts = f"{result.states:9,} {result.steps:10,} {result.depth:5} {row.seconds:6.1f}"
        print(f"  {case.name:{width}} {counts}  {_said(row)}", flush=True)
        if traces and result.violation:
            print(f"\n{result.violation}\n")
    return rows


def _said(row: Row) -> str:
    violation = row.result.violation
    if violation is None:
        return "holds" if row.as_expected else f"HOLDS, AND IS TO BREAK: {row.case.breaks}"
    said = f"breaks in {len(violation.steps)} steps: {violation.broken}"
    return said if row.as_expected else f"UNEXPECTED: {said}"


def as_markdown(parts: Sequence[tuple[str, Sequence[Row]]]) -> str:
    """The tables of README.md. Nothing in them depends on the machine."""
    lines = []
    for title, rows in parts:
        lines += ["", f"| {title} | states | steps | depth | |", "|---|--:|--:|--:|---|"]
        for row in rows:
            seen = row.result
            counts = f"{seen.states:,} | {seen.steps:,} | {seen.depth}"
            lines.append(f"| {row.case.name} | {counts} | {_said(row)} |")
    return "\n".join(lines)


def main() -> int:
    """Return 0 if everything is as expected."""
    parser = argparse.ArgumentParser(prog="python -m tests.proofs.model", description=__doc__)
    parser.add_argument("--traces", action="store_true", help="print the shortest ways to breaks")
    parser.add_argument("--big", action="store_true", help="explore also what takes minutes")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only cases with this in the name"
    )
    parser.add_argument("--write", action="store_true", help="write the tables into README.md")
    given = parser.parse_args()
    tables = []
    for title, part in PARTS:
        cases = [c for c in part if given.only in c.name and (given.big or not c.big)]
        if cases:
            tables.append((title, show(title, cases, given.traces)))
    rows = [row for _, table in tables for row in table]
    if given.write:
        write_section(DOCUMENT, "model", as_markdown(tables))
    states, seconds = sum(row.result.states for row in rows), sum(row.seconds for row in rows)
    plural = "" if len(rows) == 1 else "s"
    print(f"\n{len(rows)} case{plural}, {states:,} states, {seconds:.1f} s")
    return 0 if rows and all(row.as_expected for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
