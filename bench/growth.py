"""Many held locks, many rooms, a long room: which of our work grows with them, and how much."""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import redis
from celery import Celery

from celery_redislock.app.housekeeper import housekeeper
from celery_redislock.app.settings import app_locks
from celery_redislock.inspection.locks import snapshot
from celery_redislock.protocol import calls, holders, rooms
from celery_redislock.protocol.claims import (
    Acquired,
    Busy,
    Claim,
    Extension,
    Offered,
    Parked,
    Parking,
    Place,
    to_ms,
)
from celery_redislock.protocol.entries import slot_of
from celery_redislock.protocol.exchange import Call
from celery_redislock.protocol.keys import LockKeys, lock_keys
from celery_redislock.protocol.suspensions import Suspension
from celery_redislock.protocol.tokens import new_token
from celery_redislock.servers.looking import in_batches
from celery_redislock.servers.server import Server
from celery_redislock.worker.sweeper import Sweeper
from tests.support.servers import RedisServer

from .report import Column, Curves, Table
from .section import Run

C = TypeVar("C", bound="Client")
PREFIX, TASK = "redislock", "shop.sync"
#: Seconds. Nothing lapses meanwhile.
TTL = 3600.0
#: Locks of the process whose heartbeat is measured.
OWN = 100
#: Commands below so many microseconds are not noted one by one.
NOTED = 100
#: The most commands that are noted: listing a million locks takes some thousands that long.
MOST_NOTED = 100_000
#: What is measured once or twice, since it takes long.
LIST = "list"
#: What people read of each operation, by its name.
OPERATIONS = {
    "acquire": "acquire",
    "release": "release",
    "refuse": "refused",
    "hand_over": "release, hand-over",
    "take_over": "take it over",
    "park": "park",
    "coalesce": "coalesce",
    "revoke": "leave from the middle",
    "look": "look at a room",
    "look_suspended": "look, its task suspended",
    "tick": f"heartbeat, {OWN} locks",
    "sweep": "sweep, none due",
    LIST: "list",
}


def measure(run: Run) -> list[Table]:
    most = run.size({"locks": 6, "rooms": 4, "room": 5}, {"locks": 3, "rooms": 2, "room": 3})
    times, tables = run.size(20, 5), []
    for what, kind in KINDS.items():
        if not run.wants(what):
            continue
        with RedisServer() as server, Scene(server) as scene:
            sizes = [10**power for power in range(most[what] + 1)]
            rows = list(rows_of(scene, kind, sizes, times, run))
        tables.append(table(kind, rows, times))
    return tables


def rows_of(
    scene: Scene, kind: Kind, sizes: Iterable[int], times: int, run: Run
) -> Iterator[dict[str, Any]]:
    there = 0
    for size in sizes:
        kind.fill(scene, range(there, size))
        there = size
        asked = one_size(scene, times)
        yield row(size, asked)
        run.say(f"{size:,} {kind.heading}: {len(asked)} operations, {times} times each")


@dataclasses.dataclass
class Asked:
    """What one operation asked of the server.

    Attributes:
        seconds: the client's time.
        commands: how many were sent.
        micros: microseconds of the server's time, for all of them.
        slowest: milliseconds of the server's time, for the slowest of them.
        by: which one that was.
    """

    seconds: float = 0.0
    commands: int = 0
    micros: float = 0.0
    slowest: float = 0.0
    by: str = ""


@contextmanager
def asking(client: redis.Redis) -> Iterator[Asked]:
    """What is asked of this server meanwhile. Nobody else may ask it."""
    found = Asked()
    client.slowlog_reset()
    client.config_resetstat()
    began = time.perf_counter()
    yield found
    found.seconds = time.perf_counter() - began
    stats = client.info("commandstats")
    sent = {name.removeprefix("cmdstat_"): each for name, each in stats.items()}
    # The other commands are then called by the scripts, and in their time.
    scripts = {name: each for name, each in sent.items() if name in ("evalsha", "eval")}
    for name, each in (scripts or sent).items():
        if not name.startswith(("config", "slowlog", "info")):
            found.commands += each["calls"]
            found.micros += each["usec"]
    noted: dict[str, list[float]] = defaultdict(list)
    for each in client.slowlog_get(MOST_NOTED):
        name = each["command"].split(b" ")[0].decode().lower()
        if name in sent:
            noted[name].append(each["duration"] / 1000)
    for name, each in noted.items():
        slowest = uninterrupted(each, sent[name]["calls"])
        if slowest > found.slowest:
            found.slowest, found.by = slowest, name


def uninterrupted(noted: list[float], calls: int) -> float:
    """The slowest of so many calls, given those that took long. One in a hundred is left out: the
    machine may have interrupted it.
    """
    rest = sorted(noted, reverse=True)[calls // 100 :]
    return rest[0] if rest else 0.0


class Client:
    """What one process does at a lock server, or a cluster.

    Args:
        url: where that is.
        history: how many runs each bucket keeps in its history.
    """

    def __init__(self, url: str, history: int = 0) -> None:
        self.app = Celery("growth", broker="memory://", set_as_current=False)
        self.app.conf.redislock_url = url
        self.server: Server = app_locks(self.app).server
        self.history = history

    def __enter__(self: C) -> C:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.server.close()
        self.app.close()

    def key(self, name: str) -> LockKeys:
        return lock_keys(PREFIX, name)

    def claim(self, keys: LockKeys, task_id: str = "", member: str = "") -> Claim:
        token, task_id = new_token(), task_id or f"task-{new_token()}"
        value = holders.encode(token, ttl_ms=to_ms(TTL), task=TASK, task_id=task_id)
        return Claim(
            *(keys, token, TTL, value, task_id), member=member, task=TASK, history=self.history
        )

    def acquire(self, claim: Claim) -> Claim:
        reply = self.server.run(calls.acquire(claim))
        assert isinstance(reply, Acquired), reply
        return claim

    def take_over(self, keys: LockKeys, offered: Offered) -> Claim:
        """Acquire the lock for the task of its room that is next, as that task's message does."""
        task_id = offered.place.entry_id.partition(":")[0]
        return self.acquire(self.claim(keys, task_id, offered.place.member))

    def park(self, claim: Claim, member: str = "") -> None:
        reply = self.server.run(parking(claim, member))
        assert isinstance(reply, Parked), reply

    def all(self, asked: Iterable[Call[Any]], kind: type) -> None:
        """Many calls, of which each is to have a reply of this kind."""
        for some in in_batches(asked, 500):
            for reply in self.server.run_all(some, ttl=TTL):
                assert isinstance(reply, kind), reply


def message(task_id: str) -> str:
    """What is parked of a task that has some arguments."""
    entry = {"task": TASK, "task_id": task_id, "body": "[[], {}, {}]" * 20}
    return json.dumps(entry, separators=(",", ":"))


def parking(claim: Claim, member: str = "") -> Call[Any]:
    return rooms.park(claim, Parking(message(claim.task_id), member))


class Scene(Client):
    """A server, and what we do there."""

    def __init__(self, server: RedisServer) -> None:
        super().__init__(server.url)
        self.client: redis.Redis = redis.Redis(port=server.port)
        self.client.config_set("slowlog-log-slower-than", NOTED)
        self.client.config_set("slowlog-max-len", MOST_NOTED)
        self.sweeper = Sweeper(self.app)
        #: The lock whose room we look at, and its holder.
        self.keys = self.key("this")
        self.holder = self.acquire(self.claim(self.keys))
        self.own = [self.acquire(self.claim(self.key(f"own-{n}"))) for n in range(OWN)]

    def __exit__(self, *exc_info: object) -> None:
        super().__exit__()
        self.client.close()

    def move_to_the_middle(self, member: str) -> None:
        """Move the last member there, as if so many had been parked after it."""
        room = self.keys.room
        middle = self.client.lindex(room, self.client.llen(room) // 2).decode()
        if middle != member:
            self.client.lrem(room, -1, member)
            self.client.linsert(room, "BEFORE", middle, member)


def one_size(scene: Scene, times: int) -> dict[str, list[Asked]]:
    """All operations, so many times. In the end there is as much as before."""
    found: dict[str, list[Asked]] = defaultdict(list)

    def ask(what: str, call: Callable[[], Any]) -> Any:
        with asking(scene.client) as asked:
            reply = call()
        found[what].append(asked)
        return reply

    for number in range(-1, times):
        if number == 0:
            found.clear()  # the first loads the scripts
        one_turn(scene, ask)
        if number < 2:
            ask(LIST, lambda: snapshot(scene.app))
    return found


def one_turn(scene: Scene, ask: Callable[[str, Callable[[], Any]], Any]) -> None:
    store, keys = scene.server, scene.keys
    alone = scene.claim(scene.key("nobody's"))
    ask("acquire", lambda: scene.acquire(alone))
    ask("release", lambda: store.run(calls.settle(alone)))
    newcomer = scene.claim(keys)
    assert isinstance(ask("refuse", lambda: store.run(calls.acquire(newcomer))), Busy)
    ask("park", lambda: scene.park(newcomer))
    offered = ask("hand_over", lambda: store.run(calls.settle(scene.holder))).offered
    scene.holder = ask("take_over", lambda: scene.take_over(keys, offered))
    first, second, slot = scene.claim(keys), scene.claim(keys), slot_of(TASK)
    scene.park(first, slot)
    scene.move_to_the_middle(slot)
    ask("coalesce", lambda: scene.park(second, slot))
    store.ask(rooms.forget_ended(keys, first.entry_id, TTL))
    ask("look", lambda: store.run(rooms.look(keys, TTL, TTL)))
    suspend(scene, TTL)
    ask("look_suspended", lambda: store.run(rooms.look(keys, TTL, TTL)))
    suspend(scene, 0)
    leaves = calls.Release(leaves=Place(slot, second.entry_id))
    ask("revoke", lambda: store.run(calls.settle(second, leaves)))
    extensions = [Extension(each, each.opening, 0, retake=False) for each in scene.own]
    ask("tick", lambda: store.run_all([calls.extend(each) for each in extensions], ttl=30.0))
    scene.client.delete(scene.sweeper._turn)  # as if the last sweep were two seconds ago
    ask("sweep", lambda: (scene.sweeper.sweep(), housekeeper.finish()))


def suspend(scene: Scene, seconds: float) -> None:
    """Suspend the tasks of the room, or with 0 end that."""
    what = Suspension(task=TASK, by="anna@host", why="")
    scene.server.run(calls.suspend([scene.keys.suspended], [scene.keys.rooms], what, seconds))


@dataclasses.dataclass(frozen=True)
class Kind:
    """What there is more and more of.

    Attributes:
        table: the table's name.
        title: its title.
        heading: what is counted.
        fill: adds those with these numbers.
    """

    table: str
    title: str
    heading: str
    fill: Callable[[Scene, range], None]


def hold(scene: Scene, numbers: range) -> None:
    set_held(scene, scene.client, numbers)


def set_held(client: Client, direct: redis.Redis, numbers: range) -> None:
    """Set the keys that `acquire.lua` would, without a call for each."""
    with direct.pipeline(transaction=False) as pipeline:
        for number in numbers:
            claim = client.claim(client.key(f"held-{number}"))
            value = claim.value[:-1] + ',"fence":1795187532970938,"acquired_at":1795187532.970938}'
            pipeline.set(claim.keys.lock, value, px=to_ms(TTL))
            if len(pipeline) == 10_000:
                pipeline.execute()
        pipeline.execute()


def open_rooms(scene: Scene, numbers: range) -> None:
    """Each has a holder, and a task that waits."""
    keys = [scene.key(f"room-{number}") for number in numbers]
    scene.all((calls.acquire(scene.claim(each)) for each in keys), Acquired)
    scene.all((parking(scene.claim(each)) for each in keys), Parked)


def fill_room(scene: Scene, numbers: range) -> None:
    scene.all((parking(scene.claim(scene.keys)) for _ in numbers), Parked)


KINDS = {
    "locks": Kind("growth", "Held locks", "held locks", hold),
    "rooms": Kind("growth_rooms", "Waiting rooms", "rooms", open_rooms),
    "room": Kind("growth_room", "Tasks parked in one room", "parked tasks", fill_room),
}


def row(size: int, found: dict[str, list[Asked]]) -> dict[str, Any]:
    # A command that is slow by itself is slow each time; the machine interrupts some.
    best = {what: min(asked, key=lambda each: each.slowest) for what, asked in found.items()}
    slowest = max(best, key=lambda what: best[what].slowest)
    return {
        "size": size,
        **{what: statistics.median(each.micros for each in asked) for what, asked in found.items()},
        "commands": {what: asked[0].commands for what, asked in found.items()},
        "seconds": {
            what: statistics.median(each.seconds for each in asked) for what, asked in found.items()
        },
        "listed": min(each.seconds for each in found[LIST]),
        "slowest": best[slowest].slowest or None,
        "slowest_by": OPERATIONS[slowest] if best[slowest].by else "",
        "slowest each": {what: each.slowest for what, each in best.items()},
    }


def table(kind: Kind, rows: list[dict[str, Any]], times: int) -> Table:
    return Table(
        kind.table,
        kind.title,
        [
            Column("size", kind.heading, ",d"),
            *(Column(what, heading, ",.0f") for what, heading in OPERATIONS.items()),
            Column("listed", "list, s of the client", ".1f"),
            Column("slowest", "slowest command ms", ".2f"),
            Column("slowest_by", "which"),
        ],
        rows,
        notes(times),
        curves=Curves(f"{kind.title}: server time in µs", "size", OPERATIONS),
    )


def notes(times: int) -> list[str]:
    return [
        f"Microseconds of the server's time, of all commands of one operation together, the median"
        f" of {times}; `list` twice. One client asks, and nobody else.",
        "*Refused*: a duplicate asks for the lock of the room. *Park*: it is put there."
        " *Hand-over*: the holder's release names the first, whose message then takes the lock."
        " *Coalesce*: one is put in the place of another, half way. *Leave from the middle*: one is"
        " revoked there.",
        f"*Heartbeat*: {OWN} locks of one process are extended, in one round trip. *Sweep*: what a"
        " worker asks every 2 s, of all rooms. *List*: `celery redislock list`; most of its time is"
        " the client's, which reads every lock.",
        "*Slowest command*: of all operations, the one that stops the server for the longest, in"
        " the best of its tries, and without the slowest of each hundred alike: the machine"
        f" interrupts some. Empty: below {NOTED / 1000} ms.",
    ]
