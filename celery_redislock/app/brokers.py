"""What brokers differ in: what tells two apart, and when one delivers a message again.

Names, options and defaults are those of kombu's transports.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from kombu.transport import TRANSPORT_ALIASES, get_transport_cls
from kombu.utils.url import parse_url

_KOMBUS: Final = "kombu.transport."
#: Seconds after which an SQS queue that kombu did not create delivers again, if nobody has set it.
_SQS_OWN: Final = 30.0


class Kind(NamedTuple):
    """A kind of broker.

    Attributes:
        option: the transport option for the seconds after which it delivers again what is not
            acknowledged, though the worker lives; "" if it never does so by time.
        default: kombu's default for it.
        most: the most that it can be.
        copies_for: seconds for which a copy may come after that, or without that option.
        hears_acks: no copy comes once an acknowledgement was received.
        copies_any_time: nothing rules out a copy at any time.
        closes_after: seconds after which it closes the channel on which a message is not
            acknowledged, and delivers again all that came on it; None if it does not.
        apart: the transport options that tell two brokers with one URL apart.
        port: its default port.
    """

    option: str = ""
    default: float = 0.0
    most: float = float("inf")
    copies_for: float = 0.0
    hears_acks: bool = False
    copies_any_time: bool = False
    closes_after: float | None = None
    apart: tuple[str, ...] = ()
    port: int | None = None


_VISIBILITY: Final = "visibility_timeout"
_QUEUES: Final = ("queue_name_prefix",)
#: RabbitMQ delivers again when the connection ends. Its `consumer_timeout` is 30 minutes.
_AMQP: Final = Kind(hears_acks=True, closes_after=1800.0, port=5672)
#: What is assumed of a broker that is not known: the shortest time of those that are, and copies.
_UNKNOWN: Final = Kind(_VISIBILITY, 60.0, copies_for=3600.0, copies_any_time=True)
#: By the module of kombu. Those without an option take a message out of the queue as they deliver
#: it, or give it back when the connection ends.
KINDS: Final[Mapping[str, Kind]] = {
    "pyamqp": _AMQP,
    "librabbitmq": _AMQP,
    "redis": Kind(
        *(_VISIBILITY, 3600.0), hears_acks=True, apart=("global_keyprefix", "master_name"),
        port=6379,
    ),
    # AWS: "at-least-once delivery"; at most 12 hours.
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
    """When an app's broker may deliver a message again.

    Attributes:
        after: seconds after which it delivers again what is not acknowledged, though the worker
            lives; None if it never does so by time.
        option: the transport option that says so.
        copies_for: seconds for which a copy of a message may still come.
        hears_acks: no copy comes once an acknowledgement was received.
        copies_any_time: nothing rules out a copy at any time.
        closes_after: as in `Kind`.
    """

    after: float | None
    option: str
    copies_for: float
    hears_acks: bool
    copies_any_time: bool
    closes_after: float | None


def redelivery_of(conf: Any) -> Redelivery:
    """When the broker from which this app's workers read may deliver a message again: of several
    for failover, the worst of each.
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
    """What the broker says of a message.

    Attributes:
        sent: the identity that all copies of the message share; "" if it has none, None for the tag
            in its properties.
        redelivered: it says, in its own way, that it had delivered the message before.
    """

    sent: str | None = None
    redelivered: bool = False


AS_CELERY_READS_IT: Final = Origin()


def origin_of(message: Any, redelivery: Redelivery) -> Origin:
    """What the broker says of a message. Brokers that kombu must ask for each message say it in
    their own words, and some transports tag a message anew with each delivery.
    """
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
    """Seconds after which queues of this transport deliver again; none if that is never by time."""
    kind = KINDS.get(name, _UNKNOWN)
    if not kind.option or (name == "redis" and not options.get("ack_emulation", True)):
        return []
    if name == "azureservicebus" and options.get("use_lock_renewal"):
        # As long as the worker lives. A dead one's messages come sooner, which does no harm.
        return [_seconds(options.get("max_lock_renewal_duration"), 3600.0)]
    times = [_seconds(options.get(kind.option), kind.default)]
    if name == "SQS":
        times = _sqs_times(options, times[0])
    return [min(each, kind.most) for each in times]


def _sqs_times(options: Mapping[str, Any], timeout: float) -> list[float]:
    """A queue has a timeout of its own. kombu sets it only for the queues that it creates."""
    queues = options.get("predefined_queues")
    if not queues:
        created = options.get("sqs-creation-attributes") or {}
        return [_seconds(created.get("VisibilityTimeout"), timeout)]
    # kombu takes no such option for a queue. It is for us only.
    said = [queue.get(_VISIBILITY) for queue in queues.values()]
    if options.get(_VISIBILITY) in (None, "") and None in said:
        return [*(_seconds(each, _SQS_OWN) for each in said), timeout]
    return [_seconds(each, timeout) for each in said]


def _seconds(value: Any, default: float) -> float:
    """An option's value. Some transports take a text, and None or "" for the default."""
    try:
        return max(float(value), 0.0)
    except (TypeError, ValueError):
        return default


def _transport_of(url: str, default: Any) -> str:
    """The name of kombu's transport for this URL; "" if it is none of `KINDS`.

    Args:
        url: of a broker.
        default: the transport where the URL names none.
    """
    scheme, colon, _ = url.partition("://")
    transport = scheme.partition("+")[0] if colon else default or "amqp"
    where = TRANSPORT_ALIASES.get(transport, "") if isinstance(transport, str) else ""
    if isinstance(where, str) and where.startswith(_KOMBUS):
        # By name. What it imports is slow, and may be missing where nothing is sent.
        modules = [where.partition(":")[0]]
    else:
        with contextlib.suppress(ImportError, KeyError, ValueError):
            transport = get_transport_cls(transport)
        modules = [base.__module__ for base in getattr(transport, "__mro__", ())]
    names = (module.removeprefix(_KOMBUS) for module in modules)
    return next((name for name in names if name in KINDS), "")


def broker_of(app: Any) -> str:
    """A digest of who the app's broker is: its address, without user and password, and the
    transport options that tell its queues from another broker's at that address.
    """
    known: str | None = app.__dict__.get("_redislock_broker")
    if known is None:
        told = "\n".join(sorted(_addresses(app.connection_for_write())))
        known = hashlib.sha256(told.encode()).hexdigest()[:16]
        app.__dict__["_redislock_broker"] = known
    return known


def secret_of(app: Any) -> bytes:
    """A digest of who the app's broker is, and of the users and passwords in its URLs: whoever
    knows these may send tasks.
    """
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
    """The broker's URLs, as far as they are known, and their parts."""
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
    if name == "filesystem":  # a sender and a worker may have them the other way round
        folders = (options.get(f"data_folder_{way}", f"data_{way}") for way in ("in", "out"))
        return sorted(os.path.abspath(folder) for folder in folders)
    if options.get("predefined_queues") and name == "SQS":
        queues = options["predefined_queues"]
        return sorted((queue, settings.get("url")) for queue, settings in queues.items())
    return [options.get(option) or "" for option in kind.apart]
