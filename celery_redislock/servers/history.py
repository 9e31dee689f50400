"""What a server remembers of past runs, and of duplicates that were turned away. The scripts that
take and release locks write most of this.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from redis.exceptions import ResponseError

from ..protocol import holders, past
from ..protocol.keys import in_all_buckets, keys_of_lock_id, lock_keys, runs_of
from ..protocol.past import Past
from ..protocol.rooms import pairs_in
from .server import Server

#: How many keys are read in one round trip.
AT_ONCE: Final = 500


class History:
    """The history in one server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def tasks(self, prefix: str, name: str | None = None) -> dict[str, list[str]]:
        """The tasks whose runs are kept, by the key of their bucket's history; "" for `RedisLock`.

        Args:
            prefix: what every key begins with.
            name: look only into the bucket of the lock with this name; None for all buckets.

        Raises:
            LockUnavailable: the server did not answer, or does not allow it.
        """
        buckets = in_all_buckets(prefix, "history")
        if name is not None:
            buckets = [lock_keys(prefix, name).history]
        replies = self._ask([("ZRANGEBYSCORE", each, "-inf", "+inf") for each in buckets], [])
        return {
            bucket: [task.decode(errors="replace") for task in reply]
            for bucket, reply in zip(buckets, replies, strict=True)
            if reply
        }

    def runs(self, lists: Iterable[tuple[str, str]], most: int | None = None) -> Iterator[Past]:
        """The runs that are kept in these lists.

        Args:
            lists: for each list, the key of its bucket's history, and the task.
            most: how many of the newest runs to read from each list; None for all.

        Raises:
            LockUnavailable: the server did not answer, or does not allow it.
        """
        # Read ten runs more: records of other runs may come between those of one run.
        first = 0 if most is None else -past.RECORDS * (most + 10)
        for reply in self._ask([("LRANGE", runs_of(*each), first, -1) for each in lists], []):
            yield from past.runs_in(reply)

    def last_successes(self, prefix: str) -> dict[str, float]:
        """When a run of each task last succeeded, as Unix time by the lock server's clock. Reads
        the last record of a list; if it is no success, the last runs; if they have none, all runs.

        Raises:
            LockUnavailable: the server did not answer, or does not allow it.
        """
        lists = [(key, task) for key, tasks in self.tasks(prefix).items() for task in tasks if task]
        latest: dict[str, float] = {}
        for first in (-1, -10 * past.RECORDS, 0):
            replies = self._ask([("LRANGE", runs_of(*each), first, -1) for each in lists], [])
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

    def running(self, prefix: str, runs: Sequence[Past]) -> dict[int, int]:
        """The runs among these that still have their locks, by their fences: how many duplicates
        each has turned away so far. Until a run ends, only the lock's value has this number.

        Raises:
            LockUnavailable: the server did not answer, or does not allow it.
        """
        lock_ids = {run.lock_id for run in runs}
        slots = [slot for lock_id in lock_ids for slot in _slots(prefix, lock_id)]
        values = self._ask([("GET", slot) for slot in slots], None)
        read = ((*holders.read(value, None), value) for value in values if value)
        alive = {
            record["token"]: past.turned_away_by(value)
            for record, holder, value in read
            if record and holder and not (holder.cooling_down or holder.held_for_retry)
        }
        return {run.fence: alive[run.token] for run in runs if run.token in alive}

    def turned_away(self, prefix: str) -> dict[str, dict[int, int]]:
        """How many duplicates of each task were turned away in each hour, by the hour's Unix time.

        Raises:
            LockUnavailable: the server did not answer, or does not allow it.
        """
        counts: dict[str, dict[int, int]] = {}
        keys = in_all_buckets(prefix, "turned")
        for reply in self._ask([("HGETALL", key) for key in keys], []):
            for task, text in pairs_in(reply):
                hours = counts.setdefault(task, {})
                for hour, count in past.per_hour(text.encode()).items():
                    hours[hour] = hours.get(hour, 0) + count
        return counts

    def _ask(self, commands: Iterable[Sequence[Any]], instead: Any) -> Iterator[Any]:
        """The replies to these commands; `instead` for each key of another type."""
        iterator = iter(commands)
        while batch := list(itertools.islice(iterator, AT_ONCE)):
            for reply in self._server.replies(batch, wrong_type=True):
                yield instead if isinstance(reply, ResponseError) else reply


def _slots(prefix: str, lock_id: str) -> tuple[str, ...]:
    """The keys of the lock with this id; none if this is no lock id."""
    try:
        keys = keys_of_lock_id(prefix, lock_id)
    except ValueError:
        return ()
    return keys.lock, *keys.slots
