"""Reads what the lock server has: all locks, or all about one. Changes nothing."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar

from ..app.settings import AppLocks
from ..protocol import holders, past
from ..protocol.canonical import parts_of
from ..protocol.claims import Stored
from ..protocol.holders import Holder
from ..protocol.keys import MAX_LIMIT, is_slot, key_parts, lock_keys, lock_pattern
from ..servers.looking import Looking
from ..servers.server import Server
from ..tasks.target import Target
from .rooms import heads_of

T = TypeVar("T")

#: How many keys are read in one round trip.
BATCH: Final = 500
#: No holder extends its lock for longer, in ms: a year. Anybody may write a record.
LONGEST_TTL: Final = 366 * 86400 * 1000
#: The states in which a run holds the lock.
RUNNING: Final = ("held", "replaced")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """One slot of a lock, as Redis has it.

    Attributes:
        key: the slot's whole key.
        name: the lock's name.
        state: "held", "held for retry", "cooling down", "queued" (its message is), "replaced" (a
            newer run waits for its end), "reserved" (it is being handed to a waiter), "foreign" (a
            value that is not a lock of ours), "broken" (and nobody has taken it since), or "free"
            (and somebody waits for it).
        holder: who holds it, or held it last. For a free lock: the first task that waits.
        token: the holder's token.
        held_for: seconds since it was taken.
        lives_for: seconds until it expires if the holder dies now; None for ever.
        expires_at: the Unix time at which it expires, by the lock server's clock.
        ttl: seconds to which its holder extends it, again and again; None if nobody does.
        broken_by: who broke the lock, if its state is "broken" and that is known.
        turned_away: how many duplicates ended without a run because of this holder.
        waiting: how many tasks wait for the lock, in its room and in pool slots.
        untaken: how many of them are published from the room, again and again, and no worker takes
            them.
    """

    key: str
    name: str
    state: str
    holder: Holder | None = None
    token: str | None = dataclasses.field(default=None, repr=False)
    held_for: float | None = None
    lives_for: float | None = None
    expires_at: float | None = None
    ttl: float | None = None
    broken_by: str | None = None
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
        return self.state != "broken"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without the token."""
        holder = self.holder or Holder()
        return {
            "task": self.task or None,
            "key": self.key,
            "name": self.name,
            "label": holder.label,
            "state": self.state,
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
        }


def all_locks(locks: AppLocks, app: Any = None) -> list[Found]:
    """Every lock that is held, waited for or lately broken.

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
        found.update(read_slots(server, batch, "broken"))
    held = [
        dataclasses.replace(each, waiting=waiting[each.name]) if waiting.get(each.name) else each
        for each in found.values()
    ]
    free = _free(locks, {name: waiting[name] for name in awaited}, app)
    return [*_untaken(server, others["sent"], [*held, *free])]


def _free(locks: AppLocks, waiting: dict[str, int], app: Any) -> Iterator[Found]:
    """The locks that nobody holds, from the number of waiting tasks by lock name. A lock's holder
    then shows the first task in its room.
    """
    for batch in _batches(waiting.items()):
        keys = [lock_keys(locks.prefix, name) for name, _ in batch]
        heads = heads_of(locks.server, keys, app)
        for each, (name, count), (room_count, first) in zip(keys, batch, heads, strict=True):
            task = first.task or awaited_in(name, room_count)
            holder = Holder(task=task, label=first.label) if task else None
            yield Found(key=each.lock, name=name, state="free", holder=holder, waiting=count)


def awaited_in(name: str, in_room: int) -> str | None:
    """The task in the name of a lock that nobody holds, if tasks wait in pool slots only."""
    parts = parts_of(name)
    return parts[0] if parts and not in_room else None


def _scan(server: Server, prefix: str) -> tuple[dict[bytes, Found], dict[str, dict[str, bytes]]]:
    """The taken slots by key; and for each other kind of key, the keys by lock name."""
    found: dict[bytes, Found] = {}
    others: dict[str, dict[str, bytes]] = {"room": {}, "waiters": {}, "broken": {}, "sent": {}}
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
    lock, and nobody has broken it lately.

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
        found += read_slots(server, [(keys.broken.encode(), name)], "broken").values()
    return [*_untaken(server, {name: keys.sent.encode()}, found)]


def meant_by(locks: AppLocks, meant: Target, app: Any = None) -> list[Found]:
    """The rows of the lock that a user means; only one row, if the user means one slot.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    found = one_lock(locks, meant.keys.name, app)
    return [each for each in found if meant.slot in ("", each.key)]


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, BATCH)):
        yield batch


def read_slots(
    server: Server, slots: list[tuple[bytes, str]], state: str | None = None
) -> dict[bytes, Found]:
    """What is stored under these keys. A key that has gone since is left out."""
    now, stored = Looking(server).stored([key for key, _ in slots])
    return {
        key: _found(key, name, each, now, state)
        for (key, name), each in zip(slots, stored, strict=True)
        if each.exists
    }


def _found(key: bytes, name: str, stored: Stored, now: float, state: str | None) -> Found:
    text, lives_for = key.decode(), stored.left / 1000 if stored.left >= 0 else None
    expires_at = None if lives_for is None else now + lives_for
    common: dict[str, Any] = {"name": name, "lives_for": lives_for, "expires_at": expires_at}
    if state == "broken":
        text = text.replace("}:broken:", "}:lock:", 1)
        by = holders.last_breaker(stored.value or b"")
        return Found(key=text, state=state, broken_by=by, **common)
    value = stored.value
    record, holder = (None, None) if value is None else holders.read(value, lives_for)
    if value is None or record is None:
        return Found(key=text, state="foreign", **common)
    since = None if holder is None else holder.acquired_at
    state = _state(holder)
    return Found(
        key=text,
        state=state,
        ttl=_ttl(record) if state in RUNNING else None,
        turned_away=past.turned_away_by(value),
        holder=holder,
        token=record["token"],
        held_for=None if since is None else max(now - since, 0.0),
        **common,
    )


def _ttl(record: dict[str, Any]) -> float | None:
    ms = record.get("ttl_ms")
    return ms / 1000 if isinstance(ms, int) and 0 < ms < LONGEST_TTL else None


def _state(holder: Holder | None) -> str:
    if holder is None:
        return "reserved"
    if holder.held_for_retry:
        return "held for retry"
    if holder.cooling_down:
        return "cooling down"
    if holder.queued:
        return "queued"
    return "replaced" if holder.replaced_by is not None else "held"


def _untaken(server: Server, sent: dict[str, bytes], found: list[Found]) -> Iterator[Found]:
    """The same rows, with the number of tasks that no worker takes."""
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
