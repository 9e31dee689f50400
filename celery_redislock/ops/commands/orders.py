"""The commands that change something: break, put-back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ...core.holders import one_line
from ..command import Naming, print_json, problem, with_app, with_json, with_lock
from ..table import COLUMNS, count_of, row, table, what_waited

if TYPE_CHECKING:
    from ..survey import Found


@click.command("break")
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
    from ...app.settings import app_locks
    from .. import orders

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
    from ...app.settings import app_locks
    from ..orders import all_of
    from ..survey import all_locks, meant_by

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


@click.command("put-back")
@with_lock
@with_json
@with_app
def put_back(app: Any, naming: Naming, as_json: bool) -> None:
    """Let the tasks of a lock that were set aside wait again, behind the others."""
    from ...app.settings import app_locks
    from .. import orders

    keys = naming.locate(app).keys
    count = orders.put_back(app, app_locks(app), keys)
    if not count:
        raise problem(f"no task is set aside for {keys.lock}")
    if as_json:
        print_json({"key": keys.lock, "put_back": count})
    else:
        click.echo(one_line(f"put back {count}, waiting for {keys.lock} again"))
