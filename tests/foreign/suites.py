"""Which tests of other packages are run, in which groups and ways.

They are in the source archives, on PyPI, of the versions that are installed here.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from .compare import Named
from .named import CELERY

#: Nothing of it enters the repository.
FOLDER = Path(__file__).parents[2] / "build/foreign"


def unpacked(package: str, *parts: str) -> Path:
    """A folder with these parts of the package's source archive, and not the package itself: what
    is tested is the one that is installed.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    name = f"{package}-{version(package)}"
    archive = FOLDER / f"{name}.tar.gz"
    if not archive.exists():
        print(f"{name}: its source archive, from PyPI ...", file=sys.stderr, flush=True)
        # Without its dependencies; pip makes the archive's metadata, and installs nothing.
        command = (*("download", "-q", "--no-deps", "--no-binary", package), "-d", str(FOLDER))
        subprocess.run(
            [sys.executable, "-m", "pip", *command, f"{package}=={version(package)}"], check=True
        )
    folder = FOLDER / name
    if not folder.exists():
        wanted = tuple(f"{name}/{part}" for part in parts)
        with tarfile.open(archive) as opened:
            members = [each for each in opened if each.name.startswith(wanted)]
            opened.extractall(FOLDER, members, filter="data")
    return folder


class Way(NamedTuple):
    """A way to run tests: its name, and what tells the plugin so."""

    name: str
    environment: Mapping[str, str]


PLAIN = Way("plain", {})


class Suite(NamedTuple):
    """Tests of a package.

    Attributes:
        name: what reports call it.
        folder: where its tests are unpacked.
        groups: what one process of pytest runs.
        plugin: the module that puts something of ours in the place of theirs.
        ways: how, each of which is compared with the plain run.
        named: the differences that may be.
    """

    name: str
    folder: Path
    groups: Sequence[str]
    plugin: str
    ways: Sequence[Way]
    named: Sequence[Named]


def _guarded(how: str, policy: str, **more: str) -> Way:
    return Way(f"{how} {policy}", {"GUARD": how, "GUARD_POLICY": policy, **more})


GUARDED = tuple(
    _guarded(how, policy) for how in ("task_cls", "redislock_tasks") for policy in ("queue", "skip")
)


def celery() -> Iterator[Suite]:
    folder = unpacked("celery", "t/", "pyproject.toml")
    packages = [path for path in (folder / "t/unit").iterdir() if [*path.glob("test_*.py")]]
    files = (folder / "t/integration").glob("test_*.py")
    # A directory of integration tests that is run as a whole does not get its worker.
    for name, groups in ("celery unit", packages), ("celery integration", files):
        yield _suite(name, folder, groups, "redislock_guard", GUARDED, CELERY)


def _suite(
    name: str,
    folder: Path,
    paths: Iterable[Path],
    plugin: str,
    ways: Sequence[Way],
    named: Sequence[Named],
) -> Suite:
    groups = [
        f"{path.relative_to(folder)}{part}" for path in sorted(paths) for part in _parts(path)
    ]
    return Suite(name, folder, groups, plugin, ways, named)


def _parts(path: Path) -> Sequence[str]:
    """The classes of a file that has a hundred tests and more; else the whole."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    classes = re.findall(r"^class (test_\w+|Test\w+)", text, re.M)
    only_classes = not re.search(r"^(async )?def test_", text, re.M)
    is_long = len(re.findall(r"\bdef test_", text)) >= 100
    return [f"::{each}" for each in classes] if is_long and only_classes else [""]


SUITES: Mapping[str, Callable[[], Iterator[Suite]]] = {"celery": celery}
