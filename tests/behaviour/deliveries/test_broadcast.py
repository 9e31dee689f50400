"""Broadcast: a fanout exchange gives each worker a copy of the message. What was sent once is
answered once.
"""

from __future__ import annotations

import uuid

import pytest
from kombu import Exchange
from kombu.common import Broadcast

from celery_redislock import TaskSkipped
from tests.behaviour.deliveries.conftest import APP, await_line, lines_of
from tests.support.waiting import eventually, never
from tests.support.workers import make_app

#: The hosts of the workers that all tests of a broker share.
HOSTS = ("one", "one", "two")


class Site:
    """A broker, and workers of it, each with a queue of its own for what is broadcast, and another
    one for itself alone.
    """

    def __init__(self, conf, kind, url):
        self.kind, self.queue = kind, f"q{uuid.uuid4().hex}"
        self.conf = {"broker_url": url, "test_broadcast": f"all-{self.queue}"}
        self.app = make_app({k: v for k, v in conf.items() if not k.startswith("test_")})
        self.app.conf.broker_url = url
        self.workers = []

    def start(self, start_worker, *hosts, **settings):
        for number, host in enumerate(hosts):
            conf = {**self.conf, "test_host": host, **settings}
            queues = f"{self.queue},all-{self.queue},{self.queue}-{number}"
            self.workers.append(start_worker(app=APP, queues=queues, concurrency=2, conf=conf))

        def listen():
            """A worker that listens to a channel of Redis' is ready before it does."""
            self.broadcast("last", "")
            return all(lines_of(worker, "Task last[") for worker in self.workers)

        eventually(listen, "all listen")

    def send(self, name, *args, number=None):
        """Sends to one worker."""
        queue = self.queue if number is None else f"{self.queue}-{number}"
        return self.app.send_task(name, args, queue=queue)

    def broadcast(self, name, *args):
        """Sends to all workers."""
        everywhere = Exchange(f"all-{self.queue}", type="fanout")
        to = {"queue": Broadcast(f"all-{self.queue}"), "declare": [everywhere]}
        return self.app.send_task(name, args, **to)

    def received(self, result):
        return sum(len(lines_of(worker, result.id, "received")) for worker in self.workers)

    def ends_of_copies(self, result):
        return [
            line
            for worker in self.workers
            for how in ("runs elsewhere", "already done")
            for line in lines_of(worker, result.id, how)
        ]


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def broker(request, conf):
    """A broker's kind, and its URL."""
    is_redis = request.param == "redis"
    url = conf["broker_url"] if is_redis else request.getfixturevalue("rabbitmq").url
    return request.param, url


@pytest.fixture(scope="module")
def site(conf, broker, start_module_worker):
    site = Site(conf, *broker)
    with site.app:
        site.start(start_module_worker, *HOSTS)
        yield site


@pytest.mark.parametrize("name", ["skip", "wait", "late"])
def test_one_worker_runs_it_and_the_others_end_their_copies(site, journal, label, started, name):
    result = site.broadcast(name, label, None)
    started()
    for worker in site.workers:
        await_line(worker, result.id, "received")
    eventually(lambda: len(site.ends_of_copies(result)) == 2, "the others have ended")
    assert not result.ready(), "they store no result"
    journal.let_go(result.id)
    assert result.get(timeout=60) == label
    assert journal.count(label, "start") == 1
    assert site.received(result) == 3


@pytest.mark.parametrize("policy", ["defer", "queue", "replace"])
def test_copies_that_meet_another_run_are_put_off_each_to_its_own_queue(
    site, journal, label, started, policy
):
    """One of them runs then. Redis' fanout queues are channels, to which no worker is given back
    what is its own.
    """
    holder = site.send(policy, label, None)
    started()
    result = site.broadcast(policy, label)
    for worker in site.workers:
        await_line(worker, result.id, "received")
    if site.kind == "redis":
        with pytest.raises(TaskSkipped):
            result.get(timeout=60)
        warned = [
            line for each in site.workers for line in lines_of(each, result.id, "is skipped: it")
        ]
        assert warned
        assert all("WARNING" in line for line in warned)
        never(lambda: site.received(result) > 3, "it is published again", 1)
        journal.let_go(holder.id)
        assert holder.get(timeout=60) == label
        assert journal.count(label, "start") == 1
        return
    eventually(lambda: site.received(result) > 3, "they come again")
    never(result.ready, "it ended while the lock was held", 1)
    assert site.received(result) <= 3 * 15
    journal.let_go(holder.id)
    assert result.get(timeout=20) == label
    eventually(lambda: len(site.ends_of_copies(result)) == 2, "the others have ended")
    assert journal.count(label, "start") == 2
    assert journal.overlaps(label) == []


def test_with_the_host_in_its_key_it_runs_once_on_each_host(site, journal, label):
    result = site.broadcast("once_a_host", label)
    eventually(lambda: journal.count(label, "end") == 2, "it ran on both")
    eventually(lambda: len(site.ends_of_copies(result)) == 1, "the third has ended its copy")
    assert journal.count(label, "start") == 2
