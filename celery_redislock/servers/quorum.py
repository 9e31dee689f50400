"""The driver of a quorum of independent Redis servers: what Redis's documents call Redlock,
https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/, and a fence.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Any, Final, TypeVar

from ..errors import LockUnavailable
from ..protocol import majority, rooms
from ..protocol.calls import raise_fence, retaking, without_waiters
from ..protocol.claims import NOT_OURS, Acquired, Busy, Done, Extended, Reserved
from ..protocol.clock import clock
from ..protocol.exchange import Call, Query
from .connections import PoolFactory
from .node import Node
from .server import Commands, Server, Tries
from .talk import transient
from .threads import release_in_background

T = TypeVar("T")

#: The most seconds that a server may take to answer: one that hangs must not use up the ttl.
TIMEOUT: Final = 0.2
#: After a server did not answer, only the others are asked, for so many seconds.
LEFT_ALONE: Final = 1.0
#: The script that gives back a lock, or a reservation.
GIVES_BACK: Final = "settle"
#: Seconds between which a waiter asks again, at random: two must not ask at once for ever.
ASK_AGAIN: Final = (0.05, 0.15)


class Quorum(Server):
    """Independent Redis servers, by their hosts and ports. A majority must agree."""

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
        tries = Tries(self, call.keys[0], call.ttl, once, hold_off)
        answer: T = self._persist(tries, self.attempt, call, purpose)
        return answer

    def attempt(self, call: Call[T], purpose: str = "main") -> T:
        if call.script in rooms.SCRIPTS:
            raise LockUnavailable(call.keys[0], None, "independent servers have no waiting rooms")
        fit, was_in_doubt = without_waiters(call), call.in_doubt
        call.in_doubt = True  # and stays so if we are interrupted
        sure: list[T] = []

        def ask(node: Node) -> T:
            own = dataclasses.replace(fit, in_doubt=False)
            answer = node.run(own, once=True, hold_off=0, purpose=purpose)
            if not own.in_doubt:
                sure.append(answer)
            return answer

        answers, failures = self._all(ask, [fit] if fit.script == GIVES_BACK else ())
        try:
            answer: T = self._decide(fit, answers, failures, purpose)
            in_doubt = majority.is_in_doubt(answers, sure, self._majority)
            call.in_doubt = was_in_doubt or in_doubt
            return answer
        except LockUnavailable:
            if call.takes:
                for node in self._nodes:
                    node.watch.admit(call.ttl)  # then it is worth waiting for that
            raise

    def run_all(
        self, calls: Sequence[Call[T]], *, ttl: float, purpose: str = "main"
    ) -> list[T | LockUnavailable]:
        ask = methodcaller("run_all", calls, ttl=ttl, purpose=purpose)
        answers, failures = self._all(ask, calls if calls[0].script == GIVES_BACK else ())
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
        tries = Tries(self, query.key, query.ttl, once, 0.0)
        answer: T = self._persist(tries, self._ask_once, query)
        return answer

    def _ask_once(self, query: Query[T]) -> T:
        return majority.commonest(self._most(query.key, lambda node: node.ask(query, once=True)))

    def _replies(
        self, commands: Commands, ttl: float, errors: bool, allows_wrong_type: bool
    ) -> list[Any]:
        ask = methodcaller(
            "replies", commands, ttl, errors=errors, allows_wrong_type=allows_wrong_type
        )
        return majority.replies(commands, self._most("", ask))

    def primaries(self) -> dict[str, Server]:
        return dict(zip(self._names, self._nodes, strict=True))

    def shards(self) -> dict[str, Server]:
        """The servers that answer. Each key is in a majority, and so in one of these."""
        there = self._most("", lambda node: node.replies([("TIME",)]) and node)
        return {name: node for name, node in self.primaries().items() if node in there}

    def close(self) -> None:
        for node in self._nodes:
            node.close()

    # -- servers --------------------------------------------------------------------------

    def _most(self, key: str, ask: Callable[[Node], T]) -> list[T]:
        """What this function answers for the servers. Raises if a majority does not answer."""
        answers, failures = self._all(ask)
        if len(answers) < self._majority:
            raise self._unavailable(key, answers, failures)
        return answers

    def _all(
        self, ask: Callable[[Node], T], gives_back: Sequence[Call[Any]] = ()
    ) -> tuple[list[T], list[LockUnavailable]]:
        """What this function answers for the servers, and the failures of the others. `gives_back`
        are the calls that it makes, if these give something back: a server that is not heard may
        have what it was asked for, so a thread goes on, and tries once if they are many.
        """
        heard: dict[Node, T] = {}
        failures, left_alone = [], []
        for i, node in enumerate(self._nodes):
            if clock() < self._failed_at[i] + LEFT_ALONE:
                left_alone.append(node)
                continue
            try:
                heard[node] = ask(node)
            except LockUnavailable as exc:
                failures.append(exc)
                if transient(exc.__cause__):
                    self._failed_at[i] = clock()
        for node in left_alone if len(heard) < self._majority else ():
            try:
                heard[node] = ask(node)
            except LockUnavailable as exc:
                failures.append(exc)
        for node in self._nodes if gives_back else ():
            if node not in heard:
                release_in_background(node, *gives_back, patient=len(gives_back) == 1)
        return [*heard.values()], failures

    # -- what most of them say ------------------------------------------------------------

    def _decide(
        self, call: Call[Any], answers: list[Any], failures: list[LockUnavailable], purpose: str
    ) -> Any:
        """The result of a call; raises if a majority did not answer, or agrees on nothing."""
        if call.undo is not None:
            return self._taken(call, call.undo, answers, failures, purpose)
        if len(answers) < self._majority:
            raise self._unavailable(call.keys[0], answers, failures)
        if not isinstance(answers[0], Extended):
            return majority.counted(answers, self._majority)
        answer = majority.extended(answers, self._majority)
        if answer is None:
            raise self._unavailable(call.keys[0], answers, failures)
        if answer.outcome != NOT_OURS and any(each.outcome == NOT_OURS for each in answers):
            self._all(_asking(retaking(call), purpose))
            answer = answer._replace(is_repaired=True)
        return answer

    def _taken(
        self,
        call: Call[Any],
        undo: Callable[[], Call[Any]],
        answers: list[Any],
        failures: list[LockUnavailable],
        purpose: str,
    ) -> Any:
        """The result of a call that takes a lock; what only a minority gave is given back."""
        got = [each for each in answers if isinstance(each, Acquired | Reserved)]
        done = next((each for each in answers if isinstance(each, Done)), None)
        busy = [each for each in answers if isinstance(each, Busy)]
        unavailable = self._unavailable(call.keys[0], answers, failures)
        if done is None and len(got) >= self._majority:
            try:
                return self._with_fence(call, got, purpose)
            except LockUnavailable as exc:
                unavailable, busy = exc, []
        is_answered = done is not None or (busy and len(answers) >= self._majority)
        if got or failures:
            undoes = undo()
            # A caller without an answer asks again, or releases. An undo that comes after that
            # would free what was taken with the same token.
            self._all(_asking(undoes, purpose), [undoes] if is_answered else ())
        if not is_answered:
            raise unavailable
        return majority.busy(busy) if done is None else done

    def _with_fence(self, call: Call[Any], got: list[Any], purpose: str) -> Any:
        """The acquisition, once a majority knows its fence: so the next one has a higher fence."""
        if isinstance(got[0], Reserved):
            return got[0]
        taken = majority.acquired(got, call.ttl)
        self._most(call.keys[0], _asking(raise_fence(call, taken.fence), purpose))
        if clock() >= taken.sent_at + call.ttl:
            raise LockUnavailable(call.keys[0], None, "the servers took longer than the ttl")
        return taken

    def _unavailable(
        self, key: str, answers: Sequence[Any], failures: Sequence[LockUnavailable]
    ) -> LockUnavailable:
        why = f"{len(answers)} of {len(self._nodes)} servers answered"
        if not failures:
            return LockUnavailable(key, None, f"{why}, and do not agree")
        found = LockUnavailable(key, None, f"{why}: {failures[-1].reason}")
        found.__cause__ = failures[-1].__cause__
        return found


def _asking(call: Call[Any], purpose: str) -> Callable[[Node], Any]:
    """A function that asks a server once."""
    return methodcaller("run", call, once=True, hold_off=0, purpose=purpose)
