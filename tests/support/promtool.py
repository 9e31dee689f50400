"""Prometheus' own checks: `promtool`, which Debian's package `prometheus` brings."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def promtool(*arguments: str | Path, text: str | None = None) -> str:
    """What it says of what is in order. Without it the test is skipped; in CI it fails.

    Args:
        arguments: the command.
        text: its input.

    Raises:
        AssertionError: something is wrong.
    """
    if shutil.which("promtool") is None:
        if os.environ.get("CI"):
            pytest.fail("promtool is missing, and in CI it must be there")
        pytest.skip("no promtool on this machine: it is in Debian's package prometheus")
    done = subprocess.run(
        ["promtool", *map(str, arguments)], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
