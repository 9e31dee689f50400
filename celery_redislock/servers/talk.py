"""What is said in one exchange with a Redis server, on a connection that nobody else uses then.

An exchange is a generator: it yields what to send, and is sent the replies. So it does no I/O, and
is the same for a connection that blocks its thread and for one of asyncio.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias, TypeVar

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
from redis.sentinel import MasterNotFoundError

from ..errors import LockUnavailable
from ..protocol.claims import Acquired, Busy, Reserved
from ..protocol.clock import clock
from ..protocol.exchange import Call
from .connections import pack
from .restarts import HeldOff, ServerWatch, Unusable
from .scripts import packed, packed_text

T = TypeVar("T")

#: What redis-py says of the clients of the sentinels that did not answer.
_SILENT: Final = re.compile(r" : \w*<.*", re.DOTALL)
#: redis-py 8 makes these of replies that begin with the code; older ones leave the code there.
_CODES: Final = (
    (MovedError, "MOVED"),
    (AskError, "ASK"),
    (TryAgainError, "TRYAGAIN"),
    (MasterDownError, "MASTERDOWN"),
    (ClusterDownError, "CLUSTERDOWN"),
)
#: What a server says of a command that it does not have, also to a script.
_UNKNOWN_COMMAND: Final = re.compile("unknown (redis )?command", re.IGNORECASE)
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


#: A request: what to send; how many replies to read; the most seconds that the server may keep them
#: back on purpose. One without replies closes the connection.
Request: TypeAlias = tuple[bytes, int, float]
#: An exchange. It is sent the replies to each request, some of which may be errors.
Talk: TypeAlias = Generator[Request, list[Any], T]
#: Begins an exchange. Its first argument is the server's `ServerWatch`.
Begin: TypeAlias = Callable[..., Talk[T]]

#: Leaves a server that is not the master: its name may lead to another server by now.
LEAVE: Final[Request] = (b"", 0, 0.0)


def make_call(
    watch: ServerWatch, call: Call[Any], min_replicas: int = 0
) -> Talk[tuple[float, Any]]:
    """When the call was sent, or the wider one in its place, on `clock`; and the reply."""
    asked, was_in_doubt = call, call.in_doubt
    wait = _wait(call, min_replicas) if min_replicas else b""
    count = 2 if wait else 1
    while True:
        if call.takes and watch.changed_at is not None:
            watch.admit(call.ttl)
        sent_at, asked.in_doubt = clock(), True
        replies = yield packed(call) + wait, count, 0.0
        if isinstance(replies[0], NoScriptError):
            replies = yield packed_text(call) + wait, count, 0.0
        asked.in_doubt, reply = was_in_doubt, replies[0]
        if wait:
            reply = _confirmed(call, replies, min_replicas)
        elif isinstance(reply, ResponseError):
            raise reply
        wider = call.wider and call.wider(reply)
        if not wider:
            return sent_at, reply
        call = wider


def make_calls(watch: ServerWatch, calls: Sequence[Call[Any]]) -> Talk[tuple[float, list[Any]]]:
    """When the calls were sent, on `clock`, and the replies, some of which may be errors."""
    sent_at = clock()
    replies = yield b"".join(map(packed, calls)), len(calls), 0.0
    again = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
    if again:
        commands = [packed(calls[i]) for i in again]
        commands[0] = packed_text(calls[again[0]])  # the server then knows it for the others
        found = yield b"".join(commands), len(again), 0.0
        for i, reply in zip(again, found, strict=True):
            replies[i] = reply
    if any(is_not_master(reply) for reply in replies):
        yield LEAVE
    return sent_at, replies


def _wait(call: Call[Any], min_replicas: int) -> bytes:
    """The command that waits until so many replicas have what this connection wrote."""
    most = min(CONFIRMED_WITHIN, operation_timeout(call.ttl) / 2)
    return pack(("WAIT", min_replicas, round(most * 1000)))


def _confirmed(call: Call[Any], replies: Sequence[Any], min_replicas: int) -> Any:
    """The reply, if enough replicas confirmed what it says."""
    for each in replies:
        if isinstance(each, ResponseError):
            raise each
    reply, confirmed = replies
    if confirmed >= min_replicas:
        return reply
    if isinstance(call.read(reply, 0.0), Acquired | Reserved):
        raise Unconfirmed(f"{confirmed} of {min_replicas} replicas confirmed")
    return reply


def block(
    watch: ServerWatch, call: Call[T], wake: str, seconds: float, min_replicas: int = 0
) -> Talk[T]:
    """The answer to a call that is sent behind a block on this list. See `make_call`."""
    watch.admit(call.ttl)
    sent_at = clock()
    blocking = pack(("BLPOP", wake, f"{seconds:.3f}"))
    wait = _wait(call, min_replicas) if min_replicas else b""
    slept, *replies = yield blocking + packed(call) + wait, 3 if wait else 2, seconds
    reply = replies[0]
    if isinstance(reply, NoScriptError):
        slept, (_, reply) = None, (yield from make_call(watch, call, min_replicas))
    elif wait:
        reply = _confirmed(call, replies, min_replicas)
    if isinstance(reply, ResponseError):
        raise reply
    answer = call.read(reply, sent_at)
    if isinstance(slept, ResponseError) and isinstance(answer, Busy):
        raise slept  # there was no sleep: the caller must not ask again at once
    # Another thread may have noticed a new server meanwhile.
    watch.admit(call.ttl)
    return answer


def replies_to(
    watch: ServerWatch,
    commands: Sequence[Sequence[Any]],
    errors: bool = False,
    allows_wrong_type: bool = False,
) -> Talk[list[Any]]:
    """The replies to these commands. See `Server.replies`."""
    replies = yield b"".join(map(pack, commands)), len(commands), 0.0
    if not errors:
        raise_refusal(replies, allows_wrong_type)
    return replies


def raise_refusal(replies: Sequence[Any], allows_wrong_type: bool) -> None:
    """Raise the first error among these, but for a key of another type if `allows_wrong_type`."""
    for reply in replies:
        if not isinstance(reply, ResponseError):
            continue
        if not allows_wrong_type or not str(reply).startswith("WRONGTYPE"):
            raise reply


def ends_connection(error: BaseException) -> bool:
    """Whether to close a connection after this: replies may be unread, or it is no master's."""
    is_answer = isinstance(error, ResponseError) and not is_not_master(error)
    return not (is_answer or isinstance(error, HeldOff))


def may_repeat(error: BaseException, begin: Begin[Any]) -> bool:
    """Whether to repeat an exchange on a new connection: the old one was cut, perhaps while nobody
    used it, so this does not count as a try. Not after a block, which may have lasted: its caller
    knows how long it may wait.
    """
    is_cut = isinstance(error, RedisConnectionError | OSError)
    return is_cut and not isinstance(error, TimeoutError) and begin is not block


def unavailable(key: str, error: BaseException) -> LockUnavailable:
    """The `LockUnavailable` that callers get for this error."""
    kind = "" if isinstance(error, Unusable) else f"{type(error).__name__}: "
    text = str(error)
    if isinstance(error, MasterNotFoundError):
        text = _SILENT.sub("", text)
    failure = LockUnavailable(key, None, f"{kind}{text}{_hint(error)}")
    failure.__cause__ = error
    return failure


def _hint(error: BaseException) -> str:
    if moved_to(error):
        return "; the URL of a Redis Cluster begins with redis+cluster://"
    if isinstance(error, MasterNotFoundError):
        some = (
            "not all sentinels answer, and those that do"
            if _SILENT.search(str(error))
            else "the sentinels"
        )
        return f"; {some} watch no master of that name, or it is down"
    if isinstance(error, ResponseError) and _UNKNOWN_COMMAND.search(str(error)):
        if "SENTINEL" in str(error):
            return "; the hosts of such a URL are sentinels, and this is none"
        return "; this server's configuration has renamed or removed the command, or it is no Redis"
    return ""


def said_of(failure: LockUnavailable) -> str:
    """What is wrong with a server, as a phrase behind its name."""
    return f"{'cannot be used' if refuses(failure) else 'does not answer'}: {failure.reason}"


def refuses(failure: LockUnavailable) -> bool:
    """Whether the server was reached and refuses: nothing is wrong with the network."""
    error = failure.__cause__
    return isinstance(error, ResponseError) and not transient(error)


def code_of(error: Any) -> str:
    """The first word of a server's error reply; "" for anything else."""
    if not isinstance(error, ResponseError):
        return ""
    return next(
        (code for kind, code in _CODES if isinstance(error, kind)), str(error).partition(" ")[0]
    )


def moved_to(error: Any) -> tuple[str, int] | None:
    """The host, "" for the one asked, and port to which a cluster's node refers; or None."""
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
    """Whether another try may help: the server is away, loading, no master yet, or moves slots."""
    if isinstance(error, ResponseError):
        return is_not_master(error) or code_of(error) in ("BUSY", *UNSETTLED)
    return isinstance(error, RedisConnectionError | RedisTimeoutError | OSError)
