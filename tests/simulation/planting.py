"""Plants a fault into the package: texts of its files are changed as they are read. Imports nothing
of the package, which is imported after that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import util
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .plan import Plan

PACKAGE = "celery_redislock"
ROOT = Path(__file__).parents[2] / PACKAGE


class Change(NamedTuple):
    """A text that is once in a file of the package, and what takes its place."""

    file: str
    old: str
    new: str

    def of(self, text: str) -> str:
        assert text.count(self.old) == 1, f"{self.file} has changed: {self.old!r}"
        return text.replace(self.old, self.new)


class Fault(NamedTuple):
    """A fault.

    Attributes:
        changes: what makes it.
        needs: whether a plan may show it; None if any may. The other seeds are left out.
        faults: whether its courses have faults, too; None if the seed says so.
        suspends: the same of suspensions.
        wanted: what they have in any case, of what has a stream of its own in `plan`.
        is_plain: they have nothing else of `plan.WINGS`.
    """

    changes: tuple[Change, ...]
    needs: Callable[[Plan], bool] | None = None
    faults: bool | None = None
    suspends: bool | None = None
    wanted: tuple[str, ...] = ()
    is_plain: bool = False

    def check(self) -> None:
        """Raise an `AssertionError` if the package has changed so that it cannot be planted."""
        for each in self.changes:
            each.of((ROOT / each.file).read_text())

    def plant(self) -> None:
        assert PACKAGE not in sys.modules, f"{PACKAGE} is imported"
        self.check()
        sys.meta_path.insert(0, _Finder(self.changes))


class _Finder(MetaPathFinder):
    def __init__(self, changes: Sequence[Change]) -> None:
        self._changes = changes

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] != PACKAGE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or not isinstance(spec.loader, SourceFileLoader):
            return spec
        loader = _Loader(self._changes, name, spec.loader.path)
        return util.spec_from_file_location(name, spec.loader.path, loader=loader)


class _Loader(SourceFileLoader):
    def __init__(self, changes: Sequence[Change], name: str, path: str) -> None:
        super().__init__(name, path)
        self._changes = changes

    def path_stats(self, path: Any) -> Any:
        raise OSError("no bytecode is read or written")

    def get_data(self, path: Any) -> bytes:
        """The contents of a file: a module, or a script."""
        data = super().get_data(path)
        for each in self._changes:
            if Path(path) == ROOT / each.file:
                data = each.of(data.decode()).encode()
        return data
