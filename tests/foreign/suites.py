"""Which tests of Celery are run, in which groups and ways.

They are in the source archive, on PyPI, of the version that is installed here.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

#: Nothing of it enters the repository.
FOLDER = Path(__file__).parents[2] / "build/foreign"


def unpacked() -> Path:
    """A folder with the tests in Celery's source archive, and not the package itself: what is
    tested is the one that is installed.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    name = f"celery-{version('celery')}"
    archive = FOLDER / f"{name}.tar.gz"
    if not archive.exists():
        print(f"{name}: its source archive, from PyPI ...", file=sys.stderr, flush=True)
        # Without its dependencies; pip makes the archive's metadata, and installs nothing.
        command = ("download", "-q", "--no-deps", "--no-binary", "celery", "-d", str(FOLDER))
        wanted = f"celery=={version('celery')}"
        subprocess.run([sys.executable, "-m", "pip", *command, wanted], check=True)
    folder = FOLDER / name
    if not folder.exists():
        parts = (f"{name}/t/", f"{name}/pyproject.toml")
        with tarfile.open(archive) as opened:
            members = [each for each in opened if each.name.startswith(parts)]
            opened.extractall(FOLDER, members, filter="data")
    return folder


class Way(NamedTuple):
    """A way to run tests: its name, and what tells the plugin so."""

    name: str
    environment: Mapping[str, str]


PLAIN = Way("plain", {})


class Suite(NamedTuple):
    """Tests of Celery: what reports call them, where they are unpacked, and what one process of
    pytest runs.
    """

    name: str
    folder: Path
    groups: Sequence[str]


GUARDED = tuple(
    Way(f"{how} {policy}", {"GUARD": how, "GUARD_POLICY": policy})
    for how in ("task_cls", "redislock_tasks")
    for policy in ("queue", "skip")
)


def celery() -> Iterator[Suite]:
    folder = unpacked()
    packages = [path for path in (folder / "t/unit").iterdir() if [*path.glob("test_*.py")]]
    files = (folder / "t/integration").glob("test_*.py")
    # A directory of integration tests that is run as a whole does not get its worker.
    for name, paths in ("celery unit", packages), ("celery integration", files):
        groups = [
            f"{path.relative_to(folder)}{part}" for path in sorted(paths) for part in _parts(path)
        ]
        yield Suite(name, folder, groups)


def _parts(path: Path) -> Sequence[str]:
    """The classes of a file that has a hundred tests and more; else the whole."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    classes = re.findall(r"^class (test_\w+|Test\w+)", text, re.M)
    only_classes = not re.search(r"^(async )?def test_", text, re.M)
    is_long = len(re.findall(r"\bdef test_", text)) >= 100
    return [f"::{each}" for each in classes] if is_long and only_classes else [""]
