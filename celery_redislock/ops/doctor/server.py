"""Whether the server is fit for locks: it answers in time, and forgets nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ...app.options import LockOptions
from ...errors import LockUnavailable
from ...inspection.why import is_refused
from ...servers.cluster import Cluster
from ...servers.looking import reach, server_config
from ...servers.talk import operation_timeout, refuses, said_of
from ..table import count_of, some
from .checkup import ERROR, OK, UNKNOWN, UNTOLD, WARNING, Checkup, Finding

#: The oldest server that has all that the scripts use.
OLDEST: Final = (6, 2)
#: What a server does that could not save, and what helps.
REFUSES: Final = "the server refuses every lock (MISCONF)"
MEND_DISK: Final = (
    "see the server's log: is its disk full, or its dir not writable? BGSAVE or BGREWRITEAOF shows"
    " whether it works again"
)
#: Seconds by which two clocks may differ.
CLOCKS: Final = 1.0


def check_server(checkup: Checkup) -> Iterator[Finding]:
    """Whether the server answers."""
    try:
        reach(checkup.server)
    except LockUnavailable as exc:
        yield unreachable(exc)
        return
    yield Finding(OK, "answers")


def unreachable(exc: LockUnavailable) -> Finding:
    if is_refused(exc):
        return Finding(
            ERROR, f"refuses this user or password: {exc.reason}",
            "check the user and the password in redislock_url; until then on_redis_error applies",
        )  # fmt: skip
    what = "what redislock_url names" if refuses(exc) else "redislock_url and the network"
    return Finding(ERROR, said_of(exc), f"check {what}; until then on_redis_error applies")


def check_cluster(checkup: Checkup) -> Iterator[Finding]:
    """Which nodes a Redis Cluster has, and whether each slot has one."""
    server = checkup.server
    if not isinstance(server, Cluster):
        return
    nodes, without = server.topology()
    if without:
        yield Finding(
            ERROR, f"{without} hash slots have no node",
            "repair the cluster: locks in these slots are unavailable",
        )  # fmt: skip
    for name, (count, replicas) in nodes.items():
        if replicas:
            yield Finding(OK, f"{name} has {count} hash slots; replicas: {', '.join(replicas)}")
        else:
            yield Finding(
                WARNING, f"{name} has {count} hash slots and no replica",
                "give it one: while the node is down, its locks are unavailable",
            )  # fmt: skip


def check_version(checkup: Checkup) -> Iterator[Finding]:
    """Whether the server has what the scripts use."""
    text = checkup.info.get("redis_version")
    if text is None:
        yield UNTOLD
        return
    version = tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
    todo = "use Redis 6.2 or later" if version < OLDEST else ""
    yield Finding(ERROR if todo else OK, f"Redis {text}", todo)


def check_memory(checkup: Checkup) -> Iterator[Finding]:
    """Whether the server may evict locks."""
    info = checkup.info
    policy = info.get("maxmemory_policy")
    if policy is None:
        yield UNTOLD
        return
    limit, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    if policy != "noeviction":
        level = ERROR if limit else WARNING
        what = f"maxmemory-policy {policy}" + ("" if limit else ", and no memory limit yet")
        todo = "set maxmemory-policy noeviction, or use another server: it may evict held locks"
        yield Finding(level, what, todo)
    elif limit and used > 0.9 * limit:
        yield Finding(
            WARNING, f"{used / limit:.0%} of maxmemory is used",
            "free memory: a full server refuses new locks",
        )  # fmt: skip
    else:
        yield Finding(OK, "maxmemory-policy noeviction")
    evicted = int(info.get("evicted_keys", 0))
    if evicted:
        yield Finding(
            WARNING, f"keys evicted since the server started: {evicted}",
            "they may include locks; see maxmemory-policy",
        )  # fmt: skip


def check_persistence(checkup: Checkup) -> Iterator[Finding]:
    """Whether the server can save what it has, and tasks that wait in Redis survive a restart."""
    save = server_config(checkup.server, "save")
    failures = [*_failed_saves(checkup, save)]
    yield from failures
    aof = checkup.info.get("aof_enabled") == "1"
    parking = [task.name for task in checkup.tasks if _parks(task.lock_options)]
    if aof or save:
        if not failures:
            yield Finding(OK, "appendonly" if aof else f"snapshots, save {save}")
    elif save is None:
        yield Finding(
            UNKNOWN, "no appendonly file; snapshots are unknown",
            f"{some(parking)}: what waits in Redis may be lost in a restart" if parking else "",
        )  # fmt: skip
    elif parking:
        yield Finding(
            WARNING, f"none, and tasks wait in Redis: {some(parking)}",
            "turn on appendonly, or use Defer(), which leaves them to the broker",
        )  # fmt: skip
    else:
        yield Finding(OK, "none; locks need none")


def _failed_saves(checkup: Checkup, save: str | None) -> Iterator[Finding]:
    """What failed when the server last wrote to its disk. After most of that it refuses writes."""
    info = checkup.info
    if info.get("aof_enabled") == "1" and info.get("aof_last_write_status") == "err":
        yield Finding(
            ERROR, f"the last write to the append-only file failed: {REFUSES}", MEND_DISK
        )  # fmt: skip
    if info.get("rdb_last_bgsave_status") == "err":
        stops = server_config(checkup.server, "stop-writes-on-bgsave-error")
        if stops == "no" or save == "":
            yield Finding(
                WARNING, "the last snapshot failed: a restart loses what came since",
                MEND_DISK,
            )  # fmt: skip
        else:
            unless = ", unless stop-writes-on-bgsave-error is no" if stops is None else ""
            yield Finding(ERROR, f"the last snapshot failed: {REFUSES}{unless}", MEND_DISK)
    if info.get("aof_last_bgrewrite_status") == "err":
        yield Finding(
            WARNING, "the last rewrite of the append-only file failed: it grows", MEND_DISK
        )  # fmt: skip


def _parks(options: LockOptions) -> bool:
    return options.lock_scope != "queued" and options.on_conflict.parks


def check_replication(checkup: Checkup) -> Iterator[Finding]:
    """Whether a failover could forget locks."""
    info = checkup.info
    server = checkup.locks.require_address()
    sentinel = "sentinel" in server.url.partition("://")[0]
    if not info:
        yield UNTOLD
        return
    in_cluster = info.get("redis_mode") == "cluster" or info.get("cluster_enabled") == "1"
    if in_cluster and not isinstance(checkup.locks.server, Cluster):
        yield Finding(
            ERROR, "the server is a node of a Redis Cluster",
            "begin redislock_url with redis+cluster:// or rediss+cluster://",
        )  # fmt: skip
    elif info.get("role") not in (None, "master"):
        yield Finding(
            ERROR, "the server is a replica, which takes no writes",
            "set redislock_url to the master or to the sentinels",
        )  # fmt: skip
    elif (replicas := int(info.get("connected_slaves", 0))) < checkup.locks.min_replicas:
        yield Finding(
            ERROR,
            f"{count_of(replicas, 'replica')}: redislock_min_replicas asks"
            f" {checkup.locks.min_replicas}",
            "add replicas, or lower redislock_min_replicas: no lock can be taken",
        )  # fmt: skip
    elif (told := info.get("min_slaves_good_slaves")) is not None and int(told) < (
        needed := int(server_config(checkup.server, "min-replicas-to-write") or 0)
    ):
        yield Finding(
            ERROR,
            f"{count_of(int(told), 'replica')} in step, and min-replicas-to-write is {needed}: the"
            " server refuses every lock (NOREPLICAS)",
            "bring the replicas back, or lower min-replicas-to-write",
        )  # fmt: skip
    elif replicas or sentinel:
        yield _replicated(checkup, replicas, sentinel)
    else:
        yield Finding(OK, "one master, without replicas")


def _replicated(checkup: Checkup, replicas: int, sentinel: bool) -> Finding:
    serves_alone = server_config(checkup.server, "min-replicas-to-write") == "0"
    what = f"{count_of(replicas, 'replica')}{', by sentinels' if sentinel else ''}"
    if serves_alone:
        what += ", min-replicas-to-write 0"
    advice = "pass self.lock.fence to the resource where two runs at once would do harm"
    if not checkup.locks.min_replicas:
        advice += "; redislock_min_replicas = 1 shortens the gap"
    if serves_alone:
        advice += "; with min-replicas-to-write 1 a master that is cut off takes no locks"
    return Finding(WARNING, f"{what}: a failover may forget a lock", advice)


def check_round_trip(checkup: Checkup) -> Iterator[Finding]:
    """Whether the server answers well within the time that a command may take."""
    trips = sorted(checkup.trips[0])
    median, longest = trips[len(trips) // 2], trips[-1]
    bound = operation_timeout(checkup.shortest_ttl)
    what = (
        f"{median * 1000:.1f} ms, at most {longest * 1000:.1f} ms; a command may take"
        f" {bound * 1000:.0f} ms with the shortest lock_ttl, {checkup.shortest_ttl:g} s"
    )
    if longest > bound / 2:
        level = ERROR if median > bound / 2 else WARNING
        yield Finding(level, what, "use a longer lock_ttl, or a server that is nearer")
    else:
        yield Finding(OK, what)


def check_timeouts(checkup: Checkup) -> Iterator[Finding]:
    """Whether the server closes connections between two extensions."""
    idle = server_config(checkup.server, "timeout")
    longest = max((task.lock_options.lock_ttl for task in checkup.tasks), default=30.0)
    bound = operation_timeout(checkup.shortest_ttl)
    if idle is not None and idle.isdigit() and 0 < int(idle) <= longest / 3:
        yield Finding(
            WARNING,
            f"the server closes connections that are idle for {idle} s, which is before the next"
            f" heartbeat of a lock_ttl of {longest:g} s",
            f"set the server's timeout to 0, or above {longest / 3:.0f}",
        )  # fmt: skip
    elif checkup.shortest_ttl < 2:
        yield Finding(
            WARNING,
            f"a lock_ttl of {checkup.shortest_ttl:g} s leaves a command {bound * 1000:.0f} ms, and"
            f" an outage of {checkup.shortest_ttl:g} s loses the lock",
            "use 5 s or more, unless a dead machine's lock must be free sooner",
        )  # fmt: skip
    else:
        yield Finding(OK, f"a command may take {bound * 1000:.0f} ms")


def check_clock(checkup: Checkup) -> Iterator[Finding]:
    """Whether this machine's clock and the server's agree."""
    ahead = checkup.trips[1]
    if abs(ahead) > CLOCKS:
        yield Finding(
            WARNING, f"the server's clock is {ahead:+.1f} s off this machine's",
            "synchronise both with NTP: expiry, Replace() and waiting times compare clocks",
        )  # fmt: skip
    else:
        yield Finding(OK, f"the server's clock is {round(ahead * 1000):+d} ms off this machine's")
