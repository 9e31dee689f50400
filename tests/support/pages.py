"""The code on the pages of the documentation, and who runs it.

A comment directly before a block says what is special about it:

    <!-- not run: why -->       what cannot run; tests/project/test_pages.py counts these
    <!-- file: shop.py -->      a module of the reader's, which later blocks import
    <!-- from: examples/x.py -->  quoted from that file, which has tests of its own

All other Python blocks of a page run from top to bottom, as one module: `run_page.py`. Shell is
looked at by `shell.py`. Configuration is parsed. What is no code is marked `text`.

Sybil would find the blocks, thirty lines of these. It runs them in pytest's own process, where the
apps of all pages would meet, and the marks, the values in comments, the fixtures, the workers and
the commands would still be ours.
"""

from __future__ import annotations

import configparser
import dataclasses
import json
import re
import shlex
import sqlite3
from pathlib import Path

from tests.support.toml import read_toml
from tests.support.workers import ROOT

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
#: Whose Python another test runs, and with which mark, if not every block.
RUN_BY = {
    "docs/migrating.md": ("tests/behaviour/test_migrating.py", "after"),
    "docs/migrating-others.md": ("tests/behaviour/test_migrating.py", "after"),
    "docs/monitoring.md": ("tests/behaviour/test_metrics.py", ""),
    "docs/testing.md": ("tests/behaviour/test_testing.py", "file"),
}
SHELL = {"console", "sh"}
CONFIGURATION = {"ini", "json", "sql", "toml", "yaml"}
KNOWN = {"python", "text", *SHELL, *CONFIGURATION}

_FENCE = re.compile(r"(?P<indent> *)```(?P<language>[^\s`]*)")
_COMMAND = re.compile(r"`((?:celery|redis-cli|make|python|pip|systemctl|kubectl) [^`]+)`")
_MARK = re.compile(r"<!-- ([\w ]+): (.+) -->")


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of code. `kind` and `note` are its mark's, empty without one."""

    page: str
    line: int
    language: str
    text: str
    kind: str
    note: str

    @property
    def runs_here(self) -> bool:
        """Whether it is Python that `run_page.py` runs or imports."""
        return (
            self.language == "python"
            and self.kind not in ("not run", "from")
            and self.page not in RUN_BY
        )

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    found, lines = [], page.read_text(encoding="utf-8").splitlines()
    numbered = iter(enumerate(lines))
    for number, line in numbered:
        fence = _FENCE.match(line)
        if not fence:
            continue
        indent = len(fence["indent"])
        text = []
        for _, inner in numbered:
            if inner.strip() == "```":
                break
            text.append(inner[indent:])
        mark = _MARK.search(lines[number - 1]) if number else None
        kind, note = mark.groups() if mark else ("", "")
        name = page.relative_to(ROOT).as_posix()
        content = "\n".join(text) + "\n"
        found.append(Block(name, number + 1, fence["language"], content, kind, note))
    return found


def inline_commands(page: Path) -> list[Block]:
    """The commands in the text of a page, between backticks."""
    lines, name = page.read_text(encoding="utf-8").splitlines(), page.relative_to(ROOT).as_posix()
    inside = {
        number
        for block in blocks(page)
        for number in range(block.line, block.line + block.text.count("\n") + 1)
    }
    return [
        Block(name, number, "sh", found[1] + "\n", "", "")
        for number, line in enumerate(lines, 1)
        if number not in inside
        for found in _COMMAND.finditer(line)
    ]


def configured_commands(page: Path) -> list[Block]:
    """The commands in the configuration on a page: of a unit, or of a container."""
    found = []
    for block in blocks(page):
        if block.language == "ini":
            lines = re.findall(r"^ExecStart=\S*/(.+)$", block.text, re.M)
        elif block.language == "yaml":
            lists = re.findall(r"^ *command: (\[.+\])$", block.text, re.M)
            lines = [shlex.join(json.loads(each)) for each in lists]
        else:
            continue
        found += [
            dataclasses.replace(block, language="sh", text=line.replace("%%", "%") + "\n")
            for line in lines
        ]
    return found


def all_blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks(page)]


def check_configuration(block: Block) -> None:
    """Let what reads such a file read it.

    Raises:
        Exception: it is not what it says it is.
    """
    if block.language == "json":
        json.loads(block.text)
    elif block.language == "ini":
        configparser.ConfigParser().read_string(block.text)
    elif block.language == "yaml":
        import yaml

        assert yaml.safe_load(block.text)
    elif block.language == "toml":
        read_toml(block.text)
    elif block.language == "sql":
        with sqlite3.connect(":memory:") as db:
            db.execute("CREATE TABLE accounts (name TEXT, balance INTEGER, fence INTEGER)")
            db.execute(block.text, {"name": "anna", "balance": 10, "fence": 5})
