"""The states of a lock: one list, whose words everything uses that shows them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from celery_redislock.inspection.states import AWAITED, IN_TROUBLE, KEPT, NO_LOCK, RUNNING, STATES

ROOT = Path(__file__).resolve().parents[3]
STATIC = ROOT / "celery_redislock/web/static"


def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_each_state_is_of_one_kind():
    kinds = [*RUNNING, *KEPT, *AWAITED, *NO_LOCK, "foreign"]
    assert sorted(kinds) == sorted(STATES)
    assert set(IN_TROUBLE) < set(STATES)


def test_the_runbook_explains_each_state():
    table = text_of("docs/operations.md").partition("| state | meaning |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `([^`]+)` \|", table, re.M) == list(STATES)


def test_the_page_gives_each_state_its_colour():
    text = (STATIC / "page.css").read_text()
    assert set(re.findall(r'\[data-state="([^"]+)"\]', text)) == set(STATES)


@pytest.mark.parametrize(
    "path",
    [
        "examples/prometheus/redislock-alerts.yml",
        "examples/prometheus/redislock-alerts-test.yml",
        "examples/grafana/redislock-dashboard.json",
        "docs/monitoring.md",
        "docs/operations.md",
        *(path.relative_to(ROOT).as_posix() for path in STATIC.glob("*.js")),
    ],
)
def test_nobody_names_a_state_that_there_is_not(path):
    asked = r"""(?:\bstate(?:: ?| ?[!=]=?=?~? ?)|--state |data-state"?: ?)\\?"([a-z |]+?)\\?\""""
    named = [each for text in re.findall(asked, text_of(path)) for each in text.split("|")]
    assert set(named) <= set(STATES)
