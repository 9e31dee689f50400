"""A short form of the hosts: as root, where there can be network namespaces."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from .judge import Holding, holdings, wrong
from .network import why_not
from .proof import groups_of
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
