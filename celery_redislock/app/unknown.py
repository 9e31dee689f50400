"""Refuses names that look like our options and settings, and are none. Pure."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NoReturn

from ..errors import ConfigError
from ..policies import Policy
from .options import OPTIONS, SETTINGS, UNSET, LockOptions

#: "block" and "clock" are not ours.
_LOCK: Final = re.compile("(?<![bc])lock")

#: What to use here in place of an option of another package, in words; None if no other package has
#: one with this name. `compat.leftovers` sets it.
replacement: Callable[[str], str | None] = lambda name: None  # noqa: E731


def refuse_name(
    where: str, name: str, accepted: tuple[str, ...] = OPTIONS, more: str = ""
) -> NoReturn:
    """Refuse with a `ConfigError` an option or a setting of `where` that does not exist, and name
    what to use instead, of `OPTIONS` or `SETTINGS`; with `more` at the message's end.
    """
    if accepted is OPTIONS and (instead := replacement(name)):
        what = f"{name!r} is {instead}"
    else:
        near = _close_matches(name.lower(), accepted)
        hint = f"; did you mean {near[0]}?" if near else "."
        what = f"unknown {'setting' if accepted is SETTINGS else 'option'} {name!r}{hint}"
    raise ConfigError(f"{where}: {what} Accepted: {', '.join(sorted(accepted))}{more}")


def refuse_unknown_options(
    where: str, attributes: Iterable[tuple[str, Any]], taken: Collection[str]
) -> None:
    """Refuse attributes of a locked task that look like our options and are not; UNSET stands for a
    name that is only annotated, and methods may have the names that are `taken`.
    """
    for name, value in attributes:
        is_method = hasattr(type(value), "__get__")
        if name in taken:
            if not is_method and value is not UNSET and not isinstance(value, LockOptions):
                raise ConfigError(
                    f"{where}: {name}={value!r} is not accepted: it is not an option, and the base"
                    " class has an attribute with this name. Accepted options:"
                    f" {', '.join(sorted(OPTIONS))}"
                )
        elif (
            name not in OPTIONS
            and looks_like_an_option(name, value)
            # A method with the name of another package's option is the user's own.
            and not (is_method and replacement(name))
        ):
            refuse_name(where, name)


def refuse_options_of_call(task: str, options: Mapping[str, Any]) -> None:
    """Refuse options of a task, and near misses, that are given to one call: nobody would read
    them. Those that Celery and kombu know are left alone, as are stamps.
    """
    celerys = _celerys_of_call()
    where = f"a call of task {task}"
    more = (
        ". Options belong to the task, not to one of its calls: set them where the task is defined,"
        " in task_annotations or in redislock_tasks"
    )
    for name, value in options.items():
        if name in celerys or name in (options.get("stamped_headers") or ()):
            continue
        if name in OPTIONS:
            raise ConfigError(f"{where}: {name}={value!r} is not accepted{more}")
        if looks_like_an_option(name, value):
            refuse_name(where, name, more=more)


@functools.cache
def _celerys_of_call() -> frozenset[str]:
    """The options of a call that Celery and kombu know."""
    from celery import Celery, Task
    from kombu import Producer

    calls = (Celery.send_task, Task.apply_async, Task.apply, Producer.publish)
    named = {name for call in calls for name in inspect.signature(call).parameters}
    return frozenset({*named, "exchange_type", "ignore_result", "queue", "stamped_headers"})


def looks_like_an_option(name: str, value: Any) -> bool:
    """Whether an attribute of a locked task is meant for us: a name that begins with `lock_` or
    `redislock_`, an `on_*` that is not a hook, a near miss, or another package's option.
    """
    low = name.lower()
    if low.startswith(("lock_", "redislock_")) or replacement(name):
        return True
    if _close_matches(low, OPTIONS, cutoff=0.8):
        return True
    # A user's own hook may be named on_something, and be None if it is not set.
    is_hook = value is None or value is UNSET or callable(value) or hasattr(type(value), "__get__")
    return low.startswith("on_") and not is_hook


def is_option_or_like_one(name: str, value: Any) -> bool:
    """Whether an attribute of a class that is not ours is meant for us: an option that asks for
    something, a name like one, or a policy under any name.
    """
    if value is None or value is UNSET:
        return False
    if name in OPTIONS or isinstance(value, Policy):
        return True
    low = name.lower()
    is_about_locks = _LOCK.search(low) or "conflict" in low or "redis" in low
    is_like_one = bool(is_about_locks and _close_matches(low, OPTIONS, cutoff=0.8))
    return is_like_one or low.startswith("redislock_")


def refuse_unknown_settings(names: Iterable[str]) -> None:
    """Refuse settings that look like ours and are not: `redis_lock_url`, `redislok_ttl`."""
    for name in names:
        if "redis" not in name or name in SETTINGS:
            continue
        if _LOCK.search(name) or _close_matches(name, SETTINGS, cutoff=0.9):
            refuse_name("app", name, SETTINGS)


# Tasks have the same attributes again and again, and comparing takes longer than all else here.
@functools.lru_cache(maxsize=1024)
def _close_matches(name: str, accepted: tuple[str, ...], cutoff: float = 0.6) -> list[str]:
    import difflib  # only if needed: it is a twentieth of the package's import time

    return difflib.get_close_matches(name, accepted, n=1, cutoff=cutoff)
