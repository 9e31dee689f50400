"""`--json`: each command prints the keys that docs/json.md names, with their units."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.looking import ROOT, client_of, end, every_state, park, run, take, told

PAGE = (ROOT / "docs/json.md").read_text(encoding="utf-8")
ITEMS = re.findall(r"^\* (.*?)(?=^\* |^$)", PAGE, re.M | re.S)


def named_in(text: str) -> set[str]:
    """The keys in this text; what is in brackets explains one."""
    return set(re.findall("`(.+?)`", re.sub(r"\(.*?\)", "", text)))


#: By what an item names before its colon.
KEYS = {
    ", ".join(re.findall("`(.+?)`", what)): named_in(keys)
    for what, _, keys in (each.partition(":") for each in ITEMS if each.startswith("`"))
}
UNITS = named_in("".join(each for each in ITEMS if not each.startswith("`")))
#: They are printed in some cases only.
SOMETIMES = {"last_run", "error", "running"}


@pytest.fixture
def printed(app) -> dict[str, list[dict[str, Any]]]:
    """The records that each command prints."""
    every_state(app)
    park(app, "report", "quiet", "newest", quiet=60)
    ran = take(app, "sync", "ran", history=True)
    end(app, ran)
    client_of(app).hset(f"{ran.bucket}:turned", "sync", f"{int(time.time() // 3600)}:3;")
    suspended = told(app, "suspend", "account", "--for", "1h", "--why", "a test")
    shown = told(app, "show", "report", "awaited")
    return {
        "list": told(app, "list"),
        "list --by-task": told(app, "list", "--by-task"),
        "show": [shown, told(app, "show", "sync", "ran")],
        "show, room": shown["room"],
        "explain": [told(app, "explain", "report", "awaited")],
        "history": told(app, "history"),
        "history --skips": told(app, "history", "--skips"),
        "suspend, resume": [suspended, *told(app, "suspend"), told(app, "resume", "account")],
        "break": [told(app, "break", "sync", "held", "--force")],
        "drop-waiting": [told(app, "drop-waiting", "report", "awaited", "--force")],
        "doctor": json.loads(run(app, "doctor", "--json").stdout),
    }


def fractions(value: Any) -> Iterator[str]:
    """The keys of the values that are no whole numbers."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from [name] if isinstance(each, float) else fractions(each)
    elif isinstance(value, list):
        for each in value:
            yield from fractions(each)


def test_each_command_prints_the_keys_that_the_page_names(printed):
    assert printed.keys() == KEYS.keys()
    for command, records in printed.items():
        assert records, command
        for record in records:
            assert {*record} ^ KEYS[command] <= SOMETIMES, command
            assert {*record} <= KEYS[command], command


def test_the_page_names_the_unit_of_each_time(printed):
    assert {*fractions([*printed.values()])} <= UNITS
    assert set().union(*KEYS.values()) >= UNITS
