"""The benchmarks: their statistics, tables and pictures; and that one section runs."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import __main__ as command
from bench import compare, growth, notes, plot, primitive, report, stats, storm, tasks
from bench.compare import Compared
from bench.contenders import OURS
from bench.locks import LOCKS
from bench.report import Bars, Column, Curves, Table
from bench.section import Run
from bench.stage import ContenderError
from bench.surroundings import surroundings
from tests.support.workers import ROOT, children_of

TABLE = Table(
    "some",
    "Some locks",
    [
        Column("name", "lock"),
        Column("p50", "p50 µs", ",.1f"),
        Column("ratio", "times", report.ratio),
    ],
    [
        {"name": "floor", "p50": 40.0, "ratio": (1.0, 1.0, 1.0), "rounds": [40, 41]},
        {"name": "celery-redislock", "p50": 1046.0, "ratio": (1.1, 1.15, 1.2)},
        {"name": "a|b", "error": "TypeError"},
    ],
    ["a note"],
    Bars("Some locks, in µs", "p50"),
)


# -- statistics -------------------------------------------------------------------------------


def test_a_percentile_is_one_of_the_values_that_were_measured():
    values = [5.0, 1.0, 3.0, 2.0, 4.0]
    assert [stats.percentile(values, share) for share in (0, 0.5, 0.99, 1)] == [1, 3, 5, 5]
    assert stats.percentile([7.0], 0.5) == 7
    with pytest.raises(ValueError, match="no values"):
        stats.percentile([], 0.5)


def test_ratios_are_taken_round_by_round():
    # The machine was twice as slow in the last round: for all.
    rounds = {"floor": [10.0, 12.0, 20.0], "lock": [20.0, 18.0, 40.0]}
    assert stats.ratios(rounds, "floor") == {"floor": (1, 1, 1), "lock": (1.5, 2, 2)}
    with pytest.raises(ValueError, match="zip"):
        stats.ratios({"floor": [1.0, 1.0], "lock": [1.0]}, "floor")


def test_a_task_is_compared_with_the_usual_lock_of_its_round_also_the_plain_one():
    kinds = ["publish"] + [f"{pool} {what}" for pool in tasks.POOLS for what in ("drain", "cpu")]
    rounds = {tasks.PLAIN: [1.0, 2.0, 1.0, 2.0], tasks.USUAL: [4.0, 8.0], OURS: [3.0, 4.0]}
    found = {name: dict.fromkeys(kinds, each) for name, each in rounds.items()}
    beside = {
        tasks.PLAIN: found[tasks.PLAIN],  # one for each of the two others in each round
        tasks.USUAL: {kind: [2.0, 2.0] for kind in kinds},
        OURS: {kind: [1.0, 1.0] for kind in kinds},
    }
    rows = tasks.table(found, beside, dict.fromkeys(found, 5.0), {}, rounds=2, calls=1).rows
    usual = {row["name"]: row["solo usual"] for row in rows}
    assert usual == {
        tasks.PLAIN: (0.25, 0.375, 0.5),
        tasks.USUAL: (1, 1, 1),
        OURS: (0.5, 0.625, 0.75),
    }


# -- tables and pictures ----------------------------------------------------------------------


def test_a_table_in_markdown_is_aligned_and_has_its_notes_and_surroundings():
    assert report.markdown(TABLE, "Measured somewhere.", "bench/some.svg").splitlines() == [
        "| lock | p50 µs | times |",
        "|---|--:|--:|",
        "| floor | 40.0 | 1.00 (1.00-1.00) |",
        "| celery-redislock | 1,046.0 | 1.15 (1.10-1.20) |",
        "| a\\|b |  |  |",
        "",
        "* a note",
        "",
        "![Some locks](bench/some.svg)",
        "",
        "Measured somewhere.",
    ]


def test_a_picture_has_a_curve_for_each_figure_that_grows_or_does_not():
    lines = {"constant": "acquire", "grows": "list", "missing": "nothing"}
    rows = [{"size": n, "constant": 40.0, "grows": 2.0 * n} for n in (1, 10, 1000)]
    grown = Table("grown", "Grown", [], rows, curves=Curves("Grown", "size", lines))
    picture = ElementTree.fromstring(plot.picture(grown))
    found = picture.findall("{http://www.w3.org/2000/svg}polyline")
    points = [
        [tuple(map(float, point.split(","))) for point in line.get("points").split()]
        for line in found
    ]
    (flat, rising) = points
    assert len({y for _, y in flat}) == 1
    assert [y for _, y in rising] == sorted((y for _, y in rising), reverse=True)
    assert [x for x, _ in flat] == [x for x, _ in rising]
    texts = [each.text for each in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert "acquire: 40" in texts
    assert "list: 2,000" in texts
    assert plot.picture(Table("none", "None", [], rows)) is None


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


def published(*rows: dict[str, object]) -> dict[str, object]:
    return json.loads(report.as_json([table_of(*rows)], {"section": "tasks"}))


def test_only_ratios_that_both_runs_have_are_compared():
    before = published(
        drained("plain", (1.0, 1.0, 1.0)),
        drained("ours", (1.0, 1.1, 1.2), (0.9, 1.0, 1.3)),
        drained("gone", (1.0, 1.1, 1.2)),
        drained("broken", None),
    )
    here = table_of(
        drained("plain", (1.0, 1.0, 1.0)),
        drained("ours", (1.1, 1.2, 1.3), (1.4, 1.5, 1.6)),
        drained("broken", (1.0, 1.1, 1.2)),
        drained("new", (1.0, 1.1, 1.2)),
    )
    assert compare.compare("tasks", [here], before) == [
        Compared("tasks", "ours", "solo against plain", [1.0, 1.1, 1.2], (1.1, 1.2, 1.3)),
        Compared("tasks", "ours", "prefork against plain", [0.9, 1.0, 1.3], (1.4, 1.5, 1.6)),
    ]
    assert compare.compare("tasks", [here], {"tables": []}) == []


@pytest.mark.parametrize(
    ("here", "moved"),
    [
        ((1.0, 1.1, 1.2), False),
        ((1.15, 1.5, 1.9), False),  # the median is beside the published range, a round is not
        ((1.2, 1.3, 1.4), False),
        ((1.21, 1.3, 1.4), True),
        ((0.7, 0.8, 0.99), True),
        ((0.5, 1.1, 2.0), False),  # a busy machine
    ],
)
def test_a_ratio_has_moved_if_no_round_is_within_those_that_were_published(here, moved):
    found = Compared("tasks", "ours", "solo", (1.0, 1.1, 1.2), here)
    assert found.moved is moved
    assert found.times == pytest.approx(here[1] / 1.1)


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


def test_every_published_ratio_is_read():
    """Those of the sections that have ratios, as they are in the documents."""
    for name in ("primitive", "tasks", "storm"):
        found = compare.read(command.FOLDER, name)
        assert any(_is_ratio(value) for row in found["tables"][0]["rows"] for value in row.values())
    assert compare.read(command.FOLDER, "nothing") is None


def _is_ratio(value: object) -> bool:
    return isinstance(value, list) and len(value) == 3 and value == sorted(value)


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


def test_a_package_that_a_measured_pool_needs_is_among_the_peers():
    peers = (ROOT / "bench" / "peers.txt").read_text(encoding="utf-8")
    installed = set(re.findall(r"^[\w-]+", peers, re.MULTILINE))
    used = {pool for section in (notes, storm, tasks) for pool in section.POOLS}
    assert used - {"prefork", "solo", "threads"} <= installed


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


def test_locks_take_turns_and_their_commands_are_counted(own_redis):
    # Without the floor, which needs hiredis.
    locks = {n: LOCKS[n](own_redis.url, n) for n in ("redis-py Lock", OURS)}
    found = {name: primitive.Taken() for name in locks}
    for _ in range(2):
        primitive.one_round(locks, found, turns=2)
    for taken in found.values():
        assert [len(pairs) for pairs in taken.pairs] == [2 * primitive.TURN] * 2
        assert min(taken.medians()) > 0
    with own_redis.client() as client:
        sent = {name: primitive.commands_of_a_pair(client, lock) for name, lock in locks.items()}
    assert sent == {"redis-py Lock": 2, OURS: 2}
