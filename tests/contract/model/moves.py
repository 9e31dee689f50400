"""The moves of a machine: hypothesis makes them, and so does `wander`, which is quicker."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

F = TypeVar("F", bound=Callable[..., Any])


def move(needs: str = "", **options: Sequence[Any]) -> Callable[[F], F]:
    """A rule of the machine, with what its arguments may be.

    Args:
        needs: the machine's attribute that must be there, or true.
    """

    def decorate(function: F) -> F:
        drawn = {name: st.sampled_from(values) for name, values in options.items()}
        decorated = rule(**drawn)(function)
        if needs:
            decorated = precondition(lambda self: bool(getattr(self, needs)))(decorated)
        decorated.needs, decorated.options = needs, options
        return decorated

    return decorate


def wander(machine: Any, rng: random.Random, steps: int) -> None:
    """Make moves at random, without hypothesis. Nothing is made shorter.

    Raises:
        AssertionError: something was not as it must be.
    """
    moves = {name: f for name, f in vars(type(machine).__mro__[1]).items() if hasattr(f, "options")}
    for _ in range(steps):
        able = [name for name, f in moves.items() if not f.needs or getattr(machine, f.needs)]
        name = rng.choice(able)
        options = moves[name].options
        getattr(machine, name)(**{key: rng.choice(values) for key, values in options.items()})
        machine.check()
