"""Refuses names that look like our options and settings, and are none. Pure."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NoReturn

from ..errors import ConfigError
from ..policies import Policy
from .leftovers import is_leftover, replacement
from .options import OPTIONS, SETTINGS, UNSET, LockOptions

#: "block" and "clock" are not ours.
_LOCK: Final = re.compile("(?<![bc])lock")


def refuse_unknown_options(
    where: str, attributes: Iterable[tuple[str, Any]], taken: Collection[str]
) -> None:
    """Refuse attributes that look like our options and are not.

    Args:
        where: the task, for messages.
        attributes: names and values; UNSET for a name that is only annotated.
        taken: names of the base class that are not options. Methods may override them.

    Raises:
        ConfigError: a value under a name that is taken, an unknown `lock_*` or `redislock_*`
            name, an unknown `on_*` that is not a hook, an option of another package, or a near
            miss of another option.
    """
    for name, value in attributes:
        if name in OPTIONS:
            continue
        if is_leftover(name):
            # A method or a property with that name is the user's own.
            if not hasattr(type(value), "__get__"):
                refuse_unknown_option(where, name)
            continue
        if name in taken:
            is_own = value is UNSET or isinstance(value, LockOptions)
            if not hasattr(type(value), "__get__") and not is_own:
                raise ConfigError(
                    f"{where}: {name}={value!r} is not accepted: it is not an option, and the base"
                    " class has an attribute with this name. Accepted options:"
                    f" {', '.join(sorted(OPTIONS))}"
                )
        elif _looks_like_an_option(name.lower(), value):
            refuse_unknown_option(where, name)


def refuse_unknown_option(where: str, name: str) -> NoReturn:
    """Refuse an option that does not exist, and name what to use instead.

    Raises:
        ConfigError: always.
    """
    raise ConfigError(_unknown_option(where, name))


def _unknown_option(where: str, name: str) -> str:
    if is_leftover(name):
        return f"{where}: {name!r} is {replacement(name)} Accepted: {', '.join(sorted(OPTIONS))}"
    return _unknown(where, "option", name, OPTIONS)


def refuse_options_of_call(task: str, options: Mapping[str, Any]) -> None:
    """Refuse options of a task that are given to one call: nobody would read them there.

    Args:
        task: the task's name, for messages.
        options: the options of the call. Those that Celery and kombu know are left alone, as are
            stamps.

    Raises:
        ConfigError: there is an option of ours, a near miss, or an option of another package.
    """
    celerys = _celerys_of_call()
    for name, value in options.items():
        if name in celerys or name in (options.get("stamped_headers") or ()):
            continue
        if name in OPTIONS:
            what = f"a call of task {task}: {name}={value!r} is not accepted"
        elif is_leftover(name) or _looks_like_an_option(name.lower(), value):
            what = _unknown_option(f"a call of task {task}", name)
        else:
            continue
        raise ConfigError(
            f"{what}. Options belong to the task, not to one of its calls: set them where the task"
            " is defined, in task_annotations or in redislock_tasks"
        )


@functools.cache
def _celerys_of_call() -> frozenset[str]:
    """The options of a call that Celery and kombu know."""
    from celery import Celery, Task
    from kombu import Producer

    calls = (Celery.send_task, Task.apply_async, Task.apply, Producer.publish)
    named = {name for call in calls for name in inspect.signature(call).parameters}
    return frozenset({*named, "exchange_type", "ignore_result", "queue", "stamped_headers"})


def _looks_like_an_option(name: str, value: Any) -> bool:
    if name.startswith(("lock_", "redislock_")):
        return True
    if _close_matches(name, OPTIONS, cutoff=0.8):
        return True
    # A user's own hook may be named on_something, and be None if it is not set.
    is_hook = value is None or value is UNSET or callable(value) or hasattr(type(value), "__get__")
    return name.startswith("on_") and not is_hook


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
    """Refuse settings that do not exist and look like ours: `redislock_*`, `redis_lock_*`,
    `redislok_ttl`.

    Raises:
        ConfigError: there is such a name.
    """
    for name in names:
        if "redis" not in name or name in SETTINGS:
            continue
        if _LOCK.search(name) or _close_matches(name, SETTINGS, cutoff=0.9):
            raise ConfigError(_unknown("app", "setting", name, SETTINGS))


def _unknown(where: str, kind: str, name: str, accepted: tuple[str, ...]) -> str:
    near = _close_matches(name.lower(), accepted)
    hint = f"; did you mean {near[0]}?" if near else "."
    return f"{where}: unknown {kind} {name!r}{hint} Accepted: {', '.join(sorted(accepted))}"


# Tasks have the same attributes again and again, and comparing takes longer than all else here.
@functools.lru_cache(maxsize=1024)
def _close_matches(name: str, accepted: tuple[str, ...], cutoff: float = 0.6) -> list[str]:
    import difflib  # only if needed: it is a twentieth of the package's import time

    return difflib.get_close_matches(name, accepted, n=1, cutoff=cutoff)
