"""`celery redislock history`: the last runs, and how many duplicates were turned away.

Celery loads this module at each start of any of its commands: it imports little.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from ..command import duration, print_json, problem, with_app, with_args, with_json, with_kwargs
from ..table import in_units
from ..terminal import Column, cut_node, grid, plain, terminal_width, whole, wrap

if TYPE_CHECKING:
    from ...app.settings import AppLocks
    from ..history import PastRun

HEAD: Final = ("WHEN", "TOOK", "ENDED", "LOCK", "TASK ID", "WHERE", "SKIPS")
LOCK, WHERE = 3, 5
#: Bars, from none to the most.
BARS: Final = " ▁▂▃▄▅▆▇█"
PLAIN_BARS: Final = " .:-=+*#@"


@click.command()
@click.argument("target", metavar="[TASK|KEY]", required=False)
@click.argument("words", metavar="[ARG]...", nargs=-1)
@with_args
@with_kwargs
@click.option("--since", callback=duration, default="0", help="Only of the last 90, 5m, 2h or 1d.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True)
@click.option("--skips", is_flag=True, help="Show the duplicates turned away in each hour instead.")
@with_json
@with_app
def history(
    app: Any,
    target: str | None,
    words: tuple[str, ...],
    args: list[Any],
    kwargs: dict[str, Any],
    since: float,
    limit: int,
    skips: bool,
    as_json: bool,
) -> None:
    """Show the last runs of all locks, of a TASK (or a glob), or of one lock: a KEY, a lock's name,
    or a TASK and a call's arguments. SKIPS counts the duplicates that each run turned away.

    An ARG is read as JSON, or else as plain text.
    """
    from ...app.settings import app_locks

    locks = app_locks(app)
    if not locks.history:
        click.echo("redislock_history is 0: this app keeps no history", err=True)
    if skips:
        if words or args or kwargs:
            raise problem("--skips takes a task and no arguments: duplicates are counted by task")
        _show_skips(locks, target, as_json)
        return
    wanted = _wanted(app, target, words, args, kwargs)
    first = time.time() - since if since else None
    found = _found(locks, wanted, target, first, limit)
    if as_json:
        print_json([run.to_dict() for run in found])
    elif found:
        _show(found, is_one_lock="name" in wanted or found[0].name == target)
    click.echo(_summary(found, limit), err=as_json)


def _wanted(
    app: Any,
    target: str | None,
    words: Sequence[str],
    args: list[Any],
    kwargs: dict[str, Any],
) -> dict[str, str]:
    """What is meant: one lock, the runs of a task, or all."""
    from ...app.settings import app_locks
    from ...core.keys import name_of
    from ...tasks.target import locate, word

    if target is None:
        return {}
    arguments = [*map(word, words), *args]
    if arguments or kwargs or name_of(app_locks(app).prefix, target) is not None:
        return {"name": locate(app, target, arguments, kwargs).keys.name}
    return {"task": target}


def _found(
    locks: AppLocks, wanted: dict[str, str], target: str | None, since: float | None, limit: int
) -> list[PastRun]:
    from ..history import past_runs

    found = past_runs(locks, **wanted, since=since, limit=limit, running=True)
    if not found and "task" in wanted and target is not None:
        # No task of that name: a lock, perhaps.
        found = past_runs(locks, name=target, since=since, limit=limit, running=True)
    return found


def _summary(found: Sequence[PastRun], limit: int) -> str:
    if not found:
        return "no runs are kept that match"
    lapsed = sum(run.how == "lapsed" for run in found)
    more = f"; {lapsed} lapsed: nobody released the lock" if lapsed else ""
    first = "the last " if len(found) == limit else ""
    return f"{first}{len(found)} run{'s' if len(found) > 1 else ''}{more}"


# -- the table --------------------------------------------------------------------------------


def _show(found: Sequence[PastRun], is_one_lock: bool) -> None:
    tasks = {run.task for run in found}
    told = None  # what the line above the table says
    if is_one_lock:
        told = found[0].name
    elif len(tasks) == 1:
        told = found[0].task
    if told:
        click.echo("\n".join(wrap(plain(told), terminal_width())))
    columns = [*map(Column, HEAD)]
    columns[LOCK] = Column(HEAD[LOCK], whole)
    columns[WHERE] = Column(HEAD[WHERE], _by_place, 12)
    rows = [_row(run, told) for run in found]
    if is_one_lock:
        del columns[LOCK]
        rows = [[*row[:LOCK], *row[LOCK + 1 :]] for row in rows]
    click.echo("\n".join(grid(columns, rows)))


def _row(run: PastRun, told: str | None) -> list[str]:
    took = run.took
    if run.how == "running":
        took = max(time.time() - run.began, 0.0)
    return [
        time.strftime("%m-%d %H:%M:%S", time.localtime(run.began)),
        "-" if took is None else in_units(took),
        run.how,
        _lock(run, told),
        (run.task_id or "-")[:8],
        f"{run.node or '-'}/{run.pid or '-'}",
        str(run.turned_away),
    ]


def _lock(run: PastRun, told: str | None) -> str:
    """What tells the lock from others: no prefix, no slot, no task that was told, and of a digest
    its beginning.
    """
    start = f"{run.task}:v1:"
    if run.label is None and not (run.task and run.name.startswith(start)):
        return run.name
    own = run.label or run.name.removeprefix(start)[:8]
    return own if run.task == told else f"{run.task or 'RedisLock'} {own}"


def _by_place(text: str, width: int) -> list[str]:
    """A node and a process, of which the process is never cut."""
    node, _, pid = text.rpartition("/")
    return [f"{cut_node(node, max(width - len(pid) - 1, 4))}/{pid}"]


# -- skips by the hour ------------------------------------------------------------------------


def _show_skips(locks: AppLocks, task: str | None, as_json: bool) -> None:
    from ..history import HOURS, turned_away

    found = turned_away(locks, task=task)
    if as_json:
        hours = [(task, *each) for task, counts in found.items() for each in counts.items()]
        print_json([{"task": task, "hour": hour, "turned_away": n} for task, hour, n in hours])
        return
    now = int(time.time() // 3600) * 3600
    last = [now - 3600 * ago for ago in range(HOURS - 1, -1, -1)]
    for name, counts in found.items():
        line = plain(f"{name or 'RedisLock'}: {_told(counts)}")
        click.echo("\n".join(wrap(line, terminal_width())))
        click.echo(f"  |{_bars([counts.get(hour, 0) for hour in last])}|")
    if found:
        begins, ends = _hour(last[0]), _hour(now)
        click.echo(f"  {begins}{ends.rjust(HOURS + 2 - len(begins))}")
    else:
        click.echo(f"no duplicates were turned away in the last {HOURS} hours")


def _told(counts: Mapping[int, int]) -> str:
    hour, most = max(counts.items(), key=lambda each: each[1])
    return f"{sum(counts.values())} turned away, at most {most} in an hour ({_hour(hour)})"


def _hour(at: float) -> str:
    return time.strftime("%m-%d %H:00", time.localtime(at))


def _bars(counts: Sequence[int]) -> str:
    highest = max(counts, default=0) or 1
    bars = BARS if _prints(BARS) else PLAIN_BARS
    steps = len(bars) - 1
    return "".join(bars[math.ceil(number * steps / highest)] for number in counts)


def _prints(text: str) -> bool:
    """Whether the terminal can show it."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
