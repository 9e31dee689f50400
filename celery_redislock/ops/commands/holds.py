"""The commands `hold` and `unhold`: an operator keeps new runs from locks for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ...inspection.states import RUNNING
from ..command import (
    Naming,
    duration,
    print_json,
    problem,
    with_app,
    with_json,
    with_lock_or_filters,
)
from ..table import count_of, moment
from ..terminal import say

if TYPE_CHECKING:
    from ...protocol.holds import Hold


def _with_target(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give the command what names the locks that are held."""
    for option in (
        click.option("--all", "all_", is_flag=True, help="All locks, or all of the named TASK."),
        click.option("-t", "--task", help="All locks of this task, or of tasks that match a glob."),
        with_lock_or_filters,
    ):
        function = option(function)
    return function


@click.command(short_help="Keep new runs from locks for a while; without arguments: list holds.")
@_with_target
@click.option(
    "--for", "seconds", callback=duration, default="0", help="For how long: 90, 5m, 2h, 1d."
)
@click.option("--why", default="", help="The reason, which lists and logs say.")
@with_json
@with_app
def hold(
    app: Any,
    naming: Naming,
    task: str | None,
    all_: bool,
    seconds: float,
    why: str,
    as_json: bool,
) -> None:
    """Keep new runs from a lock, from all locks of a task, or from those that match a glob, until
    the time is over: their calls do what they do as duplicates, by `on_conflict`. With `Skip()`
    they do not run at all.

    A TASK without arguments means all its locks; TASK and KEY may be globs. What has a lock goes
    on. A retry without a lock and a redelivered message wait for the end of the hold. To hold the
    same again sets a new end and reason.
    """
    from ... import operations

    if not (naming.target or task or all_):
        _show(operations.list_holds(app), as_json)
        return
    if not seconds:
        raise problem("for how long? Give --for, such as --for 1h")
    of_task, of_lock = _held(app, naming, task, all_)
    try:
        made = operations.hold_locks(app, task=of_task, lock=of_lock, seconds=seconds, why=why)
    except ValueError as exc:
        raise problem(exc) from None
    running = sum(
        each.state in RUNNING and made.keeps((each.holder and each.holder.task) or "", each.name)
        for each in operations.list_locks(app)
    )
    if as_json:
        print_json({**made.to_dict(), "running": running})
        return
    say(in_words(made))
    if running:
        go_on = "goes on until it ends" if running == 1 else "go on until they end"
        click.echo(f"{count_of(running, 'run')} {go_on}")


@click.command(short_help="End a hold before its time.")
@_with_target
@with_json
@with_app
def unhold(app: Any, naming: Naming, task: str | None, all_: bool, as_json: bool) -> None:
    """End a hold before its time: name what was held as `hold` did. What waits goes on."""
    from ... import operations

    if not (naming.target or task or all_):
        raise problem("which hold? `celery redislock hold` lists them")
    of_task, of_lock = _held(app, naming, task, all_)
    ended = operations.unhold_locks(app, task=of_task, lock=of_lock)
    if ended is None:
        others = ", ".join(each.target for each in operations.list_holds(app)) or "there is none"
        raise problem(f"no such hold; these there are: {others}")
    if as_json:
        print_json(ended.to_dict())
    else:
        say(f"ended: {in_words(ended)}")


def in_words(hold: Hold) -> str:
    """The hold for people, such as "on hold until 2026-11-27 09:30:00: task shop.sync, by ..."."""
    why = f": {hold.why}" if hold.why else ""
    return f"on hold until {moment(hold.ends_at)}: {hold.target}, by {hold.by}{why}"


def _show(found: list[Hold], as_json: bool) -> None:
    if as_json:
        print_json([each.to_dict() for each in found])
        return
    for each in found:
        say(in_words(each))
    if not found:
        click.echo("no hold")


def _held(app: Any, naming: Naming, task: str | None, all_: bool) -> tuple[str | None, str | None]:
    """The task, or the lock's name, that the user means; one of them is None.

    Raises:
        ClickException: the user named both.
        TargetError: there is no such task or call.
        LockUnavailable: the server did not answer, or does not allow it.
    """
    from ...inspection.locks import matches
    from ...protocol.holds import is_glob
    from ..pick import require_task

    if task is not None and (naming.target or all_):
        raise problem("give TASK --all, --task or a lock: one of them")
    if all_ and naming.has_arguments:
        raise problem("--all takes a task and no arguments")
    if task is not None or all_:
        task = task or naming.target or "*"
        require_task(app, task, ())
        return task, None
    if naming.has_arguments:
        return None, naming.locate(app).keys.name
    if any(matches(name, naming.text) for name in app.tasks):
        return naming.text, None
    return None, naming.text if is_glob(naming.text) else naming.locate(app).keys.name
