"""The last runs of the locks, and the duplicates that were skipped or refused."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

from redis.exceptions import ResponseError

from ..app.settings import app_locks
from ..protocol import past
from ..protocol.holders import cut
from ..protocol.keys import in_all_buckets, keys_of_lock_id, lock_keys, runs_key
from ..protocol.past import PastRun as PastRun
from ..protocol.rooms import pairs_in
from ..servers.looking import in_batches
from ..servers.server import Server
from .locks import OUTSIDE, lost_of, matches, read_slots
from .states import RUNNING

#: Hours for which duplicates are counted.
HOURS: Final = 48
#: How many keys are read in one round trip.
AT_ONCE: Final = 500


def history(
    app: Any,
    *,
    task: str | None = None,
    name: str | None = None,
    since: float | None = None,
    ended: Collection[str] = (),
    limit: int | None = None,
    running: bool = False,
) -> list[PastRun]:
    """The runs in the history, sorted by when they began, the latest first; with `running` also
    those that still have their lock. `task` may be a glob; "RedisLock" is for locks outside tasks.
    `since`, Unix time, leaves out what ended before it, and `ended` what ended in no such way, see
    `PastRun.how`.
    """
    locks = app_locks(app)
    server, prefix = locks.server, locks.prefix
    name = name and lock_keys(prefix, name).name
    lists = [
        (bucket, each)
        for bucket, each in lists_in(server, prefix, name)
        if task is None or matches(each or OUTSIDE, task)
    ]
    most = None if name or since is not None or ended else limit
    wanted = [
        run
        for run in _read(server, prefix, lists, most)
        if (name is None or run.name == name)
        and (running or run.how != past.RUNNING)
        and (since is None or (run.ended or run.began) >= since)
        and (not ended or run.how in ended)
    ]
    return sorted(wanted, key=lambda run: -run.began)[:limit]


def last_runs(app: Any, most: int) -> dict[str, list[PastRun]]:
    """The last runs of each task that have ended, at most so many, the latest first."""
    locks, by_task = app_locks(app), dict[str, list[PastRun]]()
    lists = [each for each in lists_in(locks.server, locks.prefix) if each[1]]
    runs = _read(locks.server, locks.prefix, lists, most)
    for run in sorted(runs, key=lambda run: -run.began):
        if run.how != past.RUNNING and run.holder.task is not None:
            by_task.setdefault(run.holder.task, []).append(run)
    return {task: runs[:most] for task, runs in by_task.items()}


def turned_away(app: Any, *, task: str | None = None) -> dict[str, dict[int, int]]:
    """The duplicates of the last 48 hours that did not run, by task and the hour's Unix time."""
    locks, first = app_locks(app), time.time() - HOURS * 3600
    return {
        cut(each): kept
        for each, hours in sorted(by_the_hour(locks.server, locks.prefix).items())
        if (task is None or matches(each, task))
        and (kept := {hour: count for hour, count in sorted(hours.items()) if hour > first})
    }


# -- what the server has ----------------------------------------------------------------------


def lists_in(server: Server, prefix: str, name: str | None = None) -> list[tuple[str, str]]:
    """The lists of runs, of this lock's bucket or all: the history's key, and the task or ""."""
    buckets = in_all_buckets(prefix, "history")
    if name is not None:
        buckets = [lock_keys(prefix, name).history]
    replies = _ask(server, [("ZRANGEBYSCORE", each, "-inf", "+inf") for each in buckets])
    return [
        (bucket, task.decode(errors="replace"))
        for bucket, reply in zip(buckets, replies, strict=True)
        for task in reply
    ]


def kept_runs(
    server: Server, lists: Iterable[tuple[str, str]], most: int | None = None
) -> Iterator[PastRun]:
    """The runs that are kept in these lists; `most` of the newest of each, None for all."""
    # Read ten runs more: records of other runs may come between those of one run.
    first = 0 if most is None else -past.RECORDS * (most + 10)
    for reply in _ask(server, [("LRANGE", runs_key(*each), first, -1) for each in lists]):
        yield from past.runs_in(reply)


def last_successes(server: Server, prefix: str) -> dict[str, float]:
    """When a run of each task last succeeded, as Unix time; reads as little as will tell."""
    lists = [each for each in lists_in(server, prefix) if each[1]]
    latest: dict[str, float] = {}
    for first in (-1, -10 * past.RECORDS, 0):
        replies = _ask(server, [("LRANGE", runs_key(*each), first, -1) for each in lists])
        times = [past.last_success(reply) for reply in replies]
        for (_, task), at in zip(lists, times, strict=True):
            if at is not None:
                latest[task] = max(at, latest.get(task, at))
        lists = [
            each
            for each, at in zip(lists, times, strict=True)
            if at is None and (first == -1 or each[1] not in latest)
        ]
    return latest


def by_the_hour(server: Server, prefix: str) -> dict[str, dict[int, int]]:
    """How many duplicates of each task were skipped or refused, by the hour's Unix time."""
    counts: dict[str, dict[int, int]] = {}
    keys = in_all_buckets(prefix, "turned")
    for reply in _ask(server, [("HGETALL", key) for key in keys]):
        for task, text in pairs_in(reply):
            hours = counts.setdefault(task, {})
            for hour, count in past.per_hour(text.encode()).items():
                hours[hour] = hours.get(hour, 0) + count
    return counts


def running(server: Server, prefix: str, runs: Sequence[PastRun]) -> dict[int, int]:
    """By fence, how many duplicates these runs turned away so far that still have their lock."""
    slots = {slot: run.name for run in runs for slot in _slots(prefix, run.lock_id)}
    held = read_slots(server, slots.items())
    alive = {each.token: each.turned_away for each in held if each.state in RUNNING}
    return {run.fence: alive[run.token] for run in runs if run.token in alive}


def _slots(prefix: str, lock_id: str) -> tuple[str, ...]:
    """The keys of the lock with this id; none if this is no lock id."""
    try:
        keys = keys_of_lock_id(prefix, lock_id)
    except ValueError:
        return ()
    return keys.lock, *keys.slots


def _read(
    server: Server, prefix: str, lists: list[tuple[str, str]], most: int | None
) -> Iterator[PastRun]:
    """The runs in these lists, and how those ended that have no recorded end."""
    runs = list(kept_runs(server, lists, most))
    alive = running(server, prefix, [run for run in runs if not run.how])
    doubtful = [run for run in runs if not run.how and run.fence not in alive]
    names = {run.name for run in doubtful}
    lost = lost_of(server, [(lock_keys(prefix, each).lost, each) for each in sorted(names)])
    going_on = {each.holder.fence for each in lost if each.holder is not None}
    # Read these again: each lapsed, or ended since (one script records the end and releases).
    where = {(lock_keys(prefix, run.name).history, run.holder.task) for run in doubtful}
    unsure = [(bucket, task) for bucket, task in lists if (bucket, task or None) in where]
    now = {run.token: run for run in kept_runs(server, unsure)}
    for each in runs:
        run = now.get(each.token, each)
        is_lost, is_alive = run.fence in going_on, run.fence in alive
        yield run._replace(
            key=lock_keys(prefix, run.name).lock,
            how=run.how or (past.LOST if is_lost else past.RUNNING if is_alive else past.LAPSED),
            turned_away=run.turned_away or alive.get(run.fence, 0),
        )


def _ask(server: Server, commands: Iterable[Sequence[Any]]) -> Iterator[Any]:
    """The replies to these commands; an empty list for each key of another type."""
    for batch in in_batches(commands, AT_ONCE):
        for reply in server.replies(batch, allows_wrong_type=True):
            yield [] if isinstance(reply, ResponseError) else reply
