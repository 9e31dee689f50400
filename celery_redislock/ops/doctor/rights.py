"""Whether the server's user may do what workers and senders do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from redis.exceptions import NoPermissionError

from ...servers.looking import may, may_mark
from .checkup import ERROR, OK, UNKNOWN, WARNING, Checkup, Finding

#: The commands of workers and senders, each with arguments of the right form. `{}` is a key.
COMMANDS: Final = (
    *("blpop {} 0", "del {}", "eval x 0", "evalsha x 0", "exists {}", "get {}", "hdel {} a"),
    *("hexists {} a", "hget {} a", "hrandfield {} 1", "hset {} a b", "llen {}"),
    *("lpush {} a", "lrange {} 0 1", "lrem {} 1 a", "mget {}"),
    *("pexpire {} 1", "pttl {}", "rpush {} a", "select 0", "set {} a", "time", "zadd {} 1 a"),
    *("zcard {}", "zrangebyscore {} 0 1", "zrem {} a", "zremrangebyscore {} 0 1"),
    *("zrevrange {} 0 0", "zscore {} a"),
)
#: The commands that only the history needs.
FOR_HISTORY: Final = ("lset {} 0 a", "ltrim {} 0 1")
#: The commands that locks work without.
EXTRA: Final = ("info", *FOR_HISTORY)
#: A user who may do these and none of those only looks.
READS, WRITES = frozenset({"get", "pttl"}), frozenset({"del", "evalsha", "hdel"})
#: The commands that cannot be tried: they would change something, or block.
UNTRIED: Final = frozenset({"blpop", "hset", "lpush", "rpush", "select", "set", "zadd"})


def check_rights(checkup: Checkup) -> Iterator[Finding]:
    """Whether this user may run the commands in use."""
    key = f"{checkup.locks.prefix}:{{0}}:doctor"
    commands = [
        [key if part == "{}" else part for part in command.split()]
        for command in (*COMMANDS, *EXTRA)
    ]
    allowed, fine = may(checkup.locks.server, commands), "all commands in use are allowed"
    if allowed is None:
        # The others change nothing: the key does not exist, and `x` is no script.
        commands = [words for words in commands if words[0] not in UNTRIED]
        replies = checkup.locks.server.replies(commands, errors=True)
        allowed = [not isinstance(reply, NoPermissionError) for reply in replies]
        fine = "all commands that change nothing are allowed; Redis 7 tells of the others too"
    denied = [words[0] for words, may in zip(commands, allowed, strict=True) if not may]
    yield from _denied(checkup, key, denied) if denied else (Finding(OK, fine),)


def _denied(checkup: Checkup, key: str, denied: list[str]) -> Iterator[Finding]:
    extra = {command.split()[0] for command in EXTRA}
    if {*denied} >= WRITES and not {*denied} & READS:
        yield Finding(
            UNKNOWN, "this user may only look: whether workers may do their work is unknown",
            "run doctor as the workers' user",
        )  # fmt: skip
        return
    if needed := [command for command in denied if command not in extra]:
        yield Finding(
            ERROR, f"denied on {key!r}: {', '.join(needed)}",
            f"ACL SETUSER <user> ~{checkup.locks.prefix}:* {_granting(needed)}",
        )  # fmt: skip
    if "info" in denied:
        yield _without_info(checkup)
    if for_history := [command for command in denied if command in extra - {"info"}]:
        yield Finding(
            WARNING, f"denied on {key!r}: {', '.join(for_history)}: no history is kept",
            f"ACL SETUSER <user> {_granting(for_history)}; or set redislock_history = 0",
        )  # fmt: skip


def _without_info(checkup: Checkup) -> Finding:
    todo = "ACL SETUSER <user> +info"
    if may_mark(checkup.locks.server):
        return Finding(
            WARNING, "INFO is denied: only a script that is gone shows a restart", todo,
        )  # fmt: skip
    return Finding(
        ERROR,
        "INFO is denied, and the server is older than Redis 7: each connection that ends counts as"
        " a restart, so no new lock is taken for a third of the ttl; if idle connections are closed"
        " sooner, never again",
        todo,
    )  # fmt: skip


def _granting(commands: list[str]) -> str:
    return " ".join(f"+{command}" for command in commands)
