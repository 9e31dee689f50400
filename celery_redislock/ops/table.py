"""Locks, past runs, and the tasks that wait, as tables for a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from os.path import commonprefix
from typing import TYPE_CHECKING, Any, Final

from ..inspection.states import AWAITED, IN_TROUBLE, NO_LOCK, STATES
from ..protocol.canonical import digest, parts_of, task_in
from ..protocol.holders import Holder
from ..protocol.past import PastRun
from .terminal import LINES, Column, grid, named_values

if TYPE_CHECKING:
    from ..inspection.figures import Figures
    from ..inspection.locks import Found
    from ..inspection.rooms import Waiting
    from ..protocol.suspensions import Suspension

#: The orders of a list: the value to sort by, and whether the largest comes first.
ORDERS: Final[dict[str, tuple[Callable[[Found], Any], bool]]] = {
    "held": (lambda each: each.held_for or 0.0, True),
    "lives": (lambda each: float("inf") if each.lives_for is None else each.lives_for, False),
    "waiting": (lambda each: each.waiting, True),
    "task": (lambda each: (each.task, each.key), False),
    "key": (lambda each: each.key, False),
    "node": (lambda each: ((each.holder and each.holder.node) or "", each.key), False),
}
#: The columns of a lock, and of a past run, that fit a terminal; and all of them.
LOCKS: Final = ("TASK", "KEY", "STATE", "ID", "NODE", "HELD", "LIVES", "SKIPS", "WAIT", "SAYS")
ALL_OF_LOCKS: Final = (*LOCKS[:5], "PID", *LOCKS[5:9], "FENCE", "LABEL", "SAYS")
RUNS: Final = ("WHEN", "TOOK", "ENDED", "TASK", "KEY", "ID", "NODE", "SKIPS")
ALL_OF_RUNS: Final = (*RUNS[:7], "PID", "SKIPS", "FENCE", "LABEL")
#: The colour of a line with trouble.
TROUBLE: Final = "red"
#: The columns of a task, with its figures.
TASKS: Final = (
    Column("TASK", lambda each: each[0], LINES, 14),
    Column("LOCKS", lambda each: _by_state(each[1]), LINES, 12),
    Column("OLDEST", lambda each: _units(each[1].oldest_holder or None), right=True),
    Column("WAIT", lambda each: each[1].waiting, right=True),
    Column("UNTAKEN", lambda each: each[1].untaken, right=True),
)
#: How many characters of an id or a digest are unique, as a rule.
SHORT: Final = 8
_NO_ARGUMENTS: Final = digest({})


def in_order(found: Iterable[Found], order: str, reverse: bool = False) -> list[Found]:
    by, largest_first = ORDERS[order]
    return sorted(found, key=by, reverse=largest_first is not reverse)


# -- tables -----------------------------------------------------------------------------------


def columns_of(rows: Sequence[Any], names: Iterable[str], wide: bool = False) -> list[Column]:
    """These columns of `Found` or `PastRun`: short enough for a terminal, or uncut if `wide`."""
    ids = shortened(who(each).task_id for each in rows)
    digests = shortened(digest_of(each.name) for each in rows)

    def task_id(each: Any) -> str | None:
        return who(each).task_id if wide else ids.get(who(each).task_id)

    def key(each: Any) -> str:
        return str(each.key) if wide else telling_of(each, digests)

    columns = (
        Column("WHEN", lambda run: (moment if wide else _when)(run.began)),
        Column("TOOK", _took, right=True),
        Column("ENDED", lambda run: run.how),
        Column("TASK", lambda each: task_of(each) or None, LINES, 14),
        Column("KEY", key, LINES, 12),
        Column("STATE", in_words, LINES),
        Column("ID", task_id, LINES),
        Column("NODE", lambda each: who(each).node, 2),
        Column("PID", lambda each: who(each).pid or None, right=True),
        Column("HELD", lambda each: _units(each.held_for), right=True),
        Column("LIVES", lambda each: lives(each, "for ever" if wide else "ever"), right=True),
        Column("SKIPS", lambda each: each.turned_away, right=True, rare="STATE" in names),
        Column("WAIT", lambda each: each.waiting, right=True),
        Column("FENCE", lambda each: who(each).fence or None, right=True),
        Column("LABEL", lambda each: who(each).label, rare=True),
        Column("SAYS", lambda each: who(each).description, 1, 16, rare=True),
    )
    return [column for column in columns if column.head in names]


def locks_table(found: Sequence[Found], wide: bool = False, *, colors: bool = False) -> list[str]:
    """A table of locks: cut to fit the terminal unless `wide`; with `colors`, trouble is red."""
    columns = columns_of(found, ALL_OF_LOCKS if wide else LOCKS, wide)
    color = (lambda each: TROUBLE if is_trouble(each) else "") if colors else (lambda each: "")
    return grid(columns, found, sys.maxsize if wide else None, color) if found else []


def tasks_table(tasks: Mapping[str, Figures]) -> list[str]:
    """The lines of a table of tasks with their figures; one with trouble is red."""

    def color(each: tuple[str, Figures]) -> str:
        is_bad = each[1].untaken or any(each[1].locks[state] for state in IN_TROUBLE)
        return TROUBLE if is_bad else ""

    return grid(TASKS, tasks.items(), color=color) if tasks else []


def waiting_table(waiting: Sequence[Waiting]) -> list[str]:
    """The lines of a table of tasks that wait, which fit the terminal."""
    ids = shortened(each.task_id for each in waiting)
    columns = (
        Column("#", lambda each: each[0], right=True),
        Column("TASK", lambda each: each[1].task or "cannot be read", LINES),
        Column("ID", lambda each: ids.get(each[1].task_id), LINES),
        Column("AGE", lambda each: _units(each[1].age), right=True),
        Column("ARGUMENTS", lambda each: each[1].called, LINES, 16),
    )
    return grid(columns, enumerate(waiting, 1)) if waiting else []


def described(each: Found) -> list[str]:
    """All about a lock, in lines that fit the terminal."""
    fields = {
        **each.to_dict(),
        "acquired_at": each.holder and each.holder.acquired_at and moment(each.holder.acquired_at),
        "held_for": _units(each.held_for),
        "lives_for": lives(each),
        "due_in": _units(each.due_in),
        "turned_away": each.turned_away or None,
        "untaken": each.untaken or None,
        "attempt": each.holder.attempt if each.holder and each.holder.task_id else None,
        "suspension": each.suspension and suspended(each.suspension),
    }
    return named_values(fields.items())


# -- what is said -----------------------------------------------------------------------------


def who(each: Any) -> Any:
    """Who has a lock, or had it, with what is known of the run; with nothing, if nobody."""
    return each.holder or Holder()


def task_of(each: Any) -> str:
    """The task of a lock or a run; "" if it is not known. A `RedisLock` has that as its task."""
    from ..inspection.locks import OUTSIDE

    if isinstance(each, PastRun):
        return each.holder.task or OUTSIDE
    return each.task or task_in(each.name) or ""


def is_trouble(each: Found) -> bool:
    """Whether somebody should look at this lock."""
    return each.state in IN_TROUBLE or bool(each.untaken)


def telling_of(each: Any, digests: Mapping[str | None, str] | None = None) -> str:
    """What tells a lock, or its run, from others of its task: label, name or short digest."""
    if who(each).label:
        return str(who(each).label)
    name, task = str(each.name), task_of(each)
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


def shortened(texts: Iterable[str | None]) -> dict[str | None, str]:
    """For each text its shortest unique beginning, of at least eight characters."""
    known = sorted({text for text in texts if text})
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


def lives(each: Found, no_expiry: str = "for ever") -> str | None:
    """How long the lock lives if its holder dies now; None if it is none."""
    if each.state in (*AWAITED, *NO_LOCK):
        return None
    return no_expiry if each.lives_for is None else in_units(each.lives_for)


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


def _units(seconds: float | None) -> str | None:
    return None if seconds is None else in_units(seconds)


def _when(began: float) -> str:
    """The time of a moment today; else the day and the minute."""
    at = time.localtime(began)
    is_today = time.strftime("%x", at) == time.strftime("%x")
    return time.strftime("%H:%M:%S" if is_today else "%m-%d %H:%M", at)


def _took(run: Any) -> str | None:
    return _units(max(time.time() - run.began, 0.0) if run.how == "running" else run.took)


def _by_state(figures: Figures) -> str:
    return ", ".join(f"{figures.locks[each]} {each}" for each in STATES if figures.locks[each])


def count_of(number: int, what: str = "lock") -> str:
    """The number with its noun: "1 lock", "2 locks"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def some(names: Sequence[str]) -> str:
    """The first three names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def summary(found: Sequence[Found], with_broken: bool = True) -> str:
    """How many locks there are, untaken tasks, runs without their lock, and broken locks."""
    untaken = sum({each.name: each.untaken for each in found if each.is_lock}.values())
    broken = sum(each.state == "broken" for each in found)
    text = count_of(sum(each.is_lock for each in found))
    text += f", {untaken} waiting that no worker has taken" if untaken else ""
    lost = sum(each.state == "without its lock" for each in found)
    text += f", {count_of(lost, 'run')} without a lock" if lost else ""
    hint = "" if with_broken else " (--all shows them)"
    return text + (f", {broken} broken lately{hint}" if broken else "")


def suspended(suspension: Suspension) -> str:
    """The suspension, such as "suspended until 2026-11-27 09:30:00: task shop.sync, by anna"."""
    label = "" if suspension.label is None else f" ({suspension.label})"
    why = f": {suspension.why}" if suspension.why else ""
    until = moment(suspension.ends_at)
    return f"suspended until {until}: {suspension.target}{label}, by {suspension.by}{why}"
