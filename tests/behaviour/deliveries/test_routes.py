"""A message that is published again goes back to the queue from which it came, and only there,
whatever the exchange; and its task sees the route by which it was sent.
"""

from __future__ import annotations

import uuid

import pytest
from kombu import Exchange

from tests.behaviour.deliveries.conftest import APP, lines_of
from tests.support.waiting import eventually, never
from tests.support.workers import make_app

#: Queues and their exchanges. A message to the topic goes to two of them.
QUEUES = {
    "orders": {"exchange": "topic", "exchange_type": "topic", "routing_key": "orders.#"},
    "everything": {"exchange": "topic", "exchange_type": "topic", "routing_key": "#"},
    "other": {"exchange": "direct", "exchange_type": "direct", "routing_key": "not.the.queue"},
    "reports": {
        "exchange": "headers",
        "exchange_type": "headers",
        "routing_key": "",
        "binding_arguments": {"x-match": "all", "kind": "report"},
    },
    "routed": {},
}
KEYS = {"topic": "orders.new", "direct": "not.the.queue", "headers": ""}
KINDS = ("topic", "direct", "headers", "routes")


class Site:
    """A broker with these queues, under names of their own, and an app that sends to them."""

    def __init__(self, conf, url):
        self._suffix = uuid.uuid4().hex[:8]
        has_headers = url.startswith("amqp")
        self.kinds = [kind for kind in KINDS if kind != "headers" or has_headers]
        self.queues = {
            self.own(name): {k: self.own(v) if k == "exchange" else v for k, v in queue.items()}
            for name, queue in QUEUES.items()
            if queue.get("exchange") in (None, *self.kinds)
        }
        self.conf = {"broker_url": url, "task_queues": self.queues}
        self.app = make_app({k: v for k, v in conf.items() if not k.startswith("test_")})
        self.app.conf.update(broker_url=url, task_routes=(self._route,))

    def own(self, name):
        return f"{name}-{self._suffix}"

    def _route(self, name, args, kwargs, options, task=None):
        return None if "exchange" in options else {"queue": self.own("routed")}

    def send(self, kind, name, *args):
        """Send by a kind of route. Without an exchange `task_routes` says where it goes."""
        if kind == "routes":
            return self.app.send_task(name, args)
        exchange = Exchange(self.own(kind), type=kind)
        return self.app.send_task(
            *(name, args),
            exchange=exchange,
            exchange_type=kind,
            routing_key=KEYS[kind],
            declare=[exchange],
            headers={"kind": "report"},
        )

    def route(self, kind):
        """What a task of that kind is told of its route."""
        return ["", self.own("routed")] if kind == "routes" else [self.own(kind), KEYS[kind]]

    def start(self, start_worker, **conf):
        conf = {**self.conf, **conf}
        return start_worker(app=APP, queues=",".join(self.queues), conf=conf, concurrency=4)


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def site(request, conf):
    url = conf["broker_url"]
    site = Site(conf, request.getfixturevalue("rabbitmq").url if request.param != "redis" else url)
    yield site
    site.app.close()


@pytest.fixture(scope="module")
def worker(site, start_module_worker):
    return site.start(start_module_worker)


@pytest.mark.parametrize("policy", ["defer", "queue"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_duplicate_comes_back_to_its_queue_and_runs(
    site, worker, journal, label, started, kind, policy
):
    if kind not in site.kinds:
        pytest.skip("kombu's own transports have no headers exchanges")
    name = f"describe_{policy}"
    holder = site.send("routes", name, label, None)
    started()
    duplicate = site.send(kind, name, label)
    eventually(lambda: lines_of(worker, duplicate.id, "received"), "it came")
    never(duplicate.ready, "it ended while the lock was held", 1)
    journal.let_go(holder.id)
    assert duplicate.get(timeout=20)["route"] == site.route(kind)
    assert holder.get(timeout=60)["route"] == site.route("routes")
    # A message in two queues runs twice at the most, as it would without a lock.
    copies = 2 if kind == "topic" else 1
    assert 2 <= journal.count(label, "start") <= 1 + copies
    assert len(lines_of(worker, duplicate.id, "received")) <= copies * 10
    assert journal.overlaps(label) == []


def test_what_is_put_off_for_an_outage_comes_back_to_its_queue(
    start_worker, conf, site, own_redis, journal, label
):
    site = Site(conf, site.conf["broker_url"])
    worker = site.start(start_worker, redislock_url=f"{own_redis.url}/0")
    own_redis.kill()
    sent = {kind: site.send(kind, "describe_defer", f"{label}-{kind}") for kind in site.kinds}
    for result in sent.values():
        eventually(lambda r=result: lines_of(worker, r.id, "is deferred for"), "it is put off")
    own_redis.start()
    for kind, result in sent.items():
        assert result.get(timeout=40)["route"] == site.route(kind)
        assert journal.count(f"{label}-{kind}", "start") <= (2 if kind == "topic" else 1)
    site.app.close()
