"""An exhaustive explorer of small state machines: every state that can be reached, breadth first.

It knows nothing of locks. A state is any hashable value; a machine is a function that lists the
steps out of a state. The first state that breaks a property ends the search, so a counterexample
is as short as any.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Generic, TypeVar

State = TypeVar("State", bound=Hashable)


class TooManyStates(Exception):
    """The machine has more states than it was thought to have."""


@dataclasses.dataclass(frozen=True)
class Violation(Generic[State]):
    """A property that does not hold, and a shortest way there.

    Attributes:
        broken: the property, as a sentence.
        trace: the steps, each with the state that it led to; the first has no step.
    """

    broken: str
    trace: tuple[tuple[str, State], ...]

    @property
    def steps(self) -> tuple[str, ...]:
        return tuple(step for step, _ in self.trace[1:])

    def __str__(self) -> str:
        lines = [f"broken: {self.broken}"]
        for number, (step, state) in enumerate(self.trace):
            lines.append(f"{number:4}  {step or 'at first':<44} {state}")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Exploration(Generic[State]):
    """What was seen.

    Attributes:
        states: how many states can be reached.
        steps: how many steps between them there are.
        depth: how many steps the farthest is away.
        names: the names of the steps.
        violation: the first property that does not hold, if one does not.
    """

    states: int
    steps: int
    depth: int
    names: frozenset[str]
    violation: Violation[State] | None = None


def explore(
    start: State,
    steps_from: Callable[[State], Iterable[tuple[str, State]]],
    always: Mapping[str, Callable[[State], bool]],
    within_reach: Mapping[str, Callable[[State], bool]] | None = None,
    limit: int = 1_000_000,
) -> Exploration[State]:
    """Look at every state that can be reached.

    Args:
        start: the first state.
        steps_from: the steps out of a state, each a name and the state that it leads to.
        always: properties that must hold in every state, each a sentence and a test.
        within_reach: what must stay possible: from every state, some state of that kind can be
            reached. This is what there is of liveness. It includes that no state is a dead end.
        limit: how many states there may be.

    Raises:
        TooManyStates: there are more than `limit`.
    """
    parents: dict[State, tuple[State, str] | None] = {start: None}
    depths = {start: 0}
    comes_from: dict[State, list[State]] = {}
    queue = deque([start])
    steps = 0
    names: set[str] = set()

    def seen(violation: Violation[State] | None = None) -> Exploration[State]:
        return Exploration(len(parents), steps, max(depths.values()), frozenset(names), violation)

    for sentence, holds in always.items():
        if not holds(start):
            return seen(Violation(sentence, _trace(parents, start)))
    while queue:
        state = queue.popleft()
        for name, after in steps_from(state):
            steps += 1
            names.add(name)
            comes_from.setdefault(after, []).append(state)
            if after in parents:
                continue
            if len(parents) >= limit:
                raise TooManyStates(f"more than {limit}")
            parents[after] = (state, name)
            depths[after] = depths[state] + 1
            for sentence, holds in always.items():
                if not holds(after):
                    return seen(Violation(sentence, _trace(parents, after)))
            queue.append(after)

    for sentence, wanted in (within_reach or {}).items():
        leads_there = _backwards(comes_from, filter(wanted, parents))
        stuck = next((state for state in parents if state not in leads_there), None)
        if stuck is not None:  # the first that was found, so one of the nearest
            return seen(Violation(sentence, _trace(parents, stuck)))
    return seen()


def _backwards(comes_from: Mapping[State, list[State]], ends: Iterable[State]) -> set[State]:
    """All states from which one of these can be reached."""
    reached = set(ends)
    todo = list(reached)
    while todo:
        for before in comes_from.get(todo.pop(), ()):
            if before not in reached:
                reached.add(before)
                todo.append(before)
    return reached


def _trace(
    parents: Mapping[State, tuple[State, str] | None], state: State
) -> tuple[tuple[str, State], ...]:
    trace: list[tuple[str, State]] = []
    link = parents[state]
    while link is not None:
        trace.append((link[1], state))
        state, link = link[0], parents[link[0]]
    trace.append(("", state))
    return tuple(reversed(trace))
