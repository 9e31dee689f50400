"""Connections to the lock server, from a URL or from the settings of a user's client.

redis-py's defaults (several seconds, many tries) do not fit: a lock's operations must fail fast.
So timeouts come from the lock's ttl, and the caller decides whether to try again.
"""

from __future__ import annotations

import copy
import inspect
import os
import ssl
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from ..errors import ConfigError
from ..protocol.clock import clock

try:
    from hiredis import pack_command
except ImportError:
    pack_command = None

#: Transport options that a user may set, beside `master_name` and `sentinel_kwargs`.
CONNECTION_OPTIONS: Final = (
    "client_name",
    "credential_provider",
    "db",
    "password",
    "socket_keepalive",
    "socket_keepalive_options",
    "ssl_ca_certs",
    "ssl_ca_data",
    "ssl_ca_path",
    "ssl_cert_reqs",
    "ssl_certfile",
    "ssl_check_hostname",
    "ssl_keyfile",
    "ssl_password",
    "username",
)
TRANSPORT_OPTIONS: Final = (*CONNECTION_OPTIONS, "master_name", "sentinel_kwargs")
SCHEMES: Final = ("redis", "rediss", "unix", "redis+socket", "socket", "sentinel")

#: Seconds for which a used connection is assumed to be alive. If the server went away meanwhile,
#: the next exchange fails.
TRUSTED: Final = 0.5

#: redis-py's names for values that the `ssl` module and Celery's URLs name otherwise.
_CERT_REQS: Final = {
    "CERT_REQUIRED": "required",
    "CERT_OPTIONAL": "optional",
    "CERT_NONE": "none",
    ssl.CERT_REQUIRED: "required",
    ssl.CERT_OPTIONAL: "optional",
    ssl.CERT_NONE: "none",
}

PoolFactory = Callable[[float, Callable[[Any], None]], redis.ConnectionPool]


def is_redis_url(url: Any) -> bool:
    """Whether this is a URL of a kind that we can connect to."""
    return isinstance(url, str) and url.split("://")[0] in SCHEMES and "://" in url


def pools_from_url(url: str, options: Mapping[str, Any] | None = None) -> PoolFactory:
    """A factory of connection pools for the server of this URL.

    Args:
        url: `redis://`, `rediss://`, `unix://` (also `redis+socket://`) or `sentinel://` in
            Celery's form: several sentinels separated by `;`, and `master_name` in `options`.
        options: some of `TRANSPORT_OPTIONS`.

    Returns:
        A function of two arguments: a timeout in seconds, for connecting and for each command, and
        what to call with each new connection.

    Raises:
        ConfigError: the URL or an option is not accepted. The message shows no password.
    """
    options = dict(options or {})
    unknown = sorted(set(options) - set(TRANSPORT_OPTIONS))
    if unknown:
        raise ConfigError(
            f"redislock_transport_options: unknown option {unknown[0]!r}."
            f" Accepted: {', '.join(sorted(TRANSPORT_OPTIONS))}"
        )
    if not is_redis_url(url):
        raise ConfigError(
            f"redislock_url: {_scheme(url)} is not accepted; it must be a URL that begins with"
            f" one of: {', '.join(scheme + '://' for scheme in SCHEMES)}"
        )
    try:
        for part in url.split(";"):
            _ = urlsplit(part if "://" in part else f"//{part}").port
    except ValueError:  # its message shows the URL, which may have a password
        raise ConfigError(
            "redislock_url: a port must be a number up to 65535; percent-encode special"
            " characters in the password"
        ) from None
    kwargs = _translated({k: v for k, v in options.items() if k in CONNECTION_OPTIONS})
    try:
        if _scheme(url) == "sentinel":
            make = _sentinel_pools(url, options, kwargs)
        else:
            make = _url_pools(url, kwargs)
        make(1.0, _nothing).make_connection()  # does not connect, but refuses unknown options
    except ConfigError:
        raise
    except (TypeError, ValueError, redis.RedisError) as exc:
        raise ConfigError(f"redislock_url and redislock_transport_options: {exc}") from exc
    return make


def _url_pools(url: str, kwargs: dict[str, Any]) -> PoolFactory:
    url = _for_redis_py(url)
    db = urlsplit(url).path.strip("/")
    if db and not db.isdigit() and not url.startswith("unix:"):
        raise ConfigError(f"redislock_url: database {db!r} must be a number")
    if url.startswith("redis://") and ("?ssl_" in url or "&ssl_" in url or _wants_tls(kwargs)):
        url = f"rediss://{url.removeprefix('redis://')}"  # as in kombu

    def make(timeout: float, on_connect: Callable[[Any], None]) -> redis.ConnectionPool:
        return redis.ConnectionPool.from_url(url, **{**kwargs, **_fit(timeout, on_connect)})

    return make


def pools_like(client: redis.Redis) -> PoolFactory:
    """A factory of connection pools for the server that this client is connected to.

    The client's own pool is left alone: its timeouts and retries are not fit for a lock.
    """
    pool: Any = client.connection_pool
    kwargs = dict(pool.connection_kwargs)
    for name in ("connection_pool", "parser_class", "decode_responses", "event_dispatcher"):
        kwargs.pop(name, None)
    for name in [name for name in kwargs if name.startswith(("maint_", "_"))]:
        del kwargs[name]

    kwargs["connection_class"] = pool.connection_class
    service = pool.service_name if isinstance(pool, SentinelConnectionPool) else None
    manager = pool.sentinel_manager if service is not None else None
    del pool  # `make` lives as long as the pool does, and must not keep the pool alive

    def make(timeout: float, on_connect: Callable[[Any], None]) -> redis.ConnectionPool:
        fit = {**kwargs, **_fit(timeout, on_connect)}
        if service is not None:
            return SentinelConnectionPool(service, _sentinel_like(manager, timeout), **fit)
        return redis.ConnectionPool(**fit)

    return make


def _sentinel_like(manager: Any, timeout: float) -> Any:
    options = [each.connection_pool.connection_kwargs for each in manager.sentinels]
    hosts = [(each.get("host", "localhost"), each.get("port", 26379)) for each in options]
    copied = copy.copy(manager)
    copied.sentinels = _sentinel(hosts, manager.sentinel_kwargs, timeout).sentinels
    return copied


def checkout(pool: redis.ConnectionPool) -> Any:
    """Take a connection from the pool, and connect it. redis-py 5.0 needs the name of a command;
    later versions warn of one.
    """
    try:
        return pool.get_connection("EVALSHA") if _WANTS_COMMAND else pool.get_connection()
    except (redis.RedisError, OSError):
        raise
    except BaseException:
        # The handshake was interrupted. redis-py puts the connection back as it is, and its next
        # user would read replies to somebody else's commands.
        pool.disconnect(inuse_connections=False)
        raise


class Connections:
    """A pool's connections, handed out without asking the pool each time.

    For each exchange redis-py's pool takes a mutex, updates metrics and checks the socket, which
    costs as much as the exchange itself. Here a connection that was used a moment ago is used again
    as it is; any other goes through the pool, which checks whether it is still alive.
    """

    def __init__(self, make_pool: Callable[[], redis.ConnectionPool]) -> None:
        self._make_pool = make_pool
        self._begin()
        _all_connections.add(self)

    def _begin(self) -> None:
        self.pool = self._make_pool()
        # Taking and putting back are one operation each, so no fork can leave a mutex locked.
        self._idle: list[tuple[Any, float]] = []

    def take(self) -> Any:
        """Take a connection that nobody else uses. It is connected.

        Raises:
            redis.RedisError, OSError: the pool cannot provide a connection.
        """
        try:
            connection, used_at = self._idle.pop()
        except IndexError:
            return checkout(self.pool)
        is_fresh = clock() - used_at < TRUSTED
        # Not a connection that this process inherited in a fork that Python did not notice, such as
        # uWSGI's; and only one to the server that the sentinels now call the master.
        if is_fresh and connection.pid == os.getpid() and self.pool.owns_connection(connection):
            return connection
        self.pool.release(connection)
        return checkout(self.pool)

    def put_back(self, connection: Any) -> float:
        """Put back a connection whose exchange is complete. Returns the time, on `clock`."""
        now = clock()
        self._idle.append((connection, now))
        return now

    def drop(self, connection: Any) -> None:
        """Close a connection: its exchange was cut short, or its server must no longer be used."""
        connection.disconnect()
        self.pool.release(connection)

    def disconnect(self) -> None:
        """Close all connections."""
        self._idle.clear()
        self.pool.disconnect()


_all_connections: Final[weakref.WeakSet[Connections]] = weakref.WeakSet()


def _begin_again() -> None:
    """In a forked child: replace the connections, which are the parent's, and the pools: redis-py
    8.1 takes an inherited pool's mutex, which a thread of the parent may have held at the fork.
    """
    for connections in list(_all_connections):
        connections._begin()


os.register_at_fork(after_in_child=_begin_again)

_WANTS_COMMAND: Final = (
    inspect.signature(redis.ConnectionPool.get_connection).parameters["command_name"].default
    is inspect.Parameter.empty
)


def pack(arguments: Sequence[str | int | bytes], head: bool = True) -> bytes:
    """A command as it is sent. Half of a surrogate pair, which JSON may carry in a task's id, is
    escaped: UTF-8 cannot encode it.

    Args:
        arguments: the command's words.
        head: begin with the head that counts the words; without it, this is a part of a command.
    """
    if pack_command is not None:
        try:
            packed: bytes = pack_command(tuple(arguments))
        except UnicodeEncodeError:
            words = (each if isinstance(each, bytes) else _encoded(each) for each in arguments)
            packed = pack_command(tuple(words))
        return packed if head else packed[packed.index(b"\n") + 1 :]
    parts = [b"*%d\r\n" % len(arguments)] if head else []
    for argument in arguments:
        data = argument
        if not isinstance(data, bytes):  # not `_encoded`: this is done for each word
            data = str(data).encode("utf-8", "backslashreplace")
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def _encoded(word: str | int) -> bytes:
    return str(word).encode("utf-8", "backslashreplace")


def _impatient(timeout: float) -> dict[str, Any]:
    return {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        # Each thread or greenlet that asks or waits needs a connection; redis-py 8 stops at 100.
        "max_connections": 2**31,
    }


def _fit(timeout: float, on_connect: Callable[[Any], None]) -> dict[str, Any]:
    return {
        **_impatient(timeout),
        "retry_on_timeout": False,
        "health_check_interval": 0,
        "decode_responses": False,
        "encoding": "utf-8",
        "encoding_errors": "strict",
        "protocol": 2,
        "redis_connect_func": on_connect,
    }


def _nothing(connection: Any) -> None:
    """Nobody calls this: no connection is opened."""


def _wants_tls(kwargs: Mapping[str, Any]) -> bool:
    return any(name.startswith("ssl_") for name in kwargs)


def _scheme(url: Any) -> str:
    if not isinstance(url, str) or "://" not in url:
        return f"a {type(url).__name__} that is not a URL"  # the text itself may have a password
    return url.split("://")[0]


def _for_redis_py(url: str) -> str:
    scheme, rest = url.split("://", 1)
    if scheme in ("redis+socket", "socket"):
        # kombu calls the database virtual_host, as with every transport.
        scheme, rest = "unix", rest.replace("virtual_host=", "db=")
    base, _, query = rest.partition("?")
    # In redis-py a URL's options win over arguments, and this may be the result backend's URL, with
    # timeouts that suit results: keep only what says how to connect.
    pairs = [
        (name, str(_CERT_REQS.get(value, value)))
        for name, value in parse_qsl(query)
        if name in CONNECTION_OPTIONS
    ]
    return f"{scheme}://{base}" + (f"?{urlencode(pairs)}" if pairs else "")


def _translated(kwargs: dict[str, Any]) -> dict[str, Any]:
    if "ssl_cert_reqs" in kwargs:
        value = kwargs["ssl_cert_reqs"]
        kwargs["ssl_cert_reqs"] = _CERT_REQS.get(value, value)
    return kwargs


def _sentinel_pools(url: str, options: dict[str, Any], kwargs: dict[str, Any]) -> PoolFactory:
    master = options.get("master_name")
    if not isinstance(master, str) or not master:
        raise ConfigError(
            "redislock_transport_options: a sentinel:// URL needs 'master_name', the name that the"
            " sentinels have for the master; a RedisLock has it in transport_options"
        )
    hosts = []
    for part in url.split(";"):
        split = urlsplit(part if "://" in part else f"sentinel://{part}")
        hosts.append((split.hostname or "localhost", split.port or 26379))
        if split.password:
            kwargs.setdefault("password", unquote(split.password))
        if split.username:
            kwargs.setdefault("username", unquote(split.username))
        db = split.path.strip("/")
        if db:
            if not db.isdigit():
                raise ConfigError(f"redislock_url: database {db!r} must be a number")
            kwargs.setdefault("db", int(db))

    sentinel_kwargs = options.get("sentinel_kwargs") or {}
    if not isinstance(sentinel_kwargs, Mapping):
        raise ConfigError(
            "redislock_transport_options: sentinel_kwargs must be a dict, not a"
            f" {type(sentinel_kwargs).__name__}"
        )

    def make(timeout: float, on_connect: Callable[[Any], None]) -> redis.ConnectionPool:
        sentinel = _sentinel(hosts, sentinel_kwargs, timeout)
        tls = {"ssl": True} if _wants_tls(kwargs) else {}
        return SentinelConnectionPool(
            master, sentinel, **{**kwargs, **_fit(timeout, on_connect), **tls}
        )

    return make


def _sentinel(hosts: list[tuple[str, int]], kwargs: Mapping[str, Any], timeout: float) -> Sentinel:
    return Sentinel(hosts, sentinel_kwargs={**kwargs, **_impatient(timeout)})
