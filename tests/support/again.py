"""`.ci/run`'s second look: `-p tests.support.again`.

The suite loads a machine fully: one late test of thousands says nothing about a change. One or two
that failed are run again, alone, three times over. If all of that passes, the run is good, and
they are named: each is a fault of the test or of the product, and wants its cause found. `make
test` has no second look.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

MOST = 2
TIMES = 3


@pytest.hookimpl(tryfirst=True)  # before the summary is written
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus != pytest.ExitCode.TESTS_FAILED or os.environ.get("PYTEST_XDIST_WORKER"):
        return
    stats = session.config.pluginmanager.get_plugin("terminalreporter").stats
    failed = {report.nodeid for report in stats.get("failed", []) + stats.get("error", [])}
    if not 0 < len(failed) <= MOST:
        return
    for turn in range(1, TIMES + 1):
        print(f"\n{len(failed)} failed beside the others: alone, {turn} of {TIMES}", flush=True)
        command = [sys.executable, "-m", "pytest", "-q", *sorted(failed)]
        if subprocess.run(command, cwd=session.config.invocation_params.dir).returncode:
            return
    for test in sorted(failed):
        print(f"FAILED ONCE, passed {TIMES} times alone; whose fault is it? {test}", flush=True)
    session.exitstatus = pytest.ExitCode.OK
