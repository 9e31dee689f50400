"""Raising `LockLost` inside a running body."""

from __future__ import annotations

import subprocess
import sys

from celery_redislock.tasks import abort

AFTER_AN_ABORT = """
import sys, threading
from celery_redislock import LockLost
from celery_redislock.tasks.abort import Abort

def body(abort, raised):
    abort.arm()
    try:
        fired = threading.Thread(target=abort.fire)
        fired.start()
        while raised:
            pass
        while not abort._fired:  # a C call at a time: where it is raised is chance
            pass
    except LockLost:
        pass
    finally:
        try:
            abort.disarm()
        except LockLost:
            pass

for raised in (True, False):
    thread = threading.Thread(target=body, args=(Abort(), raised))
    thread.start()
    thread.join()

class Cut(Exception):
    pass

def cut(frame, event, argument):
    sys.setprofile(None)
    raise Cut

sys.setprofile(cut)
try:
    (lambda: None)()
except Cut:
    print("cut")
"""


def test_an_abort_in_a_thread_leaves_nothing_pending_in_the_interpreter():
    # Else every call of the process would be slower, and a profiler stand still (Python 3.11).
    done = subprocess.run(
        [sys.executable, "-c", AFTER_AN_ABORT], timeout=20, capture_output=True, text=True
    )
    assert done.stdout == "cut\n", done.stderr


def test_where_nothing_can_end_a_body_that_is_logged(monkeypatch, caplog):
    monkeypatch.setattr(abort, "patched_by", lambda: "eventlet")
    of_body = abort.Abort()
    of_body.arm()
    of_body.fire()
    assert "on_lock_lost='abort' cannot end a body in this pool" in caplog.text
