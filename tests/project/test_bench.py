"""The benchmarks: their statistics, what they compare with; and that one section runs."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import __main__ as command
from bench import growth, notes, report, stats
from bench.report import Column, Table
from bench.section import Run
from bench.stage import ContenderError
from bench.surroundings import surroundings
from tests.support.workers import ROOT, children_of

# -- statistics -------------------------------------------------------------------------------


def test_ratios_are_taken_round_by_round():
    # The machine was twice as slow in the last round: for all.
    rounds = {"floor": [10.0, 12.0, 20.0], "lock": [20.0, 18.0, 40.0]}
    assert stats.ratios(rounds, "floor") == {"floor": (1, 1, 1), "lock": (1.5, 2, 2)}
    with pytest.raises(ValueError, match="zip"):
        stats.ratios({"floor": [1.0, 1.0], "lock": [1.0]}, "floor")


# -- beside the published figures --------------------------------------------------------------


def drained(name: str, solo: object, prefork: object = None) -> dict[str, object]:
    return {"name": name, "solo": 1000.0, "solo ratio": solo, "prefork ratio": prefork}


def table_of(*rows: dict[str, object]) -> Table:
    columns = [
        Column("name", "task"),
        Column("solo", "solo µs", ",.0f"),
        Column("solo ratio", "against plain", report.ratio),
        Column("prefork", "prefork µs", ",.0f"),
        Column("prefork ratio", "against plain", report.ratio),
    ]
    return Table("tasks", "A task", columns, rows)


def test_the_quick_form_compares_and_the_others_do_not(monkeypatch, tmp_path, capsys):
    rows = [drained("plain", (1.0, 1.0, 1.0)), drained("ours", (2.0, 2.1, 2.2))]
    section = SimpleNamespace(measure=lambda run: [table_of(*rows)])
    monkeypatch.setattr(command, "import_module", lambda name: section)
    monkeypatch.setattr(command, "FOLDER", tmp_path)
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    facts = {**surroundings("tasks"), "cores": 1000}
    before = [drained("plain", (1.0, 1.0, 1.0)), drained("ours", (1.0, 1.1, 1.2))]
    (tmp_path / "tasks.json").write_text(report.as_json([table_of(*before)], facts))
    command.main(["tasks", "--quick"])
    out = capsys.readouterr().out
    assert "1 of 1 ratios moved: tasks: ours (solo against plain)." in out
    assert "Published with: cores 1000, here " in out
    command.main(["tasks", "--output", str(tmp_path / "other")])
    assert "moved" not in capsys.readouterr().out


# -- the command ------------------------------------------------------------------------------


def test_every_section_is_in_the_document():
    page = command.DOCUMENT.read_text(encoding="utf-8")
    for name in command.SECTIONS:
        assert importlib.import_module(f"bench.{name}").measure
        assert page.count(f"<!-- figures:{name}:begin -->") == 1


def test_only_the_whole_form_writes_the_documents(tmp_path):
    assert command.parse([]).documents
    assert command.parse(["primitive"]).output == command.FOLDER
    for short in (["--quick"], ["--only", "redis"], ["--output", str(tmp_path)]):
        assert not command.parse(short).documents


def test_a_worker_that_cannot_start_leaves_no_server_behind():
    def servers() -> list[int]:
        return [
            pid
            for pid in children_of(os.getpid())
            if b"redis-server" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]

    before = servers()
    with pytest.raises(ContenderError), notes.Watched("unknown"):
        pass
    assert servers() == before


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


@pytest.mark.parametrize("what", growth.KINDS)
def test_what_grows_is_measured_and_nothing_but_listing_takes_more_commands(own_redis, what):
    run = Run(quick=True, only=(), say=lambda line: None)
    with growth.Scene(own_redis) as scene:
        few, many = growth.rows_of(scene, growth.KINDS[what], (1, 40), 2, run)
        assert scene.client.llen(scene.keys.room) == (40 if what == "room" else 0)
    assert few["commands"].keys() == growth.OPERATIONS.keys()
    listed = [row["commands"].pop("list") for row in (few, many)]
    assert few["commands"] == many["commands"]
    assert (listed[1] > listed[0]) == (what != "room")
    assert all(many[operation] > 0 for operation in growth.OPERATIONS)


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
