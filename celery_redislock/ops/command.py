"""What the commands share: their app, errors in one line, and how a command line names a lock."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from ..core.holders import one_line

if TYPE_CHECKING:
    from ..tasks.target import Target

#: Seconds in each unit of a duration.
UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def duration(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """Seconds, or a number with s, m, h or d."""
    unit = UNITS.get(value[-1:], 0)
    try:
        return float(value[:-1]) * unit if unit else float(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a duration, such as 90, 5m, 2h or 1d") from None


def _json_of(kind: type[Any]) -> Callable[[click.Context, click.Parameter, str], Any]:
    """JSON of that type."""

    def parse(ctx: click.Context, param: click.Parameter, value: str) -> Any:
        try:
            found = json.loads(value)
        except (ValueError, RecursionError) as exc:
            raise click.BadParameter(f"not JSON: {exc}") from None
        if not isinstance(found, kind):
            raise click.BadParameter(f"it must be a JSON {'array' if kind is list else 'object'}")
        return found

    return parse


with_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
with_args = click.option(
    "-a", "--args", callback=_json_of(list), default="[]", help="Arguments, a JSON array."
)
with_kwargs = click.option(
    "-k",
    "--kwargs",
    callback=_json_of(dict),
    default="{}",
    help="Keyword arguments, a JSON object.",
)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


def problem(text: object) -> click.ClickException:
    """An error for the user, in one line."""
    return click.ClickException(one_line(str(text)))


def with_app(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give the command its app, and say what goes wrong in one line."""

    @click.pass_context
    @functools.wraps(function)
    def run(ctx: click.Context, /, **options: Any) -> Any:
        from ..errors import ConfigError, LockUnavailable
        from ..tasks.target import TargetError

        try:
            return function(_app(ctx), **options)
        except LockUnavailable as exc:
            reason = str(exc.reason)
            if "NOPERM" in reason or "NoPermission" in reason or "no permissions" in reason:
                raise problem(f"no rights: {reason}") from exc
            raise problem(f"the lock server does not answer: {reason}") from exc
        except (ConfigError, TargetError) as exc:
            raise problem(exc) from exc

    return run


def _app(ctx: click.Context) -> Any:
    """The app, with its tasks."""
    from ..app.settings import app_locks

    app = ctx.obj.app
    try:
        app.loader.import_default_modules()
        app.finalize()
        locks = app_locks(app, refresh=True)
    except Exception as exc:  # whatever the project's modules raise
        raise problem(f"cannot load the app's tasks: {exc}") from exc
    if locks.server is None and app.main in (None, "default"):
        raise problem("no app: use celery -A proj redislock ...")
    if ctx.info_name != "doctor" or locks.server is None:
        locks.require_server()
    return app


class Naming(NamedTuple):
    """How a lock is named on a command line.

    Attributes:
        target: a lock's whole key, its name, or a task's name.
        words: for a task, the call's first arguments as they were typed.
        args: for a task, the call's arguments behind these.
        kwargs: for a task, the call's keyword arguments.
    """

    target: str
    words: tuple[str, ...]
    args: list[Any]
    kwargs: dict[str, Any]

    def locate(self, app: Any) -> Target:
        """The lock that is meant.

        Raises:
            TargetError: there is none of that name.
        """
        from ..tasks.target import TargetError, locate, word

        try:
            self.target.encode()
        except UnicodeEncodeError:
            raise TargetError(f"no such lock: {self.target!r} is not valid text") from None
        return locate(app, self.target, [*map(word, self.words), *self.args], self.kwargs)


def with_lock(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let the command take what names a lock, as `naming`."""

    @click.argument("target", metavar="KEY|TASK")
    @click.argument("words", metavar="[ARG]...", nargs=-1)
    @with_args
    @with_kwargs
    @functools.wraps(function)
    def run(
        target: str, words: tuple[str, ...], args: list[Any], kwargs: dict[str, Any], **more: Any
    ) -> Any:
        return function(naming=Naming(target, words, args, kwargs), **more)

    return run
