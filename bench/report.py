"""What a section found, as an aligned table, as Markdown and as JSON. Measures nothing."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table as RichTable

Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        key: what a row calls the figure.
        heading: what people read.
        form: how a figure is written: a format such as ",.1f", or a function.
    """

    key: str
    heading: str
    form: str | Callable[[Any], str] = ""

    def cell(self, row: Row) -> str:
        """The figure as text; empty where a row has none."""
        value = row.get(self.key)
        if value is None:
            return ""
        if callable(self.form):
            return self.form(value)
        return format(value, self.form)

    @property
    def is_text(self) -> bool:
        return self.form == ""


@dataclasses.dataclass(frozen=True)
class Bars:
    """A picture of a table: one bar for each row.

    Attributes:
        title: what is shown, with its unit.
        value: the key of the figure.
        label: the keys whose figures name a bar.
        log: on a logarithmic scale, where the figures differ by orders of magnitude.
    """

    title: str
    value: str
    label: tuple[str, ...] = ("name",)
    log: bool = False


@dataclasses.dataclass(frozen=True)
class Curves:
    """A picture of a table whose rows are sizes: a line for each of some figures, log by log.

    Attributes:
        title: what is shown, with its unit.
        size: the key of the size.
        lines: the name of each line, by the key of its figure.
    """

    title: str
    size: str
    lines: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Table:
    """One table.

    Attributes:
        name: also that of its files and of its place in the document.
        title: one line.
        columns: what is shown. Rows may hold more, which only the JSON has.
        rows: the figures.
        notes: what one must know to read the table.
        bars, curves: its picture, if it has one.
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    notes: Sequence[str] = ()
    bars: Bars | None = None
    curves: Curves | None = None


def ratio(found: Sequence[float]) -> str:
    """A median ratio between its extremes."""
    low, median, high = found
    return f"{median:.2f} ({low:.2f}-{high:.2f})"


def terminal(table: Table) -> RichTable:
    shown = RichTable(title=table.title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in table.columns:
        shown.add_column(column.heading, justify="left" if column.is_text else "right")
    for row in table.rows:
        shown.add_row(*(column.cell(row) for column in table.columns))
    return shown


def markdown(table: Table, surroundings: str, picture: str | None = None) -> str:
    """The table for the document, with its notes and what it was measured with."""
    lines = [
        _line(column.heading for column in table.columns),
        "|" + "|".join("---" if column.is_text else "--:" for column in table.columns) + "|",
        *(_line(column.cell(row) for column in table.columns) for row in table.rows),
    ]
    parts = ["\n".join(lines)]
    if table.notes:
        parts.append("\n".join(f"* {note}" for note in table.notes))
    if picture:
        parts.append(f"![{table.title}]({picture})")
    parts.append(surroundings)
    return "\n\n".join(parts)


def _line(cells: Any) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def as_json(tables: Sequence[Table], surroundings: Mapping[str, Any]) -> str:
    """Everything that was measured, for machines."""
    found = [{"name": t.name, "title": t.title, "rows": list(t.rows)} for t in tables]
    return json.dumps({"surroundings": dict(surroundings), "tables": found}, indent=1) + "\n"
