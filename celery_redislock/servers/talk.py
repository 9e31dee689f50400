"""One exchange with a Redis server, on a connection that nobody else uses meanwhile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar

from redis.exceptions import (
    AskError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..errors import LockUnavailable
from ..protocol.claims import Acquired, Busy, Reserved
from ..protocol.clock import clock
from ..protocol.exchange import Call
from .connections import pack
from .restarts import ServerWatch
from .scripts import packed, packed_text

T = TypeVar("T")

#: redis-py 8 makes these of replies that begin with the code; older ones leave the code there.
_CODES: Final = (
    (MovedError, "MOVED"),
    (AskError, "ASK"),
    (TryAgainError, "TRYAGAIN"),
    (MasterDownError, "MASTERDOWN"),
    (ClusterDownError, "CLUSTERDOWN"),
)
#: The most seconds in which replicas must confirm that a lock was taken.
CONFIRMED_WITHIN: Final = 0.1
#: A node of a cluster says that the hash slot is just being moved; it still has the slot.
IS_MOVING: Final = ("ASK", "TRYAGAIN")
#: A node of a cluster cannot answer now: the same, or the hash slot has no primary yet.
UNSETTLED: Final = (*IS_MOVING, "CLUSTERDOWN")


@lru_cache
def operation_timeout(ttl: float) -> float:
    """Seconds that one command may take: far below ttl / 3, and in steps, to share connections."""
    return min(max(math.ceil(ttl / 12 * 20) / 20, 0.1), 1.0)


class Unconfirmed(ResponseError):
    """Too few replicas confirmed in time that a lock was taken."""


def make_call(
    connection: Any, watch: ServerWatch, call: Call[Any], min_replicas: int = 0
) -> tuple[float, Any]:
    """When the call was sent, on `clock`, and the reply.

    Raises:
        Unconfirmed: fewer than `min_replicas` have confirmed that the lock was taken.
    """
    if call.takes and watch.changed_at is not None:
        watch.admit(call.ttl)
    sent_at = clock()
    if min_replicas:
        connection.send_packed_command([packed(call) + _wait(call, min_replicas)])
        reply, confirmed = read(connection), read(connection)
        if isinstance(reply, NoScriptError):
            connection.send_packed_command([packed_text(call) + _wait(call, min_replicas)])
            reply, confirmed = read(connection), read(connection)
        return sent_at, _confirmed(call, reply, confirmed, min_replicas)
    try:
        connection.send_packed_command([packed(call)])
        return sent_at, connection.read_response()
    except NoScriptError:
        connection.send_packed_command([packed_text(call)])
        return sent_at, connection.read_response()


def make_calls(
    connection: Any, watch: ServerWatch, calls: Sequence[Call[Any]]
) -> tuple[float, list[Any]]:
    """When the calls were sent, on `clock`, and the replies, of which some may be errors."""
    sent_at = clock()
    connection.send_packed_command([b"".join(map(packed, calls))])
    replies = [read(connection) for _ in calls]
    again = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
    if again:
        commands = [packed(calls[i]) for i in again]
        commands[0] = packed_text(calls[again[0]])  # the server then knows it for the others
        connection.send_packed_command([b"".join(commands)])
        for i in again:
            replies[i] = read(connection)
    if any(is_not_master(reply) for reply in replies):
        connection.disconnect()
    return sent_at, replies


def _wait(call: Call[Any], min_replicas: int) -> bytes:
    """Wait until so many replicas have what this connection has written, within bounds."""
    most = min(CONFIRMED_WITHIN, operation_timeout(call.ttl) / 2)
    return pack(("WAIT", min_replicas, round(most * 1000)))


def _confirmed(call: Call[Any], reply: Any, confirmed: Any, min_replicas: int) -> Any:
    """The reply, if enough replicas confirmed what it says."""
    for each in (reply, confirmed):
        if isinstance(each, ResponseError):
            raise each
    if confirmed < min_replicas and isinstance(call.read(reply, 0.0), Acquired | Reserved):
        raise Unconfirmed(f"{confirmed} of {min_replicas} replicas confirmed")
    return reply


def block(
    connection: Any,
    watch: ServerWatch,
    call: Call[T],
    wake: str,
    seconds: float,
    min_replicas: int = 0,
) -> T:
    """The answer to a call that is sent behind a block on this list. See `make_call`."""
    watch.admit(call.ttl)
    sent_at = clock()
    blocking = pack(("BLPOP", wake, f"{seconds:.3f}"))
    wait = _wait(call, min_replicas) if min_replicas else b""
    connection.send_packed_command([blocking + packed(call) + wait])
    if not connection.can_read(seconds + operation_timeout(call.ttl)):
        raise RedisTimeoutError("the server did not end a wait in time")
    slept, reply = read(connection), read(connection)
    confirmed = read(connection) if min_replicas else 0
    if isinstance(reply, NoScriptError):
        slept, (_, reply) = None, make_call(connection, watch, call, min_replicas)
    elif min_replicas:
        reply = _confirmed(call, reply, confirmed, min_replicas)
    if isinstance(reply, ResponseError):
        raise reply
    answer = call.read(reply, sent_at)
    if isinstance(slept, ResponseError) and isinstance(answer, Busy):
        raise slept  # there was no sleep: the caller must not ask again at once
    # Another thread may have noticed a new server meanwhile.
    watch.admit(call.ttl)
    return answer


def replies_to(
    connection: Any,
    watch: ServerWatch,
    commands: Sequence[Sequence[Any]],
    errors: bool = False,
    wrong_type: bool = False,
) -> list[Any]:
    """The replies to these commands.

    Args:
        connection: the connection.
        watch: not used.
        commands: the commands.
        errors: return a refusal as a `ResponseError` among the replies, do not raise it.
        wrong_type: the same, but only for keys of another type.
    """
    connection.send_packed_command([b"".join(map(pack, commands))])
    replies = [read(connection) for _ in commands]
    if not errors:
        raise_refusal(replies, wrong_type)
    return replies


def raise_refusal(replies: Sequence[Any], wrong_type: bool) -> None:
    """Raise the first error among these replies; if `wrong_type`, leave those for a key of another
    type.
    """
    for reply in replies:
        if not isinstance(reply, ResponseError):
            continue
        if not wrong_type or not str(reply).startswith("WRONGTYPE"):
            raise reply


def read(connection: Any) -> Any:
    """The next reply, which may be an error."""
    try:
        return connection.read_response()
    except ResponseError as exc:
        return exc


def unavailable(key: str, error: BaseException, hint: str = "") -> LockUnavailable:
    """A failure, as callers get it. `hint` is added to its text."""
    failure = LockUnavailable(key, None, f"{type(error).__name__}: {error}{hint}")
    failure.__cause__ = error
    return failure


def code_of(error: Any) -> str:
    """The first word of a server's error reply; "" for anything else."""
    if not isinstance(error, ResponseError):
        return ""
    return next((code for kind, code in _CODES if isinstance(error, kind)), _first_word(error))


def _first_word(error: ResponseError) -> str:
    return str(error).partition(" ")[0]


def moved_to(error: Any) -> tuple[str, int] | None:
    """The host, "" for the one that was asked, and the port of the node that a cluster's node
    names as the owner of a slot; None if this is no such reply.
    """
    if code_of(error) != "MOVED":
        return None
    host, _, port = str(error).rpartition(" ")[2].rpartition(":")
    return host, int(port)


def is_not_master(error: Any) -> bool:
    """Whether this is a server's reply that it is not the master any more, or not yet."""
    if isinstance(error, MasterDownError | ReadOnlyError):
        return True
    # Redis 6 says this if a script wants to write.
    return isinstance(error, ResponseError) and "-READONLY " in str(error)


def transient(error: BaseException | None) -> bool:
    """Whether another try may help: the server is away, loading, or not yet the master, or it is a
    node of a cluster in which a slot is being moved.
    """
    if isinstance(error, ResponseError):
        return is_not_master(error) or code_of(error) in ("BUSY", *UNSETTLED)
    return isinstance(error, RedisConnectionError | RedisTimeoutError | OSError)
