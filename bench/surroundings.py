"""What the figures were measured with. No names of machines, and no paths."""

from __future__ import annotations

import os
import platform
import subprocess
import textwrap
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tests.support.servers import redis_server_binary

PACKAGES = (
    "celery",
    "kombu",
    "redis",
    "hiredis",
    "python-redis-lock",
    "pottery",
    "sherlock",
    "celery-singleton",
    "celery_once",
    "celery-once-task",
    "celery-heimdall",
)


def surroundings(section: str) -> dict[str, Any]:
    """The machine, the versions and the day."""
    return {
        "section": section,
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "processor": _processor(),
        "load": round(os.getloadavg()[0], 1),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "redis-server": _redis_version(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def in_words(facts: dict[str, Any]) -> str:
    """The same as a paragraph."""
    words = [
        f'Measured on {facts["date"]} by `make bench ARGS="{facts["section"]}"` on {facts["cores"]}'
        f" cores ({facts['processor']})",
        f"load before the start {facts['load']}",
        f"{facts['system']}",
        f"Redis {facts['redis-server']}",
        f"Python {facts['python']}",
        *(f"{name} {number}" for name, number in facts["packages"].items() if number),
    ]
    return textwrap.fill(", ".join(words) + ".", 98, break_on_hyphens=False)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _redis_version() -> str:
    line = subprocess.check_output([redis_server_binary(), "--version"], text=True)
    return line.split("v=")[1].split()[0]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
