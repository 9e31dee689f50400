"""`celery redislock history`: the last runs, and how many duplicates were skipped or refused."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from ...protocol.past import ENDS, LAPSED
from ..command import (
    Naming,
    duration,
    print_json,
    problem,
    with_app,
    with_json,
    with_lock_or_filters,
)
from ..table import ALL_OF_RUNS, RUNS, columns_of, count_of, task_of
from ..terminal import grid, plain, say, show_lines

if TYPE_CHECKING:
    from ...protocol.past import PastRun

#: How many runs are shown, if the user names neither a number nor a time.
SHOWN: Final = 20
#: The characters of a bar chart, from the lowest bar to the highest.
BARS: Final = " ▁▂▃▄▅▆▇█"
PLAIN_BARS: Final = " .:-=+*#@"


@click.command(short_help="Show the last runs, and how many duplicates were skipped.")
@with_lock_or_filters
@click.option("--since", callback=duration, default="0", help="Only of the last 90, 5m, 2h or 1d.")
@click.option(
    "--ended",
    type=click.Choice(ENDS),
    metavar="HOW",
    multiple=True,
    help=f"Only those that ended so: {', '.join(ENDS)}. May be given again.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    help=f"Show at most this many.  [default: {SHOWN}; with --since all]",
)
@click.option("--skips", is_flag=True, help="Show the skipped and refused duplicates of each hour.")
@click.option("--wide", is_flag=True, help="Show all of it, however wide the terminal is.")
@with_json
@with_app
def history(
    app: Any,
    naming: Naming,
    since: float,
    ended: tuple[str, ...],
    limit: int | None,
    skips: bool,
    wide: bool,
    as_json: bool,
) -> None:
    """Show the last runs of all locks, of a TASK (or a glob), or of one lock: named by its KEY or
    name, by a TASK and a call's arguments, or by what the table shows of it. SKIPS counts the
    duplicates that were skipped or refused because of each run.

    An ARG is read as JSON, or else as plain text.
    """
    from ...app.settings import app_locks

    if not app_locks(app).history:
        click.echo("redislock_history is 0: this app keeps no history", err=True)
    if skips:
        if naming.has_arguments:
            raise problem("--skips takes a task and no arguments: duplicates are counted by task")
        if since or ended or limit:
            raise problem("--skips shows all of 48 hours: it takes no --since, --ended or --limit")
        _show_skips(app, naming.target or None, as_json)
        return
    began = time.time() - since if since else None
    most = limit or (None if since else SHOWN)
    runs, is_one_lock = _found(app, naming, began, ended, most)
    shown = runs[:most]
    if as_json:
        print_json([run.to_dict() for run in shown])
    elif shown:
        _show_table(shown, is_one_lock, wide)
    is_counted = bool(is_one_lock or since or ended)
    click.echo(_summary(shown, len(runs) - len(shown), is_counted), err=as_json)


def _found(
    app: Any, naming: Naming, since: float | None, ended: tuple[str, ...], most: int | None
) -> tuple[list[PastRun], bool]:
    """The runs that the user means, and whether all are runs of one lock. Where all must be read to
    find these, it is all of them, else one more than `most` at most.
    """
    from ...app.settings import app_locks
    from ...inspection.history import history
    from ...protocol.keys import name_of
    from ..pick import nothing_called, pick_past

    target = naming.target
    whole: dict[str, Any] = {"since": since, "ended": ended, "running": True}
    limit = None if since or ended or most is None else most + 1
    if not target and not naming.has_arguments:
        return history(app, **whole, limit=limit), False
    if naming.has_arguments or name_of(app_locks(app).prefix, target) is not None:
        return history(app, name=naming.locate(app).keys.name, **whole), True
    if history(app, task=target, limit=1, running=True):
        return history(app, task=target, **whole, limit=limit), False
    name = pick_past(app, naming.text)
    runs = history(app, name=name, **whole)
    is_known = bool(runs) or target in app.tasks
    if not is_known and not history(app, name=name, limit=1, running=True):
        show_lines([str(nothing_called(app, naming.text))], err=True)
    return runs, True


def _summary(shown: Sequence[PastRun], left: int, is_counted: bool) -> str:
    if not shown:
        return "no runs are kept that match"
    lapsed = sum(run.how == LAPSED for run in shown)
    more = f"; {lapsed} lapsed: nobody released the lock" if lapsed else ""
    runs = f"{count_of(len(shown), 'run')}{more}"
    if not left:
        return runs
    return f"the last {runs}; {left if is_counted else 'some'} more are kept (--limit shows more)"


def _show_table(runs: Sequence[PastRun], is_one_lock: bool, wide: bool) -> None:
    """Show a table that fits the terminal, below a line with what all runs share; or all of it."""
    hidden: set[str] = set()
    if not wide and is_one_lock:
        name, label, hidden = runs[0].name, runs[0].holder.label, {"TASK", "KEY"}
        say(f"{name} ({label})" if label else name)
    elif not wide and len({run.holder.task for run in runs}) == 1:
        hidden = {"TASK"}
        say(task_of(runs[0]))
    names = ALL_OF_RUNS if wide else [each for each in RUNS if each not in hidden]
    show_lines(grid(columns_of(runs, names, wide), runs, sys.maxsize if wide else None))


# -- skips by the hour ------------------------------------------------------------------------


def _show_skips(app: Any, task: str | None, as_json: bool) -> None:
    from ...inspection.history import HOURS, turned_away
    from ...inspection.locks import OUTSIDE

    tasks = turned_away(app, task=task)
    if as_json:
        hours = [(task, *each) for task, counts in tasks.items() for each in counts.items()]
        print_json([{"task": task, "hour": hour, "turned_away": n} for task, hour, n in hours])
        return
    now = int(time.time() // 3600) * 3600
    last = [now - 3600 * ago for ago in range(HOURS - 1, -1, -1)]
    for name, counts in tasks.items():
        say(f"{name or OUTSIDE}: {_told(counts)}")
        click.echo(f"  |{_bars([counts.get(hour, 0) for hour in last])}|")
    if tasks:
        begins, ends = _hour(last[0]), _hour(now)
        click.echo(f"  {begins}{ends.rjust(HOURS + 2 - len(begins))}")
    else:
        click.echo(f"no duplicates were skipped or refused in the last {HOURS} hours")


def _told(counts: Mapping[int, int]) -> str:
    hour, most = max(counts.items(), key=lambda each: each[1])
    return f"{sum(counts.values())} skipped or refused, at most {most} in an hour ({_hour(hour)})"


def _hour(at: float) -> str:
    return time.strftime("%m-%d %H:00", time.localtime(at))


def _bars(counts: Sequence[int]) -> str:
    highest = max(counts, default=0) or 1
    bars = BARS if plain(BARS) == BARS else PLAIN_BARS
    steps = len(bars) - 1
    return "".join(bars[math.ceil(number * steps / highest)] for number in counts)
