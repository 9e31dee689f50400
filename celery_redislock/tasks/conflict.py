"""What a policy can do in a worker with a task that met a held lock: skip, defer and so on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, NoReturn

from ..app.outcomes import Outcome
from ..errors import ConfigError
from ..policies import Policy
from ..protocol.checks import plain
from ..protocol.claims import Busy, Full
from ..protocol.holders import Holder
from ..verbs import NO_RESULT, Decision
from .decisions import Await, Go, GoUnlocked, Park, PutOff, Question, TurnedAway, backoff
from .record import Record

#: Seconds that are left to a task whose time in the waiting room is over.
NO_TIME: Final = 0.001


class Decided(Exception):
    """Ends a policy that asked to wait: meanwhile, something else was decided."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision)
        self.decision = decision


def admit(policy: Policy, conflict: TaskConflict) -> Decision | None:
    """What the policy decides before the lock is asked for; None: ask for it."""
    try:
        return policy.admit(conflict)
    except Decided as exc:
        return exc.decision


def decide(policy: Policy, conflict: TaskConflict) -> Decision:
    """What the policy decides about a duplicate.

    Raises:
        ConfigError: the policy decided nothing.
    """
    try:
        decision = policy.act(conflict)
    except Decided as exc:
        return exc.decision
    if isinstance(decision, Decision):
        return decision
    raise ConfigError(
        f"on_conflict={policy!r} did not end the conflict: its act() must return"
        " conflict.skip(), .defer(), .park(), .replace(), .fail(), or .run() after"
        " conflict.wait() returned True"
    )


@dataclasses.dataclass(eq=False, repr=False)
class TaskConflict:
    """The `policies.Conflict` of a task in a worker.

    Args:
        run: the task's run.
        busy: the answer of the lock server.
        ask: asks the lock server again, and returns what the answer means.
    """

    _run: Record
    _busy: Busy
    _ask: Callable[[Question], Decision | Busy | Full]
    _go: Decision | None = None

    @property
    def key(self) -> str:
        return self._run.facts.key

    @property
    def holder(self) -> Holder | None:
        return self._busy.holder

    @property
    def remaining(self) -> float:
        return self._busy.remaining

    @property
    def deferrals(self) -> int:
        return self._run.facts.delivery.deferrals

    @property
    def waited(self) -> float:
        return self._run.delivery.waited

    # -- ends without a run ---------------------------------------------------------------

    def skip(self, result: Any = NO_RESULT) -> Decision:
        is_plain = isinstance(result, type(NO_RESULT))
        outcome = Outcome.SKIPPED if is_plain else Outcome.SKIPPED_WITH_RESULT
        return TurnedAway(outcome, self._busy.holder, result)

    def _skip_replaced(self) -> Decision:
        return self.skip(self._run.facts.policy.result_if_replaced)

    def fail(self) -> Decision:
        return TurnedAway(Outcome.RAISED, self._busy.holder)

    def defer(self, countdown: float | timedelta) -> Decision:
        if self._run.facts.is_eager:
            return self.skip()  # nobody would run what is published
        if self._run.facts.cannot_come_back:
            why = (
                "it came through a fanout exchange, to a queue of which this broker cannot give it"
                " back to this worker alone"
            )
            return TurnedAway(Outcome.SKIPPED, self.holder, why=why)
        return PutOff(plain(countdown), Outcome.DEFERRED, self.holder, comes_anew=True)

    # -- waiting --------------------------------------------------------------------------

    def wait(self, timeout: float | timedelta | None) -> bool:
        seconds: float | None = plain(timeout)
        answer = self._ask(Await(seconds))
        if isinstance(answer, Busy):
            self._busy = answer
            is_over = not answer.for_message or self._run.facts.delivery.gave_up
            if is_over or self._run.facts.is_eager:
                return False
            # The message that the lock is kept for needs a pool slot, perhaps this one.
            return self._park(give_up=seconds)
        return self._has_lock(Go(self._busy) if isinstance(answer, Go) else answer)

    def park(
        self,
        *,
        limit: int | None = None,
        max_wait: float | timedelta | None = None,
        newest: bool = False,
        quiet: tuple[float | timedelta, float | timedelta] | None = None,
    ) -> bool:
        if self._run.facts.is_eager:
            self._leave(self._skip_replaced())  # nobody would run what is published
        give_up = None if max_wait is None else max(plain(max_wait) - self.waited, NO_TIME)
        spans = None if quiet is None else (plain(quiet[0]), plain(quiet[1]))
        return self._park(limit=limit, give_up=give_up, newest=newest, quiet=spans)

    def replace(self, grace: float | timedelta) -> bool:
        facts = self._run.facts
        if facts.is_eager or facts.claim.attempt or facts.claim.nesting:
            # Nobody would run what is published; or the holder started after this task did.
            self._leave(self._skip_replaced())
        # A copy of a message whose run died must not end newer runs: it runs after them.
        is_old = facts.began and self._run.delivery.arrived is None
        return self._park(newest=True, grace=None if is_old else plain(grace))

    def run(self) -> Decision:
        if self._go is None:
            raise RuntimeError("a policy must not run the task before wait() has returned True")
        return self._go

    def _park(self, **how: Any) -> bool:
        if self._run.facts.delivery.fanout:
            # In the room the copies would be one entry; at its turn, their queues may be gone.
            give_up = how.get("give_up")
            if give_up is not None and give_up <= NO_TIME:
                return False
            most = self._run.facts.claim.ttl / 3
            self._leave(self.defer(backoff(self.deferrals, most, self._run)))
        while True:
            answer = self._ask(Park(self._busy, **how))
            if isinstance(answer, Full):
                return False
            if not isinstance(answer, Busy):
                return self._has_lock(answer)
            self._busy = answer  # the lock was free for a moment

    def _has_lock(self, answer: Decision | Full) -> bool:
        if not isinstance(answer, Go | GoUnlocked):
            assert isinstance(answer, Decision)
            self._leave(answer)
        self._go = answer
        return True

    def _leave(self, decision: Decision) -> NoReturn:
        raise Decided(decision)
