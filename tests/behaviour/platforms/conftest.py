"""Processes of these tests find a Python that lacks what another platform has not."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.workers import ROOT

PLATFORMS = ("macos", "windows")


@contextlib.contextmanager
def on(name: str) -> Iterator[None]:
    """Every process that is started meanwhile is on this platform."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_PLATFORM", name)
        patch.setenv("PYTHONPATH", str(Path(__file__).parent / "lacking"))
        yield


@pytest.fixture(params=PLATFORMS)
def platform(request: pytest.FixtureRequest) -> Iterator[str]:
    """The platform that every process is on which this test starts."""
    with on(request.param):
        yield request.param


@pytest.fixture
def python(platform: str) -> Callable[..., str]:
    """Runs Python there, and returns what it prints. A warning is an error."""

    def python(*arguments: str, cwd: Path = ROOT) -> str:
        path = os.pathsep.join([os.environ["PYTHONPATH"], str(ROOT)])
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return python
