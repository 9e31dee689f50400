"""What was found, as aligned tables and lines for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from ..core.holders import one_line

if TYPE_CHECKING:
    from .survey import Found

#: By what a list can be sorted, and whether the largest come first.
ORDERS: Final[dict[str, tuple[Callable[[Found], Any], bool]]] = {
    "held": (lambda each: each.held_for or 0.0, True),
    "lives": (lambda each: float("inf") if each.lives_for is None else each.lives_for, False),
    "waiting": (lambda each: each.waiting, True),
    "task": (lambda each: (each.task, each.key), False),
    "key": (lambda each: each.key, False),
    "node": (lambda each: ((each.holder and each.holder.node) or "", each.key), False),
}

COLUMNS: Final = (
    *("TASK", "KEY", "STATE", "TASK ID", "NODE", "PID", "HELD", "LIVES", "WAITING", "FENCE"),
)


def in_order(found: Iterable[Found], order: str, reverse: bool = False) -> list[Found]:
    """These in one of the orders."""
    by, largest_first = ORDERS[order]
    return sorted(found, key=by, reverse=largest_first is not reverse)


def row(each: Found) -> tuple[str, ...]:
    holder = each.holder
    return (
        each.task or "-",
        each.key,
        each.state,
        (holder and holder.task_id) or "-",
        (holder and holder.node) or "-",
        str((holder and holder.pid) or "-"),
        "-" if each.held_for is None else in_units(each.held_for),
        lives(each),
        str(each.waiting),
        str((holder and holder.fence) or "-"),
    )


def lives(each: Found) -> str:
    if each.state == "free" or each.is_aside:
        return "-"
    return "for ever" if each.lives_for is None else in_units(each.lives_for)


def in_units(seconds: float) -> str:
    """A duration for people: 0.4s, 12s, 3m05s, 2h10m, 4d03h."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    lines = [head, *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = (
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
    click.echo("\n".join(text))


def described(each: Found) -> dict[str, str]:
    plain = each.to_dict()
    plain["held_for"] = "-" if each.held_for is None else in_units(each.held_for)
    plain["lives_for"] = lives(each)
    return {name: str(value) for name, value in plain.items() if value is not None}


def lines(fields: Mapping[str, str]) -> None:
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        click.echo(f"{name.ljust(width)}  {one_line(value)}")


def count_of(found: Sequence[Found]) -> str:
    return "1 lock" if len(found) == 1 else f"{len(found)} locks"


def summary(found: Sequence[Found]) -> str:
    """How many locks, and how many tasks were set aside."""
    aside = sum(each.waiting for each in found if each.is_aside)
    count = count_of([each for each in found if not each.is_aside])
    return f"{count}, {aside} set aside" if aside else count


def what_waited(found: Sequence[Found]) -> str:
    """What tasks did that are dropped with these locks."""
    return "waited or were set aside" if any(each.is_aside for each in found) else "waited"
