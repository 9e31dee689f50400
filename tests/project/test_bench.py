"""The benchmarks: that one section runs, and that the pages quote what was measured."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys

from bench import __main__ as command
from bench import imports
from tests.support.workers import ROOT


def test_every_section_is_in_the_document():
    page = command.DOCUMENT.read_text(encoding="utf-8")
    for name in command.SECTIONS:
        assert importlib.import_module(f"bench.{name}").measure
        assert page.count(f"<!-- figures:{name}:begin -->") == 1


def test_what_is_imported_for_the_figures_is_there():
    assert all(map(importlib.util.find_spec, itertools.chain(*imports.PROGRAMS.values())))


def bench(*arguments: str) -> str:
    """What `python -m bench` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_section_runs_and_writes_where_it_is_told(tmp_path):
    out = bench("keys", "--quick", "--output", str(tmp_path))
    rows = json.loads((tmp_path / "keys.json").read_text())["tables"][0]["rows"]
    assert [row["left"] for row in rows] == [{"fence": row["left_keys"]} for row in rows]
    assert "bytes of a live lock" in out


def rows_of(text: str) -> list[list[str]]:
    """The cells of the tables in a text."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line[:2] == "| "]
    return [[cell.strip() for cell in line] for line in lines]


def test_the_page_on_performance_quotes_the_results():
    results = command.DOCUMENT.read_text(encoding="utf-8")

    def published(section: str, column: str, names: tuple[str, ...], after: str = "") -> list[str]:
        """The figures of these in a column: the first, or the first after another column."""
        text = results.partition(f"figures:{section}:begin")[2].partition(f"figures:{section}:end")
        head, *rows = rows_of(text[0])
        place = head.index(column, head.index(after) if after else 0)
        name_at = head.index("task" if "task" in head else "lock")
        figures = {row[name_at]: row for row in rows if len(row) > place}
        return [figures[name][place].partition(" ")[0] for name in names]

    locks = ("celery-redislock", "redis-py Lock", "python-redis-lock", "pottery Redlock")
    tasks = ("celery-redislock", "redis-py Lock in the body", "celery-once", "celery-singleton")
    page = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    quoted = {row[0]: row[1:] for row in rows_of(page[page.index("## Beside other locks") :])}
    pair = published("primitive", "one core, against redis-py Lock", locks)
    assert quoted["acquire and release, one core"] == pair
    # The last rows of each lock have 64 clients.
    sections, evenness = (
        published("contended", each, locks) for each in ("sections/s", "evenness")
    )
    assert quoted["sections a second, 64 clients on one lock, 1 ms each"] == sections
    assert quoted["evenness: 1 if all clients have had the same"] == evenness
    for pool in ("solo", "prefork"):
        assert quoted[pool] == published("tasks", "against plain", tasks, after=f"{pool} µs")
