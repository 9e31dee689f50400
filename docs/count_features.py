"""Counts the lines of each feature, and writes them into docs/inside/features.md:

    python -m docs.count_features

The page says what is whose: paths between backticks, of which a feature has the files, or words
between quotes, of which it has the lines that say one of them.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/inside/features.md"
#: Of a table: the feature, where it lives, its lines, its tests' lines.
ROW = re.compile(r"^(\| ((?!feature).+?) +\| (.*?) *\|) +(~?\d+) \| +(\d+) (?=\|)", re.M)
#: Of the list: the feature, and where its tests are.
TESTS = re.compile(r"^- (.+): ((?:`[^`]+` ?)+)$", re.M)
SUFFIXES = {".py", ".lua", ".js", ".css", ".html"}
PLUGIN = "celery_redislock_pytest.py"


def package() -> dict[str, str]:
    """The text of each file of the package by its path there, with the plugin beside it."""
    return {**texts_in("celery_redislock"), PLUGIN: (ROOT / PLUGIN).read_text("utf-8")}


def texts_in(folder: str) -> dict[str, str]:
    paths = sorted(each for each in (ROOT / folder).rglob("*") if each.suffix in SUFFIXES)
    return {each.relative_to(ROOT / folder).as_posix(): each.read_text("utf-8") for each in paths}


def fits(pattern: str, name: str) -> bool:
    """Whether a path is in `folder/`, or is one of `folder/{this,that_*}.py`."""
    if pattern.endswith("/"):
        return name.startswith(pattern)
    expression = re.escape(pattern)
    for sign, meaning in {r"\{": "(?:", r"\}": ")", ",": "|", r"\*": "[^/]*"}.items():
        expression = expression.replace(sign, meaning)
    return re.fullmatch(expression, name) is not None


def owners(name: str, cells: dict[str, str]) -> list[str]:
    """The features that name a file most closely: as a file, else by the innermost folder."""
    found = [
        (float("inf") if pattern[-1] != "/" else len(pattern), feature)
        for feature, cell in cells.items()
        for pattern in re.findall("`([^`]+)`", cell)
        if fits(pattern, name)
    ]
    return [feature for closeness, feature in found if closeness == max(found)[0]]


def count(page: str) -> dict[str, tuple[str, str]]:
    """The lines of each feature on this page, and of its tests."""
    cells, files = {row[2]: row[3] for row in ROW.finditer(page)}, package()
    own, of_tests = lines(cells, files), lines(dict(TESTS.findall(page)), texts_in("tests"))
    return {
        feature: (
            f"~{lines_that_say(cell, files)}" if '"' in cell else str(own[feature]),
            str(of_tests[feature]),
        )
        for feature, cell in cells.items()
    }


def lines(cells: dict[str, str], texts: dict[str, str]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for name, text in texts.items():
        for feature in owners(name, cells):
            counted[feature] += text.count("\n")
    return counted


def lines_that_say(cell: str, texts: dict[str, str]) -> int:
    words = "|".join(map(re.escape, re.findall('"([^"]+)"', cell)))
    says = re.compile(rf"(?<![a-z])(?:{words})", re.I)
    return sum(bool(says.search(line)) for text in texts.values() for line in text.splitlines())


def main() -> None:
    page = PAGE.read_text("utf-8")
    counts = count(page)
    new = ROW.sub(lambda row: "{} {:>6} | {:>6} ".format(row[1], *counts[row[2]]), page)
    PAGE.write_text(new, "utf-8")


if __name__ == "__main__":
    main()
