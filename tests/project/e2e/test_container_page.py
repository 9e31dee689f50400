"""The commands of docs/containers.md, letter for letter and in their order, on an engine."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.support.compose import Stack, docker, on_an_engine
from tests.support.pages import blocks
from tests.support.servers import free_port
from tests.support.workers import ROOT

PAGE = ROOT / "docs/containers.md"
#: What a command prints, by how it ends. Others only must not fail.
PRINTS = {
    "python examples/beat_job.py": ("report: 3 runs", "0 overlaps"),
    "redislock list": ("examples.beat_job.report",),
    "redislock history": ("examples.beat_job.report",),
    "logs --follow worker-1 worker-2": ("skipped: redislock:",),
    "python examples/account_sync.py": ("5 calls, 5 synced, 0 overlaps",),
    "redislock doctor": ("cluster",),
}


class Said(NamedTuple):
    command: str
    status: int
    text: str


class Shell:
    """Runs a page's commands as its reader does, in the folder of the stack."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._env = {**os.environ, "REDISLOCK_WEB_PORT": str(free_port())}
        self.after_a_kill = False

    def run(self, command: str) -> Said:
        name, _, value = command.removeprefix("export ").partition("=")
        if command.startswith("export "):
            echo = ["sh", "-c", f'printf %s "{value}"']
            self._env[name] = subprocess.run(
                echo, capture_output=True, text=True, check=True
            ).stdout
            return Said(command, 0, "")
        follows = " --follow " in command
        process = subprocess.Popen(
            ["sh", "-c", f"exec {command}"],
            cwd=self._stack.folder,
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        if follows:  # its reader ends it
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.terminate()
        text, _ = process.communicate(timeout=400)
        return Said(command, 0 if follows else process.returncode, text)


@pytest.fixture
def stack(tmp_path) -> Iterator[Stack]:
    stack = Stack.copied(tmp_path, "page")
    try:
        yield stack
    finally:
        stack.remove()


def commands() -> list[str]:
    shown = [each.text for each in blocks(PAGE) if each.language == "console"]
    lines = [line for text in shown for line in text.splitlines()]
    assert all(line.startswith("$ ") for line in lines), "what they print is not shown"
    return [line.removeprefix("$ ") for line in lines]


@on_an_engine
@pytest.mark.timeout(1200)
def test_its_commands_do_what_it_says(stack):
    shell, before = Shell(stack), ""
    for command in commands():
        said = shell.run(command)
        # While a node is away, `doctor` says so, and that is an error.
        expected = (0, 1) if " kill " in before else (0,)
        assert said.status in expected, f"{command}:\n{said.text}"
        for end, texts in PRINTS.items():
            if command.endswith(end):
                missing = [text for text in texts if text not in said.text]
                assert not missing, f"{command}: no {missing} in\n{said.text}"
        before = command
    its = f"label=com.docker.compose.project={stack.project}"
    for kind in (("ps", "--all"), ("volume", "ls"), ("network", "ls")):
        assert docker(*kind, "--quiet", "--filter", its) == "", f"{before} leaves none"
