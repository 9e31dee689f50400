"""The options and settings of other packages, and what they are called here: without a module of
`compat` they would do nothing, and are refused. Pure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from ..app import settings as app_settings
from ..app import unknown
from ..app.documents import page
from ..errors import ConfigError

_ONCE: Final = "celery-once"
_SINGLETON: Final = "celery-singleton"
_TTL: Final = "lock_ttl for the time that a lock outlives a dead holder (a heartbeat extends it)"
_LIMIT: Final = "time_limit for the longest run"
_SEE: Final = "use lock_key, lock_scope and on_queued_conflict"

#: For each option of another package: the package, or None for a name of nobody's, and what to use
#: here.
_OPTIONS: Final = {
    "unique_on": (_SINGLETON, "use lock_key, such as lock_key=['account_id']"),
    "raise_on_duplicate": (
        _SINGLETON,
        "use on_conflict='raise', or, with lock_scope='queued+running', on_queued_conflict='raise'",
    ),
    "lock_expiry": (
        _SINGLETON,
        "use lock_ttl, which a heartbeat extends, or lock_queued_ttl for messages that were lost",
    ),
    "once": (_ONCE, _SEE),
    "heimdall": ("celery-heimdall", _SEE),
    "unique_for": (
        "another package",
        f"use lock_min_hold for a pause after a run, or {_TTL}",
    ),
    "ttl": ("another package", f"use {_TTL}"),
    # Names that other locks have for what these options do.
    "lock_timeout": (None, f"use {_TTL}, or {_LIMIT}"),
    "timeout": (None, f"use {_TTL}, {_LIMIT}, or on_conflict=Wait(timeout=...) for waiting"),
    "expiry": (None, f"use {_TTL}, or expires for the time in which a message must be taken"),
    "key": (None, "use lock_key, such as lock_key=['account_id']"),
}

#: The settings of the packages that `compat` has a module for.
SETTINGS_OF: Final = {
    _ONCE: ("ONCE",),
    _SINGLETON: (
        "singleton_backend_class",
        "singleton_backend_kwargs",
        "singleton_backend_url",
        "singleton_key_prefix",
        "singleton_lock_expiry",
        "singleton_raise_on_duplicate",
    ),
}

#: Makes settings of ours from those of another package, which the app's configuration has.
Translator = Callable[[Any], Mapping[str, Any]]
#: By package. A module of `compat` adds its own when it is imported: then the settings are in use.
translators: Final[dict[str, Translator]] = {}


def section(package: str) -> str:
    """The section of the documents about the package, as a phrase."""
    others = package in ("celery-heimdall", "celery-once-task")
    name = "migrating-others" if others else "migrating"
    return page(name, f"From {package}" if package.startswith("celery-") else "")


def replacement(name: str) -> str | None:
    """The package that has an option with this name, and what to use here, in words; or None."""
    if name not in _OPTIONS:
        return None
    package, use = _OPTIONS[name]
    if package is None:
        return f"not an option of a locked task; {use}."
    kept = f" The old name works with {_door(package)}." if package in SETTINGS_OF else ""
    return f"an option of {package}; {use} (see {section(package)}).{kept}"


def translated(conf: Any, names: Iterable[str]) -> dict[str, Any]:
    """Our settings, translated from those of other packages. Raises `ConfigError` if two packages
    name different servers, or a setting would do nothing, as its package is not in use.
    """
    for name, package in _settings_left(conf, names):
        if package not in translators and package.replace("-", "_") not in sys.modules:
            raise ConfigError(
                f"app: {name!r} is a setting of {package}, and does nothing here; accepted are"
                f" redislock_url and the task's own options (see {section(package)}). The old"
                f" name works with {_door(package)}"
            )
    settings: dict[str, Any] = {}
    for package, translate in translators.items():
        for name, value in translate(conf).items():
            if settings.setdefault(name, value) != value:
                raise ConfigError(
                    f"app: the settings of {' and '.join(translators)} give two values for"
                    f" {name}: all locks of an app are in one place. Set {name}; see"
                    f" {section(package)}"
                )
    return settings


def _settings_left(conf: Any, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    once = conf.get("ONCE")  # in capitals, as that package reads it
    if isinstance(once, Mapping) and {"backend", "settings"} & {*once}:
        yield "ONCE", _ONCE
    for name in names:
        if name in SETTINGS_OF[_SINGLETON]:
            yield name, _SINGLETON


def _door(package: str) -> str:
    return f"celery_redislock.compat.{package.replace('-', '_')}"


unknown.replacement = replacement
app_settings.translated = translated
