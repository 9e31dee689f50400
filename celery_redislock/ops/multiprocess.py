"""Joins the metrics of all processes, from the files of prometheus-client's multi-process mode.

Each process has files of its own, such as `counter_<pid>.db`, and leaves them when it dies. A
scrape folds the files of dead processes into one file of each kind, so that scrapes do not get
slower with each process that has died. A lock file makes the scrapes of a host take turns.

Where files cannot be locked (Windows), nothing is folded.

A kill at any step loses no count and doubles none: a fold first renames into place a list of what
it replaces and removes, and the next scrape completes that list. If a new process gets the pid of a
dead one in the milliseconds of a fold, its counts until then may be lost.
"""

from __future__ import annotations

import contextlib
import json
import operator
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from prometheus_client import registry
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector

from ..app.processes import is_alive
from ..protocol.log import get_logger

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

logger = get_logger()

#: How the values of dead processes are combined, by the kind of the file. Of other gauges, "live"
#: files are removed, and the rest are kept: their values name the process.
_FOLDS: Final[dict[str, Callable[[float, float], float]]] = {
    **dict.fromkeys(("counter", "histogram", "summary", "gauge_sum"), operator.add),
    "gauge_max": max,
    "gauge_min": min,
}
#: Replaces the pid in the names of the files with folded values.
_FOLDED: Final = "folded"
#: The list of what a fold replaces and removes. While the file exists, the fold is incomplete.
_LIST: Final = "redislock-fold.json"
_LOCK: Final = "redislock.lock"
#: How many times a scrape tries to read files that change as it reads.
_TRIES: Final = 10


class Processes(registry.Collector):
    """The metrics of all processes that have this directory in `PROMETHEUS_MULTIPROC_DIR`.

    Args:
        directory: the directory. All its processes are on one host.
    """

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)

    def collect(self) -> Any:
        """The metrics, at a scrape."""
        with _alone(self._directory) as is_alone:
            if is_alone:
                _complete(self._directory)
                _fold(self._directory)
            return _joined(list(self._directory.glob("*.db")))


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[bool]:
    """Keep out all other scrapes, of any process or thread. False where files cannot be locked."""
    if fcntl is None:
        yield False
        return
    with open(directory / _LOCK, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield True
        finally:
            # Closing is not enough: a child that was forked meanwhile has the file open too.
            fcntl.flock(file, fcntl.LOCK_UN)


def _joined(files: list[Path]) -> Any:
    """The metrics in these files, except files that cannot be read, or not yet."""
    for _ in range(_TRIES - 1):
        with contextlib.suppress(OSError, struct.error, RuntimeError, ValueError):
            return MultiProcessCollector.merge(map(str, files))
        files = [file for file in files if _values(file)]
    return MultiProcessCollector.merge(map(str, files))


def _values(file: Path) -> dict[str, float] | None:
    """The values in a file, by key: empty if the file is being made, None if it cannot be read."""
    try:
        if not file.stat().st_size:
            return {}
        values = {key: value for key, value, *_ in MmapedDict.read_all_values_from_file(str(file))}
        for key in values:
            _name, _series, _labels, _text = json.loads(key)
        return values
    except FileNotFoundError:
        return {}
    except (struct.error, RuntimeError, ValueError) as exc:
        logger.warning("redislock: the metrics in %s cannot be read: %s", file, exc)
        return None


def _fold(directory: Path) -> None:
    """Fold the files of dead processes."""
    dead: dict[str, list[Path]] = {}
    for file in directory.glob("*_*.db"):
        kind, _, pid = file.stem.rpartition("_")
        is_of_fold = kind in _FOLDS or kind.startswith("gauge_live")
        if is_of_fold and pid.isdecimal() and not is_alive(int(pid)):
            dead.setdefault(kind, []).append(file)
    if not dead:
        return
    for kind in dead.keys() & _FOLDS.keys():
        folded = directory / f"{kind}_{_FOLDED}.db"
        _write(folded.with_suffix(".new"), _sum_of(kind, [folded, *dead[kind]]))
    fold = {kind: [file.name for file in files] for kind, files in dead.items()}
    (directory / _LIST).with_suffix(".new").write_text(json.dumps(fold))
    os.replace((directory / _LIST).with_suffix(".new"), directory / _LIST)
    _complete(directory)


def _sum_of(kind: str, files: Iterable[Path]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for file in files:
        values = _values(file)
        if values is None:
            logger.error("redislock: set aside as %s.broken; its counts are missing", file)
            os.replace(file, f"{file}.broken")
        for key, value in (values or {}).items():
            sums[key] = _FOLDS[kind](sums[key], value) if key in sums else value
    return sums


def _write(file: Path, values: dict[str, float]) -> None:
    file.unlink(missing_ok=True)  # left by a fold that was cut off
    made = MmapedDict(str(file))
    for key, value in values.items():
        made.write_value(key, value, 0.0)
    made.close()


def _complete(directory: Path) -> None:
    """Replace and remove what the list says, if there is one. Safe to repeat."""
    try:
        fold = json.loads((directory / _LIST).read_text())
    except FileNotFoundError:
        return
    for kind, dead in fold.items():
        folded = directory / f"{kind}_{_FOLDED}.db"
        with contextlib.suppress(FileNotFoundError):  # already in its place, or there is none
            os.replace(folded.with_suffix(".new"), folded)
        for name in dead:
            (directory / name).unlink(missing_ok=True)
    (directory / _LIST).unlink()
