"""What a quick run found, beside what is published: which ratios have moved. Measures nothing."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .report import Column, Table, ratio

Range = Sequence[float]
#: The surroundings that a ratio may depend on.
_FACTS = ("cores", "processor", "system", "python", "redis-server", "packages")


@dataclasses.dataclass(frozen=True)
class Compared:
    """A ratio here and as published: each the lowest, the median and the highest of its rounds.

    Attributes:
        section: the section's name.
        name: of the row.
        figure: the heading of the column.
        published, here: the ratio.
    """

    section: str
    name: str
    figure: str
    published: Range
    here: Range

    @property
    def moved(self) -> bool:
        """Whether every round here is above, or below, every round that was published.

        A median beside the published range is not enough: a quick run has a few short rounds.
        If nothing has changed, all of 3 rounds lie on one side of 15 others once in 400 times.
        """
        return self.here[0] > self.published[2] or self.here[2] < self.published[0]

    @property
    def times(self) -> float:
        """The median here, divided by the published one."""
        return self.here[1] / self.published[1] if self.published[1] else float("inf")


def compare(section: str, tables: Sequence[Table], published: Mapping[str, Any]) -> list[Compared]:
    """The ratios of these tables beside those of the section's JSON. Times are not compared: they
    depend on the machine and its load. Rows that only one run has measured, and a contender beside
    itself, are left out.
    """
    known = {table["name"]: table["rows"] for table in published["tables"]}
    return [
        found for table in tables for found in _of_table(section, table, known.get(table.name, ()))
    ]


def _of_table(section: str, table: Table, rows: Sequence[Mapping[str, Any]]) -> Iterator[Compared]:
    label = [column for column in table.columns if column.key in _LABELS]
    before = {_name(label, row): row for row in rows}
    for row in table.rows:
        name = _name(label, row)
        for number, column in enumerate(table.columns):
            its = before.get(name, {}).get(column.key)
            mine = row.get(column.key)
            if column.form is ratio and its and mine and {*its, *mine} != {1.0}:
                yield Compared(section, name, _heading(table.columns, number), its, mine)


#: What tells the rows of a table apart.
_LABELS = ("name", "pool", "clients")


def _name(label: Sequence[Column], row: Mapping[str, Any]) -> str:
    return ", ".join(str(row.get(column.key)) for column in label)


def _heading(columns: Sequence[Column], number: int) -> str:
    """The heading of a ratio, with that of the column before it, which it is a ratio of."""
    before, heading = columns[number - 1].heading, columns[number].heading
    same = sum(column.heading == heading for column in columns)
    return heading if same == 1 else f"{before.removesuffix(' µs')} {heading}"


def read(folder: Path, section: str) -> dict[str, Any] | None:
    """What is published of a section, or None."""
    path = folder / f"{section}.json"
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def differences(here: Mapping[str, Any], published: Mapping[str, Any]) -> list[str]:
    """What else has changed, besides this package: the machine and the versions."""
    mine, its = _flat(here), _flat(published)
    names = [name for name in mine if mine[name] != its.get(name)]
    return [f"{name} {_short(its.get(name))}, here {_short(mine[name])}" for name in names]


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: facts.get(name) for name in _FACTS if name != "packages"}
    return {**found, **(facts.get("packages") or {})}


def _short(value: Any) -> str:
    return "none" if value in (None, "") else str(value)


def table(found: Sequence[Compared]) -> Table:
    """What is compared, for a terminal."""
    rows = [
        {
            "section": each.section,
            "name": each.name,
            "figure": each.figure,
            "published": each.published,
            "here": each.here,
            "moved": f"{each.times:.2f}x" if each.moved else "",
        }
        for each in found
    ]
    return Table(
        "compared",
        "The ratios beside the published ones",
        [
            Column("section", "section"),
            Column("name", "of"),
            Column("figure", "ratio"),
            Column("published", "published", ratio),
            Column("here", "here", ratio),
            Column("moved", "moved", str),
        ],
        rows,
        [
            "Only ratios are compared, not times and sizes: a quick run has fewer and shorter"
            " rounds, and the machine may be busy.",
            "Moved: each round here is above, or each is below, all that were published. Run that"
            " section in full before you believe it.",
        ],
    )


def summary(found: Sequence[Compared]) -> str:
    """One line."""
    if not found:
        return "No ratio to compare with a published one."
    moved = [each for each in found if each.moved]
    names = ", ".join(f"{each.section}: {each.name} ({each.figure})" for each in moved)
    return f"{len(moved)} of {len(found)} ratios moved" + (f": {names}." if names else ".")
