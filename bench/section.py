"""What a section of the benchmarks is given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of the benchmarks.

    Attributes:
        quick: the short form, to see that everything works; its figures say little.
        only: contenders to measure: those whose name has one of these parts. Empty: all.
        say: shows a line of progress.
    """

    quick: bool
    only: Sequence[str]
    say: Callable[[str], None]

    def size(self, full: T, quick: T) -> T:
        return quick if self.quick else full

    def wants(self, name: str) -> bool:
        return not self.only or any(part in name for part in self.only)
