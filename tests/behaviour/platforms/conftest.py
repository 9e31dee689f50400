"""Processes of these tests find a Python that lacks what another platform has not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.workers import ROOT

PLATFORMS = ("macos", "windows")


@pytest.fixture(params=PLATFORMS)
def platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The platform that every process is on which this test starts."""
    monkeypatch.setenv("TEST_PLATFORM", request.param)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "lacking"))
    name: str = request.param
    return name


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
