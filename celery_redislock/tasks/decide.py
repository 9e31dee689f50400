"""Decides what becomes of a delivery: what to ask next, or how it ends.

`first` and `step` map values to values. `life` asks the questions: of the lock server, of the
result backend, and of the task's policy, whose answer is a value too. `act` carries the decision
out.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final, TypeAlias

from ..app.outcomes import Outcome
from ..errors import ConfigError, LockUnavailable
from ..protocol import notes
from ..protocol.calls import SUSPENDED
from ..protocol.claims import Acquired, Busy, Done, Free, Full, Older, Parked
from ..protocol.entries import slot_of
from ..protocol.holders import Holder
from ..protocol.suspensions import Suspension
from ..verbs import (
    NO_RESULT,
    Conflict,
    Then,
    ToDefer,
    ToFail,
    ToPark,
    ToReplace,
    ToSkip,
    ToWait,
)
from .facts import Facts
from .state import State

#: Seconds that a retry waits in its pool slot for its earlier attempt to end.
EARLIER: Final = 1.0
#: Seconds for which a finished attempt's result may still be on its way to the backend.
RESULT_DUE: Final = 5.0
#: The longest pause in seconds between two tries while the lock server is not available.
MAX_OUTAGE_PAUSE: Final = 60.0
#: The same while its own run has the lock. It runs only if that run dies, and soon enough if it
#: never sleeps for longer than it has waited.
MAX_PAUSE_BEHIND_ITSELF: Final = 600.0
#: The shortest countdown of a task that is put off, also if the broker redelivers sooner.
SHORTEST: Final = 0.5
#: Seconds that are left to a task whose time in the waiting room is over.
NO_TIME: Final = 0.001
#: The relations, see `acquire.lua`, of a holder whose duplicate the task need not be: it may be a
#: run of this very task.
NO_DUPLICATE: Final = ("own", "earlier", "newer")
#: Those with which the server leaves no done note, and counts no duplicate.
NO_NOTE: Final = (*NO_DUPLICATE, SUSPENDED)


# -- how it ends ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Go:
    """The body runs under the lock."""

    waited_for: Busy | None = None  # the last answer while it waited for the lock in its pool slot


@dataclasses.dataclass(frozen=True, slots=True)
class GoUnlocked:
    """The body runs without a lock of its own."""

    because: LockUnavailable | None = None  # None if the eager run around this one has the lock


@dataclasses.dataclass(frozen=True, slots=True)
class TurnedAway:
    """The task ends without a run, turned away by a holder or a suspension."""

    outcome: Outcome
    holder: Holder | None = None
    suspension: Suspension | None = None
    result: Any = NO_RESULT  # what the task returns, if it is skipped with a result
    why: str = ""  # the reason for a WARNING, if the policy wanted something else


@dataclasses.dataclass(frozen=True, slots=True)
class PutOff:
    """The message is published again, to be received after a countdown."""

    countdown: float  # seconds, without the random part
    outcome: Outcome | None = None
    holder: Holder | None = None
    suspension: Suspension | None = None
    cause: LockUnavailable | None = None
    is_alone: bool = True  # no other run of the task is known that may still give it a result
    comes_anew: bool = False  # the task will ask anew, so its reservation or place is given up


@dataclasses.dataclass(frozen=True, slots=True)
class Waits:
    """The task waits in the lock's waiting room."""

    outcome: Outcome
    holder: Holder | None
    suspension: Suspension | None = None  # keeps the task from the lock


@dataclasses.dataclass(frozen=True, slots=True)
class CannotRun:
    """The task fails without a run."""

    error: Exception


Outcomes: TypeAlias = Go | GoUnlocked | TurnedAway | PutOff | Waits | CannotRun
GO: Final = Go()
HAS_RUN: Final = TurnedAway(Outcome.ALREADY_DONE)


# -- what is asked ----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Await:
    """Wait for the lock in the pool slot. See `Conflict.wait`."""

    busy: Busy  # the answer that the task acts on
    timeout: float | None  # seconds; None waits for ever
    then: Then = None  # what acts after the timeout


@dataclasses.dataclass(frozen=True, slots=True)
class Park:
    """Wait in the waiting room, unless the lock is free by now. See `Conflict.park`, `.replace`."""

    busy: Busy  # the answer that the task acts on
    limit: int | None = None  # how many may wait
    give_up: float | None = None  # seconds for which the task waits; None for ever
    newest: bool = False  # the task takes the place of waiting tasks with the same name
    grace: float | None = None  # the holder must end within so many seconds; None leaves it alone
    #: Seconds without a newer call after which the task gets its chance, and seconds since the
    #: first of these calls after which it does in any case; None: as soon as the lock is free.
    quiet: tuple[float, float] | None = None
    then: Then = None  # what acts if the room is full
    at_once: bool = False  # the lock has not been asked for, since it is likely to be held

    @property
    def outcome(self) -> Outcome:
        if self.grace is not None:
            return Outcome.REPLACING
        if self.quiet is not None:
            return Outcome.DEBOUNCED
        return Outcome.COALESCED if self.newest else Outcome.QUEUED


@dataclasses.dataclass(frozen=True, slots=True)
class Try:
    """Ask for the lock once."""

    again: str = ""  # although this attempt is known to have run before, see `calls.acquire`
    reruns: bool = False  # this attempt has run before, and its result is missing
    note: str = ""  # the done note to leave if the task is a duplicate, which then can only end
    wish: Await | Park | None = None  # what the policy wants, if that could not be done yet


@dataclasses.dataclass(frozen=True, slots=True)
class AwaitEarlier:
    """Wait in the pool slot for the task's earlier attempt, which published this one."""

    timeout: float  # seconds
    wish: Await | Park | None = None  # see `Try`


@dataclasses.dataclass(frozen=True, slots=True)
class HasResult:
    """Ask the result backend whether a result is stored; the answer is None if none proves it."""

    #: The lock server's answer that leaves this open; None: the message was published again only to
    #: end its task, which was replaced.
    done: Done | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Meet:
    """Ask the policy what the task does as a duplicate."""

    then: Then  # the policy, or the function of the conflict
    busy: Busy  # the answer that the task acts on
    admits: bool = False  # ask whether the lock is to be asked for at all: the answer may be None
    gave_up: bool = False  # the task gave up its place in the waiting room
    at_once: bool = False  # the lock has not been asked for, since it is likely to be held

    def ask(self, facts: Facts, state: State) -> Any:
        """What the policy says, which may be a user's code."""
        busy, message = self.busy, state.message
        conflict = Conflict(
            *(facts.key, busy.holder, busy.remaining, message.deferrals, message.waited),
            busy.suspension,
        )
        if self.admits:
            return facts.policy.admit(conflict)
        decides: Any = getattr(self.then, "act", self.then)
        return decides(conflict)


@dataclasses.dataclass(frozen=True, slots=True)
class TooLarge:
    """An answer: the lock server did not take a message, perhaps since it is so large."""


Question: TypeAlias = Try | Await | AwaitEarlier | Park | HasResult | Meet
#: The answers of the lock server. `LockUnavailable` is one too: it did not reply in time.
Answer: TypeAlias = (
    Acquired | Busy | Done | Parked | Free | Full | Older | TooLarge | LockUnavailable
)
Step: TypeAlias = Question | Outcomes
FIRST: Final = Try()
RERUN: Final = Try(again=notes.NO_MESSAGE, reruns=True)
#: What a policy gets that is asked before the lock server is.
NOBODY: Final = Busy(None, 0.0, "other")


def first(facts: Facts, state: State) -> Step:
    message = state.message
    if message.replaced_by is not None:
        return HasResult()
    policy, claim = facts.policy, facts.claim
    if policy.admits or policy.parks_all:
        is_later = message.parked or claim.attempt or claim.nesting
        # In the room, the copies of a fanout exchange would be one entry.
        if not (facts.is_eager or message.fanout or is_later):
            if policy.admits:
                return Meet(policy, NOBODY, admits=True)
            # What is in the room is not asked whether it has run: a copy might replace newer calls.
            if facts.parked_before and not (facts.may_be_copy or claim.kept):
                return Meet(policy, NOBODY, at_once=True)
    return _try(facts, state)


def has_begun(facts: Facts, state: State) -> bool:
    """Whether the task may have run before, by all that is known by now."""
    return facts.began or state.message.began


def wait_its_turn(facts: Facts, state: State, busy: Busy) -> tuple[State, Step]:
    """Wait until a suspension ends, or for a lock although the task has begun: in the waiting room,
    or, where there is none, by deferring.
    """
    if not (facts.locks.is_quorum or state.message.fanout):
        # Where a newer task takes the place of an older one, what has begun runs before it.
        newest = has_begun(facts, state) and bool(facts.policy.one_run)
        return _to_room(facts, state, Park(busy, newest=newest))
    countdown = backoff(state.message.deferrals, MAX_OUTAGE_PAUSE, facts)
    return state, _defer(facts, state, busy, min(countdown, max(busy.remaining, SHORTEST)))


def step(facts: Facts, state: State, asked: Question, answer: Any) -> tuple[State, Step]:
    """What follows from the answer to a question: an `Answer` of the lock server; to `HasResult` a
    bool or None; to `Meet` what the policy returned. Raises `ConfigError` if that is no decision.
    """
    if isinstance(asked, Meet):
        return _met(facts, state, asked, answer)
    if isinstance(asked, HasResult):
        return _looked_up(facts, state, asked, answer)
    wish = asked if isinstance(asked, Await | Park) else asked.wish
    if isinstance(answer, Acquired):
        return state, Go(wish.busy) if isinstance(wish, Await) else GO
    if isinstance(answer, TooLarge):
        state = state._replace(is_too_large=True)
        if isinstance(asked, Park) and asked.busy.suspension is not None:
            return _to_room(facts, state, asked)  # it is deferred: it may be a task without a lock
        # It may be an outage all the same. Then what comes next does not answer either.
        return state, _try(facts, state)
    if isinstance(asked, Park) and not isinstance(answer, Parked | LockUnavailable):
        state = state._replace(parks_as="")
    if isinstance(answer, LockUnavailable):
        return state, _unavailable(facts, state, answer)
    if isinstance(answer, Busy):
        if isinstance(asked, Try) and not asked.again and answer.relation not in NO_NOTE:
            noted = bool(asked.note)
            state = state._replace(is_noted=noted, is_counted=facts.claim.turned_away)
        if state.first_busy is None:
            state = state._replace(first_busy=answer)
    if state.message.fanout and not state.message.began and isinstance(answer, Done):
        return state, HAS_RUN  # a task that was sent once runs once, whatever queues have copies
    if isinstance(answer, Busy):
        return _busy(facts, state, asked, wish, answer)
    if isinstance(answer, Done):
        return _done(facts, state, answer)
    if isinstance(answer, Free):
        return state, _try(facts, state, wish)
    if isinstance(answer, Older):
        by = answer.holder or Holder(task=facts.task.name, task_id=answer.task_id)
        return state, TurnedAway(Outcome.REPLACED, by)
    assert isinstance(asked, Park)
    if isinstance(answer, Full):
        return state, _try(facts, state) if asked.at_once else _then(asked.then, asked.busy)
    suspension = answer.suspension or asked.busy.suspension
    return state, Waits(asked.outcome, asked.busy.holder or answer.holder, suspension)


# -- the lock server's answers ----------------------------------------------------------------


def _try(facts: Facts, state: State, wish: Await | Park | None = None) -> Try:
    """Ask for the lock; if a conflict can end in one way only, the server notes that end."""
    policy = facts.policy
    is_noted = (
        policy.turns_away
        and state.may_have_copies
        and not state.reruns
        and (not policy.fails or facts.acks_failures)
    )
    if not is_noted:
        return FIRST if wish is None else Try(wish=wish)
    return Try(note=state.note_of(facts.note_of_no_run), wish=wish)


def _busy(
    facts: Facts, state: State, asked: Question, wish: Await | Park | None, busy: Busy
) -> tuple[State, Step]:
    is_own, is_earlier = busy.relation == "own", busy.relation == "earlier"
    if facts.is_eager and (is_own or is_earlier):
        return state, GoUnlocked()  # a retry runs inside its earlier attempt, under that one's lock
    if is_own and _has_own_message(facts, state):
        return state, TurnedAway(Outcome.RUNS_ELSEWHERE, busy.holder)
    if is_own:
        # Not a duplicate, but a copy. If the holder dies, it is all that is left of the task. We
        # clear `sent`: whatever the message's identity, it is a copy of what runs under its id.
        copy = state.learn(began=True, copied=True, sent="")
        return copy, _behind(facts, copy, Outcome.REDELIVERED, busy, MAX_PAUSE_BEHIND_ITSELF)
    if busy.relation == "newer" and not (facts.is_eager or state.message.cannot_come_back):
        return state, _behind(facts, state, Outcome.DEFERRED, busy, facts.claim.ttl / 3)
    is_off = busy.suspension is not None and facts.began and not facts.is_eager
    if is_off or (state.reruns and not is_earlier):
        # What has begun is no duplicate, and no other run does its work: no policy may drop it.
        return wait_its_turn(facts, state, busy)
    if not is_earlier:
        if wish is None:
            return state, Meet(facts.policy, busy, gave_up=state.message.gave_up)
        return _in_vain(facts, state, wish, busy)
    if isinstance(asked, AwaitEarlier):
        return state, _behind(facts, state, Outcome.RETRIED_EARLY, busy, facts.claim.ttl / 3)
    return state, AwaitEarlier(min(EARLIER, facts.claim.ttl / 3), wish)


def _has_own_message(facts: Facts, state: State) -> bool:
    """Whether the task's run began with another message than this one. If that run dies, its own
    message comes back, or the task is lost as Celery loses it.
    """
    message = state.message
    # Else the broker has delivered it before, and it may be that run's own; or, in an outage, an
    # earlier delivery of it may have got the lock without hearing of that, and nobody runs.
    if message.began or message.outages:
        return False
    # A room's message may be redelivered too: not every broker says which ones are.
    return message.fanout or (message.parked and not facts.locks.redelivery.copies_any_time)


def _behind(facts: Facts, state: State, outcome: Outcome, busy: Busy, most: float) -> PutOff:
    """Put the task off until its other run, which has the lock, may have ended."""
    countdown = backoff(state.message.behind, most, facts)
    return PutOff(countdown, outcome, busy.holder, is_alone=False)


def _done(facts: Facts, state: State, done: Done) -> tuple[State, Step]:
    """End a copy of a message whose task has run; run what is no copy, or whose run died."""
    message, note = state.message, done.note
    if note.kind == notes.REPLACED:
        # The replaced run may have ended within its grace, with a result of its own.
        by = TurnedAway(Outcome.REPLACED, note.replaced_by)
        return state, HasResult(done) if facts.began or message.copied else by
    # A task may be sent again under the same id, after its run ended. That can be told from a copy
    # only if this broker says which messages are copies.
    says_copies = message.sent or not facts.locks.redelivery.copies_any_time
    is_copy = message.copied or note.is_of(message.sent) or not says_copies
    is_anew = not is_copy and max(message.age, message.waited) < done.age
    if note.replaced_by is None and (is_anew or note.is_of_another_message(message.sent)):
        again = message.sent or notes.NO_MESSAGE
        return state._replace(again=again), Try(again=again)
    if note.kind == notes.ENDED:
        return state, HAS_RUN
    if note.kind == notes.PUBLISHING:
        return _died(facts, state, done)
    return state, HasResult(done)


def _looked_up(
    facts: Facts, state: State, asked: HasResult, has_result: bool | None
) -> tuple[State, Step]:
    done = asked.done
    by = state.message.replaced_by if done is None else done.note.replaced_by
    if by is not None and (done is None or done.note.kind == notes.REPLACED):
        return state, HAS_RUN if has_result else TurnedAway(Outcome.REPLACED, by)
    assert done is not None
    # Its result is stored, and what follows it is published.
    if has_result is not False:
        return state, HAS_RUN
    return _died(facts, state, done)


def _died(facts: Facts, state: State, done: Done) -> tuple[State, Step]:
    """The body has ended, and its result is not stored: its process died, or is about to do it."""
    copy, by = state.learn(began=True, copied=True), done.note.replaced_by
    if done.age < RESULT_DUE:
        # The next message must count as a copy too, though it is received later.
        left = max(RESULT_DUE - done.age, SHORTEST)
        return copy, PutOff(min(backoff(state.message.deferrals, MAX_OUTAGE_PAUSE, facts), left))
    if by is not None:
        return copy, TurnedAway(Outcome.REPLACED, by)
    return copy._replace(again=notes.NO_MESSAGE, reruns=True), RERUN


def _unavailable(facts: Facts, state: State, error: LockUnavailable) -> Step:
    choice = facts.options.on_redis_error
    if choice == "run":
        return GoUnlocked(error)
    if choice == "raise" or facts.is_eager:
        return CannotRun(error)
    countdown = backoff(state.message.outages, MAX_OUTAGE_PAUSE, facts)
    return PutOff(countdown, Outcome.UNAVAILABLE, cause=error)


# -- a conflict, and what the policy wants ----------------------------------------------------


def _in_vain(facts: Facts, state: State, wish: Await | Park, busy: Busy) -> tuple[State, Step]:
    """Somebody else has the lock: what becomes of the policy's wish."""
    if isinstance(wish, Park):  # the lock was free for a moment
        return _to_room(facts, state, dataclasses.replace(wish, busy=busy, at_once=False))
    left = wish.timeout
    if left is not None and wish.busy.sent_at:
        left -= busy.sent_at - wish.busy.sent_at  # since it began to wait
    # What another policy parked, of an older release perhaps, may come here without a time.
    is_over = left is not None and (state.message.gave_up or left <= 0)
    if not busy.for_message or is_over or not can_park(facts):
        return state, _then(wish.then, busy)
    # The message that the lock is kept for needs a pool slot, perhaps this one.
    return _to_room(facts, state, Park(busy, give_up=left, then=wish.then))


def can_park(facts: Facts) -> bool:
    """Whether there is a waiting room: nobody would run what an eager run publishes."""
    return not (facts.is_eager or facts.locks.is_quorum)


def _then(then: Then, busy: Busy) -> Step:
    return _skip(busy) if then is None else Meet(then, busy)


def _met(facts: Facts, state: State, asked: Meet, verb: Any) -> tuple[State, Step]:
    """Carry the policy's wish out, as far as this delivery allows it."""
    busy = asked.busy
    if asked.at_once and not isinstance(verb, ToPark):
        return state, _try(facts, state)  # nobody has said yet that the lock is held
    if isinstance(verb, ToSkip):
        return state, _skip(busy, verb.result)
    if isinstance(verb, ToWait):
        return state.waits(), Await(busy, verb.timeout, verb.then)
    if isinstance(verb, ToPark):
        give_up = None
        if verb.max_wait is not None:
            give_up = max(verb.max_wait - state.message.waited, NO_TIME)
        park = Park(
            *(busy, verb.limit, give_up, verb.newest),
            quiet=verb.quiet,
            then=verb.then,
            at_once=asked.at_once,
        )
        return _to_room(facts, state, park)
    if isinstance(verb, ToReplace):
        if facts.claim.attempt or facts.claim.nesting:
            # The holder started after this task did.
            return state, _skip(busy, facts.policy.result_if_replaced)
        # A copy of a message whose run died must not end newer runs: it runs after them.
        is_old = facts.began and state.message.arrived is None
        park = Park(busy, newest=True, grace=None if is_old else verb.grace)
        return _to_room(facts, state, park)
    if isinstance(verb, ToDefer):
        return state, _defer(facts, state, busy, verb.countdown)
    if isinstance(verb, ToFail):
        return state, TurnedAway(Outcome.RAISED, busy.holder, busy.suspension)
    if verb is None and asked.admits:
        return state, _try(facts, state)
    raise ConfigError(
        f"on_conflict={asked.then!r} did not end the conflict: its act() must return what a verb of"
        f" the conflict returns, such as conflict.skip(), and not {verb!r}"
    )


def _skip(busy: Busy, result: Any = NO_RESULT) -> TurnedAway:
    outcome = Outcome.SKIPPED if result is NO_RESULT else Outcome.SKIPPED_WITH_RESULT
    return TurnedAway(outcome, busy.holder, busy.suspension, result)


def _defer(facts: Facts, state: State, busy: Busy, countdown: float) -> Step:
    if facts.is_eager:
        return _skip(busy)  # nobody would run what is published
    if state.message.cannot_come_back:
        why = (
            "it came through a fanout exchange, and this broker cannot give it back to this"
            " worker alone"
        )
        return TurnedAway(Outcome.SKIPPED, busy.holder, busy.suspension, why=why)
    # A task that a suspension keeps off has met no other run: it keeps its reservation.
    comes_anew = busy.suspension is None
    return PutOff(countdown, Outcome.DEFERRED, busy.holder, busy.suspension, comes_anew=comes_anew)


def _to_room(facts: Facts, state: State, park: Park) -> tuple[State, Step]:
    """Put the task into the waiting room, where that is possible."""
    if facts.is_eager:  # nobody would run what is published
        return state, _skip(park.busy, facts.policy.result_if_replaced)
    if state.message.fanout or state.is_too_large:
        # In the room a fanout's copies would be one entry; at its turn, their queues may be gone.
        if park.give_up is not None and park.give_up <= NO_TIME:
            return state, _then(park.then, park.busy)
        countdown = backoff(state.message.deferrals, facts.claim.ttl / 3, facts)
        return state, _defer(facts, state, park.busy, countdown)
    member, began = facts.claim.entry_id, has_begun(facts, state)
    if not began:  # else it is older than the newest: it waits beside its task's pending slot
        member = facts.claim.member or (slot_of(facts.task.name) if park.newest else member)
    return state.waits().arrives(began).parks(member), park


# -- pauses -----------------------------------------------------------------------------------


def backoff(tries: int, most: float, facts: Facts) -> float:
    """Seconds until the next try: 1, 2, 4 and so on, up to `most`."""
    longest = longest_countdown(facts.locks.redelivery.after)
    return min(2.0 ** min(tries, 10), most, longest)


def longest_countdown(visible: float | None) -> float:
    """The longest countdown in seconds, by the seconds after which the broker redelivers."""
    return float("inf") if visible is None else max(visible / 2, SHORTEST)
