"""What is in the store, for people: all locks, or all about one. Reads, and changes nothing."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeVar

from ..app.entries import CorruptEntry, Entry
from ..app.options import MAX_LIMIT
from ..app.settings import AppLocks
from ..core import holders
from ..core.claims import Stored
from ..core.holders import Holder
from ..core.keys import LockKeys, is_slot, key_parts, lock_keys, lock_pattern
from ..core.parked import arrived_at, parked_of, task_id_of
from ..core.store import Store
from ..tasks.target import Target

T = TypeVar("T")

#: How many keys are read in one round trip.
BATCH: Final = 500
#: How many of those that wait, or were set aside, are named.
NAMED: Final = 100
#: The state of a row for all tasks of a lock that were set aside.
ASIDE: Final = "set aside"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """One slot of a lock, as it was found; or all the tasks of a lock that were set aside.

    Attributes:
        key: the slot's whole key.
        name: the lock's name.
        state: "held", "held for retry", "cooling down", "queued" (its message is), "replaced" (a
            newer run waits for its end), "reserved" (it is being handed to a waiter), "foreign" (a
            value that is not a lock of ours), "broken" (and nobody has taken it since), "free"
            (and somebody waits for it), or "set aside" (tasks of its room, whose turn nobody took).
        holder: who holds it, or held it last. Of a free lock: the task of the first who waits. Of
            what was set aside: the task, if all are of one.
        token: what proves the holder's right.
        held_for: seconds since it was taken.
        lives_for: seconds until it expires, should the holder die now; None for ever.
        broken_by: who broke it, if that is its state and it is known.
        waiting: how many wait for the lock: in its waiting room, and in pool slots. Or how many
            were set aside.
    """

    key: str
    name: str
    state: str
    holder: Holder | None = None
    token: str | None = dataclasses.field(default=None, repr=False)
    held_for: float | None = None
    lives_for: float | None = None
    broken_by: str | None = None
    waiting: int = 0

    @property
    def task(self) -> str:
        """The holder's task."""
        if self.holder is None or self.state in ("foreign", "broken"):
            return ""
        return self.holder.task or "RedisLock"

    @property
    def is_aside(self) -> bool:
        """Whether this is what was set aside, and no lock."""
        return self.state == ASIDE

    @property
    def is_lock(self) -> bool:
        """Whether this is a lock: held, kept or waited for."""
        return self.state not in (ASIDE, "broken")

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
            "waiting": self.waiting,
            "fence": holder.fence,
            "replaced_by": holder.replaced_by,
            "broken_by": self.broken_by,
        }


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """Who waits in a room, or was set aside.

    Attributes:
        task: the task's name; None if the entry cannot be read.
        task_id: its id.
        label: what the task calls the lock for people, if an app was given that can read that.
        age: seconds since its arrival; None if that is not known.
        args, kwargs: its arguments as Celery shows them: as `argsrepr` and `kwargsrepr` have them
            where a caller set these. None if no app was given that can read them.
    """

    task: str | None
    task_id: str
    label: str | None = None
    age: float | None = None
    args: str | None = None
    kwargs: str | None = None

    @property
    def called(self) -> str:
        """Its label, and its arguments."""
        given = [text for text in (self.args, self.kwargs) if text not in (None, "()", "[]", "{}")]
        return "  ".join([*([self.label] if self.label else []), *map(str, given)])

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self)


class Room(NamedTuple):
    """Who waits for a lock.

    Attributes:
        waiting: the first of those in its waiting room, in order.
        total: how many are in there.
        aside: some of those that were set aside.
        aside_total: how many were.
    """

    waiting: list[Waiting]
    total: int
    aside: list[Waiting]
    aside_total: int


def all_locks(locks: AppLocks, app: Any = None) -> list[Found]:
    """Every lock that is held, or was broken, or is waited for; and what was set aside.

    Args:
        locks: the locks.
        app: reads what those that wait for a free lock call it.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    store, prefix = locks.store, locks.prefix
    found, others = _scan(store, prefix)
    taken = {each.name for each in found.values()}
    waiting = _count_waiting(store, others["room"], others["waiters"])
    awaited = [name for name, count in waiting.items() if count and name not in taken]
    taken.update(awaited)
    broken = [(key, name) for name, key in others["broken"].items() if name not in taken]
    for batch in _batches(broken):
        found.update(read_slots(store, batch, "broken"))
    held = (dataclasses.replace(each, waiting=waiting.get(each.name, 0)) for each in found.values())
    free = _free(locks, {name: waiting[name] for name in awaited}, app)
    aside = [(lock_keys(prefix, name).lock, name, key) for name, key in others["aside"].items()]
    return [*held, *free, *_set_aside(store, aside)]


def _free(locks: AppLocks, waiting: dict[str, int], app: Any) -> Iterator[Found]:
    """The locks with these names that nobody holds, for which so many wait. Their task is that of
    the first who does.
    """
    for batch in _batches(waiting.items()):
        keys = [lock_keys(locks.prefix, name) for name, _ in batch]
        _, heads = locks.store.looking.heads(keys)
        for each, (name, count), (_, entry) in zip(keys, batch, heads, strict=True):
            first = named("", parked_of(entry), app)
            holder = Holder(task=first.task, label=first.label) if first.task else None
            yield Found(key=each.lock, name=name, state="free", holder=holder, waiting=count)


def _scan(store: Store, prefix: str) -> tuple[dict[bytes, Found], dict[str, dict[str, bytes]]]:
    """All slots that are taken, by their keys. And for each kind of other keys, the key of each
    lock by its name.
    """
    found: dict[bytes, Found] = {}
    others: dict[str, dict[str, bytes]] = {"room": {}, "waiters": {}, "broken": {}, "aside": {}}
    for page in store.looking.scan(lock_pattern(prefix)):
        slots = {}
        for key in page:
            kind, name = key_parts(prefix, key) or ("", "")
            if kind in others:
                others[kind][name] = key
            elif is_slot(kind) and key not in found:
                slots[key] = name
        for batch in _batches(slots.items()):
            found.update(read_slots(store, batch))
    return found, others


def one_lock(locks: AppLocks, name: str, app: Any = None) -> list[Found]:
    """What there is of the lock with this name; nothing if nobody has it or waits for it, nothing
    was set aside, and nobody has broken it lately. As `all_locks`.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    store, keys = locks.store, lock_keys(locks.prefix, name, MAX_LIMIT)
    slots = [(key.encode(), name) for key in (keys.lock, *keys.slots)]
    found = [*read_slots(store, slots).values()]
    count = sum(store.looking.lengths([keys.room], [keys.waiters]))
    found = [dataclasses.replace(each, waiting=count) for each in found]
    if not found:
        found = [*_free(locks, {name: count} if count else {}, app)]
        found += read_slots(store, [(keys.broken.encode(), name)], "broken").values()
    return [*found, *_set_aside(store, [(keys.lock, name, keys.aside.encode())])]


def meant_by(locks: AppLocks, meant: Target, app: Any = None) -> list[Found]:
    """The same of the lock that is meant; if one of its slots is, of that one only.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    found = one_lock(locks, meant.keys.name, app)
    return [each for each in found if meant.slot in ("", each.key)]


def room_of(store: Store, keys: LockKeys, app: Any = None, most: int = NAMED) -> Room:
    """Who waits for the lock, at most so many; with labels and arguments, for an app.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    room = store.looking.room(keys, most)

    def about(entry_id: str, entry: str) -> Waiting:
        arrived = arrived_at(entry)
        age = max(room.now - arrived, 0.0) if arrived else None
        return dataclasses.replace(named(entry_id, parked_of(entry), app), age=age)

    waiting, aside = ([about(*each) for each in some] for some in (room.entries, room.aside))
    return Room(waiting, room.total, aside, room.aside_total)


def in_room(store: Store, keys: LockKeys, app: Any = None) -> list[Waiting]:
    """The first of those that wait in the lock's room, in order. As `room_of`.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    return room_of(store, keys, app).waiting


def aside_of(store: Store, keys: LockKeys, app: Any = None) -> list[Waiting]:
    """About the first hundred of the lock's tasks that were set aside. As `room_of`.

    Raises:
        LockUnavailable: the server did not answer, or does not allow it.
    """
    return room_of(store, keys, app).aside


def named(entry_id: str, entry: str, app: Any = None) -> Waiting:
    """Whose entry of a room this is; with label and arguments, if an app is given that can read
    them.
    """
    task_id = task_id_of(entry_id)
    try:
        found = Entry.load(entry)
    except CorruptEntry:
        return Waiting(task=_task_of(entry), task_id=task_id)
    if app is None:
        return Waiting(task=found.task, task_id=task_id)
    args, kwargs = found.arguments(app) or (None, None)
    label = found.label(app)
    return Waiting(task=found.task, task_id=task_id, label=label, args=args, kwargs=kwargs)


def _task_of(entry: str) -> str | None:
    """The task that an entry names which is otherwise not as ours are."""
    try:
        task = json.loads(entry)["task"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return task if isinstance(task, str) else None


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, BATCH)):
        yield batch


def read_slots(
    store: Store, slots: list[tuple[bytes, str]], state: str | None = None
) -> dict[bytes, Found]:
    """What is stored under these keys. It may have gone since they were found."""
    now, stored = store.looking.stored([key for key, _ in slots])
    return {
        key: _found(key, name, each, now, state)
        for (key, name), each in zip(slots, stored, strict=True)
        if each.exists
    }


def _found(key: bytes, name: str, stored: Stored, now: float, state: str | None) -> Found:
    text = key.decode()
    lives_for = stored.left / 1000 if stored.left >= 0 else None
    record = None if stored.value is None else holders.decode(stored.value)
    if state is not None or record is None:
        by = None
        if state == "broken":
            text = text.replace("}:broken:", "}:lock:", 1)
            by = holders.last_breaker(stored.value or b"")
        state = state or "foreign"
        return Found(key=text, name=name, state=state, lives_for=lives_for, broken_by=by)
    holder = holders.parse(stored.value, lives_for)
    since = None if holder is None else holder.acquired_at
    return Found(
        key=text,
        name=name,
        state=_state(holder),
        holder=holder,
        token=record["token"],
        held_for=None if since is None else max(now - since, 0.0),
        lives_for=lives_for,
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


def _set_aside(store: Store, asides: list[tuple[str, str, bytes]]) -> Iterator[Found]:
    """What was set aside, given the lock's key, its name, and the key of what was set aside."""
    for batch in _batches(asides):
        keys = [key for _, _, key in batch]
        counts, entries = store.looking.lengths([], [], keys), store.looking.set_aside(keys, NAMED)
        for (lock, name, _), count, some in zip(batch, counts, entries, strict=True):
            tasks = {named(*each).task for each in some}
            task = tasks.pop() if len(tasks) == 1 else None
            holder = Holder(task=task) if task else None
            if count:
                yield Found(key=lock, name=name, state=ASIDE, holder=holder, waiting=count)


def _count_waiting(
    store: Store, rooms: dict[str, bytes], waiters: dict[str, bytes]
) -> dict[str, int]:
    counts: dict[str, int] = {}
    both = [
        *((*each, True) for each in rooms.items()),
        *((*each, False) for each in waiters.items()),
    ]
    for batch in _batches(both):
        lists = [(name, key) for name, key, is_room in batch if is_room]
        sets = [(name, key) for name, key, is_room in batch if not is_room]
        lengths = store.looking.lengths([key for _, key in lists], [key for _, key in sets])
        for (name, _), length in zip([*lists, *sets], lengths, strict=True):
            counts[name] = counts.get(name, 0) + length
    return counts
