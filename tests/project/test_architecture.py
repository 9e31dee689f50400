"""docs/inside/architecture.md draws the packages and their imports as they are."""

from __future__ import annotations

import re

import pytest

from tests.support.toml import PROJECT
from tests.support.workers import ROOT

grimp = pytest.importorskip("grimp", reason="of the group `lint`, on Python 3.11 and later")

PACKAGE = "celery_redislock"


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs/inside/architecture.md").read_text(encoding="utf-8")


def layers() -> list[str]:
    """The packages from the bottom to the top, as `make lint` checks them."""
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    (contract,) = (each for each in contracts if each["type"] == "layers")
    return [layer.removeprefix(f"{PACKAGE}.") for layer in contract["layers"][::-1]]


def drawing() -> list[str]:
    """The drawing: a row for each package, from the top, with the columns that it imports from."""
    graph, names = grimp.build_graph(PACKAGE), layers()
    lines = [" " * 12 + " ".join(name[:3] for name in names[:-1])]
    for place, name in reversed([*enumerate(names)]):
        inside = {each for each in graph.modules if each.split(".")[1:2] == [name]}
        imported = {
            each.split(".")[1]
            for module in inside
            for each in graph.find_modules_directly_imported_by(module)
            if "." in each
        }
        row = "   ".join("o" if other in imported else "." for other in names[:place])
        lines.append(f"{name:<13}{row}".rstrip())
    return lines


def test_the_drawing_has_the_layers_and_every_arrow(page):
    drawn = page.partition("<!-- imports:begin -->")[2].partition("<!-- imports:end -->")[0]
    expected = "\n".join(["```text", *drawing(), "```"])
    assert drawn.strip() == expected, f"it is:\n{expected}"


def test_every_package_says_what_it_is_for(page):
    assert re.findall(r"^\| `(\w+)` \|", page, re.M) == layers()


def test_what_to_change_where_is_there(page):
    table = page[page.index("## Where to change what") :]
    named = re.findall(r"`([\w/.]+\.(?:py|lua)|\w+/(?:\w+/)?)`", table)
    assert len(named) > 15
    there = [ROOT / PACKAGE / each for each in named if not each.startswith("tests/")]
    there += [ROOT / each for each in named if each.startswith("tests/")]
    assert [path for path in there if not path.exists()] == []
