"""Locks, and the tasks that wait for them, as tables for a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from os.path import commonprefix
from typing import TYPE_CHECKING, Any, Final

import click

from ..inspection.states import AWAITED, IN_TROUBLE, NO_LOCK, STATES
from ..protocol.canonical import digest, parts_of, task_in
from .terminal import (
    Column,
    by_cutting,
    by_node,
    by_path,
    by_wrapping,
    grid,
    is_plain,
    lines_by_row,
    named_values,
)

if TYPE_CHECKING:
    from ..inspection.figures import Figures
    from ..inspection.locks import Found
    from ..inspection.rooms import Waiting

#: The orders of a list: the value to sort by, and whether the largest comes first.
ORDERS: Final[dict[str, tuple[Callable[[Found], Any], bool]]] = {
    "held": (lambda each: each.held_for or 0.0, True),
    "lives": (lambda each: float("inf") if each.lives_for is None else each.lives_for, False),
    "waiting": (lambda each: each.waiting, True),
    "task": (lambda each: (each.task, each.key), False),
    "key": (lambda each: each.key, False),
    "node": (lambda each: ((each.holder and each.holder.node) or "", each.key), False),
}

#: The columns of a lock that fit a terminal.
COLUMNS: Final = (
    Column("TASK", by_path, 14),
    Column("KEY", by_wrapping, 12),
    Column("STATE", by_wrapping),
    Column("ID", by_cutting),
    Column("NODE", by_node),
    Column("HELD", right=True),
    Column("LIVES", right=True),
    Column("SKIPS", right=True),
    Column("WAIT", right=True),
    Column("SAYS", by_cutting, 16),
)
#: All columns of a lock.
WIDE: Final = (
    *("TASK", "KEY", "STATE", "TASK ID", "NODE", "PID", "HELD", "LIVES", "SKIPS", "WAITING"),
    *("FENCE", "LABEL", "SAYS"),
)
#: The columns with numbers and durations: these are easier to compare at the right.
NUMBERS: Final = frozenset(
    {"PID", "HELD", "LIVES", "SKIPS", "WAITING", "FENCE", "TOOK", "AGE", "#"}
)
#: The colour of a line with trouble.
TROUBLE: Final = "red"
#: The columns of a task that waits.
WAITING: Final = (
    Column("#", right=True),
    Column("TASK", by_path),
    Column("ID", by_cutting),
    Column("AGE", right=True),
    Column("ARGUMENTS", by_wrapping, 16),
)
#: The columns of a task.
TASKS: Final = (
    Column("TASK", by_path, 14),
    Column("LOCKS", by_wrapping, 12),
    Column("OLDEST", right=True),
    Column("WAIT", right=True),
    Column("UNTAKEN", right=True),
)
#: How many characters of an id or a digest are unique, as a rule.
SHORT: Final = 8
_NO_ARGUMENTS: Final = digest({})


def in_order(found: Iterable[Found], order: str, reverse: bool = False) -> list[Found]:
    """The locks in one of the orders."""
    by, largest_first = ORDERS[order]
    return sorted(found, key=by, reverse=largest_first is not reverse)


def locks_table(
    found: Sequence[Found], wide: bool = False, width: int | None = None, *, colors: bool = False
) -> list[str]:
    """The lines of a table of locks: cut to fit the terminal, or uncut if `wide`. With `colors`, a
    line with trouble is red.
    """
    if not found:
        return []
    styles = [TROUBLE if colors and is_trouble(each) else "" for each in found]
    if wide:
        hidden = _empty(found)
        head = [name for name in WIDE if name not in hidden]
        return aligned(head, (_picked(_wide_row(each), head) for each in found), styles)
    return grid(*_narrow(found), width, styles)


def locks_lines(found: Sequence[Found]) -> tuple[list[str], list[list[str]]]:
    """The lines of the head of `locks_table`, and those of each lock."""
    head, *lines = lines_by_row(*_narrow(found))
    return head, lines


def _narrow(found: Sequence[Found]) -> tuple[list[Column], list[list[str]]]:
    """The columns that fit a terminal, and the cells of each lock."""
    ids = shortened(each.holder.task_id for each in found if each.holder and each.holder.task_id)
    digests = shortened(digest for each in found if (digest := digest_of(each.name)))
    hidden = _empty(found)
    columns = [column for column in COLUMNS if column.head not in hidden]
    head = [column.head for column in columns]
    return columns, [_picked(_row(each, ids, digests), head) for each in found]


def _empty(found: Sequence[Found]) -> set[str]:
    """The columns that would say nothing."""
    labels = any(each.holder is not None and each.holder.label for each in found)
    skips = any(each.turned_away for each in found)
    described = any(each.holder is not None and each.holder.description for each in found)
    shown = {"LABEL": labels, "SKIPS": skips, "SAYS": described}
    return {name for name, says in shown.items() if not says}


def tasks_table(tasks: Mapping[str, Figures]) -> list[str]:
    """The lines of a table of tasks: how many locks they have in each state, and what waits. A line
    with trouble is red.
    """
    rows = [
        (
            task,
            ", ".join(f"{each.locks[state]} {state}" for state in STATES if each.locks[state]),
            in_units(each.oldest_holder) if each.oldest_holder else "-",
            str(each.waiting),
            str(each.untaken),
        )
        for task, each in tasks.items()
    ]
    in_trouble = (
        each.untaken or any(each.locks[state] for state in IN_TROUBLE) for each in tasks.values()
    )
    styles = [TROUBLE if each else "" for each in in_trouble]
    return grid(TASKS, rows, styles=styles) if rows else []


def is_trouble(each: Found) -> bool:
    """Whether somebody should look at this lock."""
    return each.state in IN_TROUBLE or bool(each.untaken)


def _picked(row: Mapping[str, str], head: Iterable[str]) -> list[str]:
    return [row[name] for name in head]


def _row(each: Found, ids: Mapping[str, str], digests: Mapping[str, str]) -> dict[str, str]:
    holder = each.holder
    task = each.task or task_in(each.name) or ""
    return {
        "TASK": task or "-",
        "KEY": telling_of(each.name, task, holder.label if holder else None, digests),
        "STATE": in_words(each),
        "ID": ids.get((holder and holder.task_id) or "", "-"),
        "NODE": (holder and holder.node) or "-",
        "HELD": "-" if each.held_for is None else in_units(each.held_for),
        "LIVES": lives(each, "ever"),
        "SKIPS": str(each.turned_away),
        "WAIT": str(each.waiting),
        "SAYS": (holder and holder.description) or "-",
    }


def _wide_row(each: Found) -> dict[str, str]:
    holder = each.holder
    return {
        "TASK": each.task or "-",
        "KEY": each.key,
        "STATE": in_words(each),
        "TASK ID": (holder and holder.task_id) or "-",
        "NODE": (holder and holder.node) or "-",
        "PID": str((holder and holder.pid) or "-"),
        "HELD": "-" if each.held_for is None else in_units(each.held_for),
        "LIVES": lives(each),
        "SKIPS": str(each.turned_away),
        "WAITING": str(each.waiting),
        "FENCE": str((holder and holder.fence) or "-"),
        "LABEL": (holder and holder.label) or "-",
        "SAYS": (holder and holder.description) or "-",
    }


def telling_of(
    name: str, task: str, label: str | None, digests: Mapping[str, str] | None = None
) -> str:
    """What tells a lock of a task from its others: the label, the name without the task's, or the
    beginning of the digest.

    Args:
        name: the lock's name.
        task: the task's name.
        label: the lock's name for people, if any.
        digests: the short form of each digest; without one, a digest's first eight characters.
    """
    if label:
        return label
    parts = parts_of(name)
    if parts is None:
        return (name.removeprefix(f"{task}:") if task else name) or name
    named, full = parts
    short = (digests or {}).get(full, full[:SHORT])
    if full == _NO_ARGUMENTS:
        short = "(no arguments)"
    return short if named == task else f"{named}:{short}"


def digest_of(name: str) -> str | None:
    """The digest of arguments in a lock's name, if it has one."""
    parts = parts_of(name)
    return parts and parts[1]


def shortened(texts: Iterable[str]) -> dict[str, str]:
    """For each text its shortest unique beginning, of at least eight characters."""
    known = sorted(set(texts))
    shared = [0, *(len(commonprefix(pair)) for pair in pairwise(known)), 0]  # noqa: RUF071
    return {
        text: text[: max(SHORT, shared[number] + 1, shared[number + 1] + 1)]
        for number, text in enumerate(known)
    }


def in_words(each: Found) -> str:
    """The state, and what is known of it."""
    due = "" if each.due_in is None else f", {in_units(each.due_in)}"
    depth = "" if each.queue_depth is None else f", {each.queue_depth} in {each.queue}"
    return f"{each.in_words}{due}{depth}"


def lives(each: Found, ever: str = "for ever") -> str:
    """How long the lock lives if its holder dies now."""
    if each.state in (*AWAITED, *NO_LOCK):
        return "-"
    return ever if each.lives_for is None else in_units(each.lives_for)


def moment(at: float) -> str:
    """A Unix time for people, in their own time zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


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


def waiting_table(waiting: Sequence[Waiting]) -> list[str]:
    """The lines of a table of tasks that wait, which fit the terminal."""
    ids = shortened(each.task_id for each in waiting)
    rows = [
        (
            str(number),
            each.task or "cannot be read",
            ids[each.task_id],
            "-" if each.age is None else in_units(each.age),
            each.called,
        )
        for number, each in enumerate(waiting, 1)
    ]
    return grid(WAITING, rows) if rows else []


def aligned(
    head: Sequence[str], rows: Iterable[Sequence[str]], styles: Sequence[str] = ()
) -> list[str]:
    """The lines of a table with uncut cells."""
    columns = [Column(name, right=name in NUMBERS) for name in head]
    return grid(columns, rows, sys.maxsize, styles)


def show_lines(lines: Iterable[str], err: bool = False) -> None:
    """Print the lines, if there are any: without colours in a pipe, and where nobody wants them."""
    if text := "\n".join(lines):
        click.echo(text, err=err, color=False if is_plain() else None)


def described(each: Found) -> list[str]:
    """All about a lock, in lines that fit the terminal."""
    fields = {
        **each.to_dict(),
        "acquired_at": each.holder and each.holder.acquired_at and moment(each.holder.acquired_at),
        "held_for": None if each.held_for is None else in_units(each.held_for),
        "lives_for": None if lives(each) == "-" else lives(each),
        "due_in": None if each.due_in is None else in_units(each.due_in),
        "turned_away": each.turned_away or None,
        "untaken": each.untaken or None,
        "attempt": each.holder.attempt if each.holder and each.holder.task_id else None,
    }
    return named_values((name, str(value)) for name, value in fields.items() if value is not None)


def count_of(number: int, what: str = "lock") -> str:
    """The number with its noun: "1 lock", "2 locks"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def summary(found: Sequence[Found], with_broken: bool = True) -> str:
    """How many locks there are, how many tasks no worker takes, how many runs go on without their
    lock, how many locks were broken.
    """
    untaken = sum({each.name: each.untaken for each in found if each.is_lock}.values())
    broken = sum(each.state == "broken" for each in found)
    text = count_of(sum(each.is_lock for each in found))
    text += f", {untaken} waiting that no worker takes" if untaken else ""
    lost = sum(each.state == "without its lock" for each in found)
    text += f", {count_of(lost, 'run')} without a lock" if lost else ""
    hint = "" if with_broken else " (--all shows them)"
    return text + (f", {broken} broken lately{hint}" if broken else "")
