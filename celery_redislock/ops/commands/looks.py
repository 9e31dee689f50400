"""The commands that show the present: list, show, explain."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from ...core.holders import one_line
from ..command import (
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
from ..table import COLUMNS, ORDERS, described, in_order, lines, row, summary, table

if TYPE_CHECKING:
    from ..survey import Found


@click.command("list")
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
    from ...app.settings import app_locks
    from ..survey import all_locks

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


@click.command()
@with_lock
@with_json
@with_app
def show(app: Any, naming: Naming, as_json: bool) -> None:
    """Show all about one lock: named by its KEY or name, or by a TASK and a call's arguments.

    An ARG is read as JSON, or else as plain text.
    """
    from ...app.settings import app_locks
    from ..survey import aside_of, in_room, meant_by

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


@click.command()
@click.argument("task")
@with_args
@with_kwargs
@with_json
@with_app
def explain(app: Any, task: str, args: list[Any], kwargs: dict[str, Any], as_json: bool) -> None:
    """Show a call's key, the reason for it, who holds it, and what would happen to the call now."""
    from ..explain import explain

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
