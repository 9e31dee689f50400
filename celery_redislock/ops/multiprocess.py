"""Joins the metrics of all processes, from the files of prometheus-client's multi-process mode.

Each process has files of its own, such as `counter_<pid>.db`, and leaves them when it dies. A
scrape folds those of dead processes into one file of each kind, so that it does not get slower with
every process that has been. Scrapes of all processes on a host take turns by a lock file.

A kill at any step loses nothing, and nothing is counted twice: a list of what replaces what is
renamed into its place before anything is replaced, and the next scrape completes it. If a new
process gets the pid of a dead one in the milliseconds of a fold, its counts until then may be lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import operator
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from prometheus_client import registry
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector

from ..app.housekeeper import is_alive
from ..protocol.log import get_logger

logger = get_logger()

#: How the values of dead processes are put together, by the kind of the file. Gauges of other kinds
#: are removed if they are of the living ("live"), else they are kept: they name their process.
_FOLDS: Final[dict[str, Callable[[float, float], float]]] = {
    **dict.fromkeys(("counter", "histogram", "summary", "gauge_sum"), operator.add),
    "gauge_max": max,
    "gauge_min": min,
}
#: In place of a pid, in the names of the files with what was folded.
_FOLDED: Final = "folded"
#: The list of what a fold replaces and removes. While it is there, the fold is to be completed.
_LIST: Final = "redislock-fold.json"
_LOCK: Final = "redislock.lock"
#: How often a scrape reads files again that change as it reads.
_TRIES: Final = 10


class Processes(registry.Collector):
    """The metrics of all processes that have this directory in `PROMETHEUS_MULTIPROC_DIR`.

    Args:
        directory: the directory; of processes on one host only.
    """

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)

    def collect(self) -> Any:
        """The metrics, at a scrape."""
        with _alone(self._directory):
            _complete(self._directory)
            _fold(self._directory)
            return _joined(list(self._directory.glob("*.db")))


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """No other scrape is inside, in whatever process or thread."""
    with open(directory / _LOCK, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Closing is not enough: a child that was forked meanwhile has the file open too.
            fcntl.flock(file, fcntl.LOCK_UN)


def _joined(files: list[Path]) -> Any:
    """The metrics in these files, without those that cannot be read, or not yet."""
    for _ in range(_TRIES - 1):
        with contextlib.suppress(OSError, struct.error, RuntimeError, ValueError):
            return MultiProcessCollector.merge(map(str, files))
        files = [file for file in files if _values(file)]
    return MultiProcessCollector.merge(map(str, files))


def _values(file: Path) -> dict[str, float] | None:
    """The values in a file by their keys: none yet, if it is just being made. None if it cannot be
    read.
    """
    try:
        if not file.stat().st_size:
            return {}
        found = {key: value for key, value, *_ in MmapedDict.read_all_values_from_file(str(file))}
        for key in found:
            _name, _series, _labels, _text = json.loads(key)
        return found
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
        if (
            pid.isdecimal()
            and (kind in _FOLDS or kind.startswith("gauge_live"))
            and not is_alive(int(pid))
        ):
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
    found: dict[str, float] = {}
    for file in files:
        values = _values(file)
        if values is None:
            logger.error("redislock: set aside as %s.broken; its counts are missing", file)
            os.replace(file, f"{file}.broken")
        for key, value in (values or {}).items():
            found[key] = _FOLDS[kind](found[key], value) if key in found else value
    return found


def _write(file: Path, values: dict[str, float]) -> None:
    file.unlink(missing_ok=True)  # of a fold that was cut off
    made = MmapedDict(str(file))
    for key, value in values.items():
        made.write_value(key, value, 0.0)
    made.close()


def _complete(directory: Path) -> None:
    """Replace and remove what the list says, if there is one. May be done twice."""
    try:
        fold = json.loads((directory / _LIST).read_text())
    except FileNotFoundError:
        return
    for kind, dead in fold.items():
        folded = directory / f"{kind}_{_FOLDED}.db"
        with contextlib.suppress(FileNotFoundError):  # it is in its place already; or there is none
            os.replace(folded.with_suffix(".new"), folded)
        for name in dead:
            (directory / name).unlink(missing_ok=True)
    (directory / _LIST).unlink()
