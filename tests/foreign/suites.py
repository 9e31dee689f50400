"""Which tests of other packages are run, in which groups and ways."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from .archives import unpacked
from .compare import Named
from .named import CELERY, REDIS_PY


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


def redis_py() -> Iterator[Suite]:
    folder = unpacked("redis", "tests/", "pyproject.toml")
    files = (folder / each for each in ("tests/test_lock.py", "tests/test_asyncio/test_lock.py"))
    ways = [Way("RedisLock", {"ADAPTED": "yes"})]
    yield _suite("redis-py lock", folder, files, "redislock_adapter", ways, REDIS_PY)


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


SUITES: Mapping[str, Callable[[], Iterator[Suite]]] = {"celery": celery, "redis-py": redis_py}
