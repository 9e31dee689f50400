"""Looks at the shell commands on a page: what they call is there, and takes these words.

Celery's own parser reads those of `celery`, up to the arguments of remote control; a server says
which commands of `redis-cli` it has. Nothing is run.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import click
import redis
from celery import Celery
from celery.bin.base import CLIContext
from celery.bin.celery import celery as celery_command
from celery.worker.control import Panel

from tests.support.pages import Block, blocks
from tests.support.programs import python
from tests.support.workers import ROOT

#: What is not ours, and has no options here that could be wrong.
OTHERS = {
    *("curl", "kill", "mktemp", "redis-server", "echo", "apt-get", "sudo", "docker", "git"),
    *("flask", "kubectl", "systemctl", "uvicorn"),
}
#: Celery's commands of other packages that a page may name.
OTHER_COMMANDS = {"flower"}
#: redis-cli's options, and whether each takes a value.
REDIS_CLI = {"-h": 1, "-p": 1, "-n": 1, "-a": 1, "-u": 1, "--user": 1, "--scan": 0, "--tls": 0}
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
        if words[0] in ("for", "done"):
            continue
        while words[0] == "do" or re.match(r"[A-Z_]+=", words[0]):
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
    done = python("-m", module, "--help")
    assert done.returncode == 0, done.stderr
    return done.stdout


def _pip(arguments: list[str]) -> None:
    assert arguments[0] == "install"
    for extras in re.findall(r"celery-redislock\[(.+?)\]", " ".join(arguments)):
        for extra in extras.split(","):
            assert re.search(rf"^{extra} = \[", PROJECT, re.M), extra


def _redis_cli(arguments: list[str], server: redis.Redis) -> None:
    if arguments[:2] == ["--cluster", "create"]:
        return
    words = iter(arguments)
    for word in words:
        if not word.startswith("-"):
            command = [word, *words]
            known = server.command().get(word.lower())
            assert known, f"redis has no {word}"
            arity = known["arity"]
            assert len(command) == arity or len(command) >= -arity > 0, f"redis: {command}"
        else:
            assert word in REDIS_CLI, f"redis-cli: no option {word!r}"
            for _ in range(REDIS_CLI[word]):
                next(words)


def _celery(arguments: list[str], page_files: set[str]) -> None:
    words = [word for word in arguments if word != "--help"]
    is_name = words[:1] != ["-A"]  # in a text, not to be typed
    if not is_name:
        _app(words[1], page_files)
        del words[:2]
    command: click.Command = celery_command
    context: click.Context | None = None
    shown = " ".join(["celery", *arguments])
    importlib.import_module("celery_redislock")
    try:
        while isinstance(command, click.Group):
            obj = CLIContext(Celery(set_as_current=False), no_color=True, workdir=None)
            context = click.Context(command, context, command.name, obj)
            _, words, _ = command.make_parser(context).parse_args(words)
            if not words or words[0] in ("COMMAND", *OTHER_COMMANDS):
                return
            found = command.get_command(context, words[0]) or plugin(words[0])
            assert found, f"{shown}: there is no {words[0]!r}"
            command, words = found, words[1:]
        if is_name and not words:
            return
        context = command.make_context(command.name, words, context)
        if command.name in ("inspect", "control"):
            _remote_control(command.name, context.params["command"], context.args)
    except (click.UsageError, ValueError, TypeError, AttributeError) as exc:
        told = exc.format_message() if isinstance(exc, click.UsageError) else exc
        raise AssertionError(f"{shown}: {told}") from exc


def _remote_control(kind: str, name: str, arguments: list[str]) -> None:
    """Look at one command of remote control, which Celery itself looks at when it is sent."""
    known = Panel.meta.get(name)
    is_there = known is not None and known.visible and known.type == kind
    assert is_there, f"celery {kind} has no {name!r}"
    for (_, parse), text in zip(known.args or [], arguments, strict=False):
        parse(text)


def plugin(name: str) -> Any:
    """A command of ours that may not be installed here, only declared."""
    found = re.search(
        rf'\[project\.entry-points\."celery\.commands"\]\n(?:.*\n)*?{name} = "(.+):(.+)"', PROJECT
    )
    return getattr(importlib.import_module(found[1]), found[2]) if found else None


def _app(name: str, page_files: set[str]) -> None:
    path = ROOT / name.replace(".", "/")
    known = name in ("proj", "shop") or f"{name}.py" in page_files
    assert known or path.exists() or path.with_suffix(".py").exists(), f"celery -A {name}"


_CHECKS: dict[str, Callable[[list[str]], None]] = {"make": _make, "pip": _pip}
