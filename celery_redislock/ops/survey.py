"""Reads what the lock server has: all locks, or all about one. Changes nothing."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from ..app.settings import AppLocks
from ..protocol import holders, past
from ..protocol.canonical import parts_of
from ..protocol.claims import Stored
from ..protocol.holders import Holder
from ..protocol.keys import MAX_LIMIT, is_slot, key_parts, lock_keys, lock_pattern
from ..protocol.lost import Lost
from ..servers.looking import Looking
from ..servers.server import Server
from ..servers.turns import turns_of
from ..tasks.target import Target
from .rooms import heads_of
from .states import (
    NO_LOCK,
    RUNNING,
    KeptFor,
    State,
    kept_for,
    state_of_holder,
    state_of_turn,
)

T = TypeVar("T")

#: How many keys are read in one round trip.
BATCH: Final = 500
#: No holder extends its lock for longer, in ms: a year. Anybody may write a record.
LONGEST_TTL: Final = 366 * 86400 * 1000


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """One slot of a lock, as Redis has it; or a run that goes on without the lock that it lost.

    Attributes:
        key: the slot's whole key. For a run without its lock: a key and the run's fence.
        name: the lock's name.
        state: see `states.State`.
        kept_for: if the state is "kept": for what.
        due_in: if the state is "waits for quiet": the seconds until that is over.
        due_at: that time, a Unix time by the lock server's clock.
        holder: who holds it, or held it last. For a lock that nobody holds: the first task that
            waits.
        token: the holder's token.
        held_for: seconds since it was taken.
        lives_for: seconds until it expires if the holder dies now; None for ever.
        expires_at: the Unix time at which it expires, by the lock server's clock.
        ttl: seconds to which its holder extends it, again and again; None if nobody does.
        broken_by: who broke the lock, if its state is "broken" and that is known.
        lost_because: why the run lost the lock, if it goes on without it.
        queue: the queue that the call named whose message has the lock, if it named one.
        turned_away: how many duplicates ended without a run because of this holder.
        waiting: how many tasks wait for the lock, in its room and in pool slots.
        untaken: how many of them no worker has taken, for a minute or more since they were offered.
    """

    key: str
    name: str
    state: State
    kept_for: KeptFor | None = None
    due_in: float | None = None
    due_at: float | None = None
    holder: Holder | None = None
    token: str | None = dataclasses.field(default=None, repr=False)
    held_for: float | None = None
    lives_for: float | None = None
    expires_at: float | None = None
    ttl: float | None = None
    broken_by: str | None = None
    lost_because: str | None = None
    queue: str | None = None
    turned_away: int = 0
    waiting: int = 0
    untaken: int = 0

    @property
    def task(self) -> str:
        """The holder's task."""
        if self.holder is None or self.state in ("foreign", "broken"):
            return ""
        return self.holder.task or "RedisLock"

    @property
    def is_lock(self) -> bool:
        """Whether this is a lock: held, kept or waited for."""
        return self.state not in NO_LOCK

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without the token."""
        holder = self.holder or Holder()
        return {
            "task": self.task or None,
            "key": self.key,
            "name": self.name,
            "label": holder.label,
            "state": self.state,
            "kept_for": self.kept_for,
            "due_in": self.due_in,
            "task_id": holder.task_id,
            "attempt": holder.attempt,
            "node": holder.node,
            "pid": holder.pid,
            "acquired_at": holder.acquired_at,
            "held_for": self.held_for,
            "lives_for": self.lives_for,
            "ttl": self.ttl,
            "turned_away": self.turned_away,
            "waiting": self.waiting,
            "untaken": self.untaken,
            "fence": holder.fence,
            "replaced_by": holder.replaced_by,
            "broken_by": self.broken_by,
            "lost_because": self.lost_because,
            "queue": self.queue,
        }


def all_locks(locks: AppLocks, app: Any = None) -> list[Found]:
    """Every lock that is held, waited for or lately broken, and every run that goes on without one.

    Args:
        locks: the locks.
        app: the Celery app, to read the labels of waiting tasks.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    server, prefix = locks.server, locks.prefix
    found, others = _scan(server, prefix)
    taken = {each.name for each in found.values()}
    waiting = _count_waiting(server, others["room"], others["waiters"])
    awaited = [name for name, count in waiting.items() if count and name not in taken]
    taken.update(awaited)
    broken = [(key, name) for name, key in others["broken"].items() if name not in taken]
    for batch in _batches(broken):
        found.update(read_slots(server, batch, is_broken=True))
    held = [
        dataclasses.replace(each, waiting=waiting[each.name]) if waiting.get(each.name) else each
        for each in found.values()
    ]
    free = _free(locks, {name: waiting[name] for name in awaited}, app)
    lost = [lost for batch in _batches(others["lost"].items()) for lost in read_lost(server, batch)]
    return [*_untaken(server, others["sent"], held), *free, *lost]


def _free(locks: AppLocks, waiting: dict[str, int], app: Any) -> Iterator[Found]:
    """The locks that nobody holds, from the number of waiting tasks by lock name. A lock's holder
    then shows the first task in its room.
    """
    for batch in _batches(waiting.items()):
        keys = [lock_keys(locks.prefix, name) for name, _ in batch]
        now, turns = turns_of(locks.server, keys)
        heads = heads_of(locks.server, keys, app)
        for each, (name, count), (room_count, first), turn in zip(
            keys, batch, heads, turns, strict=True
        ):
            task = first.task or awaited_in(name, room_count)
            holder = Holder(task=task, label=first.label) if task else None
            yield Found(
                key=each.lock,
                name=name,
                state=state_of_turn(turn),
                holder=holder,
                waiting=count,
                untaken=turn.untaken,
                due_in=turn.quiet_in,
                due_at=None if turn.quiet_in is None else round(now + turn.quiet_in, 1),
            )


def awaited_in(name: str, in_room: int) -> str | None:
    """The task in the name of a lock that nobody holds, if tasks wait in pool slots only."""
    parts = parts_of(name)
    return parts[0] if parts and not in_room else None


def _scan(server: Server, prefix: str) -> tuple[dict[bytes, Found], dict[str, dict[str, bytes]]]:
    """The taken slots by key; and for each other kind of key, the keys by lock name."""
    found: dict[bytes, Found] = {}
    kinds = ("room", "waiters", "broken", "sent", "lost")
    others: dict[str, dict[str, bytes]] = {kind: {} for kind in kinds}
    for page in Looking(server).scan(lock_pattern(prefix)):
        slots = {}
        for key in page:
            kind, name = key_parts(prefix, key) or ("", "")
            if kind in others:
                others[kind][name] = key
            elif is_slot(kind) and key not in found:
                slots[key] = name
        for batch in _batches(slots.items()):
            found.update(read_slots(server, batch))
    return found, others


def one_lock(locks: AppLocks, name: str, app: Any = None) -> list[Found]:
    """The rows of the lock with this name, as `all_locks`. Empty if nobody holds or waits for the
    lock, and nobody has broken it lately or goes on without it.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    server, keys = locks.server, lock_keys(locks.prefix, name, MAX_LIMIT)
    slots = [(key.encode(), name) for key in (keys.lock, *keys.slots)]
    found = [*read_slots(server, slots).values()]
    count = sum(Looking(server).lengths([keys.room], [keys.waiters]))
    found = [dataclasses.replace(each, waiting=count) for each in found]
    if not found:
        found = [*_free(locks, {name: count} if count else {}, app)]
        found += read_slots(server, [(keys.broken.encode(), name)], is_broken=True).values()
    else:
        found = [*_untaken(server, {name: keys.sent.encode()}, found)]
    return [*found, *read_lost(server, [(name, keys.lost.encode())])]


def meant_by(locks: AppLocks, meant: Target, app: Any = None) -> list[Found]:
    """The rows of the lock that a user means; only one row, if the user means one slot.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    found = one_lock(locks, meant.keys.name, app)
    return [each for each in found if meant.slot in ("", each.key) or each.lost_because is not None]


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, BATCH)):
        yield batch


def read_slots(
    server: Server, slots: list[tuple[bytes, str]], is_broken: bool = False
) -> dict[bytes, Found]:
    """What is stored under these keys. A key that has gone since is left out.

    Args:
        server: the server.
        slots: the keys, with the names of their locks.
        is_broken: the keys have notes that operators broke these locks.
    """
    now, stored = Looking(server).stored([key for key, _ in slots])
    return {
        key: _found(key, name, each, now, is_broken)
        for (key, name), each in zip(slots, stored, strict=True)
        if each.exists
    }


def _found(key: bytes, name: str, stored: Stored, now: float, is_broken: bool) -> Found:
    text, lives_for = key.decode(), stored.left / 1000 if stored.left >= 0 else None
    expires_at = None if lives_for is None else now + lives_for
    common: dict[str, Any] = {"name": name, "lives_for": lives_for, "expires_at": expires_at}
    if is_broken:
        text = text.replace("}:broken:", "}:lock:", 1)
        by = holders.last_breaker(stored.value or b"")
        return Found(key=text, state="broken", broken_by=by, **common)
    value = stored.value
    record, holder = (None, None) if value is None else holders.read(value, lives_for)
    if value is None or record is None:
        return Found(key=text, state="foreign", **common)
    since = None if holder is None else holder.acquired_at
    ttl = _ttl(record)
    state = state_of_holder(holder, lives_for, ttl)
    return Found(
        key=text,
        state=state,
        kept_for=kept_for(holder) if state == "kept" else None,
        ttl=ttl if state in RUNNING else None,
        queue=queue if isinstance(queue := record.get("queue"), str) else None,
        turned_away=past.turned_away_by(value),
        holder=holder,
        token=record["token"],
        held_for=None if since is None else max(now - since, 0.0),
        **common,
    )


def _ttl(record: dict[str, Any]) -> float | None:
    ms = record.get("ttl_ms")
    return ms / 1000 if isinstance(ms, int) and 0 < ms < LONGEST_TTL else None


def read_lost(server: Server, keys: Sequence[tuple[str, bytes]]) -> list[Found]:
    """The runs that go on without their lock, from the locks' names and the keys that have them."""
    now, all_lost = Looking(server).lost([key for _, key in keys])
    return [
        _lost(f"{key.decode()}#{each.holder.fence}", name, each, now)
        for (name, key), lost in zip(keys, all_lost, strict=True)
        for each in lost
    ]


def _lost(key: str, name: str, lost: Lost, now: float) -> Found:
    since = lost.holder.acquired_at
    return Found(
        key=key,
        name=name,
        state="without its lock",
        holder=lost.holder,
        held_for=None if since is None else max(now - since, 0.0),
        lost_because=lost.why,
    )


def _untaken(server: Server, sent: dict[str, bytes], found: Sequence[Found]) -> Iterator[Found]:
    """The same rows of locks that somebody has, with the number of tasks that no worker takes."""
    counts: dict[str, int] = {}
    for batch in _batches(sent.items()):
        untaken = Looking(server).untaken([key for _, key in batch])
        counts.update(zip((name for name, _ in batch), untaken, strict=True))
    for each in found:
        count = counts.get(each.name, 0)
        yield dataclasses.replace(each, untaken=count) if count else each


def _count_waiting(
    server: Server, rooms: dict[str, bytes], waiters: dict[str, bytes]
) -> dict[str, int]:
    counts: dict[str, int] = {}
    both = [(*each, keys is rooms) for keys in (rooms, waiters) for each in keys.items()]
    for batch in _batches(both):
        lists = [key for _, key, is_room in batch if is_room]
        sets = [key for _, key, is_room in batch if not is_room]
        for (name, *_), length in zip(batch, Looking(server).lengths(lists, sets), strict=True):
            counts[name] = counts.get(name, 0) + length
    return counts
