"""The checker's rules of what was lost, and by whom; of skips over runs, and of reservations."""

from __future__ import annotations

import json
import time

import pytest

from tests.proofs.faults import report
from tests.proofs.faults.broker import Recorder
from tests.proofs.faults.cases import Case
from tests.proofs.faults.history import History
from tests.proofs.faults.run import Result
from tests.proofs.faults.test_checker import CHILD, MAIN, NOISE, SOON, Story
from tests.proofs.faults.test_checker_rooms import RoomStory

OTHER_MAIN = 11


class Broker(Story):
    """Histories over the Redis broker, with what it held."""

    def __init__(self, **case):
        super().__init__(broker="redis", acks_late=True, **case)
        self.add("worker", 0.0, main=MAIN)

    def place(self, where, since, at, *, task_id="a", tag="t1"):
        return self.add("place", at, id=task_id, tag=tag, where=where, since=since)

    def received(self, at, *, task_id="a", tag="t1", redelivered=False, main=OTHER_MAIN):
        about = {"id": task_id, "tag": tag, "main": main}
        return self.add("received", at, redelivered=redelivered, **about)


def sent(at=1.0, **case):
    return Broker(**case).add("sent", at, id="a", task="job")


def popped(gone_at=2.0, **case):
    """It was in the queue until just before that, and nowhere since."""
    story = sent(**case).place("queue", 1.0, 1.05)
    return story.place("nowhere", gone_at - 0.05, gone_at)


def losses(story):
    verdict = story.verdict()
    return verdict.lost_by_transport, verdict.lost_by_us


# -- the transport's losses, and ours ---------------------------------------------------------


def test_a_message_that_left_its_queue_as_a_worker_was_killed_is_the_transports_loss():
    story = popped(2.0).add("dead", 2.02, pids=[MAIN])
    assert story.wrong() == []
    assert losses(story) == (1, 0)


@pytest.mark.parametrize("dead_at", [2.0 - 0.1 - NOISE, 2.0 + NOISE + 0.1])
def test_a_worker_that_was_killed_at_another_time_did_not_take_it(dead_at):
    story = popped(2.0).add("dead", dead_at, pids=[MAIN])
    assert story.wrong() == ["vanished"]
    assert losses(story) == (0, 1)


def test_a_worker_that_stood_still_until_it_was_killed_may_have_been_given_it():
    story = popped(2.0).add("stopped", 1.9, pids=[MAIN])
    assert story.add("dead", 6.0, pids=[MAIN]).wrong() == []


def test_the_death_of_a_child_takes_no_message():
    assert popped(2.0).add("dead", 2.02, pids=[CHILD]).wrong() == ["vanished"]


def test_a_message_that_vanished_while_nobody_died_is_our_loss():
    assert losses(popped(2.0)) == (0, 1)


def test_a_message_that_a_worker_got_is_not_the_transports_loss():
    story = popped(2.0).received(1.99).add("acked", 2.0, id="a", main=OTHER_MAIN, tag="t1")
    assert story.add("dead", 2.02, pids=[MAIN]).wrong() == ["vanished"]
    assert losses(story) == (0, 1)


def test_a_message_that_was_noted_as_unacknowledged_is_not_the_transports_loss():
    story = sent().place("unacked", 1.0, 1.05).place("nowhere", 1.95, 2.0)
    assert story.add("dead", 2.02, pids=[MAIN]).wrong() == ["vanished"]


def test_a_message_that_the_broker_still_has_is_said_to_be_there():
    story = sent().place("unacked", 1.0, 1.05).add("dead", 1.1, pids=[MAIN])
    (violation,) = story.verdict().violations
    assert violation.rule == "vanished"
    assert "the broker still has it, unacked" in violation.message


def test_a_retry_that_a_broken_connection_lost_is_the_transports_loss():
    """Its message was not confirmed, and a copy of the one before is not to run."""

    def story(outcome, **case):
        story = sent(**case).body(1.1, 1.4, task_id="a", outcome=outcome)
        story.received(2.0, redelivered=True).add(
            "conflict", 2.1, id="a", task="job", attempt=0, key="k", outcome="already done", pid=1
        )
        return story.add("acked", 2.2, id="a", main=OTHER_MAIN, tag="t1")

    assert losses(story("retried", allows=["vanished"])) == (1, 0)
    assert losses(story("retried")) == (0, 1)
    assert losses(story("rejected")) == (0, 1)


def deferred(*, taken_at):
    """Its first message was got, and put off by a second one, which nobody got."""
    story = sent().received(1.1).add("published", 1.2, id="a", task="job", pid=CHILD, main=MAIN)
    story.add("acked", 1.21, id="a", main=OTHER_MAIN, tag="t1")
    story.place("queue", 1.2, 1.25, tag="t2")
    return story.place("nowhere", taken_at - 0.05, taken_at, tag="t2")


def test_a_copy_that_we_published_can_be_the_transports_loss_too():
    assert losses(deferred(taken_at=2.0).add("dead", 2.02, pids=[MAIN])) == (1, 0)
    assert losses(deferred(taken_at=2.0)) == (0, 1)


def test_a_copy_that_nobody_saw_was_taken_soon_after_it_was_published():
    def story(dead_at):
        made = sent().received(1.1).add("published", 1.2, id="a", task="job", pid=CHILD, main=MAIN)
        made.add("acked", 1.21, id="a", main=OTHER_MAIN, tag="t1")
        return made.add("dead", dead_at, pids=[MAIN])

    assert losses(story(1.5)) == (1, 0)
    assert losses(story(5.0)) == (0, 1)


def test_a_copy_that_is_delivered_again_is_the_same_message():
    story = sent().received(1.1).received(4.0, redelivered=True)
    story.add("acked", 4.1, id="a", main=OTHER_MAIN, tag="t1").add("dead", 1.2, pids=[MAIN])
    assert losses(story) == (0, 1)


def test_with_rabbitmq_there_is_no_such_loss():
    story = Story(acks_late=True).add("worker", 0.0, main=MAIN).add("sent", 1.0, id="a", task="job")
    assert losses(story.add("dead", 1.1, pids=[MAIN])) == (0, 1)


def test_the_report_counts_both():
    verdicts = [popped(2.0).add("dead", 2.02, pids=[MAIN]).verdict(), popped(2.0).verdict()]
    case = Case("redis", "prefork", "late", "kill_worker")
    heading, line, _ = report.rows([Result(case, 1, each) for each in verdicts])
    table = dict(zip(heading, line, strict=True))
    assert (table["by transport"], table["by us"], table["gone"]) == ("1", "1", "0")


# -- the recorder -----------------------------------------------------------------------------


class FakeBroker:
    """As much of a Redis client as the recorder asks."""

    def __init__(self):
        self.queue, self.unacked = [], {}

    def pipeline(self, transaction):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        pass

    def lrange(self, queue, first, last):
        pass

    def hkeys(self, key):
        pass

    def execute(self):
        return [list(self.queue), list(self.unacked)]

    def hmget(self, key, tags):
        return [self.unacked.get(tag) for tag in tags]


def test_the_recorder_writes_where_each_message_is(tmp_path):
    def message(tag):
        return {"headers": {"id": f"task-{tag}"}, "properties": {"delivery_tag": tag}}

    broker, history = FakeBroker(), History(tmp_path / "history")
    recorder = Recorder(history, broker, ["queue"])
    before = time.monotonic()
    broker.queue = [json.dumps(message("one"))]
    recorder.look()
    broker.queue, unacked = [], json.dumps([message("one"), "", "queue"])
    broker.unacked = {"one": unacked, "two": json.dumps([message("two"), "", "queue"])}
    recorder.look()
    recorder.look()
    broker.unacked = {}
    recorder.look()
    seen = [(e.id, e.tag, e.where) for e in history.events("place")]
    history.close()
    assert seen == [
        ("task-one", "one", "queue"),
        *(("task-one", "one", "unacked"), ("task-two", "two", "unacked")),
        *(("task-one", "one", "nowhere"), ("task-two", "two", "nowhere")),
    ]
    assert all(before - 1 < e.since <= e.at for e in history.events("place"))


# -- a skip over a run ------------------------------------------------------------------------


def ran_and_is_skipped(*, stored=True, state="REVOKED", error="TaskSkipped", **case):
    story = Story(acks_late=True, **case).message("a", state=state, error=error)
    story.body(1.0, 2.0, run="run-a", task_id="a")
    if stored:
        story.add("stored", 2.01, id="a", value="run-a", pid=CHILD)
    story.add("dead", 2.1, pids=[MAIN])
    about = {"task": "job", "attempt": 0, "key": "k", "holder": "other"}
    return story.add("conflict", 5.0, id="a", outcome="skipped", **about)


def test_a_skip_that_is_stored_over_a_result_is_found():
    assert ran_and_is_skipped().wrong() == ["skip over run"]


def test_a_run_whose_result_was_never_stored_may_be_skipped_after_its_worker_died():
    assert ran_and_is_skipped(stored=False).wrong() == []


def test_a_skip_over_a_result_is_nobodys_fault_if_the_server_forgot_the_run():
    assert ran_and_is_skipped(allows=["again"]).fault(3.0, 3.1).wrong() == []


def test_a_result_that_stays_is_fine():
    story = Story().message("a", value="run-a").body(1.0, 2.0, run="run-a", task_id="a")
    assert story.add("stored", 2.01, id="a", value="run-a", pid=CHILD).wrong() == []


# -- reservations -----------------------------------------------------------------------------


def ended(at=2.0, **case):
    story = Story(**case).message("a", at=0.5, value="run-a")
    return story.body(1.0, at, run="run-a", task_id="a")


def not_sent(story, at, existing="a"):
    return story.add("not sent", at + 0.01, task="job", existing=existing, asked=at)


def test_a_duplicate_may_be_given_the_id_of_one_that_has_not_ended():
    assert not_sent(ended(), 1.5).wrong() == []
    assert not_sent(ended(), 2.0 + SOON).wrong() == []


def test_a_duplicate_that_is_given_the_id_of_one_that_has_ended_is_found():
    assert not_sent(ended(), 2.1 + SOON + NOISE).wrong() == ["stale"]


def test_a_duplicate_that_is_given_the_id_of_nobody_is_found():
    assert not_sent(ended(), 1.5, existing="nobody").wrong() == ["stale"]


def test_what_a_dead_worker_or_a_lost_message_left_reserved_lapses():
    late = 2.1 + SOON + NOISE
    assert not_sent(ended().add("dead", 2.1, pids=[MAIN]), late).wrong() == []
    assert not_sent(ended().fault(1.9, 2.2, unreachable=True), late).wrong() == []
    lost = Story().message("a", state=None).add("dead", 1.0, pids=[MAIN])
    assert not_sent(lost, 9.0).wrong() == []


def test_a_reservation_that_is_left_is_found():
    def story(at, reserved):
        return ended().add("drained", at, fences={}, reserved=reserved)

    late = 2.1 + SOON + NOISE
    assert story(late, {"k": "a"}).wrong() == ["reserved"]
    assert story(late, {}).wrong() == []
    assert story(2.1, {"k": "a"}).wrong() == []


def test_what_was_reserved_takes_its_lock_past_the_room():
    def story(reserved):
        made = RoomStory().parked("a:0.0", 1.0).took("new:0.0", 2.0).took("a:0.0", 3.0)
        for event in made.events:
            if event.kind == "took" and event.entry == "new:0.0":
                event.fields["reserved"] = reserved
        return made

    assert story(reserved=True).wrong() == []
    assert story(reserved=False).wrong() == ["overtook"]
