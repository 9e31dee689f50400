"""What stands in the store, for people: all locks, or all about one. Reads, and changes nothing."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from . import _holder
from ._holder import Holder
from ._keys import LockKeys, key_parts, lock_keys, lock_pattern
from ._options import MAX_LIMIT
from ._store import Standing, Store

#: How many keys are read in one round trip.
BATCH: Final = 500
#: How many of those that wait are named.
NAMED: Final = 100


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """One slot of a lock, as it stands.

    Attributes:
        key: the slot's whole key.
        name: the lock's name.
        state: "held", "held for retry", "cooling down", "queued" (its message is), "replaced" (a
            newer run waits for its end), "reserved" (it is being handed to a waiter), "foreign" (a
            value that is not a lock of ours), "broken" (and nobody has taken it since), or "free"
            (and somebody waits for it).
        holder: who holds it, or held it last.
        token: what proves the holder's right.
        held_for: seconds since it was taken.
        lives_for: seconds until it lapses, should the holder die now; None for ever.
        waiting: how many wait for the lock: in its waiting room, and in pool slots.
        turned_away: how many duplicates in a row, since the last run began.
    """

    key: str
    name: str
    state: str
    holder: Holder | None = None
    token: str | None = None
    held_for: float | None = None
    lives_for: float | None = None
    waiting: int = 0
    turned_away: int = 0

    @property
    def task(self) -> str:
        """The holder's task."""
        if self.holder is None or self.state in ("foreign", "broken"):
            return ""
        return self.holder.task or "RedisLock"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without the token."""
        holder = self.holder or Holder()
        return {
            "task": self.task or None,
            "key": self.key,
            "name": self.name,
            "state": self.state,
            "task_id": holder.task_id,
            "attempt": holder.attempt,
            "node": holder.node,
            "pid": holder.pid,
            "acquired_at": holder.acquired_at,
            "held_for": self.held_for,
            "lives_for": self.lives_for,
            "waiting": self.waiting,
            "turned_away": self.turned_away,
            "fence": holder.fence,
            "replaced_by": holder.replaced_by,
        }


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """Who waits in a room."""

    task: str | None
    task_id: str


def all_locks(store: Store, prefix: str) -> list[Found]:
    """Every lock that is held, or was broken, or is waited for.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    found: dict[bytes, Found] = {}
    kinds: dict[str, dict[str, bytes]] = {"room": {}, "waiters": {}, "broken": {}}
    for page in store.scan(lock_pattern(prefix)):
        slots = {}
        for key in page:
            kind, name = key_parts(prefix, key) or ("", "")
            if kind in kinds:
                kinds[kind][name] = key
            elif _is_slot(kind) and key not in found:
                slots[key] = name
        for batch in _batches(slots.items()):
            found.update(_read(store, batch))
    taken = {each.name for each in found.values()}
    broken = [(key, name) for name, key in kinds["broken"].items() if name not in taken]
    for batch in _batches(broken):
        found.update(_read(store, batch, "broken"))
    taken.update(each.name for each in found.values())
    waiting = _count_waiting(store, kinds["room"], kinds["waiters"])
    free = (
        Found(key=lock_keys(prefix, name).lock, name=name, state="free", waiting=count)
        for name, count in waiting.items()
        if name not in taken and count
    )
    held = (
        dataclasses.replace(each, waiting=waiting[each.name]) if each.name in waiting else each
        for each in found.values()
    )
    return [*held, *free]


def one_lock(store: Store, prefix: str, name: str) -> list[Found]:
    """What stands of the lock with this name; nothing if nobody has it or waits for it.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    keys = lock_keys(prefix, name, MAX_LIMIT)
    slots = [(key.encode(), name) for key in (keys.lock, *keys.slots)]
    found = _read(store, slots)
    if not found:
        found = _read(store, [(keys.broken.encode(), name)], "broken")
    count = sum(store.lengths([keys.room], [keys.waiters]))
    if not found and count:
        return [Found(key=keys.lock, name=name, state="free", waiting=count)]
    return [dataclasses.replace(each, waiting=count) for each in found.values()]


def in_room(store: Store, keys: LockKeys) -> list[Waiting]:
    """The first of those that wait in the lock's room, in order.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    named = []
    for entry_id, entry in store.waiting(keys, NAMED):
        try:
            task = json.loads(entry)["task"]
        except (ValueError, TypeError, KeyError, RecursionError):
            task = None
        task_id = entry_id.rpartition(":")[0]
        named.append(Waiting(task=task if isinstance(task, str) else None, task_id=task_id))
    return named


def name_of(prefix: str, key: str) -> str | None:
    """The name of the lock whose key this is, also that of one of its slots; or None."""
    kind, name = key_parts(prefix, key.encode(errors="replace")) or ("", "")
    return name if _is_slot(kind) else None


def _is_slot(kind: str) -> bool:
    return kind.startswith("lock") and (kind == "lock" or kind[4:].isdecimal())


def _batches(items: Iterable[tuple[bytes, str]]) -> Iterator[list[tuple[bytes, str]]]:
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, BATCH)):
        yield batch


def _read(
    store: Store, slots: list[tuple[bytes, str]], state: str | None = None
) -> dict[bytes, Found]:
    """What stands under these keys. It may have gone since they were found."""
    now, standing = store.standing([key for key, _ in slots])
    return {
        key: _found(key, name, each, now, state)
        for (key, name), each in zip(slots, standing, strict=True)
        if each.exists
    }


def _found(key: bytes, name: str, standing: Standing, now: float, state: str | None) -> Found:
    text = key.decode()
    lives_for = standing.left / 1000 if standing.left >= 0 else None
    record = None if standing.value is None else _holder.decode(standing.value)
    if state is not None or record is None:
        if state == "broken":
            text = text.replace("}:broken:", "}:lock:", 1)
        return Found(key=text, name=name, state=state or "foreign", lives_for=lives_for)
    holder = _holder.parse(standing.value, lives_for)
    since = None if holder is None else holder.acquired_at
    streak = record.get("streak")
    return Found(
        key=text,
        name=name,
        state=_state(holder),
        holder=holder,
        token=record["token"],
        held_for=None if since is None else max(now - since, 0.0),
        lives_for=lives_for,
        turned_away=streak if isinstance(streak, int) else 0,
    )


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


def _count_waiting(
    store: Store, rooms: dict[str, bytes], waiters: dict[str, bytes]
) -> dict[str, int]:
    counts: dict[str, int] = {}
    named = [(name, key, "room") for name, key in rooms.items()]
    named += [(name, key, "waiters") for name, key in waiters.items()]
    for start in range(0, len(named), BATCH):
        batch = named[start : start + BATCH]
        lists = [(name, key) for name, key, kind in batch if kind == "room"]
        sets = [(name, key) for name, key, kind in batch if kind == "waiters"]
        lengths = store.lengths([key for _, key in lists], [key for _, key in sets])
        for (name, _), length in zip([*lists, *sets], lengths, strict=True):
            counts[name] = counts.get(name, 0) + length
    return counts
