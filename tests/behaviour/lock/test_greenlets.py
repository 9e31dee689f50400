"""Locks of greenlets. There the heartbeat is a native thread, and must not stop them."""

from __future__ import annotations

import importlib.util

import pytest

from celery_redislock import RedisLock
from tests.support.waiting import eventually, never

GREEN = {
    "gevent": "from gevent import monkey; monkey.patch_all(); from gevent import spawn, sleep",
    "eventlet": "import eventlet; eventlet.monkey_patch(); from eventlet import spawn, sleep",
}


@pytest.fixture(params=GREEN)
def green(request: pytest.FixtureRequest) -> str:
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"no {request.param} here")
    return GREEN[request.param]


def test_a_greenlet_that_computes_for_longer_than_the_ttl_keeps_its_lock(
    script, redis_server, label, green
) -> None:
    other = RedisLock(redis_server.url, label)
    computing = script(
        """
with RedisLock(url, name, ttl=1) as lock:
    say("computes")
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        sum(range(1000))
    held = client.get(lock.key)
    kept = held is not None and json.loads(held)["fence"] == lock.fence
    say({"kept": kept, "lost": lock.lost})
""",
        prelude=green,
    )
    computing.says("computes")
    never(lambda: other.acquire(timeout=0), "somebody else takes it", 1.0)
    computing.says({"kept": True, "lost": False})
    eventually(lambda: not other.locked(), "it is released", 10)


def test_greenlets_that_share_one_object_exclude_each_other_and_wait_side_by_side(
    script, green
) -> None:
    waiting = script(
        """
shared = RedisLock(url, name, ttl=60, timeout=20)
inside, most, ticks = [], [], []
def work(number):
    for _ in range(5):
        with shared:
            inside.append(number)
            most.append(len(inside))
            sleep(0.01)
            inside.remove(number)
def tick():
    while len(most) < 20:
        ticks.append(time.monotonic())
        sleep(0.01)
workers = [spawn(work, number) for number in range(4)] + [spawn(tick)]
for worker in workers:
    worker.get() if hasattr(worker, "get") else worker.wait()
longest = max(later - earlier for earlier, later in zip(ticks, ticks[1:]))
say({"runs": len(most), "at once": max(most), "others wait": longest > 4})
""",
        prelude=green,
    )
    waiting.says({"runs": 20, "at once": 1, "others wait": False})


#: Greenlets that share a thread, and what Python keeps for a thread: threads are not patched, or
#: after the package was imported.
SHARE = {
    "gevent without threads": (
        "from gevent import monkey; monkey.patch_all(thread=False); from gevent import spawn, sleep"
    ),
    "gevent, late": (
        "from celery_redislock import RedisLock;"
        "from gevent import monkey; monkey.patch_all(); from gevent import spawn, sleep"
    ),
    "eventlet without threads": (
        "import eventlet; eventlet.monkey_patch(thread=False); from eventlet import spawn, sleep"
    ),
}


@pytest.mark.parametrize("how", SHARE)
@pytest.mark.parametrize(
    ("by", "reentrant", "start"),
    [("with", True, "workers.append(spawn(work, 4))"), ("acquire", False, "work(4)")],
)
def test_greenlets_that_share_a_thread_exclude_each_other(
    script, how, by, reentrant, start
) -> None:
    if importlib.util.find_spec(how.split()[0].strip(",")) is None:
        pytest.skip(f"no {how.split()[0]} here")
    sharing = script(
        f"""
shared = RedisLock(url, name, ttl=60, timeout=20, reentrant={reentrant})
inside, most, own = [], [], []
@contextlib.contextmanager
def acquired():
    assert shared.acquire(20)
    try:
        yield
    finally:
        own.append(shared.release())
def block():
    return shared if {by!r} == "with" else acquired()
def within(number):
    inside.append(number)
    most.append(len(inside))
    if number == 4:  # the others come while this one is inside
        workers.extend(spawn(work, each) for each in range(4))
        sleep(0.3)
    sleep(0.05)
    own.append(shared.fence > 0 and not shared.lost)
    inside.remove(number)
def work(number):
    with block():
        if {reentrant}:
            with block():
                within(number)
        else:
            within(number)
workers = []
{start}
while len(most) < 5:
    sleep(0.05)
for worker in workers:
    worker.get() if hasattr(worker, "get") else worker.wait()
say(["at once", max(most), len(most), "own", all(own), "left", client.exists(shared.key)])
""",
        prelude=SHARE[how],
    )
    sharing.says(["at once", 1, 5, "own", True, "left", 0])


def test_a_greenlet_cannot_release_what_another_one_acquired(script) -> None:
    pytest.importorskip("gevent")
    sharing = script(
        """
import logging
heard = []
logging.basicConfig(handlers=[logging.Handler()], level=logging.WARNING)
logging.getLogger().handlers[0].emit = lambda record: heard.append(record.getMessage())
shared = RedisLock(url, name, ttl=60)
from gevent.event import Event
has_it, other_is_through = Event(), Event()
first = spawn(lambda: (shared.acquire(), has_it.set(), other_is_through.wait(), shared.release()))
has_it.wait()
other = spawn(lambda: (shared.acquire(0), shared.release())).get()
other_is_through.set()
say([other, first.get(), [("did not release" in each, "greenlet" in each) for each in heard]])
""",
        prelude=SHARE["gevent without threads"],
    )
    sharing.says([[False, False], [True, None, True, True], [[True, True]]])
