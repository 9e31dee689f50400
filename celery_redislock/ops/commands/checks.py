"""The commands `watch` and `doctor`."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import click

from ..command import BETWEEN_LOOKS, print_json, with_app, with_filters, with_json, with_states
from ..table import ORDERS
from ..terminal import Column, grid, show_lines

if TYPE_CHECKING:
    from ...inspection.locks import Found

FINDINGS: Final = (
    Column("LEVEL", itemgetter(0)),
    Column("CHECK", itemgetter(1)),
    Column("FOUND, AND WHAT TO DO", itemgetter(2), 99, 21),
)


@click.command(short_help="Show the locks live.")
@with_filters
@with_states
@click.option("--sort", type=click.Choice(list(ORDERS)), default="held", show_default=True)
@click.option("--reverse", is_flag=True, help="Reverse the order.")
@click.option("--every", type=BETWEEN_LOOKS, default=1.0, show_default=True)
@click.option("--limit", type=click.IntRange(1), help="Show at most this many.")
@click.option("--times", type=click.IntRange(1), help="Stop after this many refreshes.")
@with_app
def watch(
    app: Any,
    task: str | None,
    node: str | None,
    older: float,
    states: tuple[str, ...],
    sort: str,
    reverse: bool,
    every: float,
    limit: int | None,
    times: int | None,
) -> None:
    """Show a live table of holders and waiters, trouble first, with conflicts and lost locks per
    second.

    The arrows, PgUp and PgDn scroll; / filters; s and r sort; Tab chooses a lock, and Enter opens
    it; q ends it. While the server is away it shows what it saw last.
    """
    from ...inspection.locks import chosen
    from ..watch import watch

    def choose(found: list[Found]) -> list[Found]:
        some = (each for each in found if each.state in states or not states)
        every = [each for each in some if each.state != "broken" or "broken" in states]
        return chosen(every, task, node, older)

    watch(app, every, times, choose, (sort, reverse), limit)


@click.command()
@click.option("--workers", is_flag=True, help="Compare what the workers hold with the server.")
@click.option("--strict", is_flag=True, help="Exit with status 1 for warnings too.")
@with_json
@with_app
def doctor(app: Any, workers: bool, strict: bool, as_json: bool) -> None:
    """Examine server, settings and tasks. The exit status is 1 if there is an error."""
    from ..doctor.checkup import ERROR, OK, WARNING
    from ..doctor.examine import examine

    rows = [(each.level, check, each.what, each.todo) for check, each in examine(app, workers)]
    if as_json:
        names = ("level", "check", "what", "todo")
        print_json([dict(zip(names, each, strict=True)) for each in rows])
    else:
        _show_findings(rows)
    levels = {level for level, *_ in rows}
    if ERROR in levels or (strict and levels & {WARNING}):
        raise click.exceptions.Exit(1)
    if not as_json:
        click.echo("no problems" if levels == {OK} else "no errors")


def _show_findings(rows: list[tuple[str, str, str, str]]) -> None:
    from ..doctor.checkup import ERROR, WARNING

    colors = {ERROR: "red", WARNING: "yellow"}
    lines = []
    for level, check, what, todo in rows:
        lines += [(level, check, what), *([("", "", f"-> {todo}")] if todo else [])]
    show_lines(grid(FINDINGS, lines, color=lambda line: colors.get(line[0], "")))
