"""The policies: which verb of a conflict each of them ends it with."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from celery_redislock import (
    Coalesce,
    ConfigError,
    Conflict,
    Debounce,
    Defer,
    Policy,
    Queue,
    Raise,
    Replace,
    Skip,
    ToDefer,
    ToFail,
    ToPark,
    ToReplace,
    ToSkip,
    ToWait,
    Wait,
)
from celery_redislock.policies import policy_named


def conflict(**facts: Any) -> Conflict:
    return Conflict("redislock:{0}:lock:name", None, 30.0, **facts)


TWO_SECONDS = Wait(timeout=2, then=Skip(result="gave up"))
TEN_SECONDS = Defer(delay=1, max_wait=10, then=Raise())


@pytest.mark.parametrize(
    ("policy", "facts", "decision"),
    [
        (Skip(), {}, ToSkip()),
        *((Skip(result=each), {}, ToSkip(each)) for each in (None, 0, False, "", {"a": True})),
        (Raise(), {}, ToFail()),
        (Wait(), {}, ToWait(None, Skip())),
        (Wait(timeout=5, then=Raise()), {}, ToWait(5, Raise())),
        (Defer(delay=7), {}, ToDefer(7)),
        (Defer(delay=1, backoff=2), {"deferrals": 2}, ToDefer(4)),
        (Defer(), {"waited": 1e9, "deferrals": 10**6}, ToDefer(5)),
        (TEN_SECONDS, {"waited": 9.9}, ToDefer(1)),
        (TEN_SECONDS, {"waited": 10}, ToFail()),
        (Defer(max_wait=0), {"waited": 10}, ToSkip()),
        (Defer(max_wait=60, then=TWO_SECONDS), {"waited": 60}, ToWait(2, Skip(result="gave up"))),
        (Queue(limit=3), {}, ToPark(limit=3, then=Skip())),
        (Queue(max_wait=9, then=Raise()), {"waited": 8.9}, ToPark(max_wait=9, then=Raise())),
        (Queue(max_wait=9, then=Raise()), {"waited": 9}, ToFail()),
        (Coalesce(), {}, ToPark(newest=True)),
        (Replace(grace=3), {}, ToReplace(3)),
    ],
    ids=repr,
)
def test_a_policy_ends_a_conflict_with_its_verb(policy, facts, decision) -> None:
    assert policy.act(conflict(**facts)) == decision


def test_a_debounced_call_waits_for_quiet_before_the_lock_is_asked_for() -> None:
    wants = Debounce(quiet=2, max_wait=8).admit(conflict())
    assert wants == ToPark(newest=True, quiet=(2, 8))


@pytest.mark.parametrize(
    ("policy", "countdowns"),
    [
        (Defer(delay=2, backoff=3, max_delay=50), {0: 2, 1: 6, 2: 18, 3: 50, 4: 50}),
        (Defer(delay=2), {0: 2, 1: 2, 1000: 2}),
        (Defer(delay=100, max_delay=10), {0: 10}),
        # Without a max_delay a long delay is kept, and grows to no more than a minute.
        (Defer(delay=3600), {0: 3600, 1: 3600}),
        (Defer(delay=100, backoff=2), {3: 100}),
        (Defer(delay=10, backoff=2), {100: 60}),
        # After thousands of deferrals it is still a number.
        *((Defer(delay=1.5, backoff=each), {5000: 60}) for each in (2, 2.0, 1e300)),
        (Defer(delay=0, backoff=2.0), {5000: 0}),
    ],
    ids=repr,
)
def test_a_delay_grows_by_its_backoff_up_to_its_max_delay(policy, countdowns) -> None:
    assert {each: policy.countdown(each) for each in countdowns} == countdowns


def test_a_policy_without_an_act_cannot_be_made() -> None:
    class Nothing(Policy):
        """Forgot it."""

    with pytest.raises(TypeError, match="act"):
        Nothing()


@pytest.mark.parametrize(
    ("policy", "arguments", "says"),
    [
        (
            Defer,
            {"delay": -1},
            "Defer: delay=-1 is not accepted; it must be a number of seconds, not negative",
        ),
        (Defer, {"delay": "5"}, "Defer: delay='5'"),
        (Defer, {"delay": float("nan")}, "Defer: delay=nan"),
        (Defer, {"delay": float("inf")}, "Defer: delay=inf"),
        (Defer, {"max_delay": -0.1}, "Defer: max_delay=-0.1"),
        (
            Defer,
            {"max_wait": -5},
            "Defer: max_wait=-5 is not accepted; it must be None or a number of seconds",
        ),
        (Defer, {"backoff": 0.5}, "Defer: backoff=0.5 must be a number of at least 1"),
        (Defer, {"backoff": float("nan")}, "Defer: backoff=nan"),
        (Defer, {"then": Skip}, "Defer: then=<class"),
        (Defer, {"then": "skip"}, "must be a policy object, such as Skip(), Defer(), Wait()"),
        (
            Wait,
            {"timeout": -1},
            "Wait: timeout=-1 is not accepted; it must be None or a number of seconds",
        ),
        (Wait, {"then": Raise}, "Wait: then=<class"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(
    policy: type[Policy], arguments: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        policy(**arguments)
    assert says in str(caught.value)


@pytest.mark.parametrize("policy", [Defer, Wait])
def test_a_bare_number_is_no_argument_for_one_could_not_tell_of_what(policy: Any) -> None:
    with pytest.raises(TypeError, match="positional"):
        policy(5)


@pytest.mark.parametrize(
    ("name", "policy"), [("skip", Skip()), ("defer", Defer()), ("wait", Wait()), ("raise", Raise())]
)
def test_a_short_name_means_the_policy_with_its_defaults(name: str, policy: Policy) -> None:
    assert policy_named(name) == policy


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(
        ValueError,
        match="'skp'; accepted: coalesce, debounce, defer, queue, raise, replace, skip, wait",
    ):
        policy_named("skp")


@pytest.mark.parametrize(
    "policy", [Skip(), Skip(result=5), Defer(delay=1, then=Raise()), Wait(timeout=3), Raise()]
)
def test_policies_are_values(policy: Policy) -> None:
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert policy != Wait(timeout=99)
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.delay = 5  # type: ignore[attr-defined]


# -- what a policy says of itself -------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "waiting", "words"),
    [
        (Skip(), 0, "it would be skipped: REVOKED"),
        (Skip(result=None), 0, "it would be skipped: SUCCESS with None"),
        (Raise(), 0, "it would fail with LockConflict"),
        (Defer(delay=7), 0, "it would be deferred, and tried again in 7 s"),
        (
            Defer(max_wait=60, then=Raise()),
            0,
            "it would be deferred, and tried again in 5 s; after 60 s, it would fail with"
            " LockConflict",
        ),
        (Wait(), 0, "it would wait in its pool slot"),
        (
            Wait(timeout=2, then=Queue()),
            0,
            "it would wait in its pool slot; after 2 s, it would wait in Redis, with 0 before it",
        ),
        (Queue(limit=2), 1, "it would wait in Redis, with 1 before it"),
        (
            Queue(limit=2, then=Raise()),
            2,
            "the limit of waiting tasks is reached (2 of 2): it would fail with LockConflict",
        ),
        (
            Coalesce(),
            1,
            "it would wait in Redis, and replace the waiting task of this name, if there is one",
        ),
        (Replace(grace=3), 0, "it would end the running task, within 3 s, and then run"),
    ],
)
def test_a_policy_says_what_would_happen(policy: Policy, waiting: int, words: str) -> None:
    assert policy.describe(waiting) == words


@pytest.mark.parametrize(
    ("policy", "acts"),
    [
        (Skip(), Skip()),
        (Raise(), Raise()),
        (Coalesce(), Coalesce()),
        (Defer(then=Queue(then=Raise())), Raise()),
        (Wait(timeout=5), Wait(timeout=5)),
        (Wait(timeout=5, then=Defer(then=Raise())), Wait(timeout=5, then=Raise())),
    ],
)
def test_in_eager_mode_what_nobody_would_run_is_left_to_what_comes_then(
    policy: Policy, acts: Policy
) -> None:
    assert policy.eager() == acts


def test_eager_mode_asks_nothing_of_how_a_subclass_is_made() -> None:
    class Patient(Wait):
        def __init__(self, minutes: float) -> None:
            super().__init__(timeout=60 * minutes, then=Defer(then=Raise()))

    acts = Patient(2).eager()
    assert isinstance(acts, Patient)
    assert (acts.timeout, acts.then) == (120, Raise())


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        (Skip(), 0),
        (Defer(delay=7), 7),
        (Defer(delay=5, backoff=1.01), 60),
        (Defer(delay=90, backoff=2, max_delay=600), 600),
        (Queue(then=Wait(then=Defer(delay=100))), 100),
        (Defer(delay=1, max_wait=9, then=Defer(delay=30)), 30),
    ],
)
def test_a_policy_knows_its_longest_countdown(policy: Policy, seconds: float) -> None:
    assert policy.longest_countdown() == seconds


def facts(policy: Policy) -> tuple[Any, ...]:
    return policy.parks, policy.replaces, policy.turns_away, policy.fails, policy.one_run


def test_of_a_policy_of_ones_own_nothing_is_known_unless_it_says_so() -> None:
    class Mine(Policy):
        def act(self, conflict: Any) -> Any:
            return conflict.skip()

    class Told(Mine):
        parks = False
        replaces = True

        def describe(self, waiting: int = 0) -> str:
            return "mine"

    mine = Mine()
    assert facts(mine) == (True, False, False, False, "")
    assert mine.describe().endswith("your own policy, would decide")
    assert mine.eager() is mine
    assert mine.longest_countdown() == 0
    assert facts(Told()) == (False, True, False, False, "")
    assert Told().describe() == "mine"
    assert Wait(then=Told()).replaces
    assert not Wait(then=Told()).parks


def test_a_subclass_with_an_act_of_its_own_is_not_taken_for_its_parent() -> None:
    class SkipOrPark(Skip):
        def act(self, conflict: Any) -> Any:
            return conflict.park()

    class Named(SkipOrPark):
        parks = False

    class Later(Wait):
        def act(self, conflict: Any) -> Any:
            return conflict.park()

    class Longer(Queue):
        """With another default only."""

    assert SkipOrPark().parks
    assert not SkipOrPark().turns_away
    assert "SkipOrPark" in SkipOrPark().describe()
    assert not Named().parks
    assert not Named().turns_away
    assert Later().parks
    for base in (Defer, Queue):
        mine = type("Mine", (base,), {"act": lambda self, conflict: conflict.fail()})()
        assert Wait(timeout=0, then=mine).eager().then is mine
    assert Longer().describe() == Queue().describe()
    assert not Skip().parks
    assert Skip().turns_away


@pytest.mark.parametrize("limit", [0, -1, 1.5, "3", True])
def test_a_queue_for_no_task_or_for_what_is_no_number_is_refused(limit):
    with pytest.raises(ConfigError, match="an int of at least 1"):
        Queue(limit=limit)
