"""docs/inside/features.md says what each feature costs, and has each file once."""

from __future__ import annotations

import re

from docs.count_features import PAGE, ROW, TESTS, count, fits, owners, package, texts_in

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_lines_on_the_page_are_right_within_a_tenth():
    counts = count(TEXT)
    for row in ROW.finditer(TEXT):
        for said, counted in zip(row.groups()[3:], counts[row[2]], strict=True):
            there_are = int(counted.strip("~"))
            is_near = abs(int(said.strip("~")) - there_are) <= max(10, there_are / 10)
            assert is_near, f"{row[2]}: {there_are}; python -m docs.count_features"


def test_each_file_is_of_one_feature():
    cells, tests = {row[2]: row[3] for row in ROW.finditer(TEXT)}, dict(TESTS.findall(TEXT))
    assert {*tests} <= {*cells}, "the list of tests names a feature that no table has"
    for of, files in ((cells, package()), (tests, texts_in("tests"))):
        for pattern in re.findall("`([^`]+)`", " ".join(of.values())):
            assert any(fits(pattern, name) for name in files), f"there is no {pattern}"
        owned = {name: owners(name, of) for name in files}
        assert {name: those for name, those in owned.items() if len(those) != 1} == {}
