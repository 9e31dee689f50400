"""The tools of the tests: a fault that does nothing would prove everything."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support import ending
from tests.support.servers import Proxy
from tests.support.waiting import eventually, never
from tests.support.workers import ROOT, is_running

LOST = (redis.ConnectionError, redis.TimeoutError)


def hasty(port: int, timeout: float = 0.2) -> redis.Redis:
    """A client with one connection that tries nothing twice."""
    return redis.Redis(
        port=port,
        decode_responses=True,
        single_connection_client=True,
        socket_timeout=timeout,
        retry=Retry(NoBackoff(), 0),
    )


@pytest.fixture
def through(proxy: Proxy) -> Iterator[redis.Redis]:
    """A client that goes through the proxy."""
    with hasty(proxy.port, 20) as client:
        assert client.ping()
        yield client


# -- the proxy --------------------------------------------------------------------------------


def test_a_lost_reply_is_that_of_a_command_that_was_executed(proxy, through, client, label):
    before = proxy.requests
    proxy.lose_replies(1)
    with pytest.raises(LOST):
        through.incr(label)
    assert (proxy.lost, client.get(label)) == (1, "1")
    proxy.lose_replies(to=b"INCR")
    with pytest.raises(LOST):
        through.incr(label)
    assert through.get(label) == client.get(label)
    proxy.heal()
    assert through.incr(label) > 2
    assert proxy.requests >= before + 4


def test_a_request_on_a_blocked_way_is_executed_later_also_after_its_client_is_gone(
    proxy, through, client, label
):
    proxy.to_server.block()
    through.connection.send_command("SET", label, "late", "EX", 60)
    through.close()
    with pytest.raises(redis.TimeoutError), hasty(proxy.port) as another:
        another.ping()
    never(lambda: client.exists(label), "it went through", 0.2)
    proxy.to_server.unblock()
    eventually(lambda: client.get(label) == "late", "the request of before is executed")


# -- the end of a run -------------------------------------------------------------------------

RUN = """
import resource, subprocess, time

from tests.support import ending
from tests.support.servers import RedisServer

most = resource.getrlimit(resource.RLIMIT_MSGQUEUE)[1]
resource.setrlimit(resource.RLIMIT_MSGQUEUE, (most, most))  # a run of its own
ending.end_all_with_this_process()
command = ["sh", "-c", "sleep 60 >&2 & echo $!"]
sleep = subprocess.run(command, start_new_session=True, env={}, stdout=subprocess.PIPE)
print(RedisServer().start().pid, int(sleep.stdout), flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="there is no mark")
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL], ids=lambda each: each.name)
def test_what_a_run_has_started_ends_with_it_whatever_ended_it(signum):
    assert ending.is_marked(), "so it is with this run"
    command = [sys.executable, "-c", RUN]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        server, orphan = map(int, run.stdout.readline().split())
        assert is_running(server)
        assert is_running(orphan)

        run.send_signal(signum)

        assert run.wait(10) == -signum
    eventually(lambda: not is_running(server), "the server has ended")
    eventually(lambda: not is_running(orphan), "so has what had lost its parent")
