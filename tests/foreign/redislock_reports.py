"""A plugin of pytest for other packages' tests: writes how each test ended, as it ends.

These plugins are put on the path by themselves.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Reports(Path(os.environ["FOREIGN_RESULTS"])))


class _Reports:
    def __init__(self, path: Path) -> None:
        # Opened now: tests leave the folder, and put mocks in the place of `open`.
        self._file = path.open("ab", buffering=0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        why = "" if report.outcome == "passed" else report.longreprtext[-3000:]
        line = json.dumps([report.nodeid, report.when, report.outcome, why])
        self._file.write(line.encode() + b"\n")
