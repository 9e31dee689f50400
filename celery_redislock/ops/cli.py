"""`celery redislock ...`: see locks, explain them, break them, and examine the set-up.

Celery loads this module whenever one of its commands starts, so the module imports little. Loading
it also imports this package, which makes `redislock_tasks` work everywhere.
"""

from __future__ import annotations

import click

from ..worker import remote_control  # noqa: F401  for `celery inspect` and `celery control`
from .commands import actions, checks, export, history, looks, suspensions, web


@click.group(help="List, explain and break the locks of celery-redislock.")
def redislock() -> None:
    """The group of commands."""


redislock.add_command(looks.list_)
redislock.add_command(looks.show)
redislock.add_command(looks.explain)
redislock.add_command(history.history)
redislock.add_command(actions.break_)
redislock.add_command(actions.drop_waiting)
redislock.add_command(suspensions.suspend)
redislock.add_command(suspensions.resume)
redislock.add_command(checks.watch)
redislock.add_command(web.web)
redislock.add_command(checks.doctor)
redislock.add_command(export.export)
