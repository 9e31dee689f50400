"""What a `RedisLock` takes as its source: a client, a URL, or a Celery app, which others read."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ..errors import ConfigError
from ..servers.urls import source_from_url

if TYPE_CHECKING:
    from ..servers.server import Server


class CeleryApp(Protocol):
    """A Celery app, or a proxy for one."""

    @property
    def conf(self) -> Any: ...


class Source(Protocol):
    """Where locks are, the prefix of every key there, and how many runs each bucket keeps."""

    @property
    def server(self) -> Server: ...
    @property
    def prefix(self) -> str: ...
    @property
    def history(self) -> int: ...


#: Makes a function that reads an app's settings as they are when the lock is used; None if the
#: argument is no Celery app.
reader_of_app: Callable[[Any], Callable[[], Source] | None] = lambda source: None  # noqa: E731


class CallsLock(NamedTuple):
    """The lock that a task's call takes."""

    app: CeleryApp
    name: str
    limit: int  # how many may hold it at once
    ttl: float  # seconds that it outlives a dead holder
    label: str | None  # what people see instead of the key


def _no_tasks(task: Any, args: Any, kwargs: Any) -> CallsLock:
    raise TypeError(f"{task!r} is no task")


#: The lock that the call of a task with these arguments takes. `tasks.protect` provides it.
lock_of_call: Callable[[Any, tuple[Any, ...], dict[str, Any]], CallsLock] = _no_tasks


class Fixed:
    """A server without an app's settings. Called as a reader, it returns itself. See `Source`."""

    prefix = "redislock"
    history = 0

    def __init__(self, server: Server) -> None:
        self.server = server

    def __call__(self) -> Fixed:
        return self


def reader_of(kind: str, source: Any, options: Mapping[str, Any] | None) -> Callable[[], Source]:
    """A function, called whenever the lock is used, that returns where it is. `kind` is the class
    of the lock, for errors. Raises `ConfigError` if a source or its options are not accepted.
    """
    read = None if isinstance(source, str) else reader_of_app(source)
    if read is None:
        return Fixed(_server_for(kind, source, options))
    if options is not None:
        raise ConfigError(f"{kind}: transport_options are not accepted beside an app's")
    return read


def refusal(kind: str, source: Any, hint: str = "") -> ConfigError:
    """The error for what is no source. It shows only the type: there may be a password in it."""
    module, name = type(source).__module__, type(source).__qualname__
    what = name if module == "builtins" else f"{module}.{name}"
    return ConfigError(
        f"{kind}: a source of type {what} is not accepted; it must be a redis.Redis or"
        f" redis.RedisCluster client, one of valkey-py, a URL or a Celery app{hint}"
    )


_servers_by_client: weakref.WeakKeyDictionary[Any, Server] = weakref.WeakKeyDictionary()
_servers_by_url: weakref.WeakValueDictionary[tuple[str, str], Server] = (
    weakref.WeakValueDictionary()
)
#: Of the servers of URLs the last ones are kept also while no lock uses them.
KEPT: Final = 8
_last_of_urls: deque[Server] = deque(maxlen=KEPT)


def _server_for(kind: str, source: Any, options: Mapping[str, Any] | None) -> Server:
    """The lock server of this client or URL: all locks of one source share connections."""
    if isinstance(source, str):
        return _server_of_url(source, options)
    from ..servers.factory import is_client, server_like  # a program that only sends needs none

    if not is_client(source):
        raise refusal(kind, source)
    if options is not None:
        raise ConfigError(f"{kind}: transport_options are not accepted beside a client's")
    owner = getattr(source, "connection_pool", source)  # a cluster's client has one for each node
    server = _servers_by_client.get(owner)
    if server is None:
        server = _servers_by_client[owner] = server_like(source)
    return server


def _server_of_url(url: str, options: Mapping[str, Any] | None) -> Server:
    key = url, repr(sorted(options.items())) if options else ""
    known = _servers_by_url.get(key)
    if known is None:
        from ..servers.factory import server_at

        known = _servers_by_url.setdefault(key, server_at(source_from_url(url, options)))
        _last_of_urls.append(known)
    return known
