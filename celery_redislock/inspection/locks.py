"""The locks, and the runs that go on without the lock that they lost."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Container, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, TypeAlias

from ..app.settings import app_locks
from ..protocol import holders, past
from ..protocol.canonical import task_in
from ..protocol.holders import Holder
from ..protocol.keys import (
    MAX_LIMIT,
    LockKeys,
    in_all_buckets,
    is_slot,
    key_parts,
    lock_keys,
    lock_pattern,
    prefix_of,
)
from ..protocol.lost import marks_in
from ..protocol.suspensions import Suspension, in_force, longest_of
from ..servers.looking import in_batches, read, scan, unix_time
from ..servers.server import Server
from .rooms import Room, rooms_of
from .states import AWAITED, NO_LOCK, RUNNING, KeptFor, State, kept_for, state_of_holder

#: A key, and the name of its lock.
Named: TypeAlias = "tuple[bytes | str, str]"

#: How many keys are read in one round trip.
BATCH: Final = 500
#: For how many locks all slots are looked for in one round trip; and the parts into which a lock's
#: further slots are divided for that, by where they begin and end.
AT_ONCE: Final = 20
PARTS: Final = ((0, 15), (15, 127), (127, MAX_LIMIT))
#: No holder extends its lock for longer, in ms: a year. Anybody may write a record.
LONGEST_TTL: Final = 366 * 86400 * 1000
#: The kinds of keys that a walk notes, besides the slots.
NOTED: Final = ("room", "waiters", "broken", "lost")
#: What `list` and `history` show as the task of a `RedisLock`.
OUTSIDE: Final = "RedisLock"
#: What `Found.to_dict` tells, beside task and suspension, in the order for people.
TOLD: Final = (
    *("key", "name", "label", "description", "state", "kept_for", "due_in", "task_id", "attempt"),
    *("node", "pid", "acquired_at", "held_for", "lives_for", "ttl", "turned_away", "waiting"),
    *("untaken", "fence", "replaced_by", "broken_by", "lost_because", "queue", "queue_depth"),
)


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
        queue: the queue that the call named whose message has the lock, if it named one; else its
            task's, if the broker was asked.
        queue_depth: how many messages are in its queue, if the broker was asked.
        turned_away: how many duplicates ended without a run because of this holder.
        waiting: how many tasks wait for the lock, in its room and in pool slots.
        untaken: how many of them no worker has taken, see `rooms.Room`.
        suspension: what keeps new runs from it, if an operator has suspended it or its task.
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
    queue_depth: int | None = None
    turned_away: int = 0
    waiting: int = 0
    untaken: int = 0
    suspension: Suspension | None = None

    @property
    def task(self) -> str:
        """The holder's task."""
        if self.holder is None or self.state in ("foreign", "broken"):
            return ""
        if self.state == "suspended":
            return self.holder.task or task_in(self.name) or ""
        return self.holder.task or OUTSIDE

    @property
    def in_words(self) -> str:
        """The state, and what it is kept for or told."""
        if self.kept_for is not None:
            return f"kept for {self.kept_for}"
        is_replaced = self.holder is not None and self.holder.replaced_by is not None
        return f"{self.state}, replaced" if is_replaced else self.state

    @property
    def is_lock(self) -> bool:
        """Whether this is a lock: held, kept or waited for."""
        return self.state not in NO_LOCK

    @property
    def mark(self) -> str | None:
        """A digest of the holder's token. It tells this holder from the next one, and proves
        nothing to Redis. None if there is no holder whose lock could be broken.
        """
        if self.token is None:
            return None
        text = f"{self.key}\n{self.token}\n{self.kept_for == 'a waiter'}"
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without the token."""
        holder = self.holder or Holder()
        return {
            "task": self.task or None,
            **{name: getattr(self if hasattr(self, name) else holder, name) for name in TOLD},
            "suspension": self.suspension and self.suspension.to_dict(),
        }


# -- all locks --------------------------------------------------------------------------------


def snapshot(app: Any) -> list[Found]:
    """Every lock that is held, waited for or lately broken, and every run that goes on without."""
    return with_rooms(app, of_taken=0)[0]


def with_rooms(app: Any, of_taken: int = 1) -> tuple[list[Found], dict[str, Room]]:
    """As `snapshot`; and what waits, by the names of the locks. `of_taken` as for `walk`."""
    locks, rows, rooms = app_locks(app), list[Found](), dict[str, Room]()
    for each in walk(locks.server, locks.prefix, app, of_taken):
        if isinstance(each, Room):
            rooms[each.name] = each
        else:
            rows.append(each)
    rows = [_with_room(each, rooms.get(each.name)) if each.is_lock else each for each in rows]
    return rows, rooms


def walk(server: Server, prefix: str, app: Any = None, of_taken: int = 1) -> Iterator[Found | Room]:
    """One walk over all keys of a prefix. It keeps little of each lock: there may be a million.

    First come the slots that are taken, without what waits; then the rooms, with the first task of
    each, `of_taken` tasks if the lock is taken; then the other locks, and the runs without one.
    Labels and arguments are read if there is an app.
    """
    suspended = _suspensions(server, prefix)
    idle = {each.lock: each for each in suspended if each.lock is not None}
    for each in _walk(server, prefix, app, of_taken):
        if isinstance(each, Room):
            yield each
        else:
            idle.pop(each.name, None)
            yield _with_suspension(each, suspended)
    yield from (suspended_row(lock_keys(prefix, name), each) for name, each in idle.items())


def _walk(server: Server, prefix: str, app: Any, of_taken: int) -> Iterator[Found | Room]:
    """See `walk`. Does not say what is suspended."""
    noted: dict[str, dict[str, bytes]] = {kind: {} for kind in NOTED}
    # Hashes: of keys, since a scan may give one twice; of the names of the locks; and of runs.
    seen, taken, shown = set[int](), set[int](), set[int]()

    def read(slots: Iterable[Named]) -> Iterator[Found]:
        for each in read_slots(server, slots):
            taken.add(hash(each.name))
            shown.add(_run_identity(each))
            yield each

    for page in scan(server, lock_pattern(prefix)):
        slots: list[Named] = []
        for key in page:
            kind, name = key_parts(prefix, key) or ("", "")
            if kind in noted:
                noted[kind][name] = key
            elif is_slot(kind) and hash(key) not in seen:
                seen.add(hash(key))
                slots.append((key, name))
        yield from read(slots)
    names, awaited = {**noted["room"], **noted["waiters"]}, dict[str, Found]()
    for is_taken, most in ((False, 1), (True, of_taken)):
        some = [name for name in names if (hash(name) in taken) is is_taken]
        for room in rooms_of(server, prefix, some, app, most):
            if room.waits:
                yield room
                if not is_taken:
                    awaited[room.name] = _awaited(prefix, room)
    yield from read((each.key, name) for name, each in awaited.items())  # taken since
    broken = ((key, name) for name, key in noted["broken"].items() if name not in awaited)
    yield from _broken(server, (each for each in broken if hash(each[1]) not in taken))
    yield from (each for name, each in awaited.items() if hash(name) not in taken)
    yield from lost_of(server, ((key, name) for name, key in noted["lost"].items()), shown)


def chosen(
    found: Iterable[Found], task: str | None = None, node: str | None = None, older: float = 0.0
) -> list[Found]:
    """The locks whose task and node match, if given, held for at least `older` seconds."""
    return [
        each
        for each in found
        if (task is None or matches(each.task, task))
        and (node is None or matches((each.holder and each.holder.node) or "", node))
        and (each.held_for or 0.0) >= older
    ]


def matches(name: str, glob: str) -> bool:
    """Whether the name equals this text, or matches it as a glob."""
    return name == glob or fnmatchcase(name, glob)


def suspensions(app: Any) -> list[Suspension]:
    """All suspensions that have not ended; what ends first comes first."""
    locks = app_locks(app)
    return _suspensions(locks.server, locks.prefix)


def _suspensions(server: Server, prefix: str) -> list[Suspension]:
    if not server.shards():  # which says so if hash slots have no node
        return []
    lists = server.joint(in_all_buckets(prefix, "suspended"))
    now, replies = read(server, [("MGET", *keys) for keys in lists])
    return in_force((text for reply in replies for text in reply or ()), now)


# -- one lock ---------------------------------------------------------------------------------


def lock(app: Any, name: str) -> list[Found]:
    """The rows of this lock, as `snapshot` has them; empty if nobody holds, awaits or broke it."""
    locks = app_locks(app)
    server, keys = locks.server, lock_keys(locks.prefix, name, MAX_LIMIT)
    held = [*_held(server, [keys])]
    (room,) = rooms_of(server, locks.prefix, [name], app)
    rows = [_with_room(each, room) for each in held]
    if not rows:  # who has broken it is shown here, even if tasks wait for it
        rows = [_awaited(locks.prefix, room)] if room.waits else []
        rows += _broken(server, [(keys.broken, keys.name)])
    rows += lost_of(server, [(keys.lost, keys.name)], {*map(_run_identity, held)})
    now, texts = read(server, [("GET", keys.suspended)])  # each bucket has what is of tasks
    suspended = in_force(texts, now)
    idle = next((each for each in suspended if each.lock == keys.name and not rows), None)
    if idle is not None:
        return [suspended_row(keys, idle)]
    return [_with_suspension(each, suspended) for each in rows]


# -- rows -------------------------------------------------------------------------------------


def read_slots(server: Server, slots: Iterable[Named]) -> Iterator[Found]:
    """Who has these slots. A slot that nobody has is left out."""
    return (_slot(now, each, value) for now, each, value in _stored(server, slots))


def read_locks(server: Server, locks: Sequence[LockKeys], task: str) -> list[list[Found]]:
    """Who has each of these locks of a task; or, if nobody, whether it is suspended."""
    lists = dict.fromkeys(of.suspended for of in locks)
    asked = [(key, of.name) for of in locks for key in (of.lock, *of.slots)]
    there: dict[str, Found] = {}
    texts: list[bytes | None] = []
    at = 0.0
    for now, row, value in _stored(server, [*asked, *((key, "") for key in lists)]):
        if row.key in lists:
            texts, at = [*texts, value], now
        else:
            there[row.key] = _slot(now, row, value)
    suspended, found = in_force(texts, at), []
    for of in locks:
        slots = [there[key] for key in (of.lock, *of.slots) if key in there]
        suspension = longest_of(suspended, task, of.name)
        found.append(slots or ([] if suspension is None else [suspended_row(of, suspension)]))
    return found


def _held(server: Server, locks: Iterable[LockKeys]) -> Iterator[Found]:
    """Who has these locks, of however many slots: asks first in which part any is taken."""
    for batch in in_batches(locks, AT_ONCE):
        parts = [(keys, keys.slots[first:end]) for keys in batch for first, end in PARTS]
        counts = server.replies([("EXISTS", *slots) for _, slots in parts], errors=True)
        # A user who may not ask this reads all of them.
        taken = (part for part, count in zip(parts, counts, strict=True) if count != 0)
        first = ((keys.lock, keys.name) for keys in batch)
        more = ((key, keys.name) for keys, slots in taken for key in slots)
        yield from read_slots(server, (*first, *more))


def _stored(server: Server, keys: Iterable[Named]) -> Iterator[tuple[float, Found, bytes | None]]:
    """Of each key that exists the time, the row of a foreign value, and the value if a string."""
    for batch in in_batches(keys, BATCH):
        commands = [command for key, _ in batch for command in (("GET", key), ("PTTL", key))]
        at, *replies = server.replies([("TIME",), *commands], allows_wrong_type=True)
        now = unix_time(at)
        for (key, name), value, ms in zip(batch, replies[::2], replies[1::2], strict=True):
            if value is not None:
                left = ms / 1000 if ms >= 0 else None
                row = Found(
                    key=_text(key),
                    name=name,
                    state="foreign",
                    lives_for=left,
                    expires_at=None if left is None else now + left,
                )
                yield now, row, value if isinstance(value, bytes) else None


def _slot(now: float, row: Found, value: bytes | None) -> Found:
    record, holder = (None, None) if value is None else holders.read(value, row.lives_for)
    if value is None or record is None:
        return row
    ms, queue = record.get("ttl_ms"), record.get("queue")
    ttl = ms / 1000 if isinstance(ms, int) and 0 < ms < LONGEST_TTL else None
    state = state_of_holder(holder, row.lives_for, ttl)
    return dataclasses.replace(
        row,
        state=state,
        kept_for=kept_for(holder) if state == "kept" else None,
        ttl=ttl if state in RUNNING else None,
        queue=queue if isinstance(queue, str) else None,
        turned_away=past.turned_away_by(value),
        holder=holder,
        token=record["token"],
        held_for=_held_for(holder, now),
    )


def _held_for(holder: Holder | None, now: float) -> float | None:
    since = None if holder is None else holder.acquired_at
    return None if since is None else max(now - since, 0.0)


def _with_room(row: Found, room: Room | None) -> Found:
    """The row of a slot that somebody has, with what waits for the lock."""
    if room is None or not room.waits:
        return row
    return dataclasses.replace(row, waiting=room.waits, untaken=room.untaken)


def _awaited(prefix: str, room: Room) -> Found:
    """The row of a lock that nobody has. As its holder it shows the first task that waits."""
    label = room.waiting[0].label if room.waiting else None
    quiet_in = room.quiet_in
    return Found(
        key=lock_keys(prefix, room.name).lock,
        name=room.name,
        state=room.state,
        holder=Holder(task=room.task, label=label) if room.task else None,
        waiting=room.waits,
        untaken=room.untaken,
        due_in=quiet_in,
        due_at=None if quiet_in is None else round(room.now + quiet_in, 1),
    )


def suspended_row(of: LockKeys, suspension: Suspension) -> Found:
    """The row of a suspended lock that nobody holds or waits for."""
    holder = Holder(task=suspension.task or task_in(of.name), label=suspension.label)
    return Found(key=of.lock, name=of.name, state="suspended", holder=holder, suspension=suspension)


def _with_suspension(row: Found, found: Sequence[Suspension]) -> Found:
    task = (row.holder and row.holder.task) or task_in(row.name) or ""
    suspension = longest_of(found, task, row.name)
    if suspension is None:
        return row
    is_free = row.state in AWAITED or (row.state == "broken" and suspension.lock is not None)
    state = "suspended" if is_free else row.state
    return dataclasses.replace(row, state=state, suspension=suspension)


def _broken(server: Server, notes: Iterable[Named]) -> Iterator[Found]:
    """The rows of broken locks, from the keys that note who broke them."""
    for _, row, value in _stored(server, notes):
        yield dataclasses.replace(
            row,
            key=row.key.replace("}:broken:", "}:lock:", 1),
            state="broken",
            broken_by=holders.last_breaker(value or b""),
        )


def lost_of(
    server: Server, marks: Iterable[Named], shown: Container[int] = frozenset()
) -> Iterator[Found]:
    """The runs that go on without their lock, from the keys where they say so. A run that the
    server has as a holder has its lock: it came back, or the run missed an answer. So had those
    that this look has `shown` as holders, see `_run_identity`: their lock may have expired since.
    """
    for batch in in_batches(marks, BATCH):
        now, replies = read(server, [("HGETALL", key) for key, _ in batch])
        told = [
            (_text(key), name, runs)
            for (key, name), reply in zip(batch, replies, strict=True)
            if (runs := marks_in(reply, now))
        ]
        held = _held(server, (lock_keys(prefix_of(key), name, MAX_LIMIT) for key, name, _ in told))
        has_it = {*map(_run_identity, held)}
        for key, name, runs in told:
            for run in runs:
                row = Found(
                    key=f"{key}#{run.holder.fence}",
                    name=name,
                    state="without its lock",
                    holder=run.holder,
                    held_for=_held_for(run.holder, now),
                    lost_because=run.why,
                )
                if (of := _run_identity(row)) not in has_it and of not in shown:
                    yield row


def _run_identity(row: Found) -> int:
    """Tells the run of a row from all others."""
    return hash((row.name, row.holder and row.holder.fence))


def _text(key: bytes | str) -> str:
    return key.decode() if isinstance(key, bytes) else key
