"""`celery redislock history`: the last runs, and how many duplicates were skipped or refused.

Celery loads this module whenever one of its commands starts, so the module imports little.
"""

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
    those_that_answer,
    with_app,
    with_json,
    with_lock_or_filters,
)
from ..table import (
    aligned,
    count_of,
    digest_of,
    in_units,
    moment,
    shortened,
    show_lines,
    telling_of,
)
from ..terminal import Column, by_cutting, by_node, by_path, by_wrapping, grid, paragraph

if TYPE_CHECKING:
    from ...inspection.history import PastRun
    from ...servers.server import Server

#: The columns of a run that fit a terminal.
COLUMNS: Final = (
    Column("WHEN"),
    Column("TOOK", right=True),
    Column("ENDED"),
    Column("TASK", by_path, 9),
    Column("KEY", by_wrapping, 12),
    Column("ID", by_cutting),
    Column("NODE", by_node),
    Column("SKIPS", right=True),
)
#: All columns of a run.
WIDE: Final = (
    *("WHEN", "TOOK", "ENDED", "TASK", "KEY", "TASK ID", "NODE", "PID", "SKIPS", "FENCE", "LABEL"),
)
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
        with those_that_answer(app) as server:
            _show_skips(app, server, naming.target or None, as_json)
        return
    with those_that_answer(app) as server:
        began = time.time() - since if since else None
        most = limit or (None if since else SHOWN)
        runs, is_one_lock = _found(app, server, naming, began, ended, most)
        shown = runs[:most]
        if as_json:
            print_json([run.to_dict() for run in shown])
        elif shown:
            show_lines(_wide(shown) if wide else _table(shown, is_one_lock))
        is_counted = bool(is_one_lock or since or ended)
        click.echo(_summary(shown, len(runs) - len(shown), is_counted), err=as_json)


def _found(
    app: Any,
    server: Server,
    naming: Naming,
    since: float | None,
    ended: tuple[str, ...],
    most: int | None,
) -> tuple[list[PastRun], bool]:
    """The runs that the user means, and whether all are runs of one lock. Where all must be read to
    find these, it is all of them, else one more than `most` at most.
    """
    from ...app.settings import app_locks
    from ...inspection.history import history
    from ...protocol.keys import name_of
    from ..pick import nothing_called, pick_past

    target = naming.target
    whole: dict[str, Any] = {"since": since, "ended": ended, "running": True, "server": server}
    limit = None if since or ended or most is None else most + 1
    if not target and not naming.has_arguments:
        return history(app, **whole, limit=limit), False
    if naming.has_arguments or name_of(app_locks(app).prefix, target) is not None:
        return history(app, name=naming.locate(app).keys.name, **whole), True
    if history(app, task=target, limit=1, running=True, server=server):
        return history(app, task=target, **whole, limit=limit), False
    name = pick_past(app, naming.text, server)
    runs = history(app, name=name, **whole)
    is_known = bool(runs) or target in app.tasks
    if not is_known and not history(app, name=name, limit=1, running=True, server=server):
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


# -- the table --------------------------------------------------------------------------------


def _table(runs: Sequence[PastRun], is_one_lock: bool) -> list[str]:
    """The lines of a table that fits the terminal, below a line with what all runs share."""
    ids = shortened(run.task_id for run in runs if run.task_id)
    digests = shortened(digest for run in runs if (digest := digest_of(run.name)))
    rows = [_row(run, ids, digests) for run in runs]
    tasks, above, hidden = {run.task for run in runs}, "", set()
    if is_one_lock:
        name, label = runs[0].name, runs[0].label
        above, hidden = f"{name} ({label})" if label else name, {"TASK", "KEY"}
    elif len(tasks) == 1:
        above, hidden = rows[0]["TASK"], {"TASK"}
    columns = [column for column in COLUMNS if column.head not in hidden]
    title = paragraph(above) if above else []
    return [*title, *grid(columns, [[row[column.head] for column in columns] for row in rows])]


def _row(run: PastRun, ids: Mapping[str, str], digests: Mapping[str, str]) -> dict[str, str]:
    from ...inspection.history import OUTSIDE

    task = run.task or OUTSIDE
    return {
        "WHEN": _when(run.began),
        "TOOK": _took(run),
        "ENDED": run.how,
        "TASK": task,
        "KEY": telling_of(run.name, task, run.label, digests),
        "ID": ids.get(run.task_id or "", "-"),
        "NODE": run.node or "-",
        "SKIPS": str(run.turned_away),
    }


def _wide(runs: Sequence[PastRun]) -> list[str]:
    head = WIDE if any(run.label for run in runs) else WIDE[:-1]
    return aligned(head, (_wide_row(run)[: len(head)] for run in runs))


def _wide_row(run: PastRun) -> tuple[str, ...]:
    from ...inspection.history import OUTSIDE

    return (
        moment(run.began),
        _took(run),
        run.how,
        run.task or OUTSIDE,
        run.key,
        run.task_id or "-",
        run.node or "-",
        str(run.pid or "-"),
        str(run.turned_away),
        str(run.fence),
        run.label or "-",
    )


def _when(began: float) -> str:
    """The time of a moment today; else the day and the minute."""
    at = time.localtime(began)
    is_today = time.strftime("%x", at) == time.strftime("%x")
    return time.strftime("%H:%M:%S" if is_today else "%m-%d %H:%M", at)


def _took(run: PastRun) -> str:
    took = max(time.time() - run.began, 0.0) if run.how == "running" else run.took
    return "-" if took is None else in_units(took)


# -- skips by the hour ------------------------------------------------------------------------


def _show_skips(app: Any, server: Server, task: str | None, as_json: bool) -> None:
    from ...inspection.history import HOURS, OUTSIDE, turned_away

    tasks = turned_away(app, task=task, server=server)
    if as_json:
        hours = [(task, *each) for task, counts in tasks.items() for each in counts.items()]
        print_json([{"task": task, "hour": hour, "turned_away": n} for task, hour, n in hours])
        return
    now = int(time.time() // 3600) * 3600
    last = [now - 3600 * ago for ago in range(HOURS - 1, -1, -1)]
    for name, counts in tasks.items():
        show_lines(paragraph(f"{name or OUTSIDE}: {_told(counts)}"))
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
    bars = BARS if _prints(BARS) else PLAIN_BARS
    steps = len(bars) - 1
    return "".join(bars[math.ceil(number * steps / highest)] for number in counts)


def _prints(text: str) -> bool:
    """Whether the terminal can show the text."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
