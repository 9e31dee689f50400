"""The torture of Redis in Action, 6.2, in short. `python -m tests.proofs.torture` is the whole."""

from __future__ import annotations

import pytest

from tests.proofs.torture.history import Kind, Record, Verdict, judge
from tests.proofs.torture.run import Run, failures, torture
from tests.support.figures import MissingMarkers, write_section
from tests.support.servers import RedisServer

ENTER, ASK, STEP, LEAVE = Kind.ENTER, Kind.ASK, Kind.STEP, Kind.LEAVE


def history(*events: tuple[Kind, int], fences: dict[int, int] | None = None) -> Verdict:
    """The verdict on what these clients did, each in one section."""
    fences = fences or {}
    return judge(Record(kind, client, 1, fences.get(client, 0)) for kind, client in events)


def asked(client: int) -> list[tuple[Kind, int]]:
    return [(ASK, client), (STEP, client)]


def test_one_after_the_other_is_right():
    verdict = history((ENTER, 0), *asked(0), (LEAVE, 0), (ENTER, 1), *asked(1), (LEAVE, 1))

    assert (verdict.sections, verdict.double, verdict.most_inside) == (2, 0, 1)


def test_two_who_do_not_ask_are_in_ignorance():
    verdict = history((ENTER, 0), (STEP, 0), (ENTER, 1), (STEP, 1), (STEP, 0), (LEAVE, 0))

    assert (verdict.unknowing, verdict.mixed, verdict.most_inside) == (1, 1, 2)


def test_a_step_after_the_other_has_left_is_found_too():
    verdict = history((ENTER, 0), (STEP, 0), (ENTER, 1), (STEP, 1), (LEAVE, 1), (STEP, 0))

    assert (verdict.unknowing, verdict.mixed) == (1, 1)


def test_a_lock_that_says_yours_to_both_is_found():
    verdict = history((ENTER, 0), *asked(0), (ENTER, 1), *asked(1), *asked(0))

    assert (verdict.unknowing, verdict.too_late, verdict.told) == (1, 0, 0)


def test_a_holder_that_asks_and_does_nothing_more_was_told():
    verdict = history((ENTER, 0), *asked(0), (ENTER, 1), *asked(1), (ASK, 0), (LEAVE, 0))

    assert (verdict.unknowing, verdict.too_late, verdict.told, verdict.mixed) == (0, 0, 1, 0)


def test_a_stop_between_the_question_and_the_step_is_caught_by_the_fence_alone():
    events = ((ENTER, 0), *asked(0), (ASK, 0), (ENTER, 1), *asked(1), (STEP, 0))

    verdict = history(*events, fences={0: 1, 1: 2})

    assert (verdict.unknowing, verdict.too_late) == (0, 1)
    assert (verdict.mixed, verdict.mixed_past_fence) == (1, 0)


def test_a_fence_that_does_not_rise_lets_it_through():
    events = ((ENTER, 0), *asked(0), (ASK, 0), (ENTER, 1), *asked(1), (STEP, 0))

    assert history(*events, fences={0: 2, 1: 2}).mixed_past_fence == 1


def test_fences_that_do_not_rise_are_found():
    events = ((ENTER, 0), *asked(0), (LEAVE, 0), (ENTER, 1), *asked(1))

    assert history(*events, fences={0: 1, 1: 2}).fences_out_of_order == 0
    assert history(*events, fences={0: 2, 1: 2}).fences_out_of_order == 1


def test_one_that_was_stopped_before_it_could_enter_is_the_loser():
    verdict = history((ENTER, 1), *asked(1), (ENTER, 0), (ASK, 0), *asked(1), (LEAVE, 0))

    assert (verdict.unknowing, verdict.told) == (0, 1)


def test_ours_lets_nobody_in_beside_a_holder(own_redis: RedisServer):
    run = Run("ours", asks=True, clients=5, scene="plain", seconds=3, seed=1)

    verdict = torture(run, own_redis)

    assert failures(run, verdict) == []
    assert verdict.sections > 20


def test_ours_leaves_no_stopped_holder_in_ignorance_and_nothing_past_the_fence(
    own_redis: RedisServer,
):
    run = Run("ours", asks=True, clients=5, scene="stops and long", seconds=3, ttl=0.5, seed=2)

    verdict = torture(run, own_redis)

    assert failures(run, verdict) == []
    assert verdict.sections > 2
    assert verdict.stops > 3


def test_the_instrument_finds_two_in_a_lock_that_lapses(own_redis: RedisServer):
    run = Run("setnx", asks=False, clients=5, scene="long", seconds=3, ttl=0.2, seed=3)

    verdict = torture(run, own_redis)

    assert verdict.unknowing > 0
    assert verdict.mixed > 0
    assert failures(run, verdict) != []


def test_figures_replace_what_stands_between_their_markers(tmp_path):
    document = tmp_path / "document.md"
    document.write_text("a\n<!-- figures:x:begin -->\nold\n<!-- figures:x:end -->\nb\n")

    write_section(document, "x", "| new |\n")

    assert document.read_text() == (
        "a\n<!-- figures:x:begin -->\n\n| new |\n\n<!-- figures:x:end -->\nb\n"
    )


@pytest.mark.parametrize(
    "text", ["nothing", "<!-- figures:x:end --><!-- figures:x:begin -->", "<!-- figures:x:end -->"]
)
def test_figures_without_their_markers_are_refused(tmp_path, text):
    document = tmp_path / "document.md"
    document.write_text(text)

    with pytest.raises(MissingMarkers):
        write_section(document, "x", "new")

    assert document.read_text() == text
