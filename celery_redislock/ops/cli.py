"""`celery redislock ...`: see locks, explain them, break them, and examine the set-up.

Celery loads this module at each start of any of its commands, so it imports only what a command
line needs; that it imports the package is what makes `redislock_tasks` work everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from ..core.holders import one_line
from ..worker import remote_control  # noqa: F401  for `celery inspect` and `celery control`
from .command import (
    Naming,
    duration,
    print_json,
    problem,
    with_app,
    with_args,
    with_json,
    with_kwargs,
    with_lock,
)
from .history_cli import history
from .table import (
    COLUMNS,
    ORDERS,
    count_of,
    described,
    in_order,
    lines,
    row,
    summary,
    table,
    what_waited,
)

if TYPE_CHECKING:
    from .survey import Found


@click.group(help="List, explain and break the locks of celery-redislock.")
def redislock() -> None:
    """The group of commands."""


redislock.add_command(history)


# -- list -------------------------------------------------------------------------------------


@redislock.command("list")
@click.option("-t", "--task", help="Only locks of this task, or of tasks that match this glob.")
@click.option(
    "-n", "--node", help="Only locks held on this node, or on nodes that match this glob."
)
@click.option(
    "--older", callback=duration, default="0", help="Only locks held at least this long: 90, 5m."
)
@click.option("--sort", type=click.Choice(list(ORDERS)), default="held", show_default=True)
@click.option("--reverse", is_flag=True, help="Reverse the order.")
@click.option("--limit", type=click.IntRange(1), help="Show at most this many.")
@with_json
@with_app
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
    """List all locks: held, kept, waited for or broken, and foreign values that block a key."""
    from ..app.settings import app_locks
    from .survey import all_locks

    locks = app_locks(app)
    found = in_order(_filtered(all_locks(locks), task, node, older), sort, reverse)
    shown = found[:limit]
    if as_json:
        print_json([each.to_dict() for each in shown])
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
@with_lock
@with_json
@with_app
def show(app: Any, naming: Naming, as_json: bool) -> None:
    """Show all about one lock: named by its KEY or name, or by a TASK and a call's arguments.

    An ARG is read as JSON, or else as plain text.
    """
    from ..app.settings import app_locks
    from .survey import aside_of, in_room, meant_by

    locks = app_locks(app)
    meant = naming.locate(app)
    found = meant_by(locks, meant)
    if not found:
        raise problem(f"no such lock: nobody holds {meant.key} or waits for it")
    room, aside = in_room(locks.store, meant.keys), aside_of(locks.store, meant.keys)
    if as_json:
        queue, kept = ([{"task": w.task, "task_id": w.task_id} for w in ws] for ws in (room, aside))
        print_json({"locks": [each.to_dict() for each in found], "room": queue, "aside": kept})
        return
    for each in found:
        lines(described(each))
    for number, one in enumerate(room, 1):
        click.echo(one_line(f"waits {number}: {one.task or 'cannot be read'}[{one.task_id}]"))
    for one in aside:
        click.echo(one_line(f"set aside: {one.task or 'cannot be read'}[{one.task_id}]"))


@redislock.command()
@click.argument("task")
@with_args
@with_kwargs
@with_json
@with_app
def explain(app: Any, task: str, args: list[Any], kwargs: dict[str, Any], as_json: bool) -> None:
    """Show a call's key, the reason for it, who holds it, and what would happen to the call now."""
    from .explain import explain

    found = explain(app, task, args, kwargs)
    if as_json:
        print_json(found)
        return
    arguments = ", ".join(f"{name}={value}" for name, value in found["arguments"].items())
    holders = [each["task_id"] or each["state"] for each in found["standing"]]
    fields = {
        **found,
        "arguments": arguments or "none",
        "standing": ", ".join(holders) or "nothing",
    }
    labels = {"standing": "found in Redis"}
    lines({labels.get(name, name): str(value) for name, value in fields.items()})


# -- orders ------------------------------------------------------------------------------------


@redislock.command("break")
@with_lock
@click.option("--all", "all_", is_flag=True, help="Break all locks that this task holds.")
@click.option(
    "--drop-waiting",
    is_flag=True,
    help="Also drop the tasks that wait or were set aside: they end as skipped.",
)
@click.option("-f", "--force", is_flag=True, help="Do not ask first.")
@with_json
@with_app
def break_(
    app: Any, naming: Naming, all_: bool, drop_waiting: bool, force: bool, as_json: bool
) -> None:
    """Take a lock away from its holder, which learns that it lost it.

    It takes only the lock that it showed. A run that acquires it in the meantime keeps it.
    """
    from ..app.settings import app_locks
    from . import orders

    locks = app_locks(app)
    found, nobody = _to_break(app, naming, all_)
    if any(each.state == "foreign" for each in found):
        raise problem(f"{found[0].key} is not a lock of ours: delete it with redis-cli")
    if not drop_waiting:
        found = [each for each in found if not each.is_aside]
    held = [each for each in found if each.token is not None]
    if not held and not (drop_waiting and any(each.waiting for each in found)):
        raise problem(f"no such lock: {nobody}")
    if not force:
        table(COLUMNS, map(row, found))
        dropping = f", and drop the tasks that {what_waited(found)}" if drop_waiting else ""
        click.confirm(f"Break {count_of(held)}{dropping}?", abort=True, err=True)
    broken = [each for each in held if orders.break_slot(locks, each)]
    dropped = orders.drop_waiting(app, locks, found) if drop_waiting else 0
    if as_json:
        print_json({"broken": [each.to_dict() for each in broken], "dropped": dropped})
    else:
        _tell_broken(held, broken)
        if drop_waiting:
            click.echo(f"dropped {dropped} that {what_waited(found)}")
        elif waiting := sum({each.name: each.waiting for each in held}.values()):
            click.echo(f"{waiting} still waiting: the next one gets its turn")
    if len(broken) < len(held):
        raise click.exceptions.Exit(1)


def _to_break(app: Any, naming: Naming, all_: bool) -> tuple[list[Found], str]:
    """What is there of the locks that are meant, and what to say if nobody holds them."""
    from ..app.settings import app_locks
    from .orders import all_of
    from .survey import all_locks, meant_by

    locks = app_locks(app)
    if not all_:
        meant = naming.locate(app)
        return meant_by(locks, meant), f"nobody holds {meant.key}"
    if naming.words or naming.args or naming.kwargs:
        raise problem("--all takes a task and no arguments")
    return all_of(all_locks(locks), naming.target), f"{one_line(naming.target)} holds no lock"


def _tell_broken(held: Sequence[Found], broken: Sequence[Found]) -> None:
    for each in held:
        if each in broken:
            click.echo(one_line(f"broke {each.key}, held by {each.holder or 'nobody yet'}"))
        else:
            click.echo(
                one_line(f"did not break {each.key}: another run holds it now, or it is free")
            )


@redislock.command("put-back")
@with_lock
@with_json
@with_app
def put_back(app: Any, naming: Naming, as_json: bool) -> None:
    """Let the tasks of a lock that were set aside wait again, behind the others."""
    from ..app.settings import app_locks
    from . import orders

    keys = naming.locate(app).keys
    count = orders.put_back(app, app_locks(app), keys)
    if not count:
        raise problem(f"no task is set aside for {keys.lock}")
    if as_json:
        print_json({"key": keys.lock, "put_back": count})
    else:
        click.echo(one_line(f"put back {count}, waiting for {keys.lock} again"))


# -- watch and doctor -------------------------------------------------------------------------


@redislock.command()
@click.option("--every", type=click.FloatRange(0.1), default=1.0, show_default=True)
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True)
@click.option("--times", type=click.IntRange(1), help="Stop after this many refreshes.")
@with_app
def watch(app: Any, every: float, limit: int, times: int | None) -> None:
    """Show a live table of holders and waiters, with conflicts and lost locks per second."""
    try:
        from .watch import watch
    except ImportError:
        raise problem("watch needs rich: pip install 'celery-redislock[cli]'") from None
    watch(app, every, limit, times)


@redislock.command()
@click.option("--strict", is_flag=True, help="Exit with status 1 for warnings too.")
@with_json
@with_app
def doctor(app: Any, strict: bool, as_json: bool) -> None:
    """Examine server, settings and tasks. The exit status is 1 if there is an error."""
    from .doctor.examine import examine
    from .doctor.finding import ERROR, OK, WARNING

    rows = [(found.level, check, found.what, found.todo) for check, found in examine(app)]
    if as_json:
        names = ("level", "check", "what", "todo")
        print_json([dict(zip(names, each, strict=True)) for each in rows])
    else:
        table(("LEVEL", "CHECK", "FOUND", "WHAT TO DO"), rows)
    levels = {level for level, *_ in rows}
    if ERROR in levels or (strict and levels & {WARNING}):
        raise click.exceptions.Exit(1)
    if not as_json:
        click.echo("no problems" if levels == {OK} else "no errors")
