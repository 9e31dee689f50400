"""Packages from a release of Debian that need not be this machine's. They are unpacked into a
folder, and run from there. Nothing is installed.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

#: The release, as apt names it, and its number.
SUITE: Final = "trixie"
RELEASE: Final = "13"
#: Seconds for one command.
_PATIENCE: Final = 300.0
#: Who signs Debian's packages.
_KEYS: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_WRAPPER: Final = """#!/bin/sh
root=$(cd "$(dirname "$0")" && pwd)
exec "$root/{loader}" --library-path "$root/{libraries}" "$root/usr/bin/valkey-server" "$@"
"""


class NotToBeHad(Exception):
    """There is no such thing for this machine. The text says why."""


def valkey(folder: Path) -> str:
    """A program that is the server, in this folder, where it is looked for first.

    Raises:
        NotToBeHad: this is no Debian, or its mirror does not answer.
    """
    wrapper = folder / "root/valkey-server"
    if not wrapper.exists():
        # With all that it needs, as on a machine that has nothing yet.
        _apt_get(folder, "install", "--yes", "--download-only", "valkey-server")
        _unpack(folder, wrapper)
    return str(wrapper)


def _mirror() -> str:
    """Where this machine has its packages from.

    Raises:
        NotToBeHad: this is no Debian, or it does not know one.
    """
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise NotToBeHad("this machine has no apt-get")
    which = ("Created-By: Packages", "Origin: Debian", "Label: Debian")
    found = _told("apt-get", "indextargets", "--format", "$(REPO_URI)", *which).split()
    if not found:
        raise NotToBeHad("apt knows no mirror of Debian; it may need `apt-get update`")
    return found[0]


def _apt_get(folder: Path, *command: str) -> None:
    """Run a command of apt-get for the release, in this folder, as if nothing were installed."""
    source = _mirror()
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "status").touch()
    option = f"[signed-by={_KEYS}] " if _KEYS.exists() else ""
    (folder / "sources.list").write_text(f"deb {option}{source} {SUITE} main\n")
    settings = {
        "Dir::Etc::SourceList": folder / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": folder / "lists",
        "Dir::State::Status": folder / "status",
        "Dir::Cache": folder / "cache",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",
        "APT::Update::Error-Mode": "any",
        "Debug::NoLocking": "true",
    }
    given = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
    _told("apt-get", *given, "update")
    _told("apt-get", *given, *command, cwd=folder)


def _unpack(folder: Path, wrapper: Path) -> None:
    root = wrapper.parent
    for package in (folder / "cache/archives").glob("*.deb"):
        _told("dpkg-deb", "--extract", str(package), str(root))
    loader = next(root.glob("usr/lib*/ld-linux*.so.*"))
    libraries = next(root.glob("usr/lib/*/libc.so.6")).parent
    text = _WRAPPER.format(loader=loader.relative_to(root), libraries=libraries.relative_to(root))
    wrapper.write_text(text)
    wrapper.chmod(0o755)


def _told(*command: str, cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE,
        )
    except subprocess.TimeoutExpired:
        raise NotToBeHad(f"{command[0]} does not end") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        raise NotToBeHad(f"{command[0]}: {lines[-1]}")
    return done.stdout
