"""Where threads are greenlets the heartbeat is a native thread: what it has to say, they say."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap

import pytest

from tests.support.workers import ROOT

KINDS = {
    "gevent": "from gevent import monkey; monkey.patch_all(); from gevent import spawn",
    "eventlet": "import eventlet; eventlet.monkey_patch(); from eventlet import spawn",
}
PRELUDE = """
import gc, logging, sys, threading, time
from celery_redislock import LockLost, RedisLock
from celery_redislock.servers.urls import source_from_url
from celery_redislock.lock.lease import Lease
from celery_redislock.lock.heartbeat import heartbeat
from celery_redislock.protocol.claims import RETAKEN
from celery_redislock.servers.node import Node
from tests.contract.claims import make_claim
from tests.support.waiting import eventually as until
url, label = sys.argv[1:3]
store = Node(source_from_url(url))
looks = Node(source_from_url(url))
def ask(*command):
    (reply,) = looks.replies([command])
    return reply
"""


@pytest.fixture(params=KINDS)
def kind(request):
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"no {request.param} here")
    return request.param


@pytest.fixture
def run(redis_server, label):
    """Runs a script where this kind of greenlets is, and gives what it printed."""

    def run(kind, code):
        code = f"{KINDS[kind]}\n{PRELUDE}\n{textwrap.dedent(code)}"
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, redis_server.url, label],
            cwd=ROOT, timeout=120, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.split()

    return run


def test_who_hears_of_a_lock_hears_it_in_a_greenlet_and_in_order(run, kind):
    said = run(kind, """
        logging.getLogger("celery_redislock").setLevel(logging.CRITICAL)
        here, heard, waits = threading.get_native_id(), [], [True]
        def on_extended(lease, late, retaken):
            heard.append(("extended", threading.get_native_id() == here))
            while waits:  # a receiver that waits keeps nobody else waiting
                time.sleep(0.01)
        def on_lost(lease):
            heard.append(("lost", threading.get_native_id() == here, lease.is_lost))
        lease = Lease(store, make_claim(label, ttl=60), on_lost=on_lost, on_extended=on_extended)
        lease.acquire()
        heartbeat.beat_now(lease)
        until(lambda: heard, "it is extended")
        ask("SET", lease.key, "thief", "PX", 60000)
        heartbeat.beat_now(lease)
        until(lambda: lease.lost, "it is known at once")
        assert not lease.loss_is_told
        waits.clear()
        until(lambda: lease.loss_is_told, "it is told")
        assert heard == [("extended", True), ("lost", True, True)], heard
        print("ok")
    """)  # fmt: skip
    assert said == ["ok"]


def test_what_a_heartbeat_says_of_itself_it_says_in_a_greenlet(run, kind):
    said = run(kind, """
        here, heard = threading.get_native_id(), []
        class Heard(logging.Handler):
            def emit(self, record):
                heard.append((record.getMessage(), threading.get_native_id() == here))
        logging.getLogger("celery_redislock").addHandler(Heard())
        def broken(now):
            raise ZeroDivisionError
        lease = Lease(store, make_claim(label, ttl=60))
        lease.extension = broken
        lease.acquire()
        heartbeat.beat_now(lease)
        until(lambda: heard, "it says so")
        assert heard[0] == ("redislock: unexpected error in the heartbeat; continuing", True), heard
        lease.release()
        lock = RedisLock(url, label + "-dropped")
        lock.acquire()
        del lock
        gc.collect()
        # What the one before it had said may be heard only now.
        until(lambda: any("was never released" in text for text, _ in heard), "it says so")
        assert all(in_its_thread for _, in_its_thread in heard), heard
        print("ok")
    """)  # fmt: skip
    assert said == ["ok"]


def test_what_cannot_be_told_keeps_nothing_else_from_being_told(run, kind):
    said = run(kind, """
        from celery_redislock.lock.greenlets import start_native, teller_here
        logging.getLogger("celery_redislock").setLevel(logging.CRITICAL)
        teller, heard, told = teller_here(), [], []
        def fails():
            raise KeyError
        def tell():
            teller.tell(fails)
            teller.tell(lambda: heard.append("next"))
            told.append(True)
        start_native(tell, "tells")
        while not told:  # no other greenlet runs
            pass
        until(lambda: heard, "the next one is told")
        print("ok")
    """)  # fmt: skip
    assert said == ["ok"]


def test_what_no_greenlet_can_hear_since_their_thread_has_ended_is_told_at_once(run):
    said = run("gevent", """
        import gevent
        from celery_redislock.lock.greenlets import start_native, teller_here
        tellers, heard = [], []
        def ends():
            teller = teller_here()
            gevent.get_hub().destroy(destroy_loop=True)
            tellers.append(teller)
        start_native(ends, "ends")
        until(lambda: tellers, "its greenlets are gone")
        start_native(lambda: tellers[0].tell(lambda: heard.append("lost")), "tells")
        until(lambda: heard, "it is told", 10)
        print("ok")
    """)  # fmt: skip
    assert said == ["ok"]


def test_an_abort_does_not_hit_what_comes_after_the_body(run):
    """It is fired, and the body may go on to its end before it is raised."""
    said = run("gevent", """
        from celery_redislock.tasks.abort import Abort
        abort, goes_on, heard = Abort(), threading.Event(), []
        def work():
            try:
                abort.arm()
                heard.append("body")
                goes_on.wait()
            except LockLost:
                heard.append("aborted")
            finally:
                abort.disarm()
            try:
                time.sleep(0.1)
                heard.append("after")
            except LockLost:
                heard.append("hit")
        greenlet = spawn(work)
        until(lambda: heard, "it runs")
        abort.fire()
        goes_on.set()
        greenlet.join()
        print(*heard)
    """)  # fmt: skip
    assert said == ["body", "aborted", "after"]


def test_what_is_taken_again_too_late_is_given_back_on_the_heartbeats_connections(run, kind):
    said = run(kind, """
        logging.basicConfig(level=logging.INFO, stream=sys.stdout)
        arrived = []
        class Late(Node):
            def run_all(self, calls, **options):
                replies = super().run_all(calls, **options)
                arrived.extend(reply.outcome for reply in replies)
                heartbeat.discard(lease, wait=False)  # given up meanwhile
                return replies
        store = Late(source_from_url(url))
        lease = Lease(store, make_claim(label, ttl=3))
        lease.acquire()
        ask("DEL", lease.key)
        heartbeat.beat_now(lease)
        until(lambda: arrived, "the extension arrives")
        assert arrived == [RETAKEN], arrived
        until(lambda: not ask("EXISTS", lease.key), "it is given back", 2)
        time.sleep(0.2)
        main = [each for (of, _), each in store._connections.items() if of == "main"]
        assert sum(len(each._idle) for each in main) == 1
        store.close()
    """)  # fmt: skip
    assert said == []
