"""Looks at the shell commands on a page: what they call is there, and takes these options."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator

import click
import redis
from celery.bin.celery import celery as celery_command
from celery.worker.control import Panel

from tests.support.pages import Block, blocks
from tests.support.workers import ROOT

#: What is not ours, and has no options here that could be wrong.
OTHERS = {"curl", "kill", "mktemp", "redis-server", "echo", "apt-get", "sudo", "docker", "git"}
#: Celery's commands of other packages that a page may name.
OTHER_COMMANDS = {"flower"}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each command. In a `console` block the rest is what they print."""
    text = block.text
    if block.language == "console":
        text = "\n".join(re.findall(r"^\$ ((?:.*\\\n)*.*)$", text, re.M))
    for line in text.replace("\\\n", " ").splitlines():
        words: list[str] = []
        for word in [*shlex.split(line, comments=True), ";"]:
            if word in (";", "&&", "|", "&"):
                if words:
                    yield words
                words = []
            else:
                words.append(word)


def check_shell(block: Block, server: redis.Redis) -> None:
    """Look at every command of a block.

    Raises:
        AssertionError: something that it calls, or an option, is not there.
    """
    page_files = {each.note for each in blocks(ROOT / block.page) if each.kind == "file"}
    folder = ROOT
    for words in commands(block):
        while re.match(r"[A-Z_]+=", words[0]):
            words = words[1:]
        program, *arguments = words
        if program == "cd":
            folder = folder / arguments[0]
            assert folder.is_dir(), arguments
        elif program == "export" or program in OTHERS:
            continue
        elif program == "redis-cli":
            _redis_cli(arguments, server)
        elif program == "celery":
            _celery(arguments, page_files)
        elif program == "python":
            _python(arguments, folder, page_files)
        else:
            assert program in _CHECKS, f"{block}: nobody looks at {program!r}; see {__file__}"
            _CHECKS[program](arguments)


def _make(arguments: list[str]) -> None:
    values = dict(word.split("=", 1) for word in arguments if "=" in word)
    for target in (word for word in arguments if "=" not in word):
        rule = re.search(rf"^{target}:.*\n((?:\t.*\n)*)", MAKEFILE, re.M)
        assert rule, f"make {target}"
        runs = re.search(r"python -m (\S+) \$\(ARGS\)", rule[1])
        given = shlex.split(values.get("ARGS", ""))
        if runs:
            _options_of_module(runs[1], given)
        for path in (word.split("::")[0] for word in given if word.startswith("tests/")):
            assert (ROOT / path).exists(), path


def _python(arguments: list[str], folder: object, page_files: set[str]) -> None:
    if arguments[0] == "-m":
        assert importlib.util.find_spec(arguments[1]), arguments
        if arguments[1] == "celery":
            _celery(arguments[2:], page_files)
        else:
            _options_of_module(arguments[1], arguments[2:])
    elif arguments[0] not in page_files and arguments[0] != "-c":
        assert (ROOT / str(folder) / arguments[0]).exists(), arguments


def _options_of_module(module: str, arguments: list[str]) -> None:
    options = {word.split("=")[0] for word in arguments if word.startswith("--")}
    missing = {word for word in options if word not in _help(module)}
    assert not missing, f"python -m {module} has no {missing}"


@functools.cache
def _help(module: str) -> str:
    command = [sys.executable, "-m", module, "--help"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def _pip(arguments: list[str]) -> None:
    assert arguments[0] == "install"
    for extras in re.findall(r"celery-redislock\[(.+?)\]", " ".join(arguments)):
        for extra in extras.split(","):
            assert re.search(rf"^{extra} = \[", PROJECT, re.M), extra


def _uvicorn(arguments: list[str]) -> None:
    module, _, name = arguments[0].partition(":")
    text = (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    assert re.search(rf"^{name} = ", text, re.M), arguments


def _redis_cli(arguments: list[str], server: redis.Redis) -> None:
    if not arguments or arguments[0].startswith("-"):
        return
    assert arguments[0].lower() in server.command(), arguments


def _celery(arguments: list[str], page_files: set[str]) -> None:
    command: click.Command = celery_command
    words = iter(arguments)
    for word in words:
        if word.startswith("-") and len(word) > 1:
            flag, value = _option(command, word)
            if flag in ("-A", "--app"):
                _app(value or next(words), page_files)
            elif value is None:
                next(words)
        elif isinstance(command, click.Group):
            if word in OTHER_COMMANDS:
                return
            sub = command.get_command(click.Context(command), word) or _plugin(word)
            assert sub, f"celery has no {word!r}"
            command = sub
        elif command.name in ("inspect", "control"):
            importlib.import_module("celery_redislock")
            assert word in Panel.meta, f"celery {command.name} has no {word!r}"
            return


def _option(command: click.Command, word: str) -> tuple[str, str | None]:
    """The option's name, and its value: "" for what takes none, None if it is the next word."""
    options = {
        flag: each
        for each in command.params
        if isinstance(each, click.Option)
        for flag in (*each.opts, *each.secondary_opts)
    }
    flag, equals, value = word.partition("=")
    if flag == "--help":
        return flag, ""
    if flag not in options and not word.startswith("--") and word[:2] in options:
        flag, equals, value = word[:2], "=", word[2:]
    assert flag in options, f"celery {command.name}: no option {word!r}"
    takes_none = options[flag].is_flag or options[flag].count
    return flag, value if equals or takes_none else None


def _plugin(name: str) -> click.Command | None:
    """A command of ours that may not be installed here, only declared."""
    found = re.search(
        rf'\[project\.entry-points\."celery\.commands"\]\n(?:.*\n)*?{name} = "(.+):(.+)"', PROJECT
    )
    return getattr(importlib.import_module(found[1]), found[2]) if found else None


def _app(name: str, page_files: set[str]) -> None:
    path = ROOT / name.replace(".", "/")
    known = name in ("proj", "shop") or f"{name}.py" in page_files
    assert known or path.exists() or path.with_suffix(".py").exists(), f"celery -A {name}"


_CHECKS: dict[str, Callable[[list[str]], None]] = {"make": _make, "pip": _pip, "uvicorn": _uvicorn}
