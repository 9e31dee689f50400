"""Compose stacks of checkouts, for the tests of containers."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest

from tests.support.workers import ROOT

#: What a stack is made of.
PARTS = (
    *("docker-compose.yml", ".dockerignore", "pyproject.toml", "README.md", "LICENSE"),
    *("celery_redislock_pytest.py", "celery_redislock", "examples"),
)

#: A test that `make test-containers` runs.
on_an_engine = pytest.mark.skipif(
    not os.environ.get("TEST_CONTAINERS"),
    reason="make test-containers runs it, on a Docker engine",
)


def docker(*arguments: str) -> str:
    """What the command prints."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"docker {' '.join(arguments)}:\n{done.stderr}"
    return done.stdout


class Stack:
    """The stack of a checkout. Compose names the project by its folder.

    Args:
        folder: the checkout.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.project = folder, folder.name
        #: More for the environment of its commands.
        self.environment: dict[str, str] = {}

    @classmethod
    def copied(cls, parent: Path, name: str) -> Stack:
        """That of a new copy of this checkout."""
        folder = parent / f"{name}-{uuid.uuid4().hex[:8]}"
        folder.mkdir()
        for part in PARTS:
            if (ROOT / part).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / part, folder / part, ignore=ignored)
            else:
                shutil.copy(ROOT / part, folder / part)
        return cls(folder)

    @property
    def image(self) -> str:
        return f"{self.project}-example"

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of `docker compose`."""
        return subprocess.run(
            ["docker", "compose", *arguments],
            cwd=self.folder,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=False,
        )

    def __call__(self, *arguments: str) -> str:
        """What the command prints, which does not fail."""
        done = self.run(*arguments)
        if done.returncode:
            logs = self.run("logs", "--tail", "20", "--no-color").stdout
            said = f"{done.stdout}{done.stderr}"[-4000:]
            raise AssertionError(f"{' '.join(arguments)}:\n{said}\n{logs}")
        return done.stdout

    def execute(self, service: str, *command: str) -> str:
        """What the command prints in the service's container."""
        return self("exec", "-T", service, *command)

    def container(self, service: str) -> str:
        """The id of the service's one container."""
        (found,) = self("ps", "--all", "--quiet", "--no-trunc", service).split()
        return found

    def remove(self) -> None:
        """Remove all of it, and the images that were built for it, also those built over since."""
        self.run("--profile", "*", "down", "--volumes", "--timeout", "5")
        its = f"label=com.docker.compose.project={self.project}"
        built = set(docker("image", "ls", "--all", "--quiet", "--filter", its).split())
        if built:
            docker("image", "rm", "--force", *built)
