"""The simulated world: no property fails in the seeds that we know, the same seed is the same
course everywhere, and faults that are planted are found.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from . import planted
from .seeds import FAULTY, FOUND, QUIET

ROOT = Path(__file__).parents[2]


def simulate(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which replaces its clocks."""
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=ROOT, env={**os.environ, **environment}, text=True, capture_output=True, timeout=280,
    )  # fmt: skip


@pytest.mark.parametrize("faults", ["no", "yes"])
@pytest.mark.parametrize("half", [0, 1])
def test_what_the_documents_promise_holds_in_the_courses_that_we_know(half, faults):
    seeds = FAULTY if faults == "yes" else QUIET
    middle = len(seeds) // 2
    seeds = seeds[middle:] if half else seeds[:middle]

    ran = simulate("--seeds", f"{seeds.start}:{seeds.stop}", "--faults", faults)

    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("seed", FOUND)
def test_what_was_found_once_is_not_there_any_more(seed):
    ran = simulate("--seed", *shlex.split(seed))

    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_same_seed_is_the_same_course_with_any_hash_seed_and_addresses():
    one, other = (
        simulate(
            "--seeds", "30:42", "--digests", PYTHONHASHSEED=hash_seed, PYTHONMALLOC=kind
        ).stdout
        for hash_seed, kind in (("1", "pymalloc"), ("4711", "malloc"))
    )

    digests = re.findall(r"(?m)^\d+ [0-9a-f]{16}$", one)
    assert len(digests) == 12
    assert digests == re.findall(r"(?m)^\d+ [0-9a-f]{16}$", other)


@pytest.mark.parametrize("fault", planted.EVERY)
def test_each_planted_fault_fits_the_package(fault):
    """If not, the package has changed there: plant it anew."""
    planted.EVERY[fault].check()


@pytest.mark.parametrize(
    ("fault", "found", "seeds"),
    [
        ("nothing is extended", "never two inside", "0:20"),
        ("the fence is the minute", "fences rise", "0:20"),
        ("nobody publishes from a room", "every call ends", "0:20"),
        ("a copy from a room is put off", "no storm", "70150:70160 --faults no"),
        ("a lock is not suspended", "suspended", "0:20"),
        ("a task is not suspended", "suspended", "0:20"),
        ("the skipped neighbour", "runs again", "60:80"),
        ("resume wakes nobody", "runs again", "40:60"),
        ("replicas need not confirm", "is confirmed", "0:20"),
    ],
)
def test_a_planted_fault_is_found(fault, found, seeds):
    more = ("--suspensions", "yes", "--faults", "no") if planted.EVERY[fault].suspends else ()
    where = ("--seeds", *shlex.split(seeds), *more, "--plain")
    ran = simulate(*where, "--planted", fault, "--until", found)

    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert f"{found}: " in ran.stdout


def test_each_policy_meets_each_option_and_each_fault():
    ran = simulate("--seeds", "0:6000", "--coverage")

    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_property_quotes_the_page_that_it_names():
    files = [Path(__file__).parent / f"{each}.py" for each in ("properties", "promises", "shown")]
    quoting = [
        (each.name, " ".join(text.split()))
        for file in files
        for each in ast.walk(ast.parse(file.read_text()))
        if isinstance(each, ast.FunctionDef) and (text := ast.get_docstring(each) or "")
        if re.search(r"\b\w+\.md\b", text)
    ]
    assert len(quoting) > 20

    missing = [
        f"{name}: {quote}"
        for name, text in quoting
        for quoted in re.findall(r'"([^"]+)"', text)
        for quote in quoted.split(" ... ")
        if not any(quote in words_of(page) for page in re.findall(r"\b\w+\.md\b", text))
    ]
    assert missing == []


@functools.cache
def words_of(page: str) -> str:
    """What a reader sees of a page: without the addresses of links, and what is bold."""
    paths = [*(ROOT / "docs").rglob(page), *ROOT.glob(page)]
    text = " ".join(path.read_text(encoding="utf-8") for path in paths)
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    return " ".join(text.replace("**", "").split())
