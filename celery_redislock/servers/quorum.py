"""The driver of a quorum of independent Redis servers: the algorithm that Redis's documents call
Redlock, https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/

A call goes to all servers, and what most of them say counts. Unlike Redlock it has a fence: the
highest of the majority, which is written back to a majority before the lock counts as taken.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from ..errors import LockUnavailable
from ..protocol.calls import raise_fence
from ..protocol.claims import (
    EXTENDED,
    NOT_OURS,
    RETAKEN,
    Acquired,
    Busy,
    Done,
    Extended,
    Reserved,
    Settled,
)
from ..protocol.clock import clock
from ..protocol.exchange import Call, Query
from ..protocol.holders import Holder
from .connections import PoolFactory
from .node import Node
from .restarts import HeldOff
from .server import LOOKING_TTL, Server, patience
from .talk import transient

T = TypeVar("T")

#: By how much two machines' clocks may drift apart in a ttl, as a share of the ttl, and in seconds
#: for a short one. The figures are those of Redis's documents.
DRIFT: Final = (0.01, 0.002)
#: The most seconds that a server may take to answer: one that hangs must not use up the ttl.
TIMEOUT: Final = 0.2
#: Seconds for which a server that did not answer is not asked again, while others are.
LEFT_ALONE: Final = 1.0
#: Between so many seconds a waiter asks again: two that ask at once must not do so for ever.
ASK_AGAIN: Final = (0.05, 0.15)
#: The scripts of waiting rooms.
ROOMS: Final = ("park", "look", "received", "put_back", "drop")
#: Which argument of `acquire.lua` says how it asks.
HOW: Final = 6
#: The last argument of `extend.lua`, and a value of it with which any missing lock is taken again.
COUNTER: Final = 5
HIGHEST: Final = 2**53


class Quorum(Server):
    """Independent Redis servers, of which a majority must agree.

    Args:
        pools: for each server, what makes its connection pools.
        names: the servers' hosts and ports.
        min_replicas: see `Server`.
    """

    def __init__(
        self, pools: Sequence[PoolFactory], names: Sequence[str], min_replicas: int = 0
    ) -> None:
        self.min_replicas = min_replicas
        self._nodes = [Node(each, min_replicas, TIMEOUT) for each in pools]
        self._names = names
        self._failed_at = [-LEFT_ALONE] * len(pools)
        self._majority = len(pools) // 2 + 1

    # -- requests -------------------------------------------------------------------------

    def run(
        self,
        call: Call[T],
        *,
        once: bool = False,
        hold_off: float | None = None,
        purpose: str = "main",
    ) -> T:
        began, pause = clock(), 0.02
        call = _try_only(call)
        while True:
            answers, failures = self._all(lambda node: _run(node, call, purpose))
            try:
                answer: T = self._decide(call, answers, failures, purpose)
                return answer
            except LockUnavailable as exc:
                until = began + patience(call.ttl)
                if call.takes and self._is_held_off(call.ttl):
                    until = began + (call.ttl / 3 + 1 if hold_off is None else hold_off)
                elif once or not transient(exc.__cause__):
                    raise
                if clock() + pause > until:
                    raise
            time.sleep(pause)
            pause = min(pause * 2, 0.5)

    def run_all(
        self, calls: Sequence[Call[T]], *, ttl: float, purpose: str = "main"
    ) -> list[T | LockUnavailable]:
        answers, failures = self._all(lambda node: node.run_all(calls, ttl=ttl, purpose=purpose))
        decided: list[Any] = []
        for i, call in enumerate(calls):
            own = [each[i] for each in answers]
            failed = [each for each in own if isinstance(each, LockUnavailable)]
            heard = [each for each in own if not isinstance(each, LockUnavailable)]
            try:
                decided.append(self._decide(call, heard, [*failures, *failed], purpose))
            except LockUnavailable as exc:
                decided.append(exc)
        return decided

    def block(self, call: Call[T], wake: str, seconds: float) -> T:
        # A server alone cannot say that the lock is free.
        time.sleep(min(seconds, random.uniform(*ASK_AGAIN)))
        return self.run(call, once=True, hold_off=0, purpose="wait")

    def ask(self, query: Query[T], *, once: bool = False) -> T:
        answers, failures = self._all(lambda node: node.ask(query, once=True))
        if len(answers) < self._majority:
            raise self._unavailable(query.key, answers, failures)
        likeness, _ = Counter(map(_likeness, answers)).most_common(1)[0]
        return next(each for each in answers if _likeness(each) == likeness)

    def replies(
        self,
        commands: Sequence[Sequence[Any]],
        ttl: float = LOOKING_TTL,
        *,
        errors: bool = False,
        wrong_type: bool = False,
    ) -> list[Any]:
        return self._first(
            lambda node: node.replies(commands, ttl, errors=errors, wrong_type=wrong_type)
        )

    def primaries(self) -> dict[str, Server]:
        return dict(zip(self._names, self._nodes, strict=True))

    def together(self, keys: Sequence[str], ttl: float) -> list[list[str]]:
        return [list(keys)]

    def exchange(self, key: str, ttl: float, purpose: str, talk: Callable[..., T], *args: Any) -> T:
        return self._first(lambda node: node.exchange(key, ttl, purpose, talk, *args))

    def close(self) -> None:
        for node in self._nodes:
            node.close()

    # -- servers --------------------------------------------------------------------------

    def _all(self, ask: Callable[[Node], T]) -> tuple[list[T], list[LockUnavailable]]:
        """The answers of the servers, and the failures of the others."""
        answers, failures, left_alone = [], [], []
        for i, node in enumerate(self._nodes):
            if clock() < self._failed_at[i] + LEFT_ALONE:
                left_alone.append(i)
                continue
            try:
                answers.append(ask(node))
            except LockUnavailable as exc:
                failures.append(exc)
                if transient(exc.__cause__):
                    self._failed_at[i] = clock()
        for i in left_alone if len(answers) < self._majority else ():
            try:
                answers.append(ask(self._nodes[i]))
            except LockUnavailable as exc:
                failures.append(exc)
        return answers, failures

    def _first(self, ask: Callable[[Node], T]) -> T:
        """The answer of the first server that gives one."""
        failure: LockUnavailable | None = None
        for node in sorted(self._nodes, key=lambda each: each.watch.is_broken):
            try:
                return ask(node)
            except LockUnavailable as exc:
                failure = exc
        assert failure is not None
        raise failure

    # -- what most of them say ------------------------------------------------------------

    def _decide(
        self, call: Call[T], answers: list[Any], failures: list[LockUnavailable], purpose: str
    ) -> Any:
        """What a call's answers come to.

        Raises:
            LockUnavailable: a majority did not answer, or agrees on nothing.
        """
        if call.undo is not None:
            return self._taken(call, answers, failures, purpose)
        if len(answers) < self._majority:
            raise self._unavailable(call.keys[0], answers, failures)
        if isinstance(answers[0], Extended):
            return self._extended(call, answers, failures, purpose)
        if isinstance(answers[0], Settled):
            return Settled(sum(each.ours for each in answers) >= self._majority)
        if isinstance(answers[0], bool):
            return sum(answers) >= self._majority
        return next((each for each in answers if each is not None), None)

    def _taken(
        self, call: Call[T], answers: list[Any], failures: list[LockUnavailable], purpose: str
    ) -> Any:
        """What the answers to a call that takes a lock come to. What only a minority gave is given
        back, also by those whose answer was lost.
        """
        got = [each for each in answers if isinstance(each, Acquired | Reserved)]
        done = next((each for each in answers if isinstance(each, Done)), None)
        busy = [each for each in answers if isinstance(each, Busy)]
        unavailable = self._unavailable(call.keys[0], answers, failures)
        if done is None and len(got) >= self._majority:
            try:
                return self._with_fence(call, got, purpose)
            except LockUnavailable as exc:
                unavailable = exc
                busy = []
        if got or failures:
            assert call.undo is not None
            undo = call.undo()
            self._all(lambda node: _run(node, undo, purpose))
        if done is not None:
            return done
        if busy and len(answers) >= self._majority:
            return max(busy, key=lambda each: each.remaining)
        raise unavailable

    def _with_fence(self, call: Call[T], got: list[Any], purpose: str) -> Any:
        """The acquisition, with the highest fence. A majority knows it before anybody uses it: the
        next majority has one of these servers, and gives a higher one. The drift shortens the
        right.
        """
        if isinstance(got[0], Reserved):
            return got[0]
        best = max(got, key=lambda each: each.fence)
        raising = raise_fence(call.keys[1], best.fence, call.ttl)
        answers, failures = self._all(lambda node: _run(node, raising, purpose))
        if len(answers) < self._majority:
            raise self._unavailable(call.keys[0], answers, failures)
        share, least = DRIFT
        sent_at = min(each.sent_at for each in got) - call.ttl * share - least
        if clock() >= sent_at + call.ttl:
            raise LockUnavailable(call.keys[0], None, "the servers took longer than the ttl")
        return best._replace(sent_at=sent_at)

    def _extended(
        self,
        call: Call[T],
        answers: list[Extended],
        failures: list[LockUnavailable],
        purpose: str,
    ) -> Extended:
        counter = max(each.counter for each in answers)
        ours = [each for each in answers if each.outcome != NOT_OURS]
        broken = next((each for each in answers if each.broken_by is not None), None)
        if broken is not None:
            return broken
        if len(ours) >= self._majority:
            if len(ours) < len(answers):
                # A server without the lock, where others who asked in vain have raised the counter
                # since. The majority proves that nobody else has had the lock.
                again = dataclasses.replace(call, args=(*call.args[:COUNTER], HIGHEST))
                self._all(lambda node: _run(node, again, purpose))
            replaced = next((each for each in ours if each.replaced_by is not None), ours[0])
            retaken = sum(each.outcome == RETAKEN for each in ours)
            outcome = EXTENDED if len(ours) - retaken >= self._majority else RETAKEN
            return replaced._replace(outcome=outcome, counter=counter)
        if len(answers) - len(ours) >= self._majority:
            return Extended(NOT_OURS, counter)
        raise self._unavailable(call.keys[0], answers, failures)

    def _is_held_off(self, ttl: float) -> bool:
        try:
            for node in self._nodes:
                node.watch.admit(ttl)
        except HeldOff:
            return True
        return False

    def _unavailable(
        self, key: str, answers: Sequence[Any], failures: Sequence[LockUnavailable]
    ) -> LockUnavailable:
        why = f"{len(answers)} of {len(self._nodes)} servers answered"
        if not failures:
            return LockUnavailable(key, None, f"{why}, and do not agree")
        found = LockUnavailable(key, None, f"{why}: {failures[-1].reason}")
        found.__cause__ = failures[-1].__cause__
        return found


def _run(node: Node, call: Call[T], purpose: str) -> T:
    return node.run(call, once=True, hold_off=0, purpose=purpose)


def _try_only(call: Call[T]) -> Call[T]:
    """The same call by one that does not wait at the servers: it asks again by itself."""
    if call.script in ROOMS:
        raise LockUnavailable(call.keys[0], None, "independent servers have no waiting rooms")
    if call.script != "acquire" or len(call.args) <= HOW:
        return call
    return dataclasses.replace(call, args=(*call.args[:HOW], "try", *call.args[HOW + 1 :]))


def _likeness(answer: Any) -> Any:
    """What the answers of two servers have in common if they say the same."""
    if isinstance(answer, Holder):
        return (answer.task, answer.task_id, answer.attempt, answer.node, answer.pid)
    return repr(answer)
