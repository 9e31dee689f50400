"""The commands that show the present: `list`, `show`, `explain`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from ...inspection.states import KEPT, RUNNING
from ..command import (
    Naming,
    print_json,
    problem,
    task_names,
    with_app,
    with_args,
    with_filters,
    with_headers,
    with_json,
    with_kwargs,
    with_lock,
    with_states,
)
from ..table import (
    ORDERS,
    count_of,
    described,
    in_order,
    in_units,
    locks_table,
    moment,
    summary,
    suspended,
    tasks_table,
    waiting_table,
    who,
)
from ..terminal import named_values, say, show_lines

if TYPE_CHECKING:
    from ...inspection.locks import Found
    from ...inspection.rooms import Room
    from ...tasks.target import Target

#: How many waiting tasks are shown.
SHOWN: Final = 100


# -- list -------------------------------------------------------------------------------------


@click.command("list", short_help="List the locks that are held, kept or waited for.")
@with_filters
@with_states
@click.option("--sort", type=click.Choice(list(ORDERS)), default="held", show_default=True)
@click.option("--reverse", is_flag=True, help="Reverse the order.")
@click.option("--limit", type=click.IntRange(1), help="Show at most this many.")
@click.option("--all", "all_", is_flag=True, help="Show locks, too, that were broken lately.")
@click.option("--by-task", is_flag=True, help="Count the locks of each task, by state.")
@click.option(
    "--queues",
    is_flag=True,
    help="Ask the broker how many messages are in the queues of queued locks.",
)
@click.option("--wide", is_flag=True, help="Show all of it, however wide the terminal is.")
@with_json
@with_app
def list_(
    app: Any,
    task: str | None,
    node: str | None,
    older: float,
    states: tuple[str, ...],
    sort: str,
    reverse: bool,
    limit: int | None,
    all_: bool,
    by_task: bool,
    queues: bool,
    wide: bool,
    as_json: bool,
) -> None:
    """List all locks: held, kept or waited for, and foreign values that block a key; and runs that
    go on without the lock that they lost.
    """
    from ...inspection.locks import chosen, suspensions, with_rooms
    from ..pick import require_task

    if by_task and (queues or wide):
        raise problem("--by-task counts the locks: it takes no --queues and no --wide")
    every, rooms = with_rooms(app, of_taken=int(by_task))
    require_task(app, task, chosen(every, task))
    # What waits for a lock may be of another task than what holds it.
    found = in_order(chosen(every, None if by_task else task, node, older), sort, reverse)
    found = [each for each in found if not states or each.state in states]
    all_ = all_ or "broken" in states
    listed = found if all_ else [each for each in found if each.state != "broken"]
    if by_task:
        _show_tasks(listed, rooms, task, limit, as_json)
        return
    shown = (found if as_json else listed)[:limit]
    shown = _with_depths(app, shown) if queues else shown
    if as_json:
        print_json(shown)
        return
    for each in suspensions(app):
        say(suspended(each))
    show_lines(locks_table(shown, wide, colors=True))
    more = f", the first {len(shown)} shown" if len(shown) < len(listed) else ""
    click.echo(f"{summary(found, all_)}{more}")


def _with_depths(app: Any, found: list[Found]) -> list[Found]:
    """The locks with the lengths of their queues; without, if the broker does not tell."""
    from ...inspection.queues import with_depths

    try:
        return with_depths(app, found)
    except Exception as exc:  # whatever the broker's driver raises
        say(f"Warning: the broker does not tell its queues: {exc!r}", err=True)
        return found


def _show_tasks(
    found: Sequence[Found],
    rooms: Mapping[str, Room],
    task: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """Show how many locks each task has in each state, and how many of its calls wait in rooms."""
    from ...inspection.figures import by_task
    from ...inspection.locks import chosen, matches

    every = by_task(found, rooms).items()
    some = [(name, each) for name, each in every if task is None or matches(name, task)]
    tasks = dict(some[:limit])
    if as_json:
        names = ("locks", "oldest_holder", "waiting", "untaken")
        print_json([{"task": t, **{n: getattr(f, n) for n in names}} for t, f in tasks.items()])
        return
    show_lines(tasks_table(tasks))
    click.echo(f"{count_of(len(tasks), 'task')}, {summary(chosen(found, task))}")


# -- show and explain -------------------------------------------------------------------------


@click.command(short_help="Show all about one lock.")
@with_lock
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=SHOWN,
    show_default=True,
    help="Show at most this many of those that wait.",
)
@with_json
@with_app
def show(app: Any, naming: Naming, limit: int, as_json: bool) -> None:
    """Show all about one lock: named by its KEY or name, by a TASK and a call's arguments, or by
    what `list` shows of it; or by the id of a task that waits for it.

    An ARG is read as JSON, or else as plain text. Of a TASK that the app does not know, it lists
    all that the server has; of a lock that is free, its last run, if that is kept.
    """
    from ...inspection.rooms import waiting
    from ..pick import meant_by, nothing_called, of_waiting

    if naming.has_arguments and _showed_unknown(app, naming.text, as_json):
        return
    meant = naming.locate(app)
    found = meant_by(app, meant)
    if not found and naming.is_name_of(meant):
        meant = of_waiting(app, naming.text) or meant
        found = meant_by(app, meant)
    if not found:
        if _showed_unknown(app, naming.target, as_json) or _showed_free(app, meant, as_json):
            return
        if naming.is_name_of(meant):
            raise nothing_called(app, naming.text)
        raise problem(f"no such lock: nobody holds {meant.key} or waits for it")
    (room,) = waiting(app, [meant.keys.name], limit)
    if as_json:
        totals = {"room_total": room.total, "untaken": room.untaken}
        print_json({"locks": found, "room": room.waiting, **totals})
        return
    for each in found:
        show_lines(described(each))
    if total := room.total:
        shown = len(room.waiting)
        some = f", {shown} shown (--limit shows more)" if shown < total else ""
        click.echo(f"\nwaiting: {total}{some}")
        show_lines(waiting_table(room.waiting))
    if room.in_slots:
        click.echo(f"\nwaiting in pool slots: {room.in_slots}")
    if room.untaken:
        is_held = any(each.state in (*RUNNING, *KEPT) for each in found)
        click.echo()
        say(_about_untaken(room, is_held))


def _about_untaken(room: Room, is_held: bool) -> str:
    """What is so of the tasks that no worker has taken."""
    passed_over, facts = sum(each.passed_over for each in room.waiting), []
    if passed_over:
        facts.append(
            f"no worker that looks after the room can publish {passed_over} of them: do they know"
            " the task?"
        )
    if (published := room.untaken - passed_over) > 0:
        when = "once the lock is free" if is_held else "again and again"
        facts.append(
            f"no worker has taken {published} of them for a minute or more; what was published is"
            f" published again, {when}; `doctor` asks the broker about the queue"
        )
    return "; ".join(facts)


def _showed_free(app: Any, meant: Target, as_json: bool) -> bool:
    """Show the last run of a lock that is free by now. False if the history does not know it."""
    from ...inspection.history import history
    from ..pick import pick_past

    runs = history(app, name=pick_past(app, meant.keys.name), limit=1)
    if as_json and runs:
        nobody = {"locks": [], "room": [], "room_total": 0, "untaken": 0}
        print_json({**nobody, "last_run": runs[0].to_dict()})
        return True
    for run in runs:
        took = "" if run.took is None else f", took {in_units(run.took)}"
        last_run = f"{run.how}: began {moment(run.began)}{took}"
        facts = {"state": "free", "last_run": last_run, **run.to_dict()}
        names = ("key", "name", "label", "state", "last_run", "task", "task_id", "node")
        show_lines(named_values((name, facts[name]) for name in names))
        click.echo("\nnobody holds it or waits for it; `history` shows its runs")
    return bool(runs)


def _showed_unknown(app: Any, task: str, as_json: bool) -> bool:
    """Show the locks of a task that the app does not know. False if there are none."""
    from ..pick import of_task

    found = [] if task in app.tasks else of_task(app, task)
    if not found:
        return False
    say(f"this app does not know the task {task}; the server has:", err=True)
    if as_json:
        print_json({"task": task, "known": False, "locks": found})
        return True
    show_lines(locks_table(in_order(found, "waiting"), colors=True))
    click.echo(summary(found))
    return True


@click.command(short_help="Show which lock a call gets, and who holds it.")
@click.argument("task", shell_complete=task_names)
@click.argument("words", metavar="[ARG]...", nargs=-1)
@with_args
@with_kwargs
@with_headers
@with_json
@with_app
def explain(
    app: Any,
    task: str,
    words: tuple[str, ...],
    args: list[Any],
    kwargs: dict[str, Any],
    headers: dict[str, Any],
    as_json: bool,
) -> None:
    """Show a call's key, the reason for it, who holds it, and what would happen to the call now.

    An ARG is read as JSON, or else as plain text.
    """
    from ...tasks.target import word
    from ..explain import explain

    if _showed_unknown(app, task, as_json):
        return
    found = explain(app, task, [*map(word, words), *args], kwargs, headers)
    if as_json:
        print_json(found)
        return
    arguments = ", ".join(f"{name}={value}" for name, value in found["arguments"].items())
    standing = ", ".join(
        ", task ".join(filter(None, (each.in_words, who(each).task_id)))
        for each in found["standing"]
    )
    fields = {**found, "arguments": arguments or "none", "standing": standing or "nothing"}
    labels = {"standing": "found in Redis"}
    show_lines(named_values((labels.get(name, name), value) for name, value in fields.items()))
