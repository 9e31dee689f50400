"""The tests and properties that pages name as proofs are there, and every promise names some."""

from __future__ import annotations

import ast
import difflib
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.workers import ROOT

TESTS = ROOT / "tests"
PAGES = ("inside/promises", "inside/deliveries", "inside/mechanisms")
PROPERTIES = "simulation/properties.py"


@functools.cache
def names_in(path: Path) -> set[str]:
    """The names of a file's tests, or of the properties of the simulated world."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in nodes if isinstance(node, kinds)]
    marks = {"prop", "of_one_release"}
    props = {node.name for node in found if marks & {*map(ast.unparse, node.decorator_list)}}
    return props or {node.name for node in found if node.name[:5] == "test_"}


def named(text: str) -> Iterator[tuple[str, str]]:
    """Each file that a text names, with "", and each test: that of the file before it."""
    file = ""
    for word in re.findall(r"`([\w/]+(?:\.py)?/?)`", text):
        if word.endswith(".py") and Path(word).name.startswith(("test_", "properties")):
            file = word.removeprefix("tests/")
            yield file, ""
        elif re.fullmatch(r"test_\w+", word) or (file == PROPERTIES and word.isidentifier()):
            yield file, word


def missing(file: str, test: str) -> str | None:
    """What is wrong with that name, and what it may be called now; None if it is there."""
    path = TESTS / file
    if path.is_file() and (not test or test in names_in(path)):
        return None
    there = {each.relative_to(TESTS).as_posix(): each for each in sorted(TESTS.rglob("test_*.py"))}
    if test:
        known = {name: where for where, each in there.items() for name in names_in(each)}
        near = difflib.get_close_matches(test, known, 3, 0.6)
        may_be = [f"{known[each]}: {each}" for each in near]
    else:
        may_be = [where for where, each in there.items() if each.name == path.name]
    return f"there is no tests/{file} {test}; it may be {may_be}"


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_is_there(page: str) -> None:
    text = (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")
    found = {*named(text)}
    assert found, "it names none"
    wrong = sorted(filter(None, (missing(*each) for each in found)))
    assert not wrong, "\n".join([f"docs/{page}.md:", *wrong])


def test_every_guarantee_names_its_tests() -> None:
    """The last column is the number of a line of docs/inside/promises.md."""
    text = (ROOT / "docs/guarantees.md").read_text(encoding="utf-8")
    promises = (ROOT / "docs/inside/promises.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|.*\| (\d+) \|$", text.partition("\n## The fence\n")[0], re.M)
    lines = dict(re.findall(r"^(\d+)\. (`[\w/.]+\.py`: `.*)$", promises, re.M))
    assert rows == [str(number) for number in range(1, len(rows) + 1)]
    assert len(rows) > 20
    without = [row for row in rows if not any(test for _, test in named(lines.get(row, "")))]
    assert not without, f"these name no test: {without}"
