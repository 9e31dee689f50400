"""A short form of the hosts: as root, where there can be network namespaces."""

from __future__ import annotations

import dataclasses
import itertools
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.proofs.harness import Result

from .judge import Holding, Twice, holdings, twice, wrong
from .network import Host, Network, why_not
from .proof import Hosts, groups_of
from .rounds import KINDS, MEANWHILE, ON_A, ON_C, TTL, Cut, Room, cut_round

#: What the cut must have shown of each, at the latest.
SEEN = {
    "one": lambda room: True,
    "quorum": lambda room: True,
    "sentinel-0": lambda room: not room.nothing_twice(),
    "sentinel-write": lambda room: somebody_led_again(room),
}


def somebody_led_again(room: Room) -> bool:
    """Whether locks that were asked for since the cut are held."""
    names = {each.name for each in room.events if each.kind == "asked"}
    return room.held(names)


@pytest.fixture(scope="module")
def root() -> None:
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def cuts(root: None, tmp_path_factory) -> dict[str, Cut]:
    """A round of each, side by side."""

    folder = tmp_path_factory.mktemp("cuts")

    def one_round(name: str) -> Cut:
        return cut_round(KINDS[name], folder / name, cut_for=8, settles=0, seen=SEEN[name])

    with ThreadPoolExecutor(len(SEEN)) as pool:
        return dict(zip(SEEN, pool.map(one_round, SEEN), strict=True))


def figures_of(cuts: dict[str, Cut], name: str, group: str):
    return groups_of(cuts[name])[group]


def problems(cuts: dict[str, Cut], name: str) -> list[str]:
    cut, kind = cuts[name], KINDS[name]
    return list(wrong(kind.label, kind.longest, cut.events, cut.ended_at))


def believed_longest(cut: Cut, host: str) -> float:
    """How long after the cut this host was told that it still holds what it held before."""
    held = [each for each in holdings(cut.events) if each.since < cut.cut_at and each.host == host]
    assert all(each.told and each.told - cut.cut_at < 3 * TTL for each in held)
    return max(each.until for each in held) - cut.cut_at


@pytest.mark.parametrize("name", ["one", "quorum"])
def test_of_one_server_and_of_a_quorum_no_two_hold_a_lock(cuts, name) -> None:
    assert problems(cuts, name) == []
    for group in cuts[name].groups:
        assert figures_of(cuts, name, group).twice == []


@pytest.mark.parametrize(("name", "host", "group"), [("one", "C", ON_C), ("quorum", "A", ON_A)])
def test_who_is_cut_off_is_told_within_the_ttl_and_another_gets_the_lock(
    cuts, name, host, group
) -> None:
    assert believed_longest(cuts[name], host) < TTL + 0.1
    assert len(figures_of(cuts, name, group).anew) == len(cuts[name].groups[group])


def test_the_majority_of_a_quorum_goes_on(cuts) -> None:
    # The cut would take all of them. On a machine without a core to spare, an extension of one may
    # come too late.
    assert len(figures_of(cuts, "quorum", ON_C).told) < len(cuts["quorum"].groups[ON_C])
    took = [each for each in holdings(cuts["quorum"].events) if is_new(cuts["quorum"], each)]
    assert {each.host for each in took} == {"B"}


def is_new(cut: Cut, held: Holding) -> bool:
    return held.name in cut.groups[MEANWHILE] and held.since < cut.healed_at


def test_behind_sentinels_two_hold_a_lock_and_the_fence_tells_which_is_newer(cuts) -> None:
    assert figures_of(cuts, "sentinel-0", ON_A).twice
    for group in cuts["sentinel-0"].groups:
        seen = figures_of(cuts, "sentinel-0", group)
        assert seen.fences == len(seen.twice)


def test_a_master_that_refuses_without_replicas_bounds_that(cuts) -> None:
    cut = cuts["sentinel-write"]
    assert problems(cuts, "sentinel-write") == []
    took = [each for each in holdings(cut.events) if is_new(cut, each)]
    assert "A" not in {each.host for each in took}, "what replicas did not confirm is not taken"


def test_no_program_of_a_host_is_left(cuts) -> None:
    own = Path("/proc/self/ns/net").readlink()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert all(Path(f"/proc/{each}/ns/net").readlink() == own for each in children)


def test_the_tables_have_a_row_for_each_lock_server(cuts) -> None:
    results = [Result(f"{name}: A is cut off, 1", 1, groups_of(cut)) for name, cut in cuts.items()]
    (table,) = Hosts().tables(results)
    assert [row[0] for row in table.rows] == [KINDS[name].label for name in cuts]


# -- the hosts, and the judge ----------------------------------------------------------------


def arrivals(sender: Host, receiver: Host, count: int = 40) -> list[float]:
    """After how many seconds packets arrive, of so many; those that do within a second."""
    with receiver.inside():
        inbox = socket.socket(type=socket.SOCK_DGRAM)
    with sender.inside():
        outbox = socket.socket(type=socket.SOCK_DGRAM)
    found = []
    with inbox, outbox:
        inbox.bind(("", 4000))
        inbox.settimeout(1)
        for _ in range(count):
            outbox.sendto(str(time.monotonic()).encode(), (receiver.address, 4000))
        try:
            for _ in range(count):
                sent_at = float(inbox.recv(100))
                found.append(time.monotonic() - sent_at)
        except TimeoutError:
            pass
    return found


def test_links_are_cut_slowed_made_lossy_and_healed(root) -> None:
    with Network(3) as network:
        a, b, c = network.hosts
        for one, other in itertools.permutations(network.hosts, 2):
            assert len(arrivals(one, other, 1)) == 1
        network.slow(a, 100)
        assert min(arrivals(a, b)) > 0.09
        assert min(arrivals(b, c)) < 0.09
        network.lossy(b, 50)
        assert 0 < len(arrivals(c, b)) < 40
        network.cut_between(a, b)
        assert (arrivals(a, b, 1), len(arrivals(a, c, 1))) == ([], 1)
        network.cut(c)
        assert arrivals(a, c, 1) == []
        network.heal()
        assert [len(arrivals(a, each, 1)) for each in (b, c)] == [1, 1]


def test_the_judge_sees_two_that_hold_a_lock_and_a_fence_that_did_not_rise() -> None:
    one = Holding("A", "x", fence=2, asked=0.0, since=0.1, until=5.0, told=5.1)
    late = Holding("B", "x", fence=3, asked=4.9, since=5.0, until=9.0, told=None)
    early = Holding("B", "x", fence=1, asked=3.9, since=4.0, until=9.0, told=None)
    other = Holding("B", "y", fence=1, asked=3.9, since=4.0, until=9.0, told=None)
    assert twice([one, late, other]) == []
    assert twice([one, early]) == [Twice("x", 1.0, fence_rose=False)]
    at_once = dataclasses.replace(early, asked=0.0, since=0.2)
    assert [each.fence_rose for each in twice([one, at_once])] == [True]
