"""The commands that look on and examine: watch, doctor."""

from __future__ import annotations

from typing import Any

import click

from ..command import print_json, problem, with_app, with_json
from ..table import table


@click.command()
@click.option("--every", type=click.FloatRange(0.1), default=1.0, show_default=True)
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True)
@click.option("--times", type=click.IntRange(1), help="Stop after this many refreshes.")
@with_app
def watch(app: Any, every: float, limit: int, times: int | None) -> None:
    """Show a live table of holders and waiters, with conflicts and lost locks per second."""
    try:
        from ..watch import watch
    except ImportError:
        raise problem("watch needs rich: pip install 'celery-redislock[cli]'") from None
    watch(app, every, limit, times)


@click.command()
@click.option("--strict", is_flag=True, help="Exit with status 1 for warnings too.")
@with_json
@with_app
def doctor(app: Any, strict: bool, as_json: bool) -> None:
    """Examine server, settings and tasks. The exit status is 1 if there is an error."""
    from ..doctor.examine import examine
    from ..doctor.finding import ERROR, OK, WARNING

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
