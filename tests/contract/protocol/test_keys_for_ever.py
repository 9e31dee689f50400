"""Keys that were given once are given for ever, by every Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

#: Keys that were given once. A change here parts the workers of two versions: they would hold
#: two locks for one call. It needs a new SCHEMA, and a line in the changelog.
GOLDEN = [
    "redislock:{100}:lock:pkg.task:v1:a6579c6c2447602fae07acb3699b7f9d",
    "redislock:{628}:lock:pkg.task:v1:87a433b7b206d6fbf1ff7d630ee93b6a",
    "redislock:{351}:lock:pkg.task:v1:e002dd6ab9c3e0a3c2ae124dfd7f0836",
    "redislock:{378}:lock:pkg.task:v1:5347e36cff84c9f7ca4ccb0484bef96d",
    "redislock:{340}:lock:pkg.task:v1:d7a99ef6b226969226da4c4f3bedd5f8",
    "redislock:{168}:lock:pkg.task:v1:0aa7d641ba3bc020f907f6f281e3727d",
    "redislock:{382}:lock:pkg.task:v1:19f35b57c76fcb9a077c888df7261d64",
    "redislock:{961}:lock:pkg.task:v1:51b018f294926b10cf44ff287a532a9b",
    "redislock:{166}:lock:account:1",
]


SCRIPT = r"""
import json, sys
from datetime import date, datetime, time, timezone
from decimal import Decimal
from uuid import UUID
from celery_redislock.protocol.names import KeyMaker
from celery_redislock.protocol.keys import lock_keys

def function(x, y=2, *rest, flag=False, **more): pass

def names():
    make = KeyMaker("pkg.task", function, None, lambda value: value)
    yield make.name([1], {})
    yield make.name(["1", None], {"flag": True})
    yield make.name([{"b": [1, 2.5, 1e100, -0.0], "a": {"n": None, "t": True}}], {})
    yield make.name(["gr\u00f6\u00dfer \U0001f512 \"quoted\""], {"more": 10**30})
    yield make.name([datetime(2024, 2, 29, 12, 30, 15, 250, timezone.utc), date(2024, 2, 29)], {})
    yield make.name([time(23, 59), Decimal("10.50")], {"u": UUID(int=5), "b": b"\xff\x00"})
    yield make.name([{"c", "a", "b"}, (1, (2, 3))], {})
    yield KeyMaker("pkg.task", function, ["y", "x"], lambda value: value).name([1], {"y": 3})
    yield KeyMaker("pkg.task", function, "account:{x}", lambda value: value).name([1], {})

print(json.dumps([lock_keys("redislock", name).lock for name in names()]))
"""


def keys_by(python: str, hash_seed: str = "random") -> list[str]:
    """What another interpreter computes. It borrows this one's packages."""
    packages = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    environment = {
        **os.environ,
        "PYTHONHASHSEED": hash_seed,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *packages]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [python, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=60
    )
    if done.returncode and python != sys.executable:
        pytest.skip(f"{python} cannot import the package: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    keys: list[str] = json.loads(done.stdout)
    return keys


@pytest.mark.parametrize("hash_seed", ["0", "4242"])
def test_keys_are_the_same_for_ever_whatever_the_hash_seed(hash_seed: str) -> None:
    assert keys_by(sys.executable, hash_seed) == GOLDEN


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_keys_are_the_same_on_every_python(version: str) -> None:
    python = shutil.which(f"python{version}")
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    assert keys_by(python) == GOLDEN
