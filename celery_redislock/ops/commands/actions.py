"""The commands that change something: `break`, `drop-waiting`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from ...inspection.states import AWAITED
from ...protocol.holders import one_line
from ..command import (
    Naming,
    print_json,
    problem,
    with_app,
    with_filters,
    with_json,
    with_lock_or_filters,
)
from ..table import count_of, locks_table
from ..terminal import say, show_lines

if TYPE_CHECKING:
    from ...errors import LockUnavailable
    from ...inspection.locks import Found

#: A task, a node, and an age in seconds.
_Filters: TypeAlias = "tuple[str | None, str | None, float]"
#: How many locks a preview shows.
PREVIEW: Final = 20

with_force = click.option("-f", "--force", is_flag=True, help="Do not ask first.")


# -- break ------------------------------------------------------------------------------------


@click.command("break", short_help="Take locks away from their holders.")
@with_lock_or_filters
@with_filters
@click.option("--all", "all_", is_flag=True, help="All locks, or all that the named TASK holds.")
@click.option(
    "--drop-waiting", is_flag=True, help="Also drop the tasks that wait: they end as skipped."
)
@with_force
@with_json
@with_app
def break_(
    app: Any,
    naming: Naming,
    task: str | None,
    node: str | None,
    older: float,
    all_: bool,
    drop_waiting: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Take locks away from their holders, which learn that they lost them.

    It takes only the locks that it showed. A run that acquires one in the meantime keeps it.
    """
    found, nobody = _to_break(app, naming, (task, node, older), all_)
    if not drop_waiting:
        found = [each for each in found if each.state not in (*AWAITED, "without its lock")]
    held = [each for each in found if each.token is not None]
    if not held and not (drop_waiting and any(each.waiting for each in found)):
        raise problem(f"no such lock: {nobody}")
    if not force:
        and_drop = ", and drop the tasks that waited" if drop_waiting else ""
        _confirm(found, f"Break {count_of(len(held))}{and_drop}?")
    tell = None if as_json else _tell_broken
    done = _carry_out(app, held, found if drop_waiting else (), tell)
    if as_json:
        print_json({"broken": done.broken, "dropped": done.dropped, **done.failed()})
    elif drop_waiting and (done.dropped or done.trouble is None):
        click.echo(f"dropped {done.dropped} that waited")
    elif waiting := sum({each.name: each.waiting for each in done.broken}.values()):
        click.echo(f"{waiting} still waiting: the next one is published")
    if done.trouble is not None:
        raise done.trouble
    if len(done.broken) < len(held):
        raise click.exceptions.Exit(1)


@dataclasses.dataclass(slots=True)
class _Done:
    """What was done, and the error that ended it early."""

    broken: list[Found] = dataclasses.field(default_factory=list)
    dropped: int = 0
    trouble: LockUnavailable | None = None

    def failed(self) -> dict[str, str]:
        """The error for programs, if there is one."""
        from ...inspection.why import why

        return {} if self.trouble is None else {"error": why(self.trouble)}


def _carry_out(
    app: Any,
    held: Sequence[Found],
    rooms_to_drop: Iterable[Found],
    tell: Callable[[Found, bool], None] | None = None,
) -> _Done:
    """Break `held`, drop what waits for `rooms_to_drop`; if the server goes, tell what was done."""
    from ... import operations
    from ...app.settings import app_locks
    from ...errors import LockUnavailable

    locks, done = app_locks(app), _Done()
    try:
        for each in held:
            is_broken = operations.break_slot(locks, each)
            done.broken += [each] if is_broken else []
            if tell is not None:
                tell(each, is_broken)
        for count in operations.drop_each(app, locks, rooms_to_drop):
            done.dropped += count
    except LockUnavailable as exc:
        done.trouble = exc
    return done


def _to_break(app: Any, naming: Naming, filters: _Filters, all_: bool) -> tuple[list[Found], str]:
    """The locks that the user means, and the error text for when nobody holds them."""
    from ...inspection.locks import chosen, snapshot
    from ...operations import to_break
    from ..pick import meant_by, nothing_called, require_task

    if not _many(naming, filters, all_):
        meant = naming.locate(app)
        found = meant_by(app, meant)
        if found and all(each.state == "suspended" for each in found):
            raise problem(f"no run has {meant.key}: it is suspended, which `resume` ends")
        if any(each.state == "foreign" for each in found):
            raise problem(f"{found[0].key} is not a lock of ours: delete it with redis-cli")
        if not found and naming.is_name_of(meant):
            raise nothing_called(app, naming.text)
        return found, f"nobody holds {meant.key}"
    task, node, older = filters
    every = snapshot(app)
    require_task(app, naming.target or task, chosen(every, naming.target or task))
    found = to_break(every, naming.target or task, node, older)
    return found, f"{one_line(naming.target)} holds no lock" if naming.target else "none matches"


def _many(naming: Naming, filters: Sequence[Any], all_: bool) -> bool:
    """Whether the user means all locks with something in common, and not one lock."""
    if not naming.target and not all_ and not any(filters):
        raise problem("which lock? Give a key, a task and its arguments, --task, --node or --all")
    if naming.has_arguments and (all_ or any(filters)):
        raise problem("--all takes a task and no arguments, as do --task, --node and --older")
    if naming.target and any(filters) and not all_:
        raise problem("a lock and --task, --node or --older: give one of both, or TASK --all")
    if naming.target and filters[0]:
        raise problem("two tasks: give TASK --all, or --task")
    return all_ or any(filters)


def _confirm(found: Sequence[Found], question: str) -> None:
    """Show the locks, and ask. On stderr: the rest of the output may be piped."""
    show_lines(locks_table(found[:PREVIEW]), err=True)
    if len(found) > PREVIEW:
        click.echo(f"... and {len(found) - PREVIEW} more", err=True)
    click.confirm(question, abort=True, err=True)


def _tell_broken(each: Found, is_broken: bool) -> None:
    if is_broken:
        text = f"broke {each.key}, held by {each.holder or 'nobody yet'}"
    else:
        text = f"did not break {each.key}: another run holds it now, or it is free"
    say(text)


# -- drop-waiting -----------------------------------------------------------------------------


@click.command("drop-waiting")
@with_lock_or_filters
@click.option("-t", "--task", help="All locks of this task, or of tasks that match a glob.")
@click.option("--all", "all_", is_flag=True, help="All locks, or all of the named TASK.")
@with_force
@with_json
@with_app
def drop_waiting(
    app: Any, naming: Naming, task: str | None, all_: bool, force: bool, as_json: bool
) -> None:
    """Drop the tasks that wait for locks: they end as skipped.

    The holders keep their locks. What waits in a pool slot is not dropped: revoke it.
    """
    found, _ = _to_break(app, naming, (task, None, 0.0), all_)
    found = [each for each in found if each.waiting]
    if not found:
        raise problem("no task waits there")
    if not force:
        where = count_of(len({each.name for each in found}))
        _confirm(found, f"Drop the tasks that waited for {where}?")
    done = _carry_out(app, (), found)
    if as_json:
        print_json({"dropped": done.dropped, "locks": found, **done.failed()})
    elif done.dropped or done.trouble is None:
        click.echo(f"dropped {done.dropped} that waited")
    if done.trouble is not None:
        raise done.trouble
