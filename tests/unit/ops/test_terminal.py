"""Text that fits a terminal, whatever names are in it."""

from __future__ import annotations

import sys
from operator import itemgetter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from wcwidth import wcswidth, wcwidth

from celery_redislock.ops.terminal import Column, cut, grid, named_values, plain, width_of, wrap

#: Texts as a hostile sender makes them, without what `plain` has escaped.
TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cs", "Cn"]), max_size=80).map(plain)
WIDTHS = st.integers(4, 60)


def columns_of(text):
    """How many columns a terminal needs, as others count them."""
    return max(wcswidth(text), 0)


def test_no_character_takes_more_columns_than_we_count():
    chars = map(chr, range(sys.maxunicode + 1))
    assert [hex(ord(c)) for c in chars if c.isprintable() and width_of(c) < wcwidth(c)] == []


@given(TEXTS | st.text("❤1क\u0903\u094d\ufe0f\u0301"))
@example("\u094d0")
def test_no_text_takes_more_columns_than_we_count(text):
    assert wcswidth(text) <= width_of(text)


@pytest.mark.parametrize(
    ("text", "width"), [("é", 1), ("e\u0301", 1), ("✓", 1), ("日", 2), ("🔒", 2), ("❤️", 2)]
)
def test_we_count_what_terminals_take(text, width):
    assert wcswidth(text) == width_of(text) == width


@given(TEXTS, WIDTHS)
def test_what_is_cut_fits(text, width):
    short = cut(text, width)
    assert columns_of(short) <= width
    assert short == text if width_of(text) <= width else short.endswith("~")


@given(TEXTS, WIDTHS, st.none() | st.integers(1, 4))
def test_what_is_wrapped_fits_and_is_whole_unless_it_is_limited(text, width, most):
    lines = wrap(text, width, most)
    assert all(columns_of(line) <= width for line in lines)
    if most is None:
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    else:
        assert len(lines) <= most


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("none, and tasks wait in Redis", 12, ["none, and", "tasks wait", "in Redis"]),
        ("account:4711", 10, ["account:", "4711"]),
        ("import:/data/2026/november.csv", 16, ["import:/data/", "2026/november.", "csv"]),
        ("0123456789", 4, ["0123", "4567", "89"]),
        ("", 4, [""]),
        ("e\u0301" * 4 + "o", 4, ["e\u0301" * 4, "o"]),
        ("e\u0301\u0301\u0301", 1, ["e\u0301\u0301\u0301"]),
    ],
)
def test_lines_are_broken_where_a_name_has_a_joint(text, width, lines):
    assert wrap(text, width) == lines


def test_what_takes_more_lines_loses_its_end():
    assert wrap("celery@web-1.prod.example.com", 8, 2) == ["celery@", "web-1.p~"]
    assert cut("page 3 of 40", 9) == "page 3 o~"


TABLE = [
    Column("TASK", itemgetter(0), 1),
    Column("KEY", itemgetter(1), 6, 12),
    Column("STATE", itemgetter(2)),
]


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=5), st.integers(30, 120))
def test_no_line_of_a_table_is_wider_than_the_terminal(cells, width):
    lines = grid(TABLE, [(*each, "held for retry") for each in cells], width)
    assert all(columns_of(line) <= width for line in lines)
    assert sum("held for retry" in line for line in lines) >= len(cells)


def test_columns_stay_aligned_and_take_only_what_they_need():
    assert grid(TABLE, [("a", "x", "held"), ("日本", "y" * 20, "free")], 80) == [
        "TASK  KEY                   STATE",
        "a     x                     held",
        "日本  yyyyyyyyyyyyyyyyyyyy  free",
    ]
    assert grid(TABLE, [], 80) == ["TASK  KEY  STATE"]


def test_a_huge_name_is_shown_at_once():
    first, *more = grid(TABLE, [("t" * 10**6, "k" * 10**6, "held")], 80)[1:]
    assert "t~  kkk" in first
    assert len(more) == 5
    assert more[-1].endswith("k~")


def test_values_are_wrapped_beside_their_names(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    (first, second) = named_values([("key", "k" * 60)])
    assert first == "key  " + "k" * 55
    assert second == "     " + "k" * 5


def test_what_the_terminal_cannot_write_is_escaped(monkeypatch):
    class Latin:
        encoding = "latin-1"

    monkeypatch.setattr(sys, "stdout", Latin())
    assert plain("é日\x1b") == "é\\u65e5\\x1b"
