"""The checker's rules of waiting rooms, limits and pauses, each against what breaks it."""

from __future__ import annotations

from tests.proofs.faults.checker import STUCK
from tests.proofs.faults.patience import GOES_LAST_AFTER
from tests.proofs.faults.test_checker import CHILD, MAIN, Story

END = 50.0


class RoomStory(Story):
    """Makes histories with a waiting room by hand."""

    def parked(self, entry, at, *, newest="", replaced=(), key="k", said="parked", **fields):
        kind = "parked" if said == "parked" else "not parked"
        fields = {"in_front": False, **fields}
        about = {"entry": entry, "id": entry.partition(":")[0], "key": key, "said": said}
        fields = {"asked": at - 0.01, **fields}
        places = {"pid": CHILD, "main": MAIN}
        replaced = list(replaced)
        return self.add(kind, at, newest=newest, replaced=replaced, **about, **places, **fields)

    def parks(self, entry, at, *, newest="", key="k", **fields):
        about = {"entry": entry, "id": entry.partition(":")[0], "key": key, "newest": newest}
        return self.add("parks", at, pid=CHILD + 1, main=MAIN, **about, **fields)

    def asks(self, entry, at, *, token=None, key="k", waits=False):
        about = {"entry": entry, "id": entry.partition(":")[0], "key": key, "waits": waits}
        return self.add("asks", at, token=token or f"{entry}-{at}", pid=CHILD, main=MAIN, **about)

    def took(self, entry, at, *, fence=None, key="k", token=None, asked=0.01):
        """It asked for the lock, so many seconds before, and got it."""
        token = token or f"{entry}-{at}"
        self.asks(entry, at - asked, token=token, key=key)
        about = {"entry": entry, "id": entry.partition(":")[0], "key": key}
        told = {"token": token, "asked": at - asked, "pid": CHILD, "main": MAIN}
        return self.add("took", at, fence=fence or round(at * 1000), **about, **told)

    def out(self, entry, at, key="k"):
        return self.add("out", at, entry=entry, id=entry.partition(":")[0], key=key)

    def offered(self, entry, at, *, since=0.0, key="k"):
        """Its message was to be published, as first that many seconds before."""
        about = {"entry": entry, "id": entry.partition(":")[0], "key": key}
        return self.add("offered", at, since=since, asked=at - 0.01, **about)

    def quiet(self, at=END, **rooms):
        return self.add("quiet", at, keys={}, rooms=rooms)


def two_in_the_room(**case):
    return RoomStory(**case).parked("a:0.0", 1.0).parked("b:0.0", 2.0)


# -- order ------------------------------------------------------------------------------------


def test_the_order_of_the_room_is_kept():
    assert two_in_the_room().took("a:0.0", 3.0).took("b:0.0", 4.0).wrong() == []


def test_who_takes_the_lock_out_of_order_is_found():
    assert two_in_the_room().took("b:0.0", 3.0).took("a:0.0", 4.0).wrong() == ["order"]


def test_of_two_that_were_parked_at_a_time_either_may_be_first():
    story = RoomStory().parked("a:0.0", 1.0).parked("b:0.0", 1.005)
    assert story.took("b:0.0", 3.0).took("a:0.0", 4.0).wrong() == []


def test_who_goes_to_the_front_is_before_the_others():
    story = RoomStory().parked("a:0.0", 1.0).parked("b:0.0", 2.0, in_front=True)
    assert story.took("b:0.0", 3.0).took("a:0.0", 4.0).wrong() == []


def test_who_replaces_one_that_went_to_the_front_is_before_the_others():
    story = RoomStory().parked("a:0.0", 1.0).parked("old:0.0", 2.0, newest="t", in_front=True)
    story.parked("new:0.0", 3.0, newest="t", replaced=["old:0.0"])
    assert story.took("new:0.0", 4.0).took("a:0.0", 5.0).wrong() == []


def test_who_replaces_another_has_its_place():
    story = RoomStory().parked("old:0.0", 1.0, newest="t").parked("a:0.0", 2.0)
    story.parked("new:0.0", 3.0, newest="t", replaced=["old:0.0"])
    assert story.took("new:0.0", 4.0).took("a:0.0", 5.0).wrong() == []
    story = RoomStory().parked("a:0.0", 1.0).parked("old:0.0", 2.0, newest="t")
    story.parked("new:0.0", 3.0, newest="t", replaced=["old:0.0"])
    assert story.took("new:0.0", 4.0).took("a:0.0", 5.0).wrong() == ["order"]


def test_who_replaces_two_has_the_place_of_the_first():
    story = RoomStory().parked("a:0.0", 1.0, newest="c").parked("b:0.0", 2.0)
    story.parked("old:0.0", 3.0, newest="c", in_front=True)
    story.parked("new:0.0", 4.0, newest="c", replaced=["old:0.0", "a:0.0"])
    assert "order" not in story.took("new:0.0", 5.0).took("b:0.0", 6.0).wrong()


def test_who_may_have_had_the_lock_and_died_has_lost_its_place():
    story = two_in_the_room().asks("a:0.0", 2.5)
    assert story.took("b:0.0", 3.0).took("a:0.0", 4.0).wrong() == []


def test_who_gave_up_has_no_place():
    story = two_in_the_room().out("a:0.0", 2.5)
    assert story.took("b:0.0", 3.0).took("a:0.0", 4.0).wrong() == []


def test_a_server_that_came_back_empty_keeps_no_order():
    story = two_in_the_room(allows=["again"]).fault(2.3, 2.4, unreachable=True)
    assert story.took("b:0.0", 3.0).took("a:0.0", 4.0).wrong() == []


def test_rooms_of_different_locks_have_nothing_to_do_with_each_other():
    story = RoomStory().parked("a:0.0", 1.0, key="one").parked("b:0.0", 2.0, key="two")
    assert story.took("b:0.0", 3.0, key="two").took("a:0.0", 4.0, key="one").wrong() == []


def test_a_newcomer_that_overtakes_the_room_is_found():
    story = RoomStory().parked("a:0.0", 1.0).took("new:0.0", 2.0)
    assert story.took("a:0.0", 3.0).wrong() == ["overtook"]


def test_who_was_woken_and_makes_sure_of_it_overtakes_nobody():
    story = RoomStory().took("w:0.0", 1.5, fence=7, token="w", asked=1.0).parked("a:0.0", 1.4)
    assert story.took("w:0.0", 2.0, fence=7, token="w").took("a:0.0", 3.0).wrong() == []


def test_who_lost_it_meanwhile_and_takes_it_anew_does():
    story = RoomStory().took("w:0.0", 1.5, fence=7, token="w", asked=1.0).parked("a:0.0", 1.4)
    story.took("w:0.0", 2.0, fence=8, token="w").took("a:0.0", 3.0)
    assert story.wrong() == ["overtook"]


def test_a_newcomer_before_or_after_the_room_is_fine():
    story = RoomStory().took("early:0.0", 1.0).parked("a:0.0", 1.0)
    assert story.took("a:0.0", 2.0).took("late:0.0", 2.5).wrong() == []


def test_whose_message_is_published_is_no_newcomer():
    story = RoomStory().parked("a:0.0", 1.0).offered("b:0.0", 1.5)
    assert story.took("b:0.0", 2.0).took("a:0.0", 3.0).wrong() == []


def test_who_meets_a_late_message_may_go_first():
    def story(offered_at, **how):
        made = RoomStory().parked("a:0.0", 1.0).parked("b:0.0", 1.1)
        made.offered("a:0.0", offered_at, **how)
        return made.took("new:0.0", 3.0).took("a:0.0", 4.0).took("b:0.0", 5.0).wrong()

    assert story(2.0) == []
    assert story(2.1) == ["overtook", "overtook"]
    assert story(3.5, since=1.6) == [], "who published it first did not live to say so"
    assert story(3.5, since=1.4) == ["overtook", "overtook"]


def test_one_that_met_a_held_lock_and_went_back_is_waited_for_again():
    story = RoomStory().parked("a:0.0", 1.0).offered("a:0.0", 1.5).parked("a:0.0", 2.0)
    assert story.took("new:0.0", 3.0).took("a:0.0", 4.0).wrong() == ["overtook"]
    story = RoomStory().parked("a:0.0", 1.0).offered("a:0.0", 1.5).parked("a:0.0", 2.0)
    story.offered("a:0.0", 2.1)
    assert story.took("new:0.0", 4.0).took("a:0.0", 5.0).wrong() == []


def test_who_asked_before_the_late_one_went_back_may_take_the_lock():
    def story(went_back):
        made = two_in_the_room().offered("a:0.0", 2.5).parked("a:0.0", went_back)
        made.took("b:0.0", 4.0).took("a:0.0", 5.0)
        took = next(e for e in made.events if e.kind == "took" and e.entry == "b:0.0")
        took.fields["asked"] = 3.9
        return made.wrong()

    assert story(3.95) == []
    assert story(3.8) == ["order"]


def test_the_next_one_has_its_chance_while_a_message_is_late():
    def story(offered_at):
        made = two_in_the_room().offered("a:0.0", offered_at)
        return made.took("b:0.0", 4.0).took("a:0.0", 5.0).wrong()

    assert story(2.5) == []
    assert story(3.5) == ["order"]


def test_one_that_nobody_took_for_long_loses_its_place():
    def story(since):
        made = two_in_the_room().offered("a:0.0", 9.0, since=since).parked("a:0.0", 9.1)
        return made.took("b:0.0", 9.5).took("a:0.0", 10.0).wrong()

    assert story(GOES_LAST_AFTER + 1) == []
    assert story(GOES_LAST_AFTER - 1) == ["order"]


def test_nobody_waits_for_one_that_was_passed_over():
    def story(member):
        made = RoomStory().parked("a:0.0", 1.0, newest="=t").parked("b:0.0", 2.0)
        made.add("passed over", 2.5, key="k", member=member)
        return made.took("b:0.0", 2.6).took("a:0.0", 5.0).wrong()

    assert story("=t") == []
    assert story("=u") == ["order"]


def test_of_two_slots_one_is_kept_for_the_next_one_and_the_other_is_anybodys():
    def story(limit):
        made = limited((0.5, 1.0), limit=limit).parked("a:0.0", 1.0).offered("a:0.0", 1.5)
        return made.took("new:0.0", 1.6).took("a:0.0", 2.0)

    assert story(2).wrong() == []
    assert story(1).wrong() == ["overtook"]


def test_of_two_that_are_published_side_by_side_either_may_come_first():
    def story(limit):
        made = limited((0.5, 1.0), limit=limit).parked("a:0.0", 1.0).parked("b:0.0", 2.0)
        made.offered("a:0.0", 2.5).offered("b:0.0", 2.5)
        return made.took("b:0.0", 3.0).took("a:0.0", 4.0)

    assert story(2).wrong() == []
    assert story(1).wrong() == ["order"]


def test_who_replaced_one_of_which_that_is_written_later_has_its_place():
    story = RoomStory().parked("a:0.0", 1.0, newest="t").parked("other:0.0", 1.5)
    story.parked("c:0.0", 2.0, newest="t", replaced=["b:0.0"])
    story.parked("b:0.0", 2.005, newest="t", replaced=["a:0.0"])
    assert story.took("c:0.0", 3.0).took("other:0.0", 4.0).wrong() == []


def test_a_copy_may_be_parked_where_the_first_died_after_it_had_been():
    story = RoomStory().parks("b:0.0", 0.9).parked("a:0.0", 1.0).parked("b:0.0", 2.0)
    assert story.took("b:0.0", 3.0).took("a:0.0", 4.0).wrong() == []


def test_who_replaced_another_may_have_died_before_it_said_so():
    story = RoomStory().message("a", state="REVOKED", error="TaskSkipped", about="x")
    story.parked("a:0.0", 1.0, newest="t").parks("x:0.0", 1.5, newest="t").parked("b:0.0", 2.0)
    assert story.took("b:0.0", 3.0).wrong() == []


def test_who_left_may_be_written_before_who_came():
    story = RoomStory().parked("b:0.0", 2.0, newest="t", replaced=["a:0.0"])
    story.message("a", state="REVOKED", error="TaskSkipped", about="b")
    story.parked("a:0.0", 2.005, newest="t").took("b:0.0", 3.0)
    assert story.wrong() == []


def test_a_retry_takes_what_its_earlier_attempt_kept_for_it():
    story = RoomStory().body(0.5, 0.9, task_id="r", fence=490, outcome="retried")
    story.add("released", 0.95, id="r", key="k", fence=490, owned=True, kept_for_retry=True)
    story.parked("a:0.0", 1.0).took("r:0.1", 2.0).took("a:0.0", 3.0)
    assert story.wrong() == []


def test_one_that_asks_again_and_again_is_found():
    def story(pause):
        made = RoomStory()
        for number in range(30):
            made.asks("a:0.0", 1.0 + number * pause)
        return made.wrong()

    assert story(pause=0.1) == []
    assert story(pause=0.01) == ["spins"]


def test_an_error_of_a_programs_own_is_found_and_a_tasks_own_is_not():
    def story(error, task="job"):
        story = RoomStory().message("a", state="FAILURE")
        story.events[1].fields["task"] = task
        return story.add("failed", 1.0, id="a", error=error, pid=CHILD).wrong()

    assert story("ValueError") == []
    assert story("TypeError") == ["error"]
    assert story("TypeError", task="reshaped") == []


# -- nothing is lost --------------------------------------------------------------------------


def test_who_waits_at_the_end_and_what_is_left_there_are_found():
    story = RoomStory().message("a", state=None).parked("a:0.0", 1.0)
    assert story.quiet(room=["a:0.0"]).wrong() == ["vanished", "left"]
    assert RoomStory().quiet().wrong() == []


def test_who_waited_in_the_room_is_not_lost_with_the_worker_that_parked_it():
    story = RoomStory().message("a", state=None).parked("a:0.0", 1.0)
    assert story.add("dead", 2.0, pids=[MAIN]).wrong() == ["vanished"]


def test_who_was_taken_from_the_room_may_be_lost_with_a_worker_that_had_acknowledged_it():
    story = RoomStory().message("a", state=None).parked("a:0.0", 1.0).took("a:0.0", 2.0)
    assert story.add("dead", 2.1, pids=[MAIN]).wrong() == []


def test_what_the_lock_server_forgot_is_counted():
    story = RoomStory(allows=["again"]).message("a", state=None).parked("a:0.0", 1.0)
    story.fault(2.0, 2.1, unreachable=True)
    assert story.wrong() == []
    assert story.verdict().forgotten == 1


def replaced(state="REVOKED", error="TaskSkipped", about="b", value=None):
    story = RoomStory().message("a", state=state, error=error, about=about, value=value)
    story.message("b", value="run").parked("a:0.0", 1.0, newest="t")
    story.parked("b:0.0", 2.0, newest="t", replaced=["a:0.0"]).took("b:0.0", 3.0)
    return story.body(3.0, 3.5, task_id="b", run="run", fence=3000)


def test_a_replaced_one_names_its_successor():
    assert replaced().wrong() == []
    assert replaced(about="another").wrong() == ["result"]


def test_a_replaced_one_without_a_result_is_found():
    assert replaced(state=None).wrong() == ["vanished"]


def test_a_replaced_one_that_ran_is_found():
    story = replaced(state="SUCCESS", error=None, about=None, value="other")
    story.body(4.0, 4.5, task_id="a", run="other", fence=4000)
    assert story.wrong() == ["outcome"]


def test_one_that_expires_is_revoked():
    story = RoomStory().message("a", state="REVOKED")
    assert story.wrong() == ["result"]
    story = RoomStory().message("a", state="REVOKED")
    story.events[1].fields["expires"] = 1.0
    assert story.wrong() == []


def test_the_retry_of_one_that_failed_as_it_released_may_run():
    for attempt, is_wrong in ((1, False), (0, True)):
        story = RoomStory().message("a", value="second").body(1.0, 1.5, task_id="a")
        story.add("failed", 1.6, id="a", error="SoftTimeLimitExceeded", pid=CHILD)
        story.body(3.0, 3.5, task_id="a", fence=3000, run="second")
        for event in story.events:
            if event.kind == "start":
                event.fields["attempt"] = attempt if event.at == 3.0 else 0
        assert ("failed, ran" in story.wrong()) is is_wrong


def test_one_that_was_deferred_may_be_dropped_by_rabbitmq_when_it_expires():
    def story(expires):
        made = RoomStory(broker="rabbitmq").message("a", state=None)
        made.events[1].fields["expires"] = expires
        return made.add("asks", 1.0, id="a", token="t", entry="a:0.0", key="k", pid=CHILD)

    assert story(1.0).fault(0.5, 3.0, unreachable=True).wrong() == []
    assert story(1.0).fault(0.5, 0.9, unreachable=True).wrong() == ["vanished"]
    assert story(None).fault(0.5, 3.0, unreachable=True).wrong() == ["vanished"]
    for countdown, wrong in ((0.7, []), (None, ["vanished"])):
        said = {"id": "a", "key": "k", "outcome": "redelivered", "holder": "b"}
        assert story(1.0).add("conflict", 1.1, countdown=countdown, **said).wrong() == wrong


def test_one_that_failed_while_it_was_parked_and_runs_all_the_same_is_found():
    story = RoomStory().parked("a:0.0", 1.0)
    story.add("failed", 1.1, id="a", error="SoftTimeLimitExceeded", pid=CHILD)
    story.took("a:0.0", 3.0)
    assert story.wrong() == []
    assert story.body(3.0, 3.5, task_id="a").wrong() == ["failed, ran"]


def waits(until):
    return RoomStory().body(0.5, 1.5).parked("a:0.0", 1.0).took("a:0.0", until)


def test_a_room_in_which_nobody_runs_for_long_is_found():
    assert waits(1.4 + STUCK).wrong() == []
    assert waits(1.7 + STUCK).wrong() == ["stuck"]


def test_a_room_goes_on_too_if_one_is_published_and_needs_the_lock_no_more():
    def story(is_published):
        story = waits(1.7 + STUCK).parked("b:0.0", 0.9)
        if is_published:
            story.offered("b:0.0", 1.9)
        return story.out("b:0.0", 2.0).wrong()

    assert story(is_published=True) == []
    assert story(is_published=False) == ["stuck"]


def test_a_room_in_which_others_run_goes_on():
    assert waits(1.7 + STUCK).body(9.0, 9.5).wrong() == []


def test_a_room_does_not_go_on_while_the_lock_server_is_away():
    assert waits(1.7 + STUCK).fault(3.0, 12.0, unreachable=True).wrong() == []


# -- pending slots ------------------------------------------------------------------------------


def test_two_that_wait_in_one_slot_are_found():
    story = RoomStory().parked("a:0.0", 1.0, newest="t").parked("b:0.0", 2.0, newest="t")
    assert story.took("a:0.0", 3.0).took("b:0.0", 4.0).wrong() == ["two wait"]


def test_whom_a_command_replaced_whose_answer_was_lost_is_not_in_the_answer_to_the_next():
    def story(asked):
        story = RoomStory().parked("a:0.0", 1.0, newest="t")
        story.parked("b:0.0", 2.0, newest="t", asked=asked)
        return story.took("a:0.0", 3.0).took("b:0.0", 4.0).wrong()

    assert story(asked=1.95) == ["two wait"]
    assert story(asked=1.8) == []


def test_an_offer_may_be_written_before_the_parking():
    """The release that made it came between the parking and the answer to it."""

    def story(offered_at):
        story = RoomStory().parked("a:0.0", 1.0, asked=0.9).offered("a:0.0", offered_at)
        story.took("newcomer:0.0", 4.1).body(4.1, 4.5, task_id="newcomer")
        return story.took("a:0.0", 5.0).wrong()

    assert story(0.95) == []
    assert story(0.8) == ["overtook"]


def test_without_a_lock_each_message_runs_that_a_room_published():
    def story(since, token, redelivered=False):
        story = RoomStory().parked("a:0.0", 0.1).offered("a:0.0", 0.2)
        story.offered("a:0.0", 0.8, since=since)
        story.body(1.0, 1.5, run="first", task_id="a").out("a:0.0", 1.0)
        story.body(2.0, 2.5, run="second", task_id="a")
        for event in story.events:
            if event.kind == "start":
                event.fields["token"] = token
                event.fields["redelivered"] = redelivered and event.run == "first"
        return story.wrong()

    assert "twice" not in story(since=0.6, token=None)
    assert "twice" not in story(since=0, token=None, redelivered=True)
    assert "twice" in story(since=0, token=None)
    assert "twice" in story(since=0.6, token="held")


def test_a_retry_and_one_that_is_newer_may_both_wait():
    story = RoomStory().parked("a:0.0", 1.0, newest="t")
    story.parked("b:0.1", 2.0, in_front=True)
    assert story.took("b:0.1", 3.0).took("a:0.0", 4.0).wrong() == []


def test_an_old_one_that_replaces_a_newer_one_is_found():
    story = RoomStory().body(0.5, 1.5, task_id="b", fence=490, outcome="retried")
    story.message("a", at=1.0, state="REVOKED", error="TaskSkipped", about="b")
    story.parked("a:0.0", 1.2, newest="t")
    story.parked("b:0.1", 2.0, newest="t", replaced=["a:0.0"]).took("b:0.1", 2.5)
    assert story.wrong() == ["newest"]


# -- limits and pauses ------------------------------------------------------------------------


def limited(*spans, limit=2, **case):
    story = RoomStory(**case)
    for start, end in spans:
        story.body(start, end)
    for event in story.events:
        if event.kind == "start":
            event.fields["limit"] = limit
    return story


def test_as_many_as_the_limit_may_run_at_once():
    assert limited((1.0, 2.0), (1.1, 2.1), (2.05, 3.0)).wrong() == []


def test_one_more_than_the_limit_is_found():
    assert limited((1.0, 2.0), (1.1, 2.1), (1.2, 1.3)).wrong() == ["limit"]


def test_one_that_lost_its_lock_does_not_count():
    story = limited((1.0, 2.0), (1.1, 2.1), (1.3, 1.4))
    story.add("told", 1.2, run="run1", by="body")
    assert story.wrong() == []


def paused(next_at, *, outcome="returned", owned=True):
    story = RoomStory().body(1.0, 1.2, fence=990, outcome=outcome)
    story.events[1].fields["min_hold"] = 1.0
    story.add("released", 1.2, id="run1", key="k", fence=990, owned=owned, kept_for_retry=False)
    return story.body(next_at, next_at + 0.1)


def test_a_run_within_the_pause_is_found():
    assert paused(1.5).wrong() == ["pause"]
    assert paused(2.0).wrong() == []


def test_there_is_no_pause_after_a_failure_or_for_a_loser():
    assert paused(1.5, outcome="raised").wrong() == []
    assert paused(1.5, owned=False).wrong() == []


def test_a_pause_is_no_ghost():
    story = paused(5.0)
    story.events[1].fields["min_hold"] = 3.0
    met = {"outcome": "skipped", "holder": "x", "holder_fence": 990, "pid": CHILD}
    assert story.add("conflict", 3.5, id="late", task="job", key="k", **met).wrong() == []
    assert story.add("conflict", 9.5, id="late", task="job", key="k", **met).wrong() == ["ghost"]
