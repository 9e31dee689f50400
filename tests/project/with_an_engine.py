"""Runs the tests of containers, on the Docker engine that is there or on one that is made for them:

    python -m tests.project.with_an_engine [--keep] [PYTEST'S OPTIONS]

Where there is none and none can be made, it says why, and that is no failure.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.support import debian, engine
from tests.support.workers import ROOT

#: In this order: the last one looks at what the others have left.
TESTS = ("test_compose.py", "test_container_page.py", "test_containers.py", "test_left_behind.py")
E2E = "tests/project/e2e"


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.project.with_an_engine", description=__doc__)
    parser.add_argument(
        "--keep", action="store_true", help="keep the engine's files for the next run"
    )
    parser.add_argument("--stage", choices=("prepare", "run"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    own, options = parser.parse_known_args()
    if own.stage == "prepare":
        return prepare(own.folder, options)
    if own.stage == "run":
        with engine.running(own.folder) as env:
            return run(options, env)
    why = engine.trouble()
    if not why:
        return run(options, dict(os.environ))
    cannot = engine.cannot_be_made()
    if cannot:
        print(f"skipped: {why}, and none can be made: {cannot}")
        return 0
    print(f"{why}: one is made, which takes some minutes", flush=True)
    return on_one_that_is_made(own.keep, options)


def on_one_that_is_made(keep: bool, options: list[str]) -> int:
    began = time.monotonic()
    folder = ROOT / "build" / "engine"
    if folder.exists() and not (keep and (folder / "ready").exists()):
        engine.remove(folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        command = stage("prepare", folder, options)
        return engine.in_namespaces("mount", "pid", command=command)
    finally:
        engine.remove_groups(folder)
        if not keep:
            engine.remove(folder)
        print(f"{time.monotonic() - began:.0f} s", flush=True)


def prepare(folder: Path, options: list[str]) -> int:
    if not (folder / "ready").exists():
        began = time.monotonic()
        try:
            engine.prepare(folder)
        except debian.NotToBeHad as exc:
            print(f"skipped: no Docker engine answers, and none can be made: {exc}")
            return 0
        (folder / "ready").touch()
        print(f"the engine is made: {time.monotonic() - began:.0f} s", flush=True)
    return engine.in_namespaces("net", command=stage("run", folder, options))


def stage(name: str, folder: Path, options: list[str]) -> list[str]:
    own = ["--stage", name, "--folder", str(folder)]
    return [sys.executable, "-m", "tests.project.with_an_engine", *own, *options]


def run(options: list[str], env: dict[str, str]) -> int:
    paths = [f"{E2E}/{name}" for name in TESTS]
    if any(each.startswith(E2E) for each in options):
        paths = []
    command = [sys.executable, "-m", "pytest", "-rs", "--durations=8", *paths, *options]
    return subprocess.run(command, cwd=ROOT, env={**env, engine.FLAG: "1"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
