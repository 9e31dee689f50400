"""The keys of a lock: their names, and which lock a key belongs to. Does no I/O."""

# No `from __future__ import annotations`: with it a `NamedTuple` takes twice as long to make.
import hashlib
import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

#: How many buckets there are. Never change it: all releases must agree on a lock's key.
BUCKETS: Final = 1024
#: The most holders of one lock at once: each slot is a key that every acquire reads.
MAX_LIMIT: Final = 1000
#: In characters: the longest name of a lock, and how much of a longer one precedes its digest.
LONGEST_NAME: Final = 250
_LEFT: Final = 200
#: See `LockKeys.done_by` and `runs_key`.
NOTE_KEY: Final = "%s:%s"
RUNS_KEY: Final = "%s:%s"


class LockKeys(NamedTuple):
    """The keys of one lock. All are in one hash slot. `lock_id` is no key: it is the lock's number
    of slots and its name, from which `keys_of_lock_id` makes these keys again.

    The locks of a bucket share five keys: `fence`, the counter, so that no lock needs its own;
    `rooms`, the ids of locks with a waiting room; `history`, the tasks whose last runs are kept;
    `turned`, how many duplicates of each task were turned away; and `suspended`, what operators
    have suspended. A lock that several may hold has one key in `slots` for each
    further holder.
    """

    name: str
    lock_id: str
    lock: str
    fence: str
    waiters: str
    wake: str
    broken: str
    done: str
    room: str
    entries: str
    rooms: str
    ended: str
    deadlines: str
    sent: str
    history: str
    turned: str
    suspended: str
    slots: tuple[str, ...] = ()

    @property
    def lost(self) -> str:
        """The key that has the runs that lost this lock and go on, see `lost`."""
        return f"{head_of(self.lock)}}}:lost:{self.name}"

    def done_by(self, entry_id: str) -> str:
        """The key of a done note: this attempt of this task has run under this lock."""
        return NOTE_KEY % (self.done, entry_id)

    def done_by_each(self, entry_ids: Sequence[bytes]) -> list[bytes]:
        """The same for ids that come from the server, and may be any bytes."""
        return [NOTE_KEY.encode() % (self.done.encode(), each) for each in entry_ids]


def prefix_of(key: str) -> str:
    """The prefix of a key that begins with one and a bucket."""
    return head_of(key).rpartition(":{")[0]


def lock_keys(prefix: str, name: str, limit: int = 1) -> LockKeys:
    """The keys of the lock with that name, which up to `limit` runs may hold at once. The beginning
    and the digest of a name stand for it if it is too long, or no valid text.
    """
    if len(name) > LONGEST_NAME or not name.isascii():
        name = _fit(name)
    return _lock_keys(prefix, name, limit)


def _fit(name: str) -> str:
    whole = name.encode("utf-8", "surrogatepass")  # JSON may carry half of a surrogate pair
    head = name[:LONGEST_NAME].encode("utf-8", "backslashreplace").decode()
    return name if head == name else f"{head[:_LEFT]}...{hashlib.sha256(whole).hexdigest()[:32]}"


@lru_cache(maxsize=256)  # duplicates come in a row
def _lock_keys(prefix: str, name: str, limit: int) -> LockKeys:
    head = f"{prefix}:{{{zlib.crc32(name.encode()) % BUCKETS}}}"
    return LockKeys(
        name,
        f"{limit}|{name}",
        f"{head}:lock:{name}",
        f"{head}:fence",
        f"{head}:waiters:{name}",
        f"{head}:wake:{name}",
        f"{head}:broken:{name}",
        f"{head}:done:{name}",
        f"{head}:room:{name}",
        f"{head}:entries:{name}",
        f"{head}:rooms",
        f"{head}:ended:{name}",
        f"{head}:deadlines:{name}",
        f"{head}:sent:{name}",
        f"{head}:history",
        f"{head}:turned",
        f"{head}:suspended",
        () if limit == 1 else tuple(f"{head}:lock{n}:{name}" for n in range(2, limit + 1)),
    )


def slots_above(of: LockKeys) -> list[str]:
    """The keys of all further slots that a lock of that name can have, in their order."""
    head = head_of(of.lock)
    return [f"{head}}}:lock{n}:{of.name}" for n in range(len(of.slots) + 2, MAX_LIMIT + 1)]


def with_slots(of: LockKeys, limit: int) -> LockKeys:
    """The keys of the same lock, with at least so many slots."""
    if limit <= len(of.slots) + 1:
        return of
    return lock_keys(prefix_of(of.lock), of.name, limit)


def head_of(key: str) -> str:
    """What all keys of a bucket begin with."""
    return key.partition("}")[0]


def keys_of_lock_id(prefix: str, lock_id: str) -> LockKeys:
    """The lock's keys. Raises `ValueError` if this is no lock id: anybody may have written it."""
    return lock_keys(prefix, lock_id.partition("|")[2], limit_of_lock_id(lock_id))


def limit_of_lock_id(lock_id: str) -> int:
    """How many slots a lock's id says that the lock has. It raises what `keys_of_lock_id` does."""
    limit = int(lock_id.partition("|")[0])
    if not 1 <= limit <= MAX_LIMIT:
        raise ValueError(f"no lock has {limit} slots")
    return limit


def name_of_lock_id(lock_id: str) -> str:
    """The name in a lock's id. A text that is no lock id is returned as it is."""
    return re.sub(r"^\d+\|", "", lock_id)


def lock_pattern(prefix: str) -> str:
    """A pattern for `SCAN` of who holds a lock or waits for it, what of a room is under way, which
    locks were broken, and which runs go on without theirs.
    """
    return f"{_literal(prefix)}:{{*}}:[blrsw]*"


def sweep_key(prefix: str, broker: str, workers: str) -> str:
    """The key that says that a worker of this broker and fleet has looked at all rooms lately."""
    return f"{prefix}:sweep:{broker}:{workers}"


def sweep_pattern(prefix: str) -> str:
    """A pattern for `SCAN`. It matches the `sweep_key` of all workers that have this prefix."""
    return f"{_literal(prefix)}:sweep:*"


def broker_of_sweep(key: bytes) -> str:
    """The digest of the broker of the workers with this `sweep_key`."""
    return key.decode(errors="replace").rsplit(":", 2)[1]


def _literal(prefix: str) -> str:
    return re.sub(r"([*?\[\]\\^-])", r"\\\1", prefix)


def key_parts(prefix: str, key: bytes) -> tuple[str, str] | None:
    """A key's kind, such as "lock2" or "room", and its lock's name; None if it is not ours."""
    head, _, rest = key.partition(b"}:")
    kind, colon, name = rest.partition(b":")
    bucket = zlib.crc32(name) % BUCKETS
    if not colon or head != f"{prefix}:{{{bucket}".encode():
        return None
    try:
        parts = kind.decode(), name.decode()
    except UnicodeDecodeError:
        return None
    return parts if len(parts[1]) <= LONGEST_NAME else None


def in_all_buckets(prefix: str, kind: str) -> list[str]:
    """The keys of this kind, one for each bucket: "rooms", "history", "turned" or "suspended"."""
    return [f"{prefix}:{{{bucket}}}:{kind}" for bucket in range(BUCKETS)]


def runs_key(history: str, task: str) -> str:
    """The key of a task's last runs in the bucket with that history."""
    return RUNS_KEY % (history, task)


def name_of(prefix: str, key: str) -> str | None:
    """The name of the lock whose key, or slot's key, this is; or None."""
    kind, name = key_parts(prefix, key.encode(errors="replace")) or ("", "")
    return name if is_slot(kind) else None


def is_slot(kind: str) -> bool:
    return kind.startswith("lock") and (kind == "lock" or kind[4:].isdecimal())
