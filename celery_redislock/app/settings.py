"""What belongs to one Celery app: its `redislock_*` settings and its lock server, in no global."""

from __future__ import annotations

import contextlib
import re
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from celery import Celery

from ..errors import ConfigError
from ..lock import sources
from ..protocol import checks
from ..protocol.notes import DONE_TTL
from ..servers import stand_in
from ..servers.address import address_of
from ..servers.urls import QUORUM, TRANSPORT_OPTIONS, is_redis_url, source_from_url
from .brokers import redelivery_of
from .internals import CELERYS_SETTINGS, hide_setting, on_change_of_ours, real_app
from .options import SETTINGS
from .unknown import refuse_unknown_settings

if TYPE_CHECKING:
    from ..servers.server import Server

ATTRIBUTE: Final = "_redislock"
HISTORY: Final = 50
OFFER_FOR: Final = 86400.0


hide_setting("redislock_url")

#: Our settings, translated from those of other packages, given the app's configuration and the
#: names of its settings that are not Celery's. `compat.leftovers` sets it.
translated: Callable[[Any, Iterable[str]], Mapping[str, Any]] = lambda conf, names: {}  # noqa: E731


#: Resolves the options of an app's locked tasks again, as its settings are now. `tasks` sets it.
resolve_again: Callable[[Any], None] = lambda app: None  # noqa: E731


class Address(NamedTuple):
    """Where the locks of an app are."""

    url: str
    options: Mapping[str, Any]

    def __repr__(self) -> str:
        return "Address(...)"  # error trackers show variables, and these have passwords


class NoServer(ConfigError):
    """No setting says where the locks are."""


class Elsewhere(NoServer):
    """No setting says where the locks are, in an app to which Celery gave a shared task."""


class AppLocks:
    """The settings of an app, checked, and its lock server, connected at first use, or as in
    `known`. Raises `ConfigError` for an unknown or wrong setting.
    """

    def __init__(self, app: Any, known: AppLocks | None = None) -> None:
        #: What the settings were read from. `config_from_object` makes a new one.
        self.conf = app.conf
        given, names = read_settings(app)
        refuse_unknown_settings([*names, *given])
        self.settings = {name: given[name] for name in SETTINGS if name in given}
        for name, value in translated(app.conf, names).items():
            if self.settings.get(name) is None:
                self.settings[name] = value
        default = default_prefix(app.conf)
        self.prefix: str = self._checked("redislock_prefix", default, checks.PREFIX)
        self.enabled: bool = self._checked("redislock_enabled", True, checks.FLAG)
        self._eager: bool = self._checked("redislock_eager", False, checks.FLAG)
        #: How many runs each bucket keeps in its history; 0 for none.
        self.history: int = self._checked("redislock_history", HISTORY, checks.HISTORY)
        self.min_replicas: int = self._checked("redislock_min_replicas", 0, checks.MIN_REPLICAS)
        #: Seconds after which a waiting task ends that no worker takes, though it is published.
        self.offer_for: float = self._checked("redislock_offer_for", OFFER_FOR, checks.OFFER_FOR)
        self.address = _server(app.conf, self.settings)
        self.redelivery = redelivery_of(app.conf)
        #: Seconds for which a finished attempt is remembered: a copy of its message may come when
        #: the broker delivers it again.
        self.done_ttl = DONE_TTL + self.redelivery.copies_for
        self._server: Server | None = None
        if known is not None and (known.address, known.min_replicas) == (
            self.address,
            self.min_replicas,
        ):
            self._server = known._server
            return
        if self.address is not None:
            # It raises if the URL is wrong. Only for a new server: each bound task comes here.
            source_from_url(self.address.url, self.address.options)
        if known is not None and known._server is not None:
            known._server.close()

    @property
    def server(self) -> Server:
        if stand_in.current is not None:
            return stand_in.current.server
        if self._server is None:
            from ..servers.factory import server_at  # a program that only sends tasks needs none

            address = self.require_address()
            source = source_from_url(address.url, address.options)
            self._server = server_at(source, self.min_replicas)
        return self._server

    @property
    def knows_server(self) -> bool:
        """Whether a setting says where the locks are, or a test has put them in memory."""
        return self.address is not None or stand_in.current is not None

    @property
    def eager(self) -> bool:
        """Whether eager calls take locks."""
        return self._eager or (stand_in.current is not None and stand_in.current.eager)

    @property
    def is_quorum(self) -> bool:
        """Whether independent servers keep the locks. They have no waiting rooms."""
        return self.address is not None and self.address.url.startswith(f"{QUORUM}://")

    def require_address(self) -> Address:
        """Where the locks are. Raises `NoServer` if no setting says so."""
        if stand_in.current is not None:
            return Address("", {})
        if self.address is None:
            raise NoServer(
                "redislock_url is not set, and neither the result backend nor the broker is"
                " Redis; set redislock_url to the Redis server that keeps the locks, such as"
                " 'redis://localhost:6379/0'"
            )
        return self.address

    def describe_server(self) -> str:
        """The server as a URL, without user and password, and the prefix. Connects to nothing."""
        address = self.require_address()
        if stand_in.current is not None:
            return f"memory, prefix {self.prefix!r}"
        where = address_of(source_from_url(address.url, address.options))
        return f"{where}, prefix {self.prefix!r}"

    def _checked(self, name: str, default: Any, check: checks.Check) -> Any:
        return checks.checked("app", name, self.settings.get(name, default), check)


def app_locks(app: Any, *, refresh: bool = False) -> AppLocks:
    """The app's locks, by its settings as they are. `refresh` reads them again: what they are read
    from may have changed. Raises `ConfigError` for an unknown or wrong setting.
    """
    known: AppLocks | None = app.__dict__.get(ATTRIBUTE)
    if known is not None and not refresh:
        if known.conf is app.conf:
            return known
        read_again(app)
        return app.__dict__[ATTRIBUTE]  # type: ignore[no-any-return]
    locks = app.__dict__[ATTRIBUTE] = AppLocks(app, known)
    on_change_of_ours(app.conf, partial(_changed, weakref.ref(app)))
    return locks


def read_again(app: Any) -> None:
    """Have the app's settings act as they are now. Raises `ConfigError` for a wrong one."""
    app_locks(app, refresh=True)
    with contextlib.suppress(ConfigError):
        resolve_again(app)


def _changed(of: Callable[[], Any]) -> None:
    """A setting was changed. Raises `ConfigError` if a task is wrong by that: it is undone."""
    app = of()
    if app is None:
        return
    if not app.finalized:  # other settings may be still to come, and each task looks again
        with contextlib.suppress(ConfigError):
            read_again(app)
        return
    app_locks(app, refresh=True)
    resolve_again(app)


def _reader_of_app(app: Any) -> Callable[[], AppLocks] | None:
    """See `lock.sources`. An app must name a server when it is complete, and may do so later."""
    if not isinstance(app, Celery):
        return None
    if app.finalized:
        app_locks(real_app(app)).require_address()
    return lambda: app_locks(real_app(app))


sources.reader_of_app = _reader_of_app


def has_locks(app: Any) -> bool:
    """Whether any task of this app takes locks."""
    return ATTRIBUTE in app.__dict__


def read_settings(app: Any) -> tuple[dict[str, Any], list[str]]:
    """The app's `redislock_*` settings that are set, whatever their namespace and case, unchecked;
    and the names of all its settings that are not Celery's, without the app's namespace.
    """
    ours: dict[str, Any] = {}
    names: list[str] = []
    conf, head = app.conf, f"{app.namespace}_".lower() if app.namespace else ""
    for key in conf:
        # Celery has hundreds, and this is done whenever a task is bound: only look each one up.
        if key in CELERYS_SETTINGS:
            continue
        name = str(key).lower()
        start = name.find("redislock_")
        if start == 0 or (start > 0 and name[start - 1] == "_" and str(key).isupper()):
            ours[name[start:]] = conf[key]
        if head and name.startswith(head):
            name = name.removeprefix(head)
        elif name != key:  # capitals: from a settings module that is not only for Celery
            continue
        if name not in CELERYS_SETTINGS:
            names.append(name)
    return ours, names


def default_prefix(conf: Any) -> str:
    """The prefix if none is set. Projects that share a Redis, and have different key prefixes in
    the broker or the result backend, have different prefixes in the lock server too.
    """
    for name in ("broker_transport_options", "result_backend_transport_options"):
        options = conf[name] or {}
        if not isinstance(options, Mapping):
            raise ConfigError(f"app: {name} must be a dict, not a {type(options).__name__}")
        prefix = options.get("global_keyprefix")
        if prefix:
            return f"{re.sub('[{}]', '', str(prefix))}redislock"  # braces would be a hash tag
    return "redislock"


def _server(conf: Any, settings: Mapping[str, Any]) -> Address | None:
    options = settings.get("redislock_transport_options") or {}
    if not isinstance(options, Mapping):
        raise ConfigError(
            f"app: redislock_transport_options: a {type(options).__name__} is not accepted; it must"
            " be a dict"
        )
    url = settings.get("redislock_url")
    if url is not None:
        return Address(url, options)
    derived = _of_result_backend(conf) or _of_broker(conf)
    return derived and Address(derived.url, {**derived.options, **options})


def _of_result_backend(conf: Any) -> Address | None:
    url = conf.result_backend
    if not is_redis_url(url):
        return None
    return _derived(url, conf.result_backend_transport_options, conf.get("redis_backend_use_ssl"))


def _of_broker(conf: Any) -> Address | None:
    urls = conf.broker_url
    if isinstance(urls, str):
        # A failover list is separated like a list of sentinels.
        urls = [urls] if urls.startswith("sentinel") else urls.split(";")
    for url in urls or ():
        if is_redis_url(url):
            return _derived(url, conf.broker_transport_options, conf.broker_use_ssl)
    return None


def _derived(url: str, options: Mapping[str, Any] | None, use_ssl: Any) -> Address:
    """The server of broker or backend, with only those of its options that are for connecting."""
    kept = {k: v for k, v in (options or {}).items() if k in TRANSPORT_OPTIONS}
    if isinstance(use_ssl, Mapping):
        kept.update((k, v) for k, v in use_ssl.items() if k in TRANSPORT_OPTIONS)
    return Address(url, kept)
