"""`celery redislock ...`: see locks, explain them, break them, and examine the set-up.

Celery loads this module at each start of any of its commands, so it imports only what a command
line needs; that it imports the package is what makes `redislock_tasks` work everywhere.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from ..core.holders import one_line
from ..worker import remote_control  # noqa: F401  for `celery inspect` and `celery control`
from .table import (
    COLUMNS,
    ORDERS,
    count_of,
    described,
    lines,
    row,
    summary,
    table,
    what_waited,
)

if TYPE_CHECKING:
    from .survey import Found

#: Seconds in each unit of a duration.
UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


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
        from ..errors import ConfigError, LockUnavailable
        from ..tasks.target import TargetError

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
    from ..app.settings import app_locks

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
_target = click.argument("target", metavar="KEY|TASK")
_words = click.argument("words", metavar="[ARG]...", nargs=-1)


def _of_a_lock(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let the command take what names a lock, for `_locate`."""
    for option in (_kwargs, _args, _words, _target):
        function = option(function)
    return function


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
    from ..app.settings import app_locks
    from .survey import all_locks

    locks = app_locks(app)
    found = _filtered(all_locks(locks.store, locks.prefix), task, node, older)
    order, largest_first = ORDERS[sort]
    found.sort(key=order, reverse=largest_first is not reverse)
    shown = found[:limit]
    if as_json:
        _as_json([each.to_dict() for each in shown])
        return
    if shown:
        table(COLUMNS, map(row, shown))
    more = f", the first {len(shown)} shown" if len(shown) < len(found) else ""
    click.echo(f"{summary(found)}{more}")


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


# -- show and explain -------------------------------------------------------------------------


@redislock.command()
@_of_a_lock
@_json
@_command
def show(
    app: Any, target: str, words: tuple[str, ...], args: list[Any], kwargs: dict[str, Any],
    as_json: bool,
) -> None:  # fmt: skip
    """Everything about one lock: by its KEY or name, or by a TASK and a call's arguments.

    An ARG is JSON, or else the text itself.
    """
    from ..app.settings import app_locks
    from .survey import aside_of, in_room, one_lock

    locks = app_locks(app)
    meant = _locate(app, target, words, args, kwargs)
    found = one_lock(locks.store, locks.prefix, meant.keys.name)
    if meant.slot:
        found = [each for each in found if each.key == meant.slot]
    if not found:
        raise _problem(
            f"no such lock: nobody holds {meant.slot or meant.keys.lock}, or waits for it"
        )
    room, aside = in_room(locks.store, meant.keys), aside_of(locks.store, meant.keys)
    if as_json:
        queue, kept = ([{"task": w.task, "task_id": w.task_id} for w in ws] for ws in (room, aside))
        _as_json({"locks": [each.to_dict() for each in found], "room": queue, "aside": kept})
        return
    for each in found:
        lines(described(each))
    for number, one in enumerate(room, 1):
        click.echo(one_line(f"waits {number}: {one.task or 'cannot be read'}[{one.task_id}]"))
    for one in aside:
        click.echo(one_line(f"set aside: {one.task or 'cannot be read'}[{one.task_id}]"))


def _locate(
    app: Any, target: str, words: Sequence[str], args: list[Any], kwargs: dict[str, Any]
) -> Any:
    from ..tasks.target import TargetError, locate, word

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
    from .explain import explain

    found = explain(app, task, args, kwargs)
    if as_json:
        _as_json(found)
        return
    arguments = ", ".join(f"{name}={value}" for name, value in found["arguments"].items())
    holders = [each["task_id"] or each["state"] for each in found["standing"]]
    fields = {**found, "arguments": arguments or "none", "standing": ", ".join(holders) or "nobody"}
    lines({name: str(value) for name, value in fields.items()})


# -- break ------------------------------------------------------------------------------------


@redislock.command("break")
@_of_a_lock
@click.option("--all", "all_", is_flag=True, help="All locks that this task holds.")
@click.option(
    "--drop-waiting",
    is_flag=True,
    help="Drop the tasks that wait or were set aside too: they end as skipped.",
)
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
    from ..app.settings import app_locks
    from . import breaking
    from .survey import all_locks, one_lock

    locks = app_locks(app)
    if all_:
        if words or args or kwargs:
            raise _problem("--all takes a task, and no arguments")
        found = breaking.all_of(all_locks(locks.store, locks.prefix), target)
        what = f"{one_line(target)} holds none"
    else:
        meant = _locate(app, target, words, args, kwargs)
        found = one_lock(locks.store, locks.prefix, meant.keys.name)
        found = [each for each in found if meant.slot in ("", each.key)]
        what = f"nobody holds {meant.slot or meant.keys.lock}"
    if any(each.state == "foreign" for each in found):
        raise _problem(f"{found[0].key} is not a lock of ours: delete it with redis-cli")
    if not drop_waiting:
        found = [each for each in found if not each.is_aside]
    held = [each for each in found if each.token is not None]
    if not held and not (drop_waiting and any(each.waiting for each in found)):
        raise _problem(f"no such lock: {what}")
    if not force:
        table(COLUMNS, map(row, found))
        dropping = f", and drop the tasks that {what_waited(found)}" if drop_waiting else ""
        click.confirm(f"Break {count_of(held)}{dropping}?", abort=True, err=True)
    broken = [each for each in held if breaking.break_slot(locks, each)]
    dropped = breaking.drop_waiting(app, locks, found) if drop_waiting else 0
    if as_json:
        _as_json({"broken": [each.to_dict() for each in broken], "dropped": dropped})
    else:
        _tell_broken(held, broken)
        if drop_waiting:
            click.echo(f"dropped {dropped} that {what_waited(found)}")
        elif waiting := sum({each.name: each.waiting for each in held}.values()):
            click.echo(f"{waiting} wait: they are kept, and the next one gets its turn")
    if len(broken) < len(held):
        raise click.exceptions.Exit(1)


def _tell_broken(held: Sequence[Found], broken: Sequence[Found]) -> None:
    for each in held:
        if each in broken:
            click.echo(one_line(f"broke {each.key}, held by {each.holder or 'nobody yet'}"))
        else:
            click.echo(one_line(f"left {each.key}: somebody else has it by now, or nobody"))


# -- put back ---------------------------------------------------------------------------------


@redislock.command("put-back")
@_of_a_lock
@_json
@_command
def put_back(
    app: Any, target: str, words: tuple[str, ...], args: list[Any], kwargs: dict[str, Any],
    as_json: bool,
) -> None:  # fmt: skip
    """Let the tasks of a lock that were set aside wait again, behind the others."""
    from ..app.settings import app_locks
    from ..core.server import LOOKING
    from ..tasks.target import with_slots_of
    from .survey import named

    store = app_locks(app).store
    keys = _locate(app, target, words, args, kwargs).keys
    entries = store.looking.all_set_aside(keys)
    keys = with_slots_of(app, keys, {named(*each).task for each in entries.items()})
    count = sum(store.rooms.put_back(keys, entry_id, LOOKING) for entry_id in entries)
    if not count:
        raise _problem(f"nothing is set aside for {keys.lock}")
    if as_json:
        _as_json({"key": keys.lock, "put_back": count})
    else:
        click.echo(one_line(f"put back {count}, to wait for {keys.lock}"))


# -- watch and doctor -------------------------------------------------------------------------


@redislock.command()
@click.option("--every", type=click.FloatRange(0.1), default=1.0, show_default=True)
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True)
@click.option("--times", type=click.IntRange(1), help="End after so many looks.")
@_command
def watch(app: Any, every: float, limit: int, times: int | None) -> None:
    """A live table of holders and waiters, and of conflicts and lost locks per second."""
    try:
        from .watch import watch
    except ImportError:
        raise _problem("watch needs rich: pip install 'celery-redislock[cli]'") from None
    watch(app, every, limit, times)


@redislock.command()
@click.option("--strict", is_flag=True, help="End with an error for warnings too.")
@_json
@_command
def doctor(app: Any, strict: bool, as_json: bool) -> None:
    """Examine server, settings and tasks. The exit status is 1 if there is an error."""
    from .doctor.examine import examine
    from .doctor.finding import ERROR, OK, WARNING

    rows = [(found.level, check, found.what, found.todo) for check, found in examine(app)]
    if as_json:
        names = ("level", "check", "what", "todo")
        _as_json([dict(zip(names, each, strict=True)) for each in rows])
    else:
        table(("LEVEL", "CHECK", "FOUND", "WHAT TO DO"), rows)
    levels = {level for level, *_ in rows}
    if ERROR in levels or (strict and levels & {WARNING}):
        raise click.exceptions.Exit(1)
    if not as_json:
        click.echo("nothing to mend" if levels == {OK} else "no errors")
