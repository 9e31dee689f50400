"""The checker's rules of debounced calls, each against what breaks it."""

from __future__ import annotations

from tests.proofs.faults.checker import DUE, NOISE, STUCK
from tests.proofs.faults.test_checker_rooms import RoomStory

QUIET, MAX_WAIT = 0.5, 2.0
SLOT = {"newest": "=t", "quiet": [QUIET, MAX_WAIT]}


class DebounceStory(RoomStory):
    """Histories of calls that wait until no newer one comes."""

    def call(self, task_id, at, replaced=""):
        """It waits, and replaces another one."""
        entry = f"{task_id}:0.0"
        self.message(task_id, at=at - 0.1, value=f"run of {task_id}")
        self.parks(entry, at - 0.01, **SLOT)
        if replaced:
            result = next(e for e in self.events if e.kind == "result" and e.id == replaced)
            result.fields.update(state="REVOKED", error="TaskReplaced", about=task_id, value=None)
        gone = [f"{replaced}:0.0"] if replaced else []
        return self.parked(entry, at, replaced=gone, **SLOT)

    def ran(self, task_id, at, offered=None):
        """It was published and ran."""
        self.offered(f"{task_id}:0.0", at - 0.02 if offered is None else offered)
        self.took(f"{task_id}:0.0", at - 0.005)
        self.body(at, at + 0.1, task_id=task_id, run=f"run of {task_id}")
        start = next(e for e in self.events if e.kind == "start" and e.id == task_id)
        start.fields["quiet"] = SLOT["quiet"]
        return self


def burst(*times, ran_at, offered=None):
    """Calls that came at these times, of which the last one ran."""
    story, before = DebounceStory(), ""
    for number, at in enumerate(times):
        task_id = f"call-{number}"
        story.call(task_id, at, before)
        before = task_id
    return story.ran(before, ran_at, offered).wrong()


# -- each call ends in a run ------------------------------------------------------------------


def test_a_burst_ends_in_one_run():
    assert burst(1.0, 1.3, 1.6, ran_at=2.2) == []


def test_a_replaced_call_that_names_no_newer_one_is_found():
    story = DebounceStory().call("one", 1.0).call("two", 1.2, "one").ran("two", 2.0)
    result = next(e for e in story.events if e.kind == "result" and e.id == "one")
    result.fields["about"] = "another"
    assert "no run" in story.wrong()


def test_calls_that_name_each_other_are_found():
    story = DebounceStory().call("one", 1.0).call("two", 1.2, "one")
    result = next(e for e in story.events if e.kind == "result" and e.id == "two")
    result.fields.update(state="REVOKED", error="TaskReplaced", about="one", value=None)
    assert "no run" in story.wrong()


def test_a_call_that_was_replaced_by_one_that_had_begun_is_found():
    story = DebounceStory().call("two", 0.5).ran("two", 1.2)
    story.call("one", 1.5).parked("two:0.0", 1.6, replaced=["one:0.0"], **SLOT)
    result = next(e for e in story.events if e.kind == "result" and e.id == "one")
    result.fields.update(state="REVOKED", error="TaskReplaced", about="two", value=None)
    assert "no run" in story.wrong()


# -- not before it is quiet, and not too late ---------------------------------------------------


def test_a_call_that_runs_before_it_is_quiet_is_found():
    assert burst(1.0, ran_at=1.0 + QUIET) == []
    assert burst(1.0, ran_at=0.9 + QUIET) == ["not quiet"]
    assert burst(1.0, 1.4, ran_at=1.0 + QUIET + 0.1) == ["not quiet"]


def test_a_call_that_did_not_wait_at_all_is_found():
    story = DebounceStory().took("one:0.0", 1.0).body(1.0, 1.5, task_id="one")
    story.events[-2 if story.events[-1].kind == "end" else -1].fields["quiet"] = SLOT["quiet"]
    assert story.wrong() == ["not quiet"]


STEADILY = [1.0 + number * 0.4 for number in range(20)]


def test_after_max_wait_the_newest_call_runs_though_others_came():
    over = [at for at in STEADILY if at < 1.0 + MAX_WAIT]
    assert burst(*over, ran_at=1.0 + MAX_WAIT) == []


def test_steady_calls_that_run_late_are_found():
    def story(until):
        return burst(*(at for at in STEADILY if at < until - 0.1), ran_at=until, offered=until)

    assert story(1.0 + MAX_WAIT + DUE + NOISE - 0.1) == []
    assert story(1.0 + MAX_WAIT + DUE + NOISE + 0.1) == ["max wait"]


def test_what_holds_the_lock_or_strikes_may_make_it_later():
    def story(holds=0.0, strikes=False, until=6.0):
        made = DebounceStory().call("one", 1.0)
        if holds:
            made.body(2.0, 2.0 + holds, task_id="other", right=9.0)
        if strikes:
            made.fault(2.0, 2.1)
        return made.ran("one", until).wrong()

    assert story() == ["max wait"]
    assert story(holds=3.5) == []
    assert story(strikes=True) == []
    assert "max wait" in story(strikes=True, until=3.5 + STUCK + NOISE)


def test_calls_that_come_again_have_their_turn_before():
    def story(newest):
        made = DebounceStory().message("again", value="x")
        made.parked("again:0.0", 1.5, in_front=True, newest=newest, quiet=SLOT["quiet"])
        made.call("one", 1.6).took("again:0.0", 5.0).body(5.0, 5.4, task_id="again", right=9.0)
        return "max wait" in made.ran("one", 5.5).wrong()

    assert not story("")
    assert DebounceStory().call("one", 1.6).ran("one", 5.5).wrong() == ["max wait"]


def test_the_burst_is_known_though_a_replaced_call_has_left_before_that_is_said():
    def story(asked):
        made = DebounceStory().call("first", 1.0).call("middle", 1.5, "first")
        made.add("out", 2.9, id="middle", entry="middle:0.0", key="k")
        made.call("last", 2.95, "middle")
        made.events[-1].fields["asked"] = asked
        return made.ran("last", 3.1).wrong()

    assert "not quiet" not in story(2.8)
    assert "not quiet" in story(2.94), "it had left before"


def test_the_burst_is_known_though_nobody_heard_that_a_call_in_its_middle_replaced():
    def story(first_at):
        made = DebounceStory().call("first", first_at).message("lost", value="x")
        made.parks("lost:0.0", 2.0, **SLOT).call("last", 2.6)
        made.events[-1].fields["replaced"] = ["lost:0.0"]
        return made.ran("last", 2.7).wrong()

    assert "not quiet" not in story(2.6 - MAX_WAIT)
    assert "not quiet" in story(1.9)


def test_the_burst_is_known_though_a_call_in_its_middle_did_not_live_to_say_that_it_waits():
    story = DebounceStory().message("lost", value="x").parks("lost:0.0", 1.0, **SLOT)
    story.call("last", 1.0 + MAX_WAIT - 0.1)
    story.events[-1].fields["replaced"] = ["lost:0.0"]
    assert "not quiet" not in story.ran("last", 1.0 + MAX_WAIT).wrong()
