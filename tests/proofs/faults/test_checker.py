"""The checker itself: every rule finds the history that breaks it, and passes the one beside it."""

from __future__ import annotations

import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.proofs.faults import report
from tests.proofs.faults.cases import Case
from tests.proofs.faults.checker import NOISE, SOON, check
from tests.proofs.faults.history import Event, History, read
from tests.proofs.faults.run import Result

TTL = 2.0
CHILD, MAIN = 100, 10


class Story:
    """Makes histories by hand. Times are in seconds, pids as they come."""

    def __init__(self, *, acks_late=False, allows=(), **case):
        self.events = []
        self._numbers = itertools.count(1)
        case = {"broker": "rabbitmq", "pool": "prefork", **case}
        self.add("case", 0.0, ttl=TTL, acks_late=acks_late, allows=list(allows), **case)

    def add(self, kind, at, **fields):
        self.events.append(Event(kind, at, fields))
        return self

    def message(self, task_id, at=0.0, state="SUCCESS", **result):
        """It was sent, got, acknowledged, and its result is known in the end."""
        self.add("sent", at, id=task_id, task="job")
        self.add("received", at, id=task_id, main=MAIN, redelivered=False)
        self.add("acked", at, id=task_id, main=MAIN)
        if state is not None:
            self.add("result", 90.0, id=task_id, state=state, **result)
        return self

    def body(
        self,
        start,
        end,
        *,
        run=None,
        task_id=None,
        key="k",
        fence=None,
        asked=None,
        right=None,
        outcome="returned",
        lost=False,
        pid=CHILD,
        main=MAIN,
        attempt=0,
        sample=None,
    ):
        """One run. Without `end` it writes none; its signs of life are at `sample`."""
        run = run or f"run{next(self._numbers)}"
        asked = start - 0.01 if asked is None else asked
        self.add(
            "start",
            start,
            run=run,
            id=task_id or run,
            task="job",
            attempt=attempt,
            key=key,
            token=f"token-{run}",
            fence=round(asked * 1000) if fence is None else fence,
            asked=asked,
            right=asked + TTL if right is None else right,
            ttl=TTL,
            pid=pid,
            main=main,
        )
        for at in sample or ():
            self.add("alive", at, run=run, lost=lost, asked=at)
        if end is not None:
            self.add("end", end, run=run, outcome=outcome, lost=lost, asked=end)
        return self

    def beat(self, run, at):
        return self.add("beat", at, token=f"token-{run}", sent=at, until=at + TTL)

    def fault(self, begin, end, *, unreachable=False, **fields):
        for phase, at in (("begin", begin), ("end", end)):
            self.add("fault", at, name="f", phase=phase, unreachable=unreachable, **fields)
        return self

    def verdict(self):
        return check(self.events)

    def wrong(self):
        return [violation.rule for violation in self.verdict().violations]


# -- overlaps ---------------------------------------------------------------------------------


def test_bodies_one_after_the_other_are_fine():
    story = Story().body(1.0, 2.0).body(2.01, 3.0)
    assert story.wrong() == []
    assert story.verdict().bodies == 2


def test_two_bodies_that_both_have_the_lock_are_found():
    assert Story().body(1.0, 2.0).body(1.5, 1.6).wrong() == ["overlap"]


def test_bodies_of_different_keys_may_overlap():
    assert Story().body(1.0, 2.0, key="a").body(1.5, 2.5, key="b").wrong() == []


def test_a_retry_beside_its_own_earlier_attempt_is_an_overlap():
    story = (
        Story()
        .body(1.0, 2.0, task_id="x", outcome="retried")
        .body(1.5, 2.5, task_id="x", attempt=1)
    )
    assert story.wrong() == ["overlap"]


def test_a_retry_takes_over_from_an_attempt_that_stood_still_for_half_of_the_ttl():
    def story(retry_at, extended_at=1.5):
        first = Story().body(1.0, 3.4, run="first", task_id="x", outcome="retried")
        first.beat("first", extended_at)
        return first.body(retry_at, 3.6, task_id="x", attempt=1).wrong()

    assert story(1.5 + TTL / 2 + 0.02) == []
    assert story(1.5 + TTL / 2 - 0.1) == ["overlap"]
    assert story(1.5 + TTL / 2 + 0.02, extended_at=1.7) == ["overlap"]


def test_a_redelivered_copy_beside_the_first_is_an_overlap():
    story = Story().body(1.0, 2.0, task_id="x").body(1.5, 2.5, task_id="x")
    assert "overlap" in story.wrong()


def test_an_extension_makes_the_right_last():
    long = Story().body(1.0, 5.0, run="long")
    long.beat("long", 2.0).beat("long", 3.5)
    assert long.wrong() == []
    assert long.body(4.0, 4.5).wrong() == ["overlap"]


def test_an_extension_by_the_loser_while_the_winner_is_inside_is_an_overlap():
    """It was not compared with who has the lock."""
    story = Story().body(1.0, 4.9, run="loser").body(3.5, 5.0).beat("loser", 4.0)
    assert "overlap" in story.wrong()


def test_a_body_that_was_told_is_no_overlap():
    story = Story().body(1.0, 4.0, run="loser", lost=True, sample=(3.05,))
    story.add("told", 3.05, run="loser", by="body").body(3.2, 3.6)
    assert story.wrong() == []
    assert story.verdict().losers == 1
    assert story.verdict().told == [pytest.approx(0.06)]


def test_a_killed_body_is_inside_until_its_last_sign_of_life():
    story = Story().body(1.0, None, sample=(1.1, 1.2)).body(1.3, 1.5)
    assert story.wrong() == []
    assert Story().body(1.0, None, sample=(1.1, 1.4)).body(1.3, 1.5).wrong() == ["overlap"]


def test_a_body_that_died_at_once_inside_of_another_is_an_overlap():
    assert Story().body(1.0, 2.0).body(1.3, None).wrong() == ["overlap"]


def test_a_body_that_stood_still_before_its_start_has_lost_the_lock_and_not_the_other():
    story = Story().body(5.0, 6.0, run="winner")
    story.body(5.5, 5.8, run="late", asked=1.0, lost=True, pid=200)
    story.add("stopped", 1.1, pids=[200]).add("continued", 5.5, pids=[200])
    story.add("told", 5.51, run="late", by="body")
    assert story.wrong() == []


def test_an_overlap_that_the_fault_allows_is_counted_and_its_loser_must_be_told():
    def story():
        made = Story(allows=["overlap"]).fault(1.2, 1.3, unreachable=False)
        return made.body(1.0, 3.0, run="loser", lost=True).body(1.5, 2.5)

    told = story().add("told", 2.0, fence=990, key="k", by="signal")
    assert told.wrong() == []
    assert told.verdict().overlaps == 1
    assert told.verdict().told == [pytest.approx(0.5)]


def test_an_allowed_overlap_is_allowed_only_after_the_fault():
    story = Story(allows=["overlap"]).fault(1.8, 1.9)
    assert story.body(1.0, 2.0).body(1.5, 1.6).wrong() == ["overlap"]


def test_an_allowed_overlap_is_not_allowed_long_after_the_fault():
    story = Story(allows=["overlap"]).fault(1.0, 1.1)
    assert story.body(10.0, 11.0).body(10.5, 10.6).wrong() == ["overlap"]


@given(
    st.lists(
        st.tuples(st.floats(0.01, 1.0), st.floats(0.01, 1.5)),
        min_size=2,
        max_size=8,
    ),
    st.data(),
)
def test_any_row_of_bodies_is_fine_until_one_comes_early(row, data):
    early = data.draw(st.integers(1, len(row) - 1))

    def story(by):
        made, at = Story(), 1.0
        for number, (gap, length) in enumerate(row):
            start = at + gap
            if number == early:
                start = at - by if by else start
            made.body(start, start + length, fence=number + 1)
            at = start + length
        return made

    assert story(by=0.0).wrong() == []
    before = row[early - 1][1]
    assert "overlap" in story(by=before / 2).wrong()


# -- fences -----------------------------------------------------------------------------------


def test_a_fence_that_comes_twice_is_found():
    assert Story().body(1.0, 2.0, fence=7).body(3.0, 4.0, fence=7).wrong() == ["fence"]


def test_a_fence_that_falls_is_found():
    assert Story().body(1.0, 2.0, fence=8).body(3.0, 4.0, fence=7).wrong() == ["fence"]


def test_the_fences_of_acquisitions_at_the_same_time_may_come_in_any_order():
    story = Story().body(1.0, 1.1, asked=0.5, fence=8)
    assert story.body(1.2, 1.3, asked=0.9, fence=7).wrong() == []


def test_the_fences_of_two_keys_have_nothing_to_do_with_each_other():
    assert Story().body(1.0, 2.0, fence=7, key="a").body(3.0, 4.0, fence=7, key="b").wrong() == []


# -- messages ---------------------------------------------------------------------------------


def conflict(story, task_id, at, outcome, holder="other"):
    return story.add(
        "conflict", at, id=task_id, task="job", attempt=0, key="k", outcome=outcome, holder=holder
    )


def test_messages_end_in_one_way_each():
    story = Story()
    story.message("a", value="run-a").body(1.0, 2.0, run="run-a", task_id="a")
    conflict(story.message("b", state="REVOKED", error="TaskSkipped"), "b", 1.5, "skipped")
    conflict(story.message("c", value="skipped"), "c", 1.6, "skipped with a result")
    conflict(story.message("d", value="run-d"), "d", 1.7, "deferred")
    story.body(2.1, 2.5, run="run-d", task_id="d")
    conflict(story.message("e", state="FAILURE", error="LockConflict"), "e", 1.8, "raised")
    assert story.wrong() == []
    assert story.verdict().outcomes == {
        "ran": 1,
        "skipped": 2,
        "deferred, then ran": 1,
        "refused": 1,
    }


def test_a_message_that_vanishes_is_found():
    assert Story().message("a", state="PENDING").wrong() == ["vanished"]
    assert Story().message("a", state=None).wrong() == ["vanished"]
    assert Story().message("a", state="RETRY").wrong() == ["vanished"]


def test_a_message_that_a_dead_worker_had_acknowledged_early_may_vanish():
    story = Story().message("a", state="PENDING").add("dead", 1.0, pids=[MAIN])
    assert story.wrong() == []
    assert story.verdict().vanished == 1


def test_a_message_that_is_acknowledged_late_may_not_vanish_with_its_worker():
    story = Story(acks_late=True).message("a", state="PENDING").add("dead", 1.0, pids=[MAIN])
    assert story.wrong() == ["vanished"]


def test_a_message_that_the_gevent_pool_killed_may_vanish_with_its_worker():
    """The pool tells Celery that it returned, and Celery acknowledges it."""
    for pool, wrong in (("gevent", []), ("threads", ["vanished"])):
        story = Story(acks_late=True, pool=pool).message("a", state="PENDING")
        assert story.add("dead", 1.0, pids=[MAIN]).wrong() == wrong


def test_a_message_that_another_worker_got_since_may_not_vanish_with_the_first():
    story = Story().message("a", state="PENDING").add("dead", 1.0, pids=[MAIN])
    story.add("received", 2.0, id="a", main=11, redelivered=True)
    story.add("acked", 2.0, id="a", main=11)
    assert story.wrong() == ["vanished"]


def test_a_message_that_never_arrived_may_vanish_only_if_the_broker_was_faulted():
    for allows, wrong in (((), ["vanished"]), (("vanished",), [])):
        story = Story(allows=allows).add("sent", 1.0, id="a", task="job")
        assert story.wrong() == wrong


def test_a_message_that_a_killed_worker_may_just_have_popped_may_vanish():
    """Kombu's Redis transport takes a message from its list before it notes that it has it."""
    for broker, wrong in (("redis", []), ("rabbitmq", ["vanished"])):
        story = Story(broker=broker).add("sent", 1.0, id="a", task="job")
        story.add("received", 0.5, id="b", main=MAIN).add("dead", 1.5, pids=[MAIN])
        assert story.wrong() == wrong


def test_a_message_that_came_long_after_the_worker_was_killed_may_not_vanish():
    story = Story(broker="redis").add("sent", 9.0, id="a", task="job")
    story.add("received", 0.5, id="b", main=MAIN).add("dead", 1.5, pids=[MAIN])
    assert story.wrong() == ["vanished"]


def test_a_message_that_ran_and_was_skipped_is_found():
    story = Story().message("a", value="run-a").body(1.0, 2.0, run="run-a", task_id="a")
    assert conflict(story, "a", 3.0, "skipped").wrong() == ["outcome"]


def test_a_message_whose_process_died_after_it_ran_may_be_skipped_later():
    story = Story().message("a", state="REVOKED", error="TaskSkipped")
    story.body(1.0, 2.0, run="run-a", task_id="a").add("dead", 2.1, pids=[CHILD])
    assert conflict(story, "a", 3.0, "skipped").wrong() == []


@pytest.mark.parametrize(("died", "wrong"), [(0.8, []), (3.5, ["outcome"])])
def test_the_copy_of_a_message_whose_process_died_as_it_skipped_it_may_run(died, wrong):
    story = Story().message("a", value="run-a").body(4.0, 5.0, run="run-a", task_id="a")
    skipped = {"task": "job", "attempt": 0, "key": "k", "outcome": "skipped", "holder": "other"}
    story.add("conflict", 0.5, id="a", pid=7, **skipped).add("dead", died, pids=[7])
    assert story.wrong() == wrong


def test_a_message_skipped_for_its_own_lock_is_found():
    story = Story().message("a", state="REVOKED", error="TaskSkipped")
    assert conflict(story, "a", 1.0, "skipped", holder="a").wrong() == ["own duplicate"]


def test_a_result_that_nobody_returned_is_found():
    assert Story().message("a", value="run-x").body(1.0, 2.0, task_id="a").wrong() == ["result"]


def test_a_skip_that_did_not_happen_is_found():
    assert "result" in Story().message("a", state="REVOKED", error="TaskSkipped").wrong()
    assert Story().message("a", value="skipped").wrong() == ["result"]


def test_a_revoked_task_must_have_been_revoked():
    story = Story().message("a", state="REVOKED", error="TaskRevokedError")
    assert story.wrong() == ["result"]
    assert story.fault(1.0, 1.1, id="a").wrong() == []


# -- running again ----------------------------------------------------------------------------


def ran_twice(**case):
    story = Story(**case).message("a", value="second")
    return story.body(1.0, 2.0, run="first", task_id="a").body(5.0, 6.0, run="second", task_id="a")


def test_an_attempt_that_completes_twice_is_found():
    assert ran_twice().wrong() == ["twice"]


def test_another_attempt_is_not_the_same_one():
    story = Story().message("a", value="second").body(1.0, 2.0, task_id="a", outcome="retried")
    assert story.body(5.0, 6.0, run="second", task_id="a", attempt=1).wrong() == []


@pytest.mark.parametrize("pid", [CHILD, MAIN])
def test_an_attempt_may_run_again_if_its_process_died_before(pid):
    story = ran_twice().add("dead", 2.5, pids=[pid])
    assert story.wrong() == []
    assert story.verdict().again == 1


def test_a_death_after_the_second_run_is_no_excuse():
    assert ran_twice().add("dead", 5.5, pids=[CHILD]).wrong() == ["twice"]


def test_an_attempt_may_run_again_if_it_was_told_of_its_loss():
    assert ran_twice().add("told", 1.9, run="first", by="body").wrong() == []


def test_an_attempt_may_run_again_if_the_server_forgot_it():
    assert ran_twice(allows=["overlap"]).fault(2.5, 2.6).wrong() == []
    assert ran_twice(allows=["again"]).fault(2.5, 2.6).wrong() == []


def test_what_the_server_forgot_is_no_excuse_for_an_overlap():
    story = Story(allows=["again"]).fault(1.2, 1.3)
    assert story.body(1.0, 2.0).body(1.5, 1.6).wrong() == ["overlap"]


def test_an_attempt_may_run_again_if_the_server_could_not_be_told_of_its_end():
    def story(**how):
        return released(ran_twice(), "first", 2.4, fence=990, **how)

    assert story(owned=False).wrong() == ["twice"]
    assert story(owned=False).fault(1.5, 3.0, unreachable=True).wrong() == []
    assert story(owned=True).fault(1.5, 3.0, unreachable=True).wrong() == ["twice"]


def test_an_attempt_may_run_again_if_the_broker_may_not_have_heard_its_acknowledgement():
    def story(redelivered, **case):
        fields = {"id": "a", "main": 11, "redelivered": redelivered}
        return ran_twice(**case).add("received", 4.0, **fields)

    assert story(True, allows=["vanished"]).wrong() == []
    assert story(False, allows=["vanished"]).wrong() == ["twice"]
    assert story(True, allows=["vanished"], acks_late=True).wrong() == ["twice"]
    assert story(True).wrong() == ["twice"]


def test_an_attempt_may_run_again_if_its_greenlet_was_killed():
    def story(cancelled_at, main=MAIN, **case):
        return ran_twice(**case).add("cancelled", cancelled_at, id="a", main=main)

    assert story(2.5, pool="gevent").wrong() == []
    assert story(5.5, pool="gevent").wrong() == ["twice"]
    assert story(2.5, pool="gevent", main=-1).wrong() == ["twice"]
    assert story(2.5, pool="threads").wrong() == ["twice"]


def test_an_attempt_that_did_not_complete_runs_again():
    story = Story().message("a", value="second").body(1.0, None, task_id="a", sample=(1.1,))
    assert story.body(5.0, 6.0, run="second", task_id="a").wrong() == []


# -- what is left -----------------------------------------------------------------------------


def test_a_lock_that_is_left_is_found():
    assert Story().add("quiet", 9.0, keys={}).wrong() == []
    assert Story().add("quiet", 9.0, keys={"k": "value"}).wrong() == ["left"]


def test_a_lock_without_an_expiry_is_found():
    assert Story().add("immortal", 5.0, key="k").wrong() == ["immortal"]


def test_a_worker_that_crashed_is_found():
    assert Story().add("crashed", 5.0, pid=MAIN, status=1).wrong() == ["crashed"]


def test_celery_may_end_a_worker_with_an_error_when_the_brokers_connection_breaks():
    for error, wrong in (("AttributeError", []), (None, ["crashed"])):
        story = Story(allows=["vanished"])
        assert story.add("crashed", 5.0, pid=MAIN, status=1, error=error).wrong() == wrong


def test_a_result_may_be_overwritten_by_the_state_of_an_earlier_attempt_but_not_vanish():
    def story(state, *outcomes):
        story = Story().message("a", state=state)
        for attempt, outcome in enumerate(outcomes):
            story.body(1.0 + attempt, 1.5 + attempt, task_id="a", attempt=attempt, outcome=outcome)
        return story.wrong()

    assert story("RETRY", "retried", "returned") == []
    assert story("PENDING", "retried", "returned") == ["vanished"]
    assert story("RETRY", "retried") == ["vanished"]
    assert story("RETRY", "returned") == ["vanished"]


def test_a_revocation_may_be_overwritten_by_the_state_of_an_earlier_attempt():
    story = Story().message("a", state="RETRY").body(1.0, 1.5, task_id="a", outcome="retried")
    assert story.wrong() == ["vanished"]
    assert story.fault(1.6, 1.7, id="a").wrong() == []


def test_a_message_that_ended_as_celery_cancelled_it_may_be_said_to_be_retried():
    for allows, wrong in (("vanished",), []), ((), ["vanished"]):
        story = Story(allows=allows, acks_late=True).message("a", state="RETRY")
        assert story.body(1.0, 2.0, task_id="a", outcome="raised").wrong() == wrong


def released(story, run, at, *, fence, kept=False, owned=True, task_id="a"):
    return story.add(
        "released", at, id=task_id, key="k", fence=fence, owned=owned, kept_for_retry=kept
    )


def in_the_way(story, at, *, fence, pid=CHILD, outcome="skipped"):
    fields = {"id": "b", "task": "job", "attempt": 0, "key": "k", "holder": "a", "pid": pid}
    return story.add("conflict", at, outcome=outcome, holder_fence=fence, **fields)


def test_a_released_lock_that_stands_in_the_way_is_found():
    def story(at, **how):
        return in_the_way(released(Story(), "r", 2.0, fence=7), at, fence=7, **how)

    assert story(2.1).wrong() == []  # it was asked before, and said after
    assert story(3.5).wrong() == ["ghost"]
    assert story(3.5, outcome="waited").wrong() == []
    stood_still = story(3.5).add("stopped", 1.9, pids=[CHILD]).add("continued", 3.4, pids=[CHILD])
    assert stood_still.wrong() == []


def test_a_lock_whose_release_was_not_confirmed_may_stand_in_the_way():
    story = released(Story(), "r", 2.0, fence=7, owned=False)
    assert in_the_way(story, 3.5, fence=7).wrong() == []


def test_a_released_lock_that_is_left_is_found():
    story = released(Story(), "r", 2.0, fence=7)
    assert story.add("drained", 3.0, fences={"k": 8}).wrong() == []
    assert story.add("drained", 3.0, fences={"k": 7}).wrong() == ["ghost"]


def held_and_then(other_at, *, retry_at=5.0, released_at=2.0, **case):
    story = Story(**case).message("a", at=0.5, value="retry")
    story.body(1.0, 2.0, task_id="a", outcome="retried", fence=7)
    released(story, "r", released_at, fence=7, kept=True)
    story.body(retry_at, retry_at + 0.5, task_id="a", run="retry", attempt=1, fence=9)
    return story.body(other_at, other_at + 0.1, fence=8 if other_at < retry_at else 10)


def test_a_held_lock_that_lets_another_in_is_found():
    assert held_and_then(3.0).wrong() == ["held"]


def test_a_held_lock_lapses():
    assert held_and_then(2.0 + TTL + 0.1).wrong() == []


def test_a_held_lock_is_free_after_its_retry():
    assert held_and_then(3.3, retry_at=2.5).wrong() == []


def test_a_retry_may_begin_before_its_earlier_attempt_hears_that_its_lock_was_left():
    assert held_and_then(3.0, retry_at=2.01, released_at=2.2).wrong() == []


def test_a_retry_that_cannot_ask_the_server_gives_up_the_lock_that_was_held_for_it():
    def story():
        return held_and_then(3.0).add("received", 2.5, id="a", main=11, redelivered=False)

    assert story().wrong() == ["held"]
    assert story().fault(2.4, 2.8, unreachable=True).wrong() == []


def test_a_retry_that_is_revoked_gives_up_the_lock_that_was_held_for_it():
    assert held_and_then(3.0).fault(2.5, 2.6, id="another").wrong() == ["held"]
    assert held_and_then(3.0).fault(2.5, 2.6, id="a").wrong() == []
    assert held_and_then(3.0).fault(3.5, 3.6, id="a").wrong() == ["held"]


def test_a_held_lock_may_be_lost_with_the_servers_data():
    for allows in ("overlap", "again"):
        assert held_and_then(3.0, allows=[allows]).fault(1.5, 1.6).wrong() == []


def test_a_held_lock_lapses_sooner_if_the_servers_clock_is_put_forward():
    assert held_and_then(3.5).fault(2.5, 2.5, seconds=0.8).wrong() == []
    assert held_and_then(3.1).fault(2.5, 2.5, seconds=0.2).wrong() == ["held"]
    assert held_and_then(3.1).fault(2.5, 2.5, seconds=-5.0).wrong() == ["held"]


# -- losers -----------------------------------------------------------------------------------


def test_a_loser_that_is_never_told_is_found():
    story = Story(allows=["overlap"]).fault(1.1, 1.4).body(1.0, 8.0, right=9.0)
    assert story.body(1.5, 1.9).wrong() == ["not told"]


def test_a_loser_that_ended_before_it_could_have_been_told_is_fine():
    story = Story(allows=["overlap"]).fault(1.1, 1.4).body(1.0, 1.8).body(1.5, 1.9)
    assert story.wrong() == []
    assert story.verdict().ignorant == 1


def test_a_body_that_believes_beyond_its_right_is_found():
    story = Story().body(1.0, 4.0, sample=(2.0, 3.5))
    assert "believed" in story.wrong()


def test_a_body_whose_right_was_confirmed_while_it_asked_may_believe():
    story = Story().body(1.0, 4.0, run="slow", sample=(2.0, 3.5))
    assert story.beat("slow", 3.1).wrong() == []


def loser_told_at(at, **case):
    """Its key vanished, and somebody else has it since 1.5. It had the right until 2.99."""
    story = Story(allows=["overlap"], **case).fault(1.1, 1.4)
    story.body(1.0, 8.0, run="loser", lost=True).body(1.5, 1.9).beat("loser", 1.45)
    story.add("beat", 1.45, token="token-loser", sent=1.45, until=9.0)
    return story.add("told", at, run="loser", by="body")


BOUND = TTL / 3 + SOON + NOISE


def test_a_loser_is_told_within_a_third_of_the_ttl():
    assert loser_told_at(1.5 + BOUND - 0.1).wrong() == []
    assert loser_told_at(1.5 + BOUND + 0.1).wrong() == ["not told"]


def test_the_time_in_which_a_loser_stood_still_does_not_count():
    story = loser_told_at(1.5 + BOUND + 0.9)
    story.add("stopped", 1.6, pids=[CHILD]).add("continued", 2.6, pids=[CHILD])
    assert story.wrong() == []


def test_the_time_in_which_the_machine_was_late_does_not_count():
    story = loser_told_at(1.5 + BOUND + 0.9)
    assert story.wrong() == ["not told"]
    assert story.add("late", 2.6, seconds=1.0).wrong() == []
    assert story.verdict().told == [pytest.approx(BOUND + 0.9)], "the figure is what it was"


def test_while_the_server_is_unreachable_a_loser_has_until_its_right_ends():
    def story(at):
        made = Story(allows=["overlap"]).fault(1.1, 4.0, unreachable=True)
        made.body(1.0, 8.0, run="loser", lost=True).body(1.5, 1.9)
        made.add("beat", 1.05, token="token-loser", sent=1.05, until=9.0)
        return made.add("told", at, run="loser", by="body")

    bound = TTL + SOON + NOISE
    assert story(1.5 + bound - 0.1).wrong() == []
    assert story(1.5 + bound + 0.1).wrong() == ["not told"]


# -- the dead ---------------------------------------------------------------------------------


def killed(freed_at, *, pid=CHILD, **fields):
    story = Story().body(1.0, None, run="dead", sample=(1.1,), **fields)
    story.add("dead", 2.0, pids=[pid])
    return story.add("freed", freed_at, key="k", token="token-dead")


def test_a_killed_childs_lock_is_free_at_once():
    assert killed(2.1).wrong() == []
    assert killed(2.1).verdict().freed_child == [pytest.approx(0.1)]
    assert killed(2.0 + SOON + NOISE + 0.1).wrong() == ["not freed"]


def test_a_killed_workers_lock_is_free_after_its_ttl():
    in_time = 2.0 + TTL + SOON + NOISE - 0.1
    assert killed(in_time, pid=MAIN).wrong() == []
    assert killed(in_time, pid=MAIN).verdict().freed_worker == [pytest.approx(in_time - 2.0)]
    assert killed(in_time + 0.2, pid=MAIN).wrong() == ["not freed"]


def test_in_a_pool_without_children_every_death_is_the_workers():
    assert killed(3.9, pid=MAIN, main=MAIN).verdict().freed_worker == [pytest.approx(1.9)]


def test_a_lock_that_could_not_be_released_lapses():
    story = killed(2.0 + TTL).fault(1.9, 2.2, unreachable=True)
    assert story.wrong() == []
    assert story.verdict().freed_child == []


def test_a_dead_bodys_lock_that_comes_back_is_found():
    assert killed(2.1).add("revived", 2.5, key="k").wrong() == ["revived"]


# -- the history ------------------------------------------------------------------------------


def test_a_history_keeps_every_line_of_many_writers_whole(tmp_path):
    path = tmp_path / "history"
    threads = [threading.Thread(target=_write, args=(path, each)) for each in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = read(path)
    assert len(events) == 8 * 200
    assert {event.writer for event in events} == set(range(8))
    assert [e.at for e in events] == sorted(e.at for e in events)


def _write(path, writer):
    history = History(path)
    for number in range(200):
        history.write("line", writer=writer, number=number, long="x" * 500)
    history.close()


def test_a_line_that_is_not_whole_yet_is_left_for_later(tmp_path):
    history = History(tmp_path / "history")
    history.write("one")
    with history.path.open("ab") as file:
        file.write(b'{"kind": "two", "a')
    assert [event.kind for event in history.new()] == ["one"]
    with history.path.open("ab") as file:
        file.write(b't": 5.0}\n')
    assert [event.kind for event in history.new()] == ["two"]
    assert [event.kind for event in history.events("two")] == ["two"]
    history.close()


# -- the report -------------------------------------------------------------------------------


def test_the_table_sums_up_each_fault_and_all():
    case = Case("redis", "prefork", "early", "kill_child")
    bad = Story().body(1.0, 2.0).body(1.5, 1.6).verdict()
    other = Case("redis", "threads", "late", "kill_worker")
    results = [Result(case, 1, bad), Result(case, 2, killed(2.1).verdict()), Result(other, 1)]
    heading, *lines = report.rows(results)
    table = {line[0]: dict(zip(heading, line, strict=True)) for line in lines}
    assert table["kill_child"]["cases"] == "2"
    assert table["kill_child"]["bodies"] == "3"
    assert table["kill_child"]["child s"] == "0.10 / 0.10"
    assert table["kill_worker"]["child s"] == "-"
    assert [table[each]["wrong"] for each in ("kill_child", "kill_worker", "all")] == [
        "1",
        "0",
        "1",
    ]
    assert [result.failed for result in results] == [True, False, False]
    assert "| all | 3 |" in report.markdown(results, seed=1)
    assert len({len(line) for line in report.text(results).splitlines()[:4]}) == 1


def test_an_error_of_the_bench_is_not_passed_over():
    result = Result(Case("redis", "prefork", "early", "kill_child"), 1, error="Traceback")
    assert result.failed
    assert report.rows([result])[-1][-1] == "1"
    assert "--seed 1" in result.replay
