"""Every exchange has one description."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

import celery_redislock
from tests.contract.scripts.test_scripts import SCRIPTS

ROOT = Path(celery_redislock.__file__).parent
#: Where the exchanges are described.
DESCRIPTIONS = ("protocol/calls.py", "protocol/rooms.py")


@functools.cache
def nodes() -> list[tuple[str, ast.AST]]:
    """The calls and constants in the sources, and in which file each is."""
    return [
        (path.relative_to(ROOT).as_posix(), node)
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call | ast.Constant)
    ]


def made(name: str) -> list[tuple[str, ast.Call]]:
    """Where objects of that name are made."""
    return [
        (path, node)
        for path, node in nodes()
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == name
    ]


@pytest.mark.parametrize("kind", ["Call", "Query"])
def test_an_exchange_is_described_in_the_protocol_only(kind) -> None:
    others = "compat/translating.py"  # the locks of other packages
    assert {path for path, _ in made(kind)} <= {*DESCRIPTIONS, others}


def test_each_script_is_described_once() -> None:
    described = [ast.literal_eval(node.args[0]) for _, node in made("Call")]
    assert sorted(described) == SCRIPTS


@pytest.mark.parametrize("command", ["EVALSHA", "EVAL"])
def test_a_script_is_called_in_one_place(command) -> None:
    """Which asks for a user's rights is a script of its own, without keys, as `cluster` knows."""
    where = {
        path for path, node in nodes() if isinstance(node, ast.Constant) and node.value == command
    }
    # `connections` tells redis-py 5 that a command is to follow.
    here = ("scripts", "looking", "connections", "cluster")
    assert where <= {f"servers/{name}.py" for name in here}
