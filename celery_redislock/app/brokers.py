"""How brokers differ, by the names, options and defaults of kombu's transports."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from kombu.transport import TRANSPORT_ALIASES, get_transport_cls
from kombu.utils.url import parse_url

_KOMBUS: Final = "kombu.transport."
#: Seconds after which an SQS queue redelivers that kombu did not create, if nobody has set them.
_SQS_OWN: Final = 30.0


class Kind(NamedTuple):
    """A kind of broker."""

    #: The transport option for the seconds after which the broker redelivers a message that a
    #: living worker has not acknowledged; "" if it never redelivers by time.
    option: str = ""
    default: float = 0.0  # kombu's for that option
    most: float = float("inf")  # the largest value that the broker accepts for it
    copies_for: float = 0.0  # seconds after that time, or the delivery, for which a copy may come
    hears_acks: bool = False  # no copy comes once the broker has received an acknowledgement
    copies_any_time: bool = False  # a copy may come at any time
    #: Seconds after which the broker closes the channel of an unacknowledged message, and
    #: redelivers all messages of that channel; None if it does not.
    closes_after: float | None = None
    apart: tuple[str, ...] = ()  # the transport options that tell two brokers with one URL apart
    port: int | None = None  # its default port


_VISIBILITY: Final = "visibility_timeout"
_QUEUES: Final = ("queue_name_prefix",)
#: RabbitMQ delivers again when the connection ends. Its `consumer_timeout` is 30 minutes.
_AMQP: Final = Kind(hears_acks=True, closes_after=1800.0, port=5672)
#: What we assume of an unknown broker: the shortest time of all known brokers, and copies.
_UNKNOWN: Final = Kind(_VISIBILITY, 60.0, copies_for=3600.0, copies_any_time=True)
#: By kombu's module. A broker without an option removes a message from the queue as it delivers it,
#: or puts it back when the connection ends.
KINDS: Final[Mapping[str, Kind]] = {
    "pyamqp": _AMQP,
    "librabbitmq": _AMQP,
    "redis": Kind(
        *(_VISIBILITY, 3600.0), hears_acks=True, apart=("global_keyprefix", "master_name"),
        port=6379,
    ),
    # AWS promises "at-least-once delivery", and takes a timeout of at most 12 hours.
    "SQS": Kind(
        *(_VISIBILITY, 1800.0, 43200.0), copies_any_time=True,
        apart=("region", "queue_name_prefix"),
    ),
    "azureservicebus": Kind("peek_lock_seconds", 60.0, 300.0, apart=_QUEUES),
    "azurestoragequeues": Kind(apart=_QUEUES),
    # kombu extends `ack_deadline_seconds`, 10 minutes at most, as long as the worker lives.
    "gcpubsub": Kind(copies_for=600.0, copies_any_time=True, apart=_QUEUES),
    "pgmq": Kind(_VISIBILITY, 1800.0, apart=("queue_name_prefix", "conn_string")),
    "confluentkafka": Kind(copies_any_time=True),
    "mongodb": Kind(apart=("default_database", "messages_collection")),
    "sqlalchemy": Kind(apart=("queue_tablename", "message_tablename")),
    **dict.fromkeys(("consul", "etcd", "filesystem", "memory", "pyro", "zookeeper"), Kind()),
}  # fmt: skip


class Redelivery(NamedTuple):
    """When an app's broker may deliver a message again. See `Kind` for what both have."""

    #: Seconds after which it redelivers a message that a living worker has not acknowledged; None
    #: if it never redelivers by time.
    after: float | None
    option: str  # sets `after`
    copies_for: float  # seconds for which a copy of a message may still come
    hears_acks: bool
    copies_any_time: bool
    closes_after: float | None


def redelivery_of(conf: Any) -> Redelivery:
    """When the broker that this app's workers read from may deliver a message again. Among several
    brokers for failover, the worst one counts for each value.
    """
    options = conf.broker_transport_options or {}
    urls = conf.broker_read_url or ""
    urls = urls.split(";") if isinstance(urls, str) else urls
    names = {_transport_of(url, conf.broker_transport) for url in urls}
    kinds = [(KINDS.get(name, _UNKNOWN), _times(name, options)) for name in sorted(names)]
    after, option = min(
        ((min(times), kind.option) for kind, times in kinds if times), default=(None, "")
    )
    closing = [kind.closes_after for kind, _ in kinds if kind.closes_after is not None]
    return Redelivery(
        after,
        option,
        max(max(times, default=0.0) + kind.copies_for for kind, times in kinds),
        all(kind.hears_acks for kind, _ in kinds),
        any(kind.copies_any_time for kind, _ in kinds),
        min(closing, default=None),
    )


class Origin(NamedTuple):
    """What the broker says of a message."""

    #: The identity that all copies of the message share; "" if it has none; None if the delivery
    #: tag in the message's properties is that identity.
    sent: str | None = None
    redelivered: bool = False  # it says, in its own way, that it delivered the message before


AS_CELERY_READS_IT: Final = Origin()


def origin_of(message: Any, redelivery: Redelivery) -> Origin:
    """What the broker says of a message: some transports give it a new tag at each delivery."""
    if redelivery.hears_acks:
        return AS_CELERY_READS_IT
    info = message.delivery_info or {}
    if sqs := info.get("sqs_message"):
        count = (sqs.get("Attributes") or {}).get("ApproximateReceiveCount", 1)
        return Origin(sqs.get("MessageId", ""), int(count) > 1)
    if pubsub := info.get("gcpubsub_message"):
        return Origin(pubsub.get("message_id", ""))
    if pgmq := info.get("pgmq_message"):
        return Origin(None, pgmq.get("read_ct", 1) > 1)
    if azure := info.get("azure_message"):
        return Origin(None, bool(azure.delivery_count))
    return Origin("" if redelivery.copies_any_time else None)


def _times(name: str, options: Mapping[str, Any]) -> list[float]:
    """Seconds after which queues of this transport redeliver; empty if they never do by time."""
    kind = KINDS.get(name, _UNKNOWN)
    if not kind.option or (name == "redis" and not options.get("ack_emulation", True)):
        return []
    if name == "azureservicebus" and options.get("use_lock_renewal"):
        # While the worker lives. A dead worker's messages come sooner, which does no harm.
        return [_seconds(options.get("max_lock_renewal_duration"), 3600.0)]
    times = [_seconds(options.get(kind.option), kind.default)]
    if name == "SQS":
        times = _sqs_times(options, times[0])
    return [min(each, kind.most) for each in times]


def _sqs_times(options: Mapping[str, Any], timeout: float) -> list[float]:
    """The timeout of each SQS queue. kombu sets it only for queues that it creates."""
    queues = options.get("predefined_queues")
    if not queues:
        created = options.get("sqs-creation-attributes") or {}
        return [_seconds(created.get("VisibilityTimeout"), timeout)]
    # kombu ignores this option of a single queue: only this package reads it.
    timeouts = [queue.get(_VISIBILITY) for queue in queues.values()]
    if options.get(_VISIBILITY) in (None, "") and None in timeouts:
        return [*(_seconds(each, _SQS_OWN) for each in timeouts), timeout]
    return [_seconds(each, timeout) for each in timeouts]


def _seconds(value: Any, default: float) -> float:
    """An option's value as seconds. Some transports take text, and None or "" for the default."""
    try:
        return max(float(value), 0.0)
    except (TypeError, ValueError):
        return default


def _transport_of(url: str, default: Any) -> str:
    """The name in `KINDS` of the transport for a broker's URL, or of the default; or ""."""
    scheme, colon, _ = url.partition("://")
    transport = scheme.partition("+")[0] if colon else default or "amqp"
    where = TRANSPORT_ALIASES.get(transport, "") if isinstance(transport, str) else ""
    if isinstance(where, str) and where.startswith(_KOMBUS):
        # By name: importing the transport is slow, and may fail where nothing is sent.
        modules = [where.partition(":")[0]]
    else:
        with contextlib.suppress(ImportError, KeyError, ValueError):
            transport = get_transport_cls(transport)
        modules = [base.__module__ for base in getattr(transport, "__mro__", ())]
    names = (module.removeprefix(_KOMBUS) for module in modules)
    return next((name for name in names if name in KINDS), "")


def broker_of(app: Any) -> str:
    """A digest of the app's broker: its address and what tells its queues from another one's."""
    known: str | None = app.__dict__.get("_redislock_broker")
    if known is None:
        addresses = "\n".join(sorted(_addresses(app.connection_for_write())))
        known = hashlib.sha256(addresses.encode()).hexdigest()[:16]
        app.__dict__["_redislock_broker"] = known
    return known


def secret_of(app: Any) -> bytes:
    """A digest of the app's broker with users and passwords: who knows these may send tasks."""
    known: bytes | None = app.__dict__.get("_redislock_secret")
    if known is None:
        connection = app.connection_for_write()
        users = sorted(
            str([parts.get("userid"), parts.get("password")]) for _, parts in _urls_of(connection)
        )
        known = hashlib.sha256("\n".join([broker_of(app), *users]).encode()).digest()
        app.__dict__["_redislock_secret"] = known
    return known


def _urls_of(connection: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The URLs of the broker that the connection names, each with its parts."""
    for url in connection.alt or [""]:
        yield url, parse_url(url) if "://" in url else vars(connection)


def _addresses(connection: Any) -> Iterator[str]:
    options = connection.transport_options or {}
    for url, parts in _urls_of(connection):
        name = _transport_of(url, connection.transport_cls)
        kind = KINDS.get(name, _UNKNOWN)
        # A host may be a whole URL.
        host = (parts.get("hostname") or url or "").rpartition("@")[2].rpartition("://")[2]
        virtual_host = parts.get("virtual_host")
        if name == "redis":
            virtual_host = str(virtual_host or "").strip("/") or "0"
        where = [host, parts.get("port") or kind.port, virtual_host or "/"]
        yield str([name or parts.get("transport"), *where, *_apart(name, kind, options)])


def _apart(name: str, kind: Kind, options: Mapping[str, Any]) -> list[Any]:
    """The values of the options that tell two brokers at one address apart."""
    if name == "filesystem":  # a sender and a worker may have swapped them
        folders = (options.get(f"data_folder_{way}", f"data_{way}") for way in ("in", "out"))
        return sorted(os.path.abspath(folder) for folder in folders)
    if options.get("predefined_queues") and name == "SQS":
        queues = options["predefined_queues"]
        return sorted((queue, settings.get("url")) for queue, settings in queues.items())
    return [options.get(option) or "" for option in kind.apart]
