"""The timelines of docs/policies.md and the moving picture of docs/index.md: drawn from what was
recorded, which a real run still gives.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest

from docs import make_timelines, timeline_demo
from docs.make_timelines import (
    BURST,
    DEMO,
    PICTURES,
    POLICIES,
    SLOTS,
    draw_all,
    draw_demo,
    load,
)
from docs.timeline_svg import (
    draw,
    slots_in_use,
    stretches,
    visible,
)
from examples.demo import scenes
from tests.support.workers import ROOT

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def recordings():
    return load()


def ran(recording):
    return [event.call for event in recording.events if event.what == "starts"]


def kinds(recording, call):
    return [kind for kind, _, _ in visible(recording, call)]


# -- what is committed ------------------------------------------------------------------------


def test_the_pictures_are_what_the_recordings_give(recordings, tmp_path):
    draw_all(recordings, tmp_path)
    draw_demo(DEMO, tmp_path)
    drawn = {path.name: path.read_text() for path in tmp_path.glob("*.svg")}
    assert drawn == {path.name: path.read_text() for path in PICTURES.glob("*.svg")}


def test_every_policy_has_its_picture_and_the_page_shows_it(recordings):
    assert list(recordings) == list(POLICIES)
    assert {name: each.policy for name, each in recordings.items()} == {
        name: written for name, (_, written) in POLICIES.items()
    }
    page = (ROOT / "docs/policies.md").read_text(encoding="utf-8")
    assert [name for name in POLICIES if f"](pictures/{name}.svg)" not in page] == []


@pytest.mark.parametrize("name", POLICIES)
def test_a_picture_is_well_formed_and_says_itself_in_words(name):
    root = ElementTree.parse(PICTURES / f"{name}.svg").getroot()
    assert root.get("role") == "img"
    title, desc = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert root.get("aria-labelledby") == f"{title.get('id')} {desc.get('id')}"
    assert POLICIES[name][1] in title.text
    for call in range(1, len(BURST) + 1):
        assert f"Call {call} is sent" in desc.text
    width, height = float(root.get("width")), float(root.get("height"))
    for text in root.iter(f"{SVG}text"):
        assert 0 <= float(text.get("x")) <= width
        assert 0 <= float(text.get("y")) <= height
    style = root.find(f"{SVG}style").text
    assert "prefers-color-scheme:dark" in style
    used = {each.get("class").split()[0] for each in root.iter() if each.get("class")}
    assert {name for name in used if style.count(f".{name}{{") != 2} == set(), "light and dark"


@pytest.mark.parametrize("name", POLICIES)
def test_the_recordings_show_what_the_page_says(recordings, name):
    recording = recordings[name]
    states = {call: state for call, (state, _) in recording.results.items()}
    waited = {kind for call in (2, 3, 4) for kind in kinds(recording, call)} - {"runs"}
    most = max(used for _, used in slots_in_use(recording))
    if name in ("skip", "skip-result", "raise"):
        state = {"skip": "REVOKED", "skip-result": "SUCCESS", "raise": "FAILURE"}[name]
        assert ran(recording) == [1, 5]
        assert [states[call] for call in (2, 3, 4)] == [state] * 3
        assert waited == set()
    elif name in ("coalesce", "debounce", "replace"):
        assert ran(recording) == ([4, 5] if name == "debounce" else [1, 4, 5])
        assert recording.results[2] == ("REVOKED", "call 3 takes its place")
        assert waited == {"parked"}
        completed = [call for call, state in states.items() if state == "SUCCESS"]
        assert completed == ([5] if name == "replace" else ran(recording))
    else:
        assert sorted(ran(recording)) == [1, 2, 3, 4, 5]
        assert waited == {"wait": {"slot"}, "queue": {"parked"}, "defer": {"sleeps"}}[name]
        assert most == SLOTS if name == "wait" else most < SLOTS, "the others only look in"
        if name == "queue":
            assert ran(recording) == [1, 2, 3, 4, 5]
    runs = sorted(
        (s, u) for c in recording.calls for k, s, u in stretches(recording, c) if k == "runs"
    )
    assert all(until <= since for (_, until), (since, _) in pairwise(runs))


# -- the moving one -----------------------------------------------------------------------------


def test_the_moving_picture_is_small_and_stands_still_for_those_who_ask_for_it():
    text = (PICTURES / "demo.svg").read_text(encoding="utf-8")
    assert len(text) < 60_000
    root = ElementTree.fromstring(text)
    width, height = float(root.get("width")), float(root.get("height"))
    for each in root.iter(f"{SVG}text"):
        assert 0 <= float(each.get("x")) <= width
        assert 0 <= float(each.get("y")) <= height
    before, moving = text.split("@media (prefers-reduced-motion:no-preference){")
    assert "animation" not in before
    assert moving.partition("\n}\n")[2].count("animation") == 0, "but for those who do not mind"
    assert "http" not in text.replace("http://www.w3.org/2000/svg", ""), "nothing from elsewhere"
    page = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    assert "](pictures/demo.svg)" in page


def test_the_run_that_moves_shows_what_its_words_say():
    recorded = timeline_demo.Recorded.load(DEMO)
    history = recorded.history
    assert timeline_demo.overlaps(history) == 0
    assert history.duplicates("skipped", scenes.REPORT)
    assert history.duplicates("deferred", *scenes.SYNC_ROWS)
    assert len(history.ended(*scenes.SYNC_ROWS)) == scenes.CALLERS
    (killed,) = history.killed(scenes.IMPORT)
    assert 0 < history.runs_of(scenes.IMPORT)[1].start - killed.until < scenes.RECOVERY


# -- the recording ----------------------------------------------------------------------------


def test_a_real_burst_is_recorded_and_drawn():
    (told,) = make_timelines.record_all(["coalesce"]).values()
    assert ran(told)[0] == 1
    assert ran(told)[-1] == 5, "the last one sent always gets its run"
    assert len(told.results) == len(BURST)
    for call in told.calls:
        assert (told.results[call][0] == "SUCCESS") == (call in ran(told))
    ElementTree.fromstring(draw(told, 10))
