"""The simulated world: no property fails in the seeds that we know, the same seed is the same
course everywhere, and faults that are planted are found.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from .seeds import FAULTY, FOUND, KNOWN, QUIET

ROOT = Path(__file__).parents[2]


def simulate(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which replaces its clocks."""
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=ROOT, env={**os.environ, **environment}, text=True, capture_output=True, timeout=280,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seeds", "faults"), [(QUIET, "no"), (FAULTY, "yes")], ids=["quiet", "faulty"]
)
def test_what_the_documents_promise_holds_in_the_courses_that_we_know(seeds, faults):
    known = ",".join(map(str, KNOWN))
    ran = simulate("--seeds", f"{seeds.start}:{seeds.stop}", "--faults", faults, "--but", known)

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


@pytest.mark.parametrize(
    ("fault", "found", "seeds"),
    [
        ("nothing is extended", "never two inside", "0:20"),
        ("the fence is the minute", "fences rise", "0:20"),
        ("nobody publishes from a room", "every call ends", "0:20"),
        ("a copy from a room is put off", "no storm", "70150:70160 --faults no"),
    ],
)
def test_a_planted_fault_is_found(fault, found, seeds):
    ran = simulate("--seeds", *shlex.split(seeds), "--planted", fault, "--until", found)

    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert f"{found}: " in ran.stdout


@pytest.mark.parametrize(
    ("fault", "found", "seeds"),
    [
        ("a lock is not suspended", "suspended", "0:20"),
        ("a task is not suspended", "suspended", "0:20"),
        ("a suspension is of all tasks", "runs again", "60:80"),
        ("resume wakes nobody", "runs again", "40:60"),
    ],
)
def test_a_planted_fault_of_suspensions_is_found(fault, found, seeds):
    more = ("--faults", "no", "--suspensions", "yes")
    ran = simulate("--seeds", seeds, *more, "--planted", fault, "--until", found)

    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert f"{found}: " in ran.stdout
