"""What is wrong with a set-up, and what to do about it: one small function for each check.

Reads settings, tasks and the server. Takes no lock and changes nothing.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final

from celery import Task

from ..app.settings import AppLocks, app_locks
from ..core.server import operation_timeout
from ..errors import LockUnavailable
from ..policies import Coalesce, Defer, Policy, Queue, Replace
from ..tasks.task import SingletonTask
from .survey import Found, all_locks
from .table import count_of

OK: Final = "ok"
WARNING: Final = "warning"
ERROR: Final = "error"
UNKNOWN: Final = "unknown"

#: The oldest server that has all that the scripts use.
OLDEST: Final = (6, 2)
#: Seconds that two clocks may differ.
CLOCKS: Final = 1.0
#: How many round trips are timed.
TRIPS: Final = 20

#: What workers and senders ask of the server, each with arguments of its form. `{}` is a key.
COMMANDS: Final = (
    *("blpop {} 0", "del {}", "eval x 0", "evalsha x 0", "exists {}", "get {}", "hdel {} a"),
    *("hexists {} a", "hget {} a", "hgetall {}", "hset {} a b", "lindex {} 0"),
    *("linsert {} before a b", "llen {}", "lpush {} a", "lrange {} 0 1", "lrem {} 1 a"),
    *("pexpire {} 1", "pttl {}", "rpush {} a", "select 0", "set {} a", "time", "zadd {} 1 a"),
    *("zrangebyscore {} 0 1", "zrem {} a", "zremrangebyscore {} 0 1"),
)
#: What is also good to have.
EXTRA: Final = ("info",)


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """What a check found.

    Attributes:
        level: "ok", "warning", "error" or "unknown".
        check: which check.
        what: what it found.
        todo: what to do, or "".
    """

    level: str
    check: str
    what: str
    todo: str = ""


class Patient:
    """What the checks look at, each read once.

    Args:
        app: the Celery app, its tasks loaded.
    """

    def __init__(self, app: Any) -> None:
        self.app = app
        self.locks: AppLocks = app_locks(app, refresh=True)

    @cached_property
    def tasks(self) -> list[SingletonTask]:
        """The tasks that take locks."""
        found = [task for task in self.app.tasks.values() if isinstance(task, SingletonTask)]
        return sorted((task for task in found if task.lock_options), key=lambda task: task.name)

    @cached_property
    def info(self) -> dict[str, str]:
        """What the server says of itself; nothing if it may not."""
        try:
            return self.locks.store.looking.server_info()
        except LockUnavailable:
            return {}

    @cached_property
    def shortest_ttl(self) -> float:
        return min((task.lock_options.lock_ttl for task in self.tasks), default=30.0)

    @cached_property
    def trips(self) -> tuple[list[float], float]:
        return self.locks.store.looking.round_trips(TRIPS)

    @cached_property
    def survey(self) -> list[Found]:
        return all_locks(self.locks.store, self.locks.prefix)


Check = Callable[[Patient], Iterator[Finding]]


def examine(app: Any) -> list[Finding]:
    """Run every check.

    Raises:
        ConfigError: the settings are wrong, or name no server.
    """
    patient = Patient(app)
    patient.locks.require_server()
    found = _run("tasks", check_tasks, patient)
    reached = _run("server", check_server, patient)
    found += reached
    if all(finding.level != ERROR for finding in reached):
        for name, check in _OF_SERVER.items():
            found += _run(name, check, patient)
    for name, check in _OF_SETTINGS.items():
        found += _run(name, check, patient)
    return found


def _run(name: str, check: Check, patient: Patient) -> list[Finding]:
    try:
        return list(check(patient))
    except LockUnavailable as exc:
        return [Finding(UNKNOWN, name, exc.reason, "let this user, or another one, look")]


# -- the server -------------------------------------------------------------------------------


def check_server(patient: Patient) -> Iterator[Finding]:
    """Whether it answers."""
    try:
        patient.locks.store.looking.round_trips(1)
    except LockUnavailable as exc:
        yield Finding(
            ERROR, "server", f"does not answer: {exc.reason}",
            "look at redislock_url, the network, the password; without it on_redis_error decides",
        )  # fmt: skip
        return
    yield Finding(OK, "server", "answers")


def check_version(patient: Patient) -> Iterator[Finding]:
    """Whether it has what the scripts use."""
    text = patient.info.get("redis_version")
    if text is None:
        yield _untold("version")
        return
    version = tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
    if version < OLDEST:
        yield Finding(ERROR, "version", f"Redis {text}", "use Redis 6.2 or later")
    else:
        yield Finding(OK, "version", f"Redis {text}")


def check_memory(patient: Patient) -> Iterator[Finding]:
    """Whether it may evict locks."""
    info = patient.info
    policy = info.get("maxmemory_policy")
    if policy is None:
        yield _untold("memory")
        return
    limit, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    if policy != "noeviction":
        level = ERROR if limit else WARNING
        what = f"maxmemory-policy {policy}" + ("" if limit else ", and no memory limit yet")
        todo = "set maxmemory-policy noeviction, or use another server: it may evict held locks"
        yield Finding(level, "memory", what, todo)
    elif limit and used > 0.9 * limit:
        yield Finding(
            WARNING, "memory", f"{used / limit:.0%} of maxmemory is used",
            "make room: a full server refuses new locks",
        )  # fmt: skip
    else:
        yield Finding(OK, "memory", "maxmemory-policy noeviction")
    evicted = int(info.get("evicted_keys", 0))
    if evicted:
        yield Finding(
            WARNING, "memory", f"{evicted} keys were evicted since the server started",
            "among them may have been locks; see maxmemory-policy",
        )  # fmt: skip


def check_persistence(patient: Patient) -> Iterator[Finding]:
    """Whether what waits in Redis outlives a restart."""
    store = patient.locks.store
    aof = patient.info.get("aof_enabled") == "1"
    save = store.looking.server_config("save").get("save")
    parking = [task.name for task in patient.tasks if _parks(task)]
    if aof or save:
        how = "appendonly" if aof else f"snapshots, save {save}"
        yield Finding(OK, "persistence", how)
    elif save is None:
        yield Finding(
            UNKNOWN, "persistence", "no appendonly file; the server does not tell of snapshots",
            f"{_some(parking)}: what waits in Redis may be lost in a restart" if parking else "",
        )  # fmt: skip
    elif parking:
        yield Finding(
            WARNING, "persistence", f"none, and tasks wait in Redis: {_some(parking)}",
            "turn on appendonly, or use Defer(), which leaves them to the broker",
        )  # fmt: skip
    else:
        yield Finding(OK, "persistence", "none; locks need none")


def check_replication(patient: Patient) -> Iterator[Finding]:
    """What a failover would do."""
    info = patient.info
    server = patient.locks.require_server()
    sentinel = server.url.startswith("sentinel")
    if not info:
        yield _untold("replication")
        return
    if info.get("redis_mode") == "cluster" or info.get("cluster_enabled") == "1":
        yield Finding(
            ERROR, "replication", "the server is a node of a Redis Cluster",
            "use a server of its own: redirections are not followed",
        )  # fmt: skip
    elif info.get("role") not in (None, "master"):
        yield Finding(
            ERROR, "replication", "the server is a replica, which takes no writes",
            "let redislock_url name the master, or the sentinels",
        )  # fmt: skip
    elif int(info.get("connected_slaves", 0)) or sentinel:
        yield Finding(
            WARNING, "replication",
            f"{info.get('connected_slaves', 0)} replicas{', by sentinels' if sentinel else ''}:"
            " a failover may forget a lock",
            "hand self.lock.fence to the resource where two runs at once would do harm;"
            " min-replicas-to-write shortens the gap",
        )  # fmt: skip
    else:
        yield Finding(OK, "replication", "one master, without replicas")


def check_rights(patient: Patient) -> Iterator[Finding]:
    """Whether this user may run exactly what is used."""
    key = f"{patient.locks.prefix}:{{0}}:doctor"
    commands = [
        [key if part == "{}" else part for part in command.split()]
        for command in (*COMMANDS, *EXTRA)
    ]
    allowed = patient.locks.store.looking.may(commands)
    if allowed is None:
        yield Finding(
            UNKNOWN, "rights", "a server older than Redis 7 cannot say what a user may",
            "compare `ACL GETUSER` with the line in the documentation",
        )  # fmt: skip
        return
    denied = [
        words[0] for words, is_allowed in zip(commands, allowed, strict=True) if not is_allowed
    ]
    needed = [command for command in denied if command not in EXTRA]
    if needed:
        yield Finding(
            ERROR, "rights", f"denied on {key!r}: {', '.join(needed)}",
            f"ACL SETUSER <user> ~{patient.locks.prefix}:* {' '.join('+' + c for c in needed)}",
        )  # fmt: skip
    elif denied:
        yield Finding(
            WARNING, "rights", "INFO is denied: only broken connections tell of a restart",
            "ACL SETUSER <user> +info",
        )  # fmt: skip
    else:
        yield Finding(OK, "rights", "all commands that are used are allowed")


def check_round_trip(patient: Patient) -> Iterator[Finding]:
    """Whether the server answers well within what a command may take."""
    trips = sorted(patient.trips[0])
    median, longest = trips[len(trips) // 2], trips[-1]
    bound = operation_timeout(patient.shortest_ttl)
    what = (
        f"{median * 1000:.1f} ms, at most {longest * 1000:.1f} ms; a command may take"
        f" {bound * 1000:.0f} ms with the shortest lock_ttl, {patient.shortest_ttl:g} s"
    )
    if longest > bound / 2:
        level = ERROR if median > bound / 2 else WARNING
        yield Finding(level, "round trip", what, "a longer lock_ttl, or a server that is nearer")
    else:
        yield Finding(OK, "round trip", what)


def check_timeouts(patient: Patient) -> Iterator[Finding]:
    """Whether the server closes connections between two extensions."""
    idle = patient.locks.store.looking.server_config("timeout").get("timeout")
    longest = max((task.lock_options.lock_ttl for task in patient.tasks), default=30.0)
    bound = operation_timeout(patient.shortest_ttl)
    if idle is not None and idle.isdigit() and 0 < int(idle) <= longest / 3:
        yield Finding(
            WARNING, "time-outs",
            f"the server closes connections that are idle for {idle} s, sooner than a heartbeat"
            f" of a lock_ttl of {longest:g} s comes",
            f"set the server's timeout to 0, or above {longest / 3:.0f}",
        )  # fmt: skip
    elif patient.shortest_ttl < 2:
        yield Finding(
            WARNING, "time-outs",
            f"a lock_ttl of {patient.shortest_ttl:g} s leaves a command {bound * 1000:.0f} ms, and"
            f" an outage of {patient.shortest_ttl:g} s loses the lock",
            "5 s or more, unless a dead machine's lock must be free sooner",
        )  # fmt: skip
    else:
        yield Finding(OK, "time-outs", f"a command may take {bound * 1000:.0f} ms")


def check_clock(patient: Patient) -> Iterator[Finding]:
    """Whether this machine's clock and the server's agree."""
    ahead = patient.trips[1]
    if abs(ahead) > CLOCKS:
        yield Finding(
            WARNING, "clock", f"the server's clock is {ahead:+.1f} s off this machine's",
            "keep both by NTP: expiry of messages, Replace() and waiting times compare clocks",
        )  # fmt: skip
    else:
        yield Finding(OK, "clock", f"the server's is {ahead * 1000:+.0f} ms off this machine's")


def check_prefix(patient: Patient) -> Iterator[Finding]:
    """Whether others use the same keys."""
    locks = [each for each in patient.survey if not each.is_aside]
    foreign = [each for each in locks if each.state == "foreign"]
    names = Counter(each.task for each in locks if each.task not in ("", "RedisLock"))
    unknown = sorted(name for name in names if name not in patient.app.tasks)
    if foreign:
        yield Finding(
            ERROR, "prefix", f"{len(foreign)} values that are no locks, such as {foreign[0].key!r}",
            "delete them, or set another redislock_prefix: they block their locks",
        )  # fmt: skip
    if unknown:
        yield Finding(
            WARNING, "prefix", f"locks of tasks that this app does not know: {_some(unknown)}",
            "give each project that shares the server its own redislock_prefix",
        )  # fmt: skip
    if not foreign and not unknown:
        yield Finding(OK, "prefix", f"{patient.locks.prefix!r}, {count_of(locks)}")


def check_aside(patient: Patient) -> Iterator[Finding]:
    """Whether tasks wait for an operator."""
    aside = [each for each in patient.survey if each.is_aside]
    if not aside:
        yield Finding(OK, "set aside", "nothing")
        return
    count = sum(each.waiting for each in aside)
    tasks = "1 task" if count == 1 else f"{count} tasks"
    yield Finding(
        WARNING, "set aside",
        f"{tasks} on {count_of(aside)}, such as {aside[0].key!r}: nobody took their turn",
        "`celery redislock put-back KEY` lets them wait again; `break --drop-waiting` drops them",
    )  # fmt: skip


# -- the settings -----------------------------------------------------------------------------


def check_tasks(patient: Patient) -> Iterator[Finding]:
    """Whether there is anything to lock."""
    if not patient.locks.enabled:
        yield Finding(
            WARNING, "tasks", "redislock_enabled is False: no task takes a lock", "set it to True"
        )
    elif not patient.tasks:
        yield Finding(
            WARNING, "tasks", "no task takes locks", "base=SingletonTask, or redislock_tasks"
        )
    else:
        yield Finding(OK, "tasks", f"{len(patient.tasks)} take locks")


def check_hold(patient: Patient) -> Iterator[Finding]:
    """Whether a body that hangs ends, and its lock with it."""
    fine = True
    endless = []
    for task in patient.tasks:
        most = task.lock_options.lock_max_hold
        limit = task.time_limit or patient.app.conf.task_time_limit
        if task.lock_options.lock_scope == "queued":
            continue
        if most is None and not limit:
            endless.append(task.name)
        elif most is not None and (not limit or limit > most):
            fine = False
            what = f"a time limit of {limit:g} s" if limit else "no time limit"
            yield Finding(
                WARNING, "max hold",
                f"{task.name}: lock_max_hold={most:g} and {what}: a body may outlive its lock",
                f"time_limit={most:g} or less",
            )  # fmt: skip
    if endless:
        yield Finding(
            WARNING, "max hold", f"a body that hangs holds its lock for ever: {_some(endless)}",
            "set time_limit, or lock_max_hold",
        )  # fmt: skip
    elif fine:
        yield Finding(OK, "max hold", "every lock ends with a time limit or lock_max_hold")


def check_visibility(patient: Patient) -> Iterator[Finding]:
    """Whether the broker delivers messages again while they are still good."""
    visible = patient.locks.visibility_timeout
    if visible is None:
        yield Finding(OK, "visibility", "the broker does not deliver again by time")
        return
    fine = True
    for task in patient.tasks:
        for what, seconds in _long_times(task, patient.app):
            if seconds > visible:
                fine = False
                yield Finding(
                    WARNING, "visibility",
                    f"{task.name}: {what} of {seconds:g} s, and the broker delivers again after"
                    f" visibility_timeout={visible:g}",
                    f"broker_transport_options['visibility_timeout'] above {seconds:g}",
                )  # fmt: skip
    if fine:
        yield Finding(
            OK, "visibility",
            f"messages are delivered again after {visible:g} s; keep every countdown and eta below",
        )  # fmt: skip


def check_limits(patient: Patient) -> Iterator[Finding]:
    """Whether tasks that share a lock agree on how many may hold it."""
    limits: dict[str, dict[int, str]] = {}
    for task in patient.tasks:
        key = task.lock_options.lock_key
        if isinstance(key, str):
            limits.setdefault(key, {})[task.lock_options.lock_limit] = task.name
    different = [(key, found) for key, found in limits.items() if len(found) > 1]
    for key, found in different:
        said = ", ".join(f"{name}: {limit}" for limit, name in found.items())
        yield Finding(
            ERROR, "limits", f"lock_key={key!r} with different lock_limit: {said}",
            "give tasks that share a lock the same limit",
        )  # fmt: skip
    if not different:
        yield Finding(OK, "limits", "tasks that share a lock have the same limit")


def _long_times(task: SingletonTask, app: Any) -> Iterator[tuple[str, float]]:
    """How long a message of the task may stay unacknowledged, as far as settings say."""
    options = task.lock_options
    if task.acks_late:
        limit = task.time_limit or app.conf.task_time_limit or options.lock_max_hold
        if limit:
            yield "acks_late and a run", limit
    if options.lock_scope != "queued":
        policy: Policy | None = options.on_conflict
        while policy is not None:
            if isinstance(policy, Defer):
                yield "a deferral", 1.25 * max(policy.countdown(n) for n in range(20))
            policy = getattr(policy, "then", None)
    if task.default_retry_delay and task.default_retry_delay != Task.default_retry_delay:
        yield "default_retry_delay", float(task.default_retry_delay)


def _parks(task: SingletonTask) -> bool:
    return task.lock_options.parks and isinstance(
        task.lock_options.on_conflict, Queue | Coalesce | Replace
    )


def _untold(check: str) -> Finding:
    return Finding(UNKNOWN, check, "the server does not tell (INFO is denied)", "allow +info")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


_OF_SERVER: Final[dict[str, Check]] = {
    "version": check_version,
    "memory": check_memory,
    "persistence": check_persistence,
    "replication": check_replication,
    "rights": check_rights,
    "round trip": check_round_trip,
    "time-outs": check_timeouts,
    "clock": check_clock,
    "prefix": check_prefix,
    "set aside": check_aside,
}
_OF_SETTINGS: Final[dict[str, Check]] = {
    "max hold": check_hold,
    "visibility": check_visibility,
    "limits": check_limits,
}
