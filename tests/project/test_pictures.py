"""The timelines of docs/policies.md and the moving picture of docs/index.md: drawn from what was
recorded, which a real run still gives.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from docs import make_timelines
from docs.make_timelines import (
    BURST,
    DEMO,
    PICTURES,
    POLICIES,
    draw_all,
    draw_demo,
    load,
)
from docs.timeline_svg import (
    draw,
)
from tests.support.workers import ROOT


@pytest.fixture(scope="module")
def recordings():
    return load()


def ran(recording):
    return [event.call for event in recording.events if event.what == "starts"]


def test_the_pictures_are_what_the_recordings_give(recordings, tmp_path):
    draw_all(recordings, tmp_path)
    draw_demo(DEMO, tmp_path)
    drawn = {path.name: path.read_text() for path in tmp_path.glob("*.svg")}
    assert drawn == {path.name: path.read_text() for path in PICTURES.glob("*.svg")}


def test_the_words_of_the_home_pages_picture_can_be_read_on_a_telephone():
    svg = (PICTURES / "demo.svg").read_text(encoding="utf-8")
    (width,) = re.findall(r'viewBox="0 0 (\d+)', svg)
    smallest = min(map(int, re.findall(r"font-size:(\d+)px", svg)))
    assert smallest * (400 - 32) / int(width) >= 10, "the site has margins of 16 px"


def test_every_policy_has_its_picture_and_the_page_shows_it(recordings):
    assert list(recordings) == list(POLICIES)
    assert {name: each.policy for name, each in recordings.items()} == {
        name: written for name, (_, written) in POLICIES.items()
    }
    page = (ROOT / "docs/policies.md").read_text(encoding="utf-8")
    assert [name for name in POLICIES if f"](pictures/{name}.svg)" not in page] == []


def test_a_real_burst_is_recorded_and_drawn():
    (told,) = make_timelines.record_all(["coalesce"]).values()
    assert ran(told)[0] == 1
    assert ran(told)[-1] == 5, "the last one sent always gets its run"
    assert len(told.results) == len(BURST)
    for call in told.calls:
        assert (told.results[call][0] == "SUCCESS") == (call in ran(told))
    ElementTree.fromstring(draw(told, 10))
