"""Who shares the database of the locks: whoever flushes it frees locks that are held."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

from ..errors import ConfigError
from ..servers.address import databases_of
from ..servers.urls import is_redis_url, source_from_url
from .settings import AppLocks

#: What is said of it, in a worker's log and by `doctor`.
IN_CACHE: Final = (
    "the locks are in the database of Django's cache %s: its clear() flushes it, so that locks that"
    " are held are free, and tasks that wait in Redis are lost"
)
BESIDE_OTHERS: Final = (
    "in the %s the database of the locks has keys that are neither ours nor Celery's, such as %r:"
    " if their program flushes it, locks that are held are free, and tasks that wait in Redis are"
    " lost"
)
REMEDY: Final = "Set redislock_url to a database of its own, or to another server"

#: Keys of this package, of any prefix.
_OURS: Final = re.compile(rb":\{\d+\}:[a-z]+\d*(:|$)|:sweep:")
#: Keys of Celery, kombu and their extensions, with a `global_keyprefix` or without.
_CELERYS: Final = re.compile(
    rb"celery-task(set)?-meta-|chord-unlock-|_kombu\.binding[._]|unacked(_index|_mutex)?$"
    rb"|^(redbeat:|qo_|SINGLETONLOCK_)"
)
#: kombu's transport options that name keys.
_NAMES: Final = ("unacked_key", "unacked_index_key", "unacked_mutex_key")


def strangers(locks: AppLocks, conf: Any, keys: Iterable[bytes]) -> list[str]:
    """The keys, of those given, that belong neither to this package nor to Celery."""
    options = conf.broker_transport_options or {}
    named = tuple(str(options[name]).encode() for name in _NAMES if options.get(name))
    others = (
        key
        for key in keys
        if not key.startswith(f"{locks.prefix}:".encode())
        and not (key.endswith(named) or _OURS.search(key) or _CELERYS.search(key))
    )
    return sorted({key.decode(errors="backslashreplace") for key in others})


def caches_beside(locks: AppLocks) -> list[str]:
    """Names of Django's caches in the same database as the locks. Connects to nothing."""
    django = sys.modules.get("django.conf")
    if django is None or not django.settings.configured or locks.address is None:
        return []
    ours = databases_of(source_from_url(*locks.address))
    try:
        caches = django.settings.CACHES.items()
        return [name for name, cache in caches if not ours.isdisjoint(_databases(cache))]
    except (AttributeError, TypeError):
        return []  # of the wrong type: Django says so when a cache is used


def _databases(cache: Any) -> Iterator[str]:
    """The databases that one of Django's caches uses, whichever cache class it has."""
    urls, options = cache.get("LOCATION"), cache.get("OPTIONS") or {}
    pool = options.get("CONNECTION_POOL_KWARGS") or {}  # as django-redis has it
    database = options.get("db", pool.get("db"))
    urls = re.split("[;,]", urls) if isinstance(urls, str) else urls
    for url in filter(is_redis_url, urls or ()):
        try:
            source = source_from_url(url, {} if database is None else {"db": database})
        except ConfigError:
            continue  # the cache itself will say so
        yield from databases_of(source)
