"""Reads the URL of a lock server, and the options beside it."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import redis
from redis.sentinel import SentinelConnectionPool

from ..errors import ConfigError
from .connections import PoolFactory, fit, sentinel_of, unused

#: Transport options that a user may set, beside `master_name` and `sentinel_kwargs`.
CONNECTION_OPTIONS: Final = (
    *("client_name", "credential_provider", "db", "password", "socket_keepalive"),
    *("socket_keepalive_options", "ssl_ca_certs", "ssl_ca_data", "ssl_ca_path"),
    *("ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname"),
    *("ssl_keyfile", "ssl_password", "username"),
)
TRANSPORT_OPTIONS: Final = (*CONNECTION_OPTIONS, "master_name", "sentinel_kwargs")
#: What a URL's query cannot say: it is no text.
_NO_TEXT: Final = ("credential_provider", "socket_keepalive_options")
#: The schemes of a cluster's nodes, and of sentinels in the form of other clients.
_CLUSTER: Final = ("redis+cluster", "rediss+cluster")
_SENTINEL: Final = ("redis+sentinel", "rediss+sentinel")
#: The scheme of independent servers; a majority decides.
QUORUM: Final = "redlock"
SCHEMES: Final = (
    *("redis", "rediss", "unix", "redis+socket", "socket", "sentinel"),
    *(*_SENTINEL, *_CLUSTER, QUORUM),
    *("valkey", "valkeys", "valkey+sentinel", "valkeys+sentinel"),
    *("valkey+cluster", "valkeys+cluster"),
)

#: redis-py's names for values that the `ssl` module and Celery's URLs name otherwise.
_CERT_REQS: Final = {
    "CERT_REQUIRED": "required",
    "CERT_OPTIONAL": "optional",
    "CERT_NONE": "none",
    ssl.CERT_REQUIRED: "required",
    ssl.CERT_OPTIONAL: "optional",
    ssl.CERT_NONE: "none",
}

#: The port of a sentinel whose URL names none.
SENTINEL_PORT: Final = 26379

Host = tuple[str, int]


class Nodes(NamedTuple):
    """How to connect to the nodes of a cluster."""

    first: tuple[Host, ...]  # whom to ask first which nodes there are
    pools: Callable[[str, int], PoolFactory]
    #: Where we reach the node that the cluster calls by this host and port.
    reached_at: Callable[[Host], Host] | None = None


class Independent(NamedTuple):
    """How to connect to independent servers."""

    names: tuple[str, ...]  # their hosts and ports
    pools: tuple[PoolFactory, ...]


#: How to connect to a lock server, of one process or of several.
Source = PoolFactory | Nodes | Independent


def is_redis_url(url: Any) -> bool:
    """Whether this is a URL of a kind that we can connect to."""
    return isinstance(url, str) and url.split("://")[0] in SCHEMES and "://" in url


def source_from_url(url: str, options: Mapping[str, Any] | None = None) -> Source:
    """How to connect to the lock server of this URL, with some of `TRANSPORT_OPTIONS`. Opens no
    connection. Its `ConfigError`s show no password.

        `redis://`, `rediss://`, `unix://` (also `redis+socket://`);
        `valkey://` and `valkeys://`, here and below, for `redis://` and `rediss://`;
        `sentinel://a;b/0`, Celery's form, with `master_name` in `options`;
        `redis+sentinel://a,b/master_name/0`;
        `redis+cluster://a,b` and `rediss+cluster://a,b`: some nodes of a Redis Cluster;
        `redlock://a,b,c`: independent servers; a majority decides.

    User and password come before the first host, in a quorum also before others. TLS is what
    `rediss`, `?ssl=true` or an option that begins with `ssl_` asks for.
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
    _require_ports(url)
    if url.startswith("valkey"):
        url = f"redis{url.removeprefix('valkey')}"
    kwargs = {k: v for k, v in options.items() if k in CONNECTION_OPTIONS}
    if "ssl_cert_reqs" in kwargs:
        kwargs["ssl_cert_reqs"] = _CERT_REQS.get(kwargs["ssl_cert_reqs"], kwargs["ssl_cert_reqs"])
    try:
        if _scheme(url) in _CLUSTER:
            source: Source = _cluster_nodes(url, options, kwargs)
        elif _scheme(url) == QUORUM:
            source = _independent(url, options, kwargs)
        elif _scheme(url) in _SENTINEL:
            source = _sentinel_pools(*_in_celerys_form(url, options), kwargs)
        elif _scheme(url) == "sentinel":
            source = _sentinel_pools(url, options, kwargs)
        else:
            source = _url_pools(url, kwargs)
        # This does not connect, but refuses unknown options.
        _one_of(source)(1.0, unused).make_connection()
    except ConfigError:
        raise
    except (TypeError, ValueError, redis.RedisError) as exc:
        raise ConfigError(f"redislock_url and redislock_transport_options: {exc}") from exc
    return source


def _require_ports(url: str) -> None:
    try:
        for part in url.replace(",", ";").split(";"):
            split = urlsplit(part if "://" in part else f"//{part}")
            if split.port and "@" in split.path:
                raise ValueError
    except ValueError:  # its message shows the URL, which may have a password
        raise ConfigError(
            "redislock_url: a port must be a number up to 65535; percent-encode special"
            " characters in the password"
        ) from None


def _one_of(source: Source) -> PoolFactory:
    if isinstance(source, Nodes):
        return source.pools(*source.first[0])
    return source.pools[0] if isinstance(source, Independent) else source


def _url_pools(url: str, kwargs: dict[str, Any]) -> PoolFactory:
    url = _for_redis_py(url)
    db = urlsplit(url).path.strip("/")
    if db and not db.isdigit() and not url.startswith("unix:"):
        raise ConfigError(f"redislock_url: database {db!r} must be a number")
    if url.startswith("unix:") and not hasattr(socket, "AF_UNIX"):
        raise ConfigError("redislock_url: this platform has no Unix sockets")
    if url.startswith("redis://") and ("?ssl_" in url or "&ssl_" in url or _wants_tls(kwargs)):
        url = f"rediss://{url.removeprefix('redis://')}"  # as in kombu

    def make(timeout: float, on_connect: Callable[[Any], None]) -> redis.ConnectionPool:
        return redis.ConnectionPool.from_url(url, **{**kwargs, **fit(timeout, on_connect)})

    return make


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
    pairs, tls = _kept(query)
    if tls is not None and scheme != ("rediss" if tls else "redis"):
        if scheme != "redis":
            raise ConfigError(f"redislock_url: ssl={str(tls).lower()} does not fit {scheme}://")
        scheme = "rediss"
    return f"{scheme}://{base}" + (f"?{urlencode(pairs)}" if pairs else "")


def _kept(query: str) -> tuple[list[tuple[str, str]], bool | None]:
    """The options for connecting in a URL's query, and whether it asks for TLS, or None. Timeouts
    are left out: this may be the result backend's URL, and in redis-py they win over arguments.
    """
    pairs, tls = [], None
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name == "ssl":
            tls = {"true": True, "1": True, "false": False, "0": False}.get(value.lower())
            if tls is None:
                raise ConfigError("redislock_url: ssl must be true or false")
        elif name in _NO_TEXT:
            raise ConfigError(f"redislock_url: set {name} in redislock_transport_options")
        elif name in CONNECTION_OPTIONS or name.startswith("ssl_"):
            pairs.append((name, str(_CERT_REQS.get(value, value))))
    return pairs, tls


def _refuse_unknown(query: str) -> None:
    """Refuse options in the query of a URL of a form that only lock servers have."""
    known = {*CONNECTION_OPTIONS, "ssl"} - {*_NO_TEXT}
    for name, _ in parse_qsl(query, keep_blank_values=True):
        if name not in known and name not in _NO_TEXT:
            raise ConfigError(
                f"redislock_url: unknown option {name!r} in the query."
                f" Accepted: {', '.join(sorted(known))}"
            )


class _Several(NamedTuple):
    """A URL of several servers. `credentials` are the user and password of each, with "@"."""

    credentials: list[str]
    hosts: list[Host]
    path: str
    query: str


def _several(url: str, port: int = 6379) -> _Several:
    """Read a URL whose servers are separated by commas. `port` is that of a host without one."""
    scheme, rest = url.split("://", 1)
    base, _, query = rest.partition("?")
    names, _, path = base.partition("/")
    parts = [part.rpartition("@") for part in names.split(",")]
    split = [urlsplit(f"//{name}") for _, _, name in parts]
    if not all(each.hostname for each in split):
        raise ConfigError(f"redislock_url: a host is missing in {scheme}://, or between commas")
    _refuse_unknown(query)
    first = parts[0][0] + parts[0][1]
    hosts = [(_plain_host(each.hostname or ""), each.port or port) for each in split]
    return _Several([user + at or first for user, at, _ in parts], hosts, path, query)


def _plain_host(host: str) -> str:
    """One way to write this host, or address."""
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(host))
    return host.rstrip(".") or host


def _one_user(several: _Several) -> str:
    """The user and the password that all servers share."""
    if len({*several.credentials}) > 1:
        raise ConfigError(
            "redislock_url: the servers must have one user and password, before the first host"
        )
    return several.credentials[0]


def _cluster_nodes(url: str, options: dict[str, Any], kwargs: dict[str, Any]) -> Nodes:
    unfit = sorted({"db", "master_name", "sentinel_kwargs"} & {*options})
    if unfit:
        raise ConfigError(f"redislock_transport_options: {unfit[0]!r} does not fit a cluster")
    several = _several(url)
    credentials, database = _one_user(several), several.path
    if database not in ("", "0"):
        raise ConfigError(f"redislock_url: database {database!r}: a cluster has only database 0")
    scheme = _scheme(url).removesuffix("+cluster")

    def pools(host: str, port: int) -> PoolFactory:
        one = f"{scheme}://{credentials}{host_port(host, port)}?{several.query}"
        return _url_pools(one, kwargs)

    return Nodes(tuple(several.hosts), pools)


def _independent(url: str, options: dict[str, Any], kwargs: dict[str, Any]) -> Independent:
    unfit = sorted({"master_name", "sentinel_kwargs"} & {*options})
    if unfit:
        raise ConfigError(f"redislock_transport_options: {unfit[0]!r} does not fit a quorum")
    several = _several(url)
    names = [host_port(*host) for host in several.hosts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if len(names) < 3 or twice is not None:
        why = f"; {twice} is named twice" if twice is not None else ""
        raise ConfigError(f"redislock_url: {QUORUM}:// needs at least three different servers{why}")
    pools = tuple(
        _url_pools(f"redis://{user}{name}/{several.path}?{several.query}", kwargs)
        for user, name in zip(several.credentials, names, strict=True)
    )
    return Independent(tuple(names), pools)


def host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _in_celerys_form(url: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """`redis+sentinel://a,b/master/0` as `sentinel://a;b/0`, and `master_name` in the options."""
    several = _several(url, SENTINEL_PORT)
    master, _, database = several.path.strip("/").partition("/")
    master = unquote(master)
    if not master and not options.get("master_name"):
        raise ConfigError(
            f"redislock_url: a {_scheme(url)}:// URL needs the name that the sentinels have for the"
            f" master, as in {_scheme(url)}://host:26379,host:26379/mymaster/0"
        )
    if master and options.get("master_name", master) != master:
        raise ConfigError(
            f"redislock_transport_options: master_name {options['master_name']!r} is not the"
            f" {master!r} of redislock_url"
        )
    options = {**options, **({"master_name": master} if master else {})}
    hosts = ";".join(host_port(*host) for host in several.hosts)
    query = several.query
    if url.startswith("rediss"):
        if _kept(query)[1] is False:
            raise ConfigError(f"redislock_url: ssl=false does not fit {_scheme(url)}://")
        query = f"{query}&ssl=true"
    return f"sentinel://{_one_user(several)}{hosts}/{database}?{query}", options


def _sentinel_pools(url: str, options: dict[str, Any], kwargs: dict[str, Any]) -> PoolFactory:
    master = options.get("master_name")
    if not isinstance(master, str) or not master:
        raise ConfigError(
            "redislock_transport_options: a sentinel:// URL needs 'master_name', the name that the"
            " sentinels have for the master; a RedisLock has it in transport_options"
        )
    url, _, query = url.partition("?")
    pairs, tls = _kept(query)
    in_query = redis.connection.parse_url(f"redis://?{urlencode(pairs)}")
    tls = tls or _wants_tls(kwargs) or _wants_tls(in_query)
    hosts: list[Host] = []
    users: dict[str, Any] = {}
    for part in url.split(";"):
        split = urlsplit(part if "://" in part else f"sentinel://{part}")
        if not split.hostname and ";" in url:
            raise ConfigError("redislock_url: a host is missing between the semicolons")
        hosts.append((split.hostname or "localhost", split.port or SENTINEL_PORT))
        said = {"username": split.username, "password": split.password, "db": split.path.strip("/")}
        for name, value in said.items():
            if value and users.setdefault(name, unquote(value)) != unquote(value):
                raise ConfigError(f"redislock_url: the sentinels' parts have more than one {name}")
    if "db" in users:
        if not users["db"].isdigit():
            raise ConfigError(f"redislock_url: database {users['db']!r} must be a number")
        users["db"] = int(users["db"])
    kwargs = {**users, **in_query, **kwargs}

    sentinel_kwargs = options.get("sentinel_kwargs") or {}
    if not isinstance(sentinel_kwargs, Mapping):
        raise ConfigError(
            "redislock_transport_options: sentinel_kwargs must be a dict, not a"
            f" {type(sentinel_kwargs).__name__}"
        )

    def make(timeout: float, on_connect: Callable[[Any], None]) -> redis.ConnectionPool:
        sentinel = sentinel_of(hosts, sentinel_kwargs, timeout)
        fitted = {**kwargs, **fit(timeout, on_connect)}
        return SentinelConnectionPool(master, sentinel, **fitted, ssl=bool(tls))

    return make
