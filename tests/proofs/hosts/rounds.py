"""The rounds: three hosts hold locks and ask for them while something happens to their links."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.proofs.history import Event, History, read
from tests.support.waiting import eventually

from . import servers
from .judge import held_now
from .network import Host, Network

#: Seconds that a lock outlives its holder.
TTL = 3.0
#: Locks of each group in a round.
LOCKS = 3
_ROOT = Path(__file__).parents[3]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A lock server, and how it is used.

    Attributes:
        label: for people.
        start: starts it.
        min_replicas: how many replicas confirm an acquisition.
        longest: for how many seconds two may hold a lock at most.
    """

    label: str
    start: servers.Start
    min_replicas: int = 0
    longest: float = float("inf")


#: Seconds until a master that lost its replicas refuses writes, at most: it counts whole seconds,
#: and looks once a second.
REFUSES = servers.MAX_LAG + 2
#: Seconds after which its holders have been told, too. Sentinels count from the last reply, which
#: may be a second older than the cut.
PATIENT = REFUSES + TTL + 1
_SENTINEL, _CLUSTER = "Sentinel, 1 confirms", "Cluster, 1 confirms"
_LATE = f", refuses alone, dead after {PATIENT:g} s"
#: "1 confirms": a replica confirms each acquisition. "Refuses alone": a master without replicas
#: refuses to write. "Dead after": when the others take a silent master for dead; else after 1 s.
KINDS = {
    "one": Kind("one server", servers.one_server, longest=0.0),
    "sentinel-0": Kind("Sentinel", servers.sentinel()),
    "sentinel-1": Kind(_SENTINEL, servers.sentinel(), 1),
    "sentinel-write": Kind(
        # The replica's copy of a lock may lack an extension, of which there are three in a ttl.
        *(f"{_SENTINEL}, refuses alone", servers.sentinel(careful=True), 1, REFUSES + TTL / 3),
    ),
    "sentinel-late": Kind(_SENTINEL + _LATE, servers.sentinel(True, PATIENT), 1, longest=0.0),
    "cluster-0": Kind("Cluster", servers.cluster()),
    "cluster-1": Kind(_CLUSTER, servers.cluster(), 1),
    "cluster-late": Kind(_CLUSTER + _LATE, servers.cluster(True, PATIENT), 1, longest=0.0),
    "quorum": Kind("quorum", servers.quorum, longest=0.0),
}


class Client:
    """A program on a host that takes locks, see `client`."""

    def __init__(self, host: Host, at: servers.Servers, min_replicas: int, history: Path) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        known = (str(history), host.name, str(TTL), str(min_replicas), at.url)
        self._process = host.start(
            [
                *(sys.executable, "-m", "tests.proofs.hosts.client", *known),
                json.dumps(at.transport_options),
            ],
            stdin=subprocess.PIPE,
            stderr=self._said,
            cwd=_ROOT,
        )

    def keep(self, names: Sequence[str]) -> None:
        """Order it to ask for these locks, and to hold them."""
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"{name}\n" for name in names))
        self._process.stdin.flush()

    def __enter__(self) -> Client:
        return self

    def stop(self) -> None:
        """Let it give back what it has."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def __exit__(self, *exc_info: object) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.stop()
            self._process.wait(20)
        self._process.kill()
        self._process.wait()
        self._said.seek(0)
        said = self._said.read().decode()
        self._said.close()
        assert self._process.returncode == 0, f"a client failed: {said[-2000:]}"


class Room:
    """Three hosts, a lock server on them, and a client on each."""

    def __init__(
        self,
        network: Network,
        at: servers.Servers,
        clients: Sequence[Client],
        history: History,
    ) -> None:
        self.network = network
        self.hosts = network.hosts
        self.servers = at
        self.clients = clients
        self.history = history

    @property
    def events(self) -> list[Event]:
        return self.history.events()

    def all_said(self, kind: str) -> bool:
        return {event.host for event in self.history.events(kind)} == {h.name for h in self.hosts}

    def new_names(self) -> list[str]:
        return [self.servers.new_name() for _ in range(LOCKS)]

    def held(self, names: Sequence[str]) -> bool:
        """Whether somebody holds each of these."""
        now = held_now(self.events)
        return all(now[name] for name in names)

    def nothing_twice(self) -> bool:
        return max(held_now(self.events).values(), default=0) < 2


@contextlib.contextmanager
def opened(kind: Kind, path: Path) -> Iterator[Room]:
    history = History(path)
    with Network(3) as network, kind.start(network) as at, contextlib.ExitStack() as stack:
        stack.callback(history.close)
        clients = [
            stack.enter_context(Client(host, at, kind.min_replicas, path)) for host in network.hosts
        ]
        room = Room(network, at, clients, history)
        eventually(lambda: room.all_said("ready"), "the clients are ready")
        try:
            yield room
        finally:
            network.heal()
            for each in clients:
                each.stop()


# -- A is cut off ----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Cut:
    """A round in which A was cut off from B and C. Times are in seconds.

    Attributes:
        cut_at, healed_at: when.
        ended_at: when the clients were told to stop.
        groups: the names of the locks that were held on A, held on C, and asked for on A and B
            during the cut.
        events: what the clients said.
    """

    cut_at: float
    healed_at: float
    ended_at: float
    groups: dict[str, list[str]]
    events: list[Event]


ON_A, ON_C, MEANWHILE = "on A", "on C", "during the cut"


def cut_round(
    kind: Kind,
    path: Path,
    cut_for: float,
    settles: float = 60.0,
    seen: Callable[[Room], object] | None = None,
) -> Cut:
    """Cut A off, and heal the link.

    Args:
        kind: the lock server.
        path: of the history.
        cut_for: seconds.
        settles: seconds after which two that still hold one lock are a failure; 0 does not wait
            for that.
        seen: the cut lasts longer if this is not true yet.
    """
    with opened(kind, path) as room:
        groups = _held_by_a_and_c(room)
        time.sleep(random.uniform(1, 1 + TTL / 3))  # anywhere between two extensions
        cut_at = time.monotonic()
        room.network.cut(room.hosts[0])
        groups[MEANWHILE] = []
        for part in range(LOCKS):
            _sleep_until(cut_at + cut_for * part / LOCKS / 2)
            groups[MEANWHILE].append(room.servers.new_name())
            for each in room.clients[:2]:
                each.keep(groups[MEANWHILE][-1:])
        _sleep_until(cut_at + cut_for)
        if seen is not None:
            eventually(lambda: seen(room), "what the cut leads to")
        healed_at = time.monotonic()
        room.network.heal()
        if settles:
            time.sleep(TTL)
            eventually(room.nothing_twice, "nobody holds a lock twice", settles)
        ended_at = time.monotonic()
    return Cut(cut_at, healed_at, ended_at, groups, list(read(path)))


def _held_by_a_and_c(room: Room) -> dict[str, list[str]]:
    """Locks that A holds, and that C holds, and for which the other two ask."""
    a, b, c = room.clients
    groups = {ON_A: room.new_names(), ON_C: room.new_names()}
    for first, others, names in ((a, (b, c), groups[ON_A]), (c, (a, b), groups[ON_C])):
        first.keep(names)
        eventually(lambda names=names: room.held(names), "the locks are held")
        for each in others:
            each.keep(names)
    return groups


def _sleep_until(at: float) -> None:
    time.sleep(max(at - time.monotonic(), 0.0))
