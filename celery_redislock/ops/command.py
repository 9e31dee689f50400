"""What all commands share: the app, errors in one line, and how a command line names a lock."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from ..inspection.states import STATES
from ..protocol.checks import seconds_from
from ..protocol.holders import one_line
from .terminal import is_plain

if TYPE_CHECKING:
    from ..tasks.target import Target

#: Seconds in each unit of a duration.
UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
#: What `--every` takes: the seconds between two looks at the lock server.
BETWEEN_LOOKS: Final = click.FloatRange(0.1, UNITS["d"])


def duration(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """Parse seconds, or a number with s, m, h or d."""
    unit = UNITS.get(value[-1:], 0)
    try:
        seconds = float(value[:-1]) * unit if unit else float(value)
        return float(seconds_from(0).read(seconds))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a duration, such as 90, 5m, 2h or 1d") from None


def _json_of(kind: type[Any]) -> Callable[[click.Context, click.Parameter, str], Any]:
    """A parser of JSON of that type."""

    def parse(ctx: click.Context, param: click.Parameter, value: str) -> Any:
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError) as exc:
            raise click.BadParameter(f"not JSON: {exc}") from None
        if not isinstance(parsed, kind):
            raise click.BadParameter(f"it must be a JSON {'array' if kind is list else 'object'}")
        return parsed

    return parse


def task_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The names of the app's locked tasks that begin so, for the shell's completion."""
    from ..app.internals import app_named
    from ..tasks.task import locked_tasks

    named = ctx.find_root().params.get("app")
    try:
        app: Any = app_named(named) if isinstance(named, str) else named
        app.loader.import_default_modules()
        app.finalize()
        return [task.name for task in locked_tasks(app) if task.name.startswith(incomplete)]
    except Exception:  # there is no app, or the project's modules raise: nobody can be told
        return []


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


def _headers(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """Parse headers that were typed as NAME=VALUE."""
    from ..tasks.target import word

    headers = {}
    for each in values:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{each!r} is not NAME=VALUE, such as tenant=a")
        headers[name] = word(value)
    return headers


with_headers = click.option(
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_headers,
    help="A header of the call's message, for lock_headers. May be given again.",
)


def print_json(value: Any) -> None:
    """Print plain data, and locks, suspensions and waiting tasks in it."""
    click.echo(json.dumps(value, indent=2, default=methodcaller("to_dict")))


def problem(text: object) -> click.ClickException:
    """An error for the user, in one line."""
    return click.ClickException(one_line(str(text)))


def with_app(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give the command its app, and report errors in one line."""

    @click.pass_context
    @functools.wraps(function)
    def run(ctx: click.Context, /, **options: Any) -> Any:
        from ..errors import ConfigError, LockUnavailable
        from ..tasks.target import TargetError

        try:
            return function(_app(ctx), **options)
        except LockUnavailable as exc:
            from ..inspection.why import why

            raise problem(why(exc)) from exc
        except (ConfigError, TargetError) as exc:
            raise problem(exc) from exc

    return run


def _app(ctx: click.Context) -> Any:
    """The app with its tasks. What is said of its server and its wrong tasks goes to stderr."""
    from ..app.settings import app_locks
    from ..tasks.protect import errors_of

    app = ctx.obj.app
    try:
        app.loader.import_default_modules()
        app.finalize()
        locks = app_locks(app, refresh=True)
    except Exception as exc:  # whatever the project's modules raise
        raise problem(f"cannot load the app's tasks: {exc}") from exc
    if locks.address is None and app.main in (None, "default"):
        raise problem("no app: use celery -A proj redislock ...")
    is_doctor = ctx.info_name == "doctor"  # which has all of it among its findings
    if not is_doctor or locks.address is None:
        locks.require_address()
    if locks.knows_server:
        color = False if is_plain() else None
        click.secho(f"Redis: {locks.describe_server()}", err=True, dim=True, color=color)
    for error in () if is_doctor else errors_of(app):
        click.echo(f"Warning: {one_line(str(error))}", err=True)
    return app


class Naming(NamedTuple):
    """How a lock is named on a command line. All but the target is for a task's call."""

    target: str  # a whole key, a lock's or a task's name, what `list` shows of a lock; "" for none
    words: tuple[str, ...]  # the first arguments as they were typed
    args: list[Any]  # the arguments after these
    kwargs: dict[str, Any]
    headers: dict[str, Any]

    @property
    def has_arguments(self) -> bool:
        return bool(self.words or self.args or self.kwargs or self.headers)

    def is_name_of(self, meant: Target) -> bool:
        """Whether the lock was named by this very text, which need not be any lock's name."""
        return not self.has_arguments and meant.keys.name == self.target

    @property
    def text(self) -> str:
        """The target, if it can be the name of a lock."""
        from ..tasks.target import TargetError

        try:
            self.target.encode()
        except UnicodeEncodeError:
            raise TargetError(f"no such lock: {self.target!r} is not valid text") from None
        return self.target

    def locate(self, app: Any) -> Target:
        """The lock that the user means, if there is one, and one only."""
        from ..tasks.target import TargetError, locate, word
        from .pick import ask_for_quotes, pick

        if not self.target:
            raise TargetError("which lock? Give a key, or a task and a call's arguments")
        arguments = [*map(word, self.words), *self.args]
        if self.words and self.target not in app.tasks:
            ask_for_quotes(app, " ".join([self.text, *self.words]))
        meant = locate(app, self.text, arguments, self.kwargs, self.headers)
        return pick(app, meant) if meant.keys.name == self.target else meant


def _with_naming(function: Callable[..., Any], required: bool) -> Callable[..., Any]:
    """Give the command arguments that name a lock, as its parameter `naming`."""
    metavar = "KEY|TASK" if required else "[KEY|TASK]"

    @click.argument(
        "target", metavar=metavar, required=required, default=None, shell_complete=task_names
    )
    @click.argument("words", metavar="[ARG]...", nargs=-1)
    @with_args
    @with_kwargs
    @with_headers
    @functools.wraps(function)
    def run(target: Any, words: Any, args: Any, kwargs: Any, headers: Any, **more: Any) -> Any:
        return function(naming=Naming(target or "", words, args, kwargs, headers), **more)

    return run


with_lock = functools.partial(_with_naming, required=True)
#: For a command with filters: the user need not name a lock.
with_lock_or_filters = functools.partial(_with_naming, required=False)


def with_filters(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give the command options that filter locks."""
    for option in (
        click.option(
            "--older", callback=duration, default="0", help="Only held at least this long: 90, 5m."
        ),
        click.option("-n", "--node", help="Only held on this node, or on nodes that match a glob."),
        click.option(
            "-t",
            "--task",
            shell_complete=task_names,
            help="Only of this task, or of tasks that match a glob.",
        ),
    ):
        function = option(function)
    return function


with_states = click.option(
    "--state",
    "states",
    type=click.Choice([*STATES]),
    multiple=True,
    help="Only locks in this state. May be given again.",
)
