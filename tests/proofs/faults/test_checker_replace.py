"""The checker's rules of `Replace`, and of tasks that another release defines otherwise."""

from __future__ import annotations

from tests.proofs.faults.test_checker import CHILD, MAIN
from tests.proofs.faults.test_checker_rooms import RoomStory


class ReplaceStory(RoomStory):
    """Histories of runs that end others."""

    def came(self, task_id, at, heard=True):
        self.add("received", at, id=task_id, main=MAIN, redelivered=False)
        self.asks(f"{task_id}:0.0", at + 0.01, token=f"of-{task_id}")
        about = {"id": task_id, "entry": f"{task_id}:0.0", "key": "k", "pid": CHILD, "main": MAIN}
        if heard:
            self.add("refused", at + 0.02, token=f"of-{task_id}", asked=at + 0.01, **about)
        return self

    def replaces(self, newer, at, key="k"):
        return self.parked(f"{newer}:0.0", at, newest="t", replaces=True, in_front=True, key=key)


def replaced(older_until=2.5, **case):
    """`old` runs; `new` comes at 2.0, and runs when that has ended."""
    story = ReplaceStory(acks_late=True, **case).came("old", 0.9).replaces("old", 0.95)
    story.took("old:0.0", 1.0, fence=1)
    story.body(1.0, older_until, task_id="old", fence=1, lost=True, outcome="raised", sample=(2.3,))
    story.add("told", 2.2, key="k", fence=1, by="signal", replaced=True)
    story.came("new", 1.95).replaces("new", 2.0).took("new:0.0", 2.6, fence=2)
    return story.body(2.6, 3.5, task_id="new", fence=2)


def test_the_newer_run_follows_the_older_one():
    assert replaced().wrong() == []


def test_what_was_replaced_and_killed_in_its_grace_and_runs_again_is_found():
    story = replaced().add("dead", 2.55, pids=[CHILD]).took("old:0.0", 4.0, fence=3)
    assert "replaced, ran" in story.body(4.0, 4.5, task_id="old", fence=3).wrong()


def test_what_was_replaced_may_run_again_if_the_server_forgot_that():
    story = replaced(allows=["again"]).fault(2.55, 2.56).took("old:0.0", 4.0, fence=3)
    wrong = story.body(4.0, 4.5, task_id="old", fence=3).wrong()
    assert not {"replaced, ran", "older last"} & set(wrong)


def test_one_that_had_ended_before_the_newer_one_was_known_may_come_again():
    story = ReplaceStory(acks_late=True).body(1.0, None, task_id="old", fence=1, sample=(1.5,))
    story.add("dead", 1.6, pids=[CHILD]).replaces("new", 2.0).took("new:0.0", 2.6, fence=2)
    story.body(2.6, 3.5, task_id="new", fence=2).took("old:0.0", 4.0, fence=3)
    assert "replaced, ran" not in story.body(4.0, 4.5, task_id="old", fence=3).wrong()


def test_an_older_one_that_comes_back_and_ends_the_newer_one_is_found():
    story = replaced().replaces("old", 3.0)
    assert "older won" in story.wrong()


def test_a_newer_one_that_ends_for_the_older_one_is_found():
    about = {"task": "t", "attempt": 0, "key": "k", "pid": CHILD}
    story = replaced().add("conflict", 4.0, id="new", outcome="replaced", holder="old", **about)
    assert story.wrong() == ["older won"]


def test_a_third_one_may_end_the_newer_one():
    about = {"task": "t", "attempt": 0, "key": "k", "pid": CHILD}
    story = replaced().add("conflict", 4.0, id="new", outcome="replaced", holder="third", **about)
    assert story.wrong() == []


def side_by_side(first_came, second_came, second_heard=True):
    """`one` runs, and then `two`."""
    story = ReplaceStory().came("one", first_came).came("two", second_came, heard=second_heard)
    for number, task_id in enumerate(("one", "two")):
        story.replaces(task_id, 1.0 + number / 100).took(f"{task_id}:0.0", 2.0 + number)
        story.body(2.0 + number, 2.5 + number, task_id=task_id)
    return story.wrong()


def test_an_older_one_that_runs_after_a_newer_one_is_found():
    assert "older last" not in side_by_side(0.5, 0.9)
    assert "older last" in side_by_side(0.9, 0.5)
    assert "older last" not in side_by_side(0.52, 0.5)


def test_a_question_that_the_server_did_not_hear_tells_it_of_nobody():
    assert "older last" not in side_by_side(0.9, 0.5, second_heard=False)


def says_replaced(story, about="new", error="TaskReplaced"):
    story.add("sent", 0.5, id="old", task="t")
    return story.add("result", 90.0, id="old", state="REVOKED", error=error, about=about)


def test_what_was_replaced_says_so_and_by_whom():
    assert says_replaced(replaced()).wrong() == []
    assert says_replaced(replaced(), about="third").wrong() == ["result"]


def test_one_that_was_replaced_before_it_had_heard_that_it_has_the_lock_may_say_so():
    def story(holder):
        made = ReplaceStory().came("old", 0.9).came("new", 0.95).replaces("new", 1.0)
        told = {"outcome": "replacing", "holder": holder, "task": "t", "key": "k", "attempt": 0}
        made.add("conflict", 1.01, id="new", pid=CHILD, **told)
        made.took("old:0.0", 1.2, fence=1)
        return says_replaced(made.body(1.2, 1.5, task_id="old", fence=1, outcome="raised"))

    assert "result" not in story("old").wrong()
    assert "result" in story("another").wrong()


def test_who_says_that_it_was_replaced_and_was_not_is_found():
    story = says_replaced(ReplaceStory().body(1.0, 1.5, task_id="old", outcome="raised"))
    assert set(story.wrong()) == {"result"}


# -- another release --------------------------------------------------------------------------


def moved(key):
    """`a` waits before `b`; a worker of the next release gets it, and it runs under that key."""
    story = RoomStory().parked("a:0.0", 1.0).parked("b:0.0", 1.5)
    story.add("received", 2.0, id="a", main=MAIN, redelivered=False)
    story.took("a:0.0", 2.1, key=key, fence=1).body(2.1, 2.9, task_id="a", key=key, fence=1)
    return story.took("b:0.0", 2.5, fence=2).body(2.5, 3.0, task_id="b", fence=2)


def test_two_bodies_of_a_task_whose_key_has_changed_do_not_overlap():
    assert moved("k:moved").wrong() == []


def test_two_bodies_under_the_old_key_do():
    assert "overlap" in moved("k").wrong()


def test_who_runs_without_a_lock_since_the_next_release_has_left_the_room():
    story = RoomStory().parked("a:0.0", 1.0).parked("b:0.0", 1.5)
    story.add("received", 2.0, id="a", main=MAIN, redelivered=False)
    story.body(2.1, 2.9, task_id="a", fence=0)
    assert story.took("b:0.0", 2.5).wrong() == []


def test_who_fails_since_its_arguments_do_not_fit_any_more_has_left_the_room():
    story = RoomStory().parked("a:0.0", 1.0).parked("b:0.0", 1.5)
    story.add("received", 2.0, id="a", main=MAIN, redelivered=False)
    story.add("failed", 2.1, id="a", error="TypeError", pid=CHILD)
    assert story.took("b:0.0", 2.5).wrong() == []


def unlocked_twice(*, redelivered):
    story = RoomStory().message("a", value="second")
    for start, run in ((1.0, "first"), (5.0, "second")):
        story.body(start, start + 0.5, run=run, task_id="a", fence=0)
        event = next(e for e in story.events if e.kind == "start" and e.run == run)
        event.fields.update(token=None, redelivered=redelivered and run == "second")
    return story.wrong()


def test_a_task_without_a_lock_runs_once_and_again_only_if_the_broker_says_so():
    assert unlocked_twice(redelivered=False) == ["twice"]
    assert unlocked_twice(redelivered=True) == []


def test_a_room_that_the_next_release_leaves_stranded_is_found():
    story = RoomStory().message("a", state=None).parked("a:0.0", 1.0)
    assert story.quiet(room=["a:0.0"]).wrong() == ["vanished", "left"]
