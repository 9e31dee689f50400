"""`celery redislock ...`: see locks, explain them, break them, and examine the set-up.

Celery loads this module at each start of any of its commands, so it imports only what a command
line needs; that it imports the package is what makes `redislock_tasks` work everywhere.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from . import _control  # noqa: F401  for `celery inspect` and `celery control`
from ._holder import one_line

if TYPE_CHECKING:
    from ._survey import Found

#: Seconds in each unit of a duration.
UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
#: How a list is sorted: by what, and whether the largest come first.
ORDERS: Final[dict[str, tuple[Callable[[Found], Any], bool]]] = {
    "held": (lambda each: each.held_for or 0.0, True),
    "lives": (lambda each: float("inf") if each.lives_for is None else each.lives_for, False),
    "waiting": (lambda each: each.waiting, True),
    "task": (lambda each: (each.task, each.key), False),
    "key": (lambda each: each.key, False),
    "node": (lambda each: ((each.holder and each.holder.node) or "", each.key), False),
}


def _duration(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """Seconds, or a number with s, m, h or d."""
    unit = UNITS.get(value[-1:], 0)
    try:
        return float(value[:-1]) * unit if unit else float(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is no duration: 90, 5m, 2h, 1d") from None


def _json_of(kind: type[Any]) -> Callable[[click.Context, click.Parameter, str], Any]:
    """JSON of that type."""

    def parse(ctx: click.Context, param: click.Parameter, value: str) -> Any:
        try:
            found = json.loads(value)
        except (ValueError, RecursionError) as exc:
            raise click.BadParameter(f"not JSON: {exc}") from None
        if not isinstance(found, kind):
            raise click.BadParameter(f"it must be JSON of a {kind.__name__}")
        return found

    return parse


def _problem(text: object) -> click.ClickException:
    return click.ClickException(one_line(str(text)))


def _command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give the command its app, and say what goes wrong in one line."""

    @click.pass_context
    @functools.wraps(function)
    def run(ctx: click.Context, /, **options: Any) -> Any:
        from ._target import TargetError
        from .errors import ConfigError, LockUnavailable

        try:
            return function(_app(ctx), **options)
        except LockUnavailable as exc:
            reason = str(exc.reason)
            if "NOPERM" in reason or "NoPermission" in reason or "no permissions" in reason:
                raise _problem(f"no rights: {reason}") from exc
            raise _problem(f"the lock server does not answer: {reason}") from exc
        except (ConfigError, TargetError) as exc:
            raise _problem(exc) from exc

    return run


def _app(ctx: click.Context) -> Any:
    """The app, with its tasks."""
    from ._app import app_locks

    app = ctx.obj.app
    try:
        app.loader.import_default_modules()
        app.finalize()
        locks = app_locks(app, refresh=True)
    except Exception as exc:  # whatever the project's modules raise
        raise _problem(f"cannot load the app's tasks: {exc}") from exc
    if locks.server is None and app.main in (None, "default"):
        raise _problem("no app: celery -A proj redislock ...")
    if ctx.info_name != "doctor" or locks.server is None:
        locks.require_server()
    return app


def _as_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


@click.group(help="See the locks of celery-redislock, explain them, break them.")
def redislock() -> None:
    """The group of commands."""


_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_args = click.option(
    "-a", "--args", callback=_json_of(list), default="[]", help="Arguments, a JSON array."
)
_kwargs = click.option(
    "-k",
    "--kwargs",
    callback=_json_of(dict),
    default="{}",
    help="Keyword arguments, a JSON object.",
)


# -- list -------------------------------------------------------------------------------------


@redislock.command("list")
@click.option("-t", "--task", help="Only this task's, or those that match the glob.")
@click.option("-n", "--node", help="Only those held on this node, or on those that match.")
@click.option(
    "--older", callback=_duration, default="0", help="Only those held for as long: 90, 5m."
)
@click.option("--sort", type=click.Choice(list(ORDERS)), default="held", show_default=True)
@click.option("--reverse", is_flag=True, help="The other way round.")
@click.option("--limit", type=click.IntRange(1), help="Only the first so many.")
@_json
@_command
def list_(
    app: Any,
    task: str | None,
    node: str | None,
    older: float,
    sort: str,
    reverse: bool,
    limit: int | None,
    as_json: bool,
) -> None:
    """All locks: held, kept, waited for, or broken; and what stands in their place."""
    from ._app import app_locks
    from ._survey import all_locks

    locks = app_locks(app)
    found = _filtered(all_locks(locks.store, locks.prefix), task, node, older)
    order, largest_first = ORDERS[sort]
    found.sort(key=order, reverse=largest_first is not reverse)
    shown = found[:limit]
    if as_json:
        _as_json([each.to_dict() for each in shown])
        return
    if shown:
        _table(COLUMNS, map(_row, shown))
    more = f", the first {len(shown)} shown" if len(shown) < len(found) else ""
    click.echo(f"{_count(found)}{more}")


def _filtered(
    found: Iterable[Found], task: str | None, node: str | None, older: float
) -> list[Found]:
    from fnmatch import fnmatchcase

    return [
        each
        for each in found
        if (task is None or fnmatchcase(each.task, task))
        and (node is None or fnmatchcase((each.holder and each.holder.node) or "", node))
        and (each.held_for or 0.0) >= older
    ]


COLUMNS: Final = (
    *("TASK", "KEY", "STATE", "TASK ID", "NODE", "PID", "HELD", "LIVES", "WAITING", "FENCE"),
)


def _row(each: Found) -> tuple[str, ...]:
    holder = each.holder
    return (
        each.task or "-",
        each.key,
        each.state,
        (holder and holder.task_id) or "-",
        (holder and holder.node) or "-",
        str((holder and holder.pid) or "-"),
        "-" if each.held_for is None else in_units(each.held_for),
        _lives(each),
        str(each.waiting),
        str((holder and holder.fence) or "-"),
    )


def _lives(each: Found) -> str:
    if each.state == "free":
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


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    lines = [head, *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = (
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
    click.echo("\n".join(text))


# -- show and explain -------------------------------------------------------------------------


@redislock.command()
@click.argument("target", metavar="KEY|TASK")
@click.argument("words", metavar="[ARG]...", nargs=-1)
@_args
@_kwargs
@_json
@_command
def show(
    app: Any, target: str, words: tuple[str, ...], args: list[Any], kwargs: dict[str, Any],
    as_json: bool,
) -> None:  # fmt: skip
    """Everything about one lock: by its KEY or name, or by a TASK and a call's arguments.

    An ARG is JSON, or else the text itself.
    """
    from ._app import app_locks
    from ._survey import in_room, one_lock

    locks = app_locks(app)
    meant = _locate(app, target, words, args, kwargs)
    found = one_lock(locks.store, locks.prefix, meant.keys.name)
    if meant.slot:
        found = [each for each in found if each.key == meant.slot]
    if not found:
        raise _problem(
            f"no such lock: nobody holds {meant.slot or meant.keys.lock}, or waits for it"
        )
    room = in_room(locks.store, meant.keys)
    if as_json:
        queue = [{"task": each.task, "task_id": each.task_id} for each in room]
        _as_json({"locks": [each.to_dict() for each in found], "room": queue})
        return
    for each in found:
        _lines(_described(each))
    for number, one in enumerate(room, 1):
        click.echo(one_line(f"waits {number}: {one.task or 'cannot be read'}[{one.task_id}]"))


def _described(each: Found) -> dict[str, str]:
    plain = each.to_dict()
    plain["held_for"] = "-" if each.held_for is None else in_units(each.held_for)
    plain["lives_for"] = _lives(each)
    return {name: str(value) for name, value in plain.items() if value is not None}


def _lines(fields: Mapping[str, str]) -> None:
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        click.echo(f"{name.ljust(width)}  {one_line(value)}")


def _locate(
    app: Any, target: str, words: Sequence[str], args: list[Any], kwargs: dict[str, Any]
) -> Any:
    from ._target import TargetError, locate, word

    try:
        target.encode()
    except UnicodeEncodeError:
        raise TargetError(f"no such lock: {target!r} is no text") from None
    return locate(app, target, [*map(word, words), *args], kwargs)


@redislock.command()
@click.argument("task")
@_args
@_kwargs
@_json
@_command
def explain(app: Any, task: str, args: list[Any], kwargs: dict[str, Any], as_json: bool) -> None:
    """Which key a call gets and why, who holds it, and what would happen to the call now."""
    from ._explain import explain

    found = explain(app, task, args, kwargs)
    if as_json:
        _as_json(found)
        return
    arguments = ", ".join(f"{name}={value}" for name, value in found["arguments"].items())
    holders = [each["task_id"] or each["state"] for each in found["standing"]]
    fields = {**found, "arguments": arguments or "none", "standing": ", ".join(holders) or "nobody"}
    _lines({name: str(value) for name, value in fields.items()})


# -- break ------------------------------------------------------------------------------------


@redislock.command("break")
@click.argument("target", metavar="KEY|TASK")
@click.argument("words", metavar="[ARG]...", nargs=-1)
@_args
@_kwargs
@click.option("--all", "all_", is_flag=True, help="All locks that this task holds.")
@click.option("--drop-waiting", is_flag=True, help="Drop who waits too: they end as skipped.")
@click.option("-f", "--force", is_flag=True, help="Do not ask.")
@_json
@_command
def break_(
    app: Any, target: str, words: tuple[str, ...], args: list[Any], kwargs: dict[str, Any],
    all_: bool, drop_waiting: bool, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Take a lock away from its holder, which learns that it lost it.

    Only what was shown is broken: who takes the lock meanwhile keeps it.
    """
    from ._app import app_locks
    from ._survey import all_locks, one_lock

    locks = app_locks(app)
    if all_:
        if words or args or kwargs:
            raise _problem("--all takes a task, and no arguments")
        found = [each for each in all_locks(locks.store, locks.prefix) if each.task == target]
        what = f"{one_line(target)} holds none"
    else:
        meant = _locate(app, target, words, args, kwargs)
        found = one_lock(locks.store, locks.prefix, meant.keys.name)
        found = [each for each in found if meant.slot in ("", each.key)]
        what = f"nobody holds {meant.slot or meant.keys.lock}"
    if any(each.state == "foreign" for each in found):
        raise _problem(f"{found[0].key} is not a lock of ours: delete it with redis-cli")
    held = [each for each in found if each.token is not None]
    if not held and not (drop_waiting and any(each.waiting for each in found)):
        raise _problem(f"no such lock: {what}")
    if not force:
        _table(COLUMNS, map(_row, found))
        dropping = ", and drop who waits" if drop_waiting else ""
        click.confirm(f"Break {_count(held)}{dropping}?", abort=True, err=True)
    broken = [each for each in held if _break(locks, each)]
    dropped = _drop_waiting(app, locks, found) if drop_waiting else 0
    if as_json:
        _as_json({"broken": [each.to_dict() for each in broken], "dropped": dropped})
    else:
        _tell_broken(held, broken, dropped, drop_waiting)
    if len(broken) < len(held):
        raise click.exceptions.Exit(1)


def _count(found: Sequence[Found]) -> str:
    return "1 lock" if len(found) == 1 else f"{len(found)} locks"


def _break(locks: Any, each: Found) -> bool:
    """Break the slot that was shown. False if somebody else has it now."""
    from ._keys import lock_keys
    from ._options import MAX_LIMIT
    from ._store import LOOKING

    keys = lock_keys(locks.prefix, each.name)
    if each.key != keys.lock:
        keys = lock_keys(locks.prefix, each.name, MAX_LIMIT)
    holder = locks.store.break_lock(keys, LOOKING, each.token)
    return holder is not None or each.state == "reserved"


def _drop_waiting(app: Any, locks: Any, found: Sequence[Found]) -> int:
    """Drop who waits for these locks, and store what that ends in. How many."""
    from ._keys import lock_keys
    from ._room import end_replaced
    from ._store import LOOKING

    count = 0
    for name in {each.name: None for each in found}:
        holder = next((each.holder for each in found if each.name == name and each.holder), None)
        by = (holder and holder.task_id) or ""
        keys = lock_keys(locks.prefix, name)
        dropped = locks.store.drop_waiting(keys, LOOKING, by, locks.done_ttl)
        count += len(dropped)
        for entry_id, entry in dropped.items():
            end_replaced(app, keys, LOOKING, entry_id, entry, by)
    return count


def _tell_broken(
    held: Sequence[Found], broken: Sequence[Found], dropped: int, drop_waiting: bool
) -> None:
    for each in held:
        if each in broken:
            click.echo(one_line(f"broke {each.key}, held by {each.holder or 'nobody yet'}"))
        else:
            click.echo(one_line(f"left {each.key}: somebody else has it by now, or nobody"))
    waiting = sum({each.name: each.waiting for each in held}.values())
    if drop_waiting:
        click.echo(f"dropped {dropped} that waited")
    elif waiting:
        click.echo(f"{waiting} wait: they are kept, and the next one gets its turn")


# -- watch and doctor -------------------------------------------------------------------------


@redislock.command()
@click.option("--every", type=click.FloatRange(0.1), default=1.0, show_default=True)
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True)
@click.option("--times", type=click.IntRange(1), help="End after so many looks.")
@_command
def watch(app: Any, every: float, limit: int, times: int | None) -> None:
    """A live table of holders and waiters, and of conflicts and lost locks per second."""
    try:
        from ._watch import watch
    except ImportError:
        raise _problem("watch needs rich: pip install 'celery-redislock[cli]'") from None
    watch(app, every, limit, times)


@redislock.command()
@click.option("--strict", is_flag=True, help="End with an error for warnings too.")
@_json
@_command
def doctor(app: Any, strict: bool, as_json: bool) -> None:
    """Examine server, settings and tasks. The exit status is 1 if there is an error."""
    import dataclasses

    from ._doctor import ERROR, OK, WARNING, examine

    found = examine(app)
    if as_json:
        _as_json([dataclasses.asdict(each) for each in found])
    else:
        head = ("LEVEL", "CHECK", "FOUND", "WHAT TO DO")
        _table(head, ((each.level, each.check, each.what, each.todo) for each in found))
    levels = {each.level for each in found}
    if ERROR in levels or (strict and levels & {WARNING}):
        raise click.exceptions.Exit(1)
    if not as_json:
        click.echo("nothing to mend" if levels == {OK} else "no errors")
