"""The commands `suspend` and `resume`: an operator keeps new runs from beginning for a while."""

from __future__ import annotations

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
from ..table import count_of, suspended
from ..terminal import say

if TYPE_CHECKING:
    from ...protocol.suspensions import Suspension


@click.command(short_help="Keep new runs from beginning for a while; without arguments: list.")
@with_lock_or_filters
@click.option(
    "--for", "seconds", callback=duration, default="0", help="For how long: 90, 5m, 2h, 1d."
)
@click.option("--why", default="", help="The reason, which lists and logs say.")
@click.option("--unknown", is_flag=True, help="Accept a name that no task and no lock has yet.")
@with_json
@with_app
def suspend(
    app: Any, naming: Naming, seconds: float, why: str, unknown: bool, as_json: bool
) -> None:
    """Keep new runs of a task, or under one lock, from beginning until the time is over: calls do
    what they do as duplicates, by `on_conflict`. With `Queue()` they wait, with `Skip()` they end
    without a run.

    A TASK without arguments means all its runs; with a call's arguments, or a lock's KEY or label,
    one lock. What runs goes on, and nothing that has begun is dropped. To suspend the same again
    sets a new end and reason.
    """
    from ... import operations

    if not naming.target:
        _show(operations.list_suspensions(app), as_json)
        return
    if seconds < 0.001:
        raise problem("for how long? Give --for, such as --for 1h")
    what = _named(app, naming)
    try:
        made = operations.suspend(app, **what, seconds=seconds, why=why, unknown=unknown)
    except ValueError as exc:
        raise problem(str(exc).removeprefix("suspend: ")) from None
    running = sum(
        each.state in RUNNING and made.keeps((each.holder and each.holder.task) or "", each.name)
        for each in operations.list_locks(app)
    )
    if as_json:
        print_json({**made.to_dict(), "running": running})
        return
    say(suspended(made))
    if running:
        go_on = "goes on until it ends" if running == 1 else "go on until they end"
        click.echo(f"{count_of(running, 'run')} {go_on}")


@click.command(short_help="End a suspension before its time.")
@with_lock_or_filters
@with_json
@with_app
def resume(app: Any, naming: Naming, as_json: bool) -> None:
    """End a suspension before its time: name what is suspended as `suspend` did, or as it lists it.
    What waits goes on.
    """
    from ... import operations

    if not naming.target:
        raise problem("what? `celery redislock suspend` lists what is suspended")
    try:
        ended = operations.resume(app, **_named(app, naming))
    except ValueError as exc:
        raise problem(str(exc).removeprefix("resume: ")) from None
    if ended is None:
        others = ", ".join(each.target for each in operations.list_suspensions(app))
        raise problem(f"it is not suspended; what is: {others or 'nothing'}")
    if as_json:
        print_json(ended)
    else:
        say(f"resumed: {ended}")


def _show(found: list[Suspension], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    for each in found:
        say(suspended(each))
    if not found:
        click.echo("nothing is suspended")


def _named(app: Any, naming: Naming) -> dict[str, Any]:
    """How `operations` names the task or the lock that the user means."""
    from ...tasks.target import locked_task, word

    target = naming.text
    for kind in ("task ", "lock "):  # as they are listed
        target = target.removeprefix(kind)
    if naming.headers:
        return {"lock": naming.locate(app).key}
    arguments = [*map(word, naming.words), *naming.args]
    if arguments or naming.kwargs:
        locked_task(app, target)
        return {"task": target, "args": arguments, "kwargs": naming.kwargs}
    is_task = target in app.tasks or naming.text.startswith("task ")
    return {"task" if is_task else "lock": target}
