"""Who a broker is, and when it delivers again: by transport, as kombu has it."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu.transport import TRANSPORT_ALIASES

from celery_redislock.app.brokers import KINDS, Origin, broker_of, origin_of, redelivery_of


def app_at(url: Any, **options: Any) -> Celery:
    app = Celery("brokers", broker=url, set_as_current=False)
    app.conf.broker_transport_options = options
    return app


def redelivery(url: Any, **options: Any) -> Any:
    return redelivery_of(app_at(url, **options).conf)


@pytest.mark.parametrize(
    ("url", "options", "after"),
    [
        ("redis://h", {}, 3600),
        ("rediss://h", {"visibility_timeout": 60}, 60),
        ("redis+socket:///run/redis.sock", {"visibility_timeout": 60}, 60),
        ("sentinel://a;sentinel://b", {"visibility_timeout": 0.5}, 0.5),
        ("redis://h", {"visibility_timeout": "60"}, 60),
        ("redis://h", {"visibility_timeout": 0}, 0),
        ("redis://h", {"visibility_timeout": None}, 3600),
        ("redis://h", {"ack_emulation": False}, None),
        ("sqs://", {}, 1800),
        ("SQS://k:s@", {"visibility_timeout": ""}, 1800),
        ("sqs://", {"visibility_timeout": "30"}, 30),
        ("sqs://", {"visibility_timeout": 10**6}, 43200),
        ("sqs://", {"sqs-creation-attributes": {"VisibilityTimeout": "45"}}, 45),
        ("sqs://", {"predefined_queues": {"q": {"url": "u"}}}, 30),
        ("sqs://", {"predefined_queues": {"q": {}}, "visibility_timeout": 90}, 90),
        (
            "sqs://",
            {
                "predefined_queues": {
                    "q": {"visibility_timeout": 90},
                    "r": {"visibility_timeout": 9},
                }
            },
            9,
        ),
        ("azureservicebus://p:a/b=@ns", {}, 60),
        ("azureservicebus://p:a/b=@ns", {"peek_lock_seconds": 900}, 300),
        ("azureservicebus://p:a/b=@ns", {"use_lock_renewal": True}, 3600),
        ("azurestoragequeues://k@https://acc", {}, None),
        ("gcpubsub://projects/p", {}, None),
        ("pgmq://h/db", {"visibility_timeout": "20.5"}, 20.5),
        ("amqp://h", {"visibility_timeout": 5}, None),
        ("amqps://h", {}, None),
        ("pyamqp://h", {}, None),
        ("filesystem://", {}, None),
        ("memory://", {}, None),
        ("sqla+sqlite:///x", {}, None),
        ("kafka://h", {}, None),
        ("unheard://h", {}, 60),
        (None, {}, None),
        ("amqp://h;redis://h", {}, 3600),
        (["redis://h", "sqs://"], {}, 1800),
    ],
)
def test_the_time_after_which_a_broker_delivers_again_is_kombus(url, options, after):
    assert redelivery(url, **options).after == after


def test_every_transport_of_kombu_is_known():
    unknown = {
        str(where).partition(":")[0]
        for where in TRANSPORT_ALIASES.values()
        if str(where).partition(":")[0].removeprefix("kombu.transport.") not in KINDS
    }
    # No name that kombu can import, and for a service that is no more.
    assert unknown <= {"kombu.transport.SLMQ.Transport", "kombu.transport.qpid"}


@pytest.mark.parametrize(
    ("module", "name", "options"),
    [
        ("redis", "Channel", {"visibility_timeout": "visibility_timeout"}),
        ("SQS", "Channel", {"visibility_timeout": "default_visibility_timeout"}),
    ],
)
def test_defaults_are_those_of_the_installed_kombu(module, name, options):
    channel = getattr(pytest.importorskip(f"kombu.transport.{module}"), name)
    for option, attribute in options.items():
        assert KINDS[module].option == option
        assert getattr(channel, attribute) == KINDS[module].default


def test_the_broker_that_is_read_counts():
    app = app_at("amqp://h")
    app.conf.broker_read_url = "redis://h"
    assert redelivery_of(app.conf).after == 3600


def test_acknowledgements_are_heard_by_rabbitmq_and_redis_only():
    assert redelivery("amqp://h").hears_acks
    assert redelivery("redis://h").hears_acks
    assert not redelivery("amqp://h;sqs://").hears_acks
    assert not redelivery("unheard://").hears_acks


def test_copies_are_expected_at_any_time_where_the_broker_promises_at_least_once():
    expecting = [
        url for url in ("amqp://", "redis://", "sqs://", "kafka://", "gcpubsub://", "unheard://")
        if redelivery(url).copies_any_time
    ]  # fmt: skip
    assert expecting == ["sqs://", "kafka://", "gcpubsub://", "unheard://"]


def test_copies_are_remembered_for_the_longest_of_the_timeouts():
    queues = {"a": {"visibility_timeout": 90}, "b": {}}
    assert redelivery("sqs://", predefined_queues=queues).copies_for == 1800
    assert redelivery("redis://h", visibility_timeout=5).copies_for == 5
    assert redelivery("amqp://h").copies_for == 0
    assert redelivery("unheard://").copies_for == 3660


def test_a_transport_of_ones_own_is_of_the_kind_of_its_base(monkeypatch):
    from kombu.transport.redis import Transport

    ours = type("Ours", (Transport,), {"__module__": "ours"})
    monkeypatch.setitem(sys.modules, "ours", SimpleNamespace(Ours=ours))
    monkeypatch.setitem(TRANSPORT_ALIASES, "ours", "ours:Ours")
    assert redelivery("ours://h", visibility_timeout=7).after == 7
    app = app_at(None)
    app.conf.broker_transport = ours
    assert redelivery_of(app.conf).after == 3600


# -- who a broker is ----------------------------------------------------------------------------

QUEUE_A = {"celery": {"url": "https://sqs/1/prod", "access_key_id": "a"}}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("redis://h/1", {}), ("redis://h/2", {})),
        (("redis://h", {"global_keyprefix": "prod:"}), ("redis://h", {})),
        (("redis+socket:///s?virtual_host=3", {}), ("redis+socket:///s?virtual_host=4", {})),
        (("sentinel://h", {"master_name": "a"}), ("sentinel://h", {"master_name": "b"})),
        (
            ("filesystem://", {"data_folder_in": "/a", "data_folder_out": "/a"}),
            ("filesystem://", {"data_folder_in": "/b", "data_folder_out": "/b"}),
        ),
        (("sqs://k:s@", {"region": "eu-west-1"}), ("sqs://k:s@", {"region": "us-east-1"})),
        (("sqs://", {"queue_name_prefix": "prod-"}), ("sqs://", {})),
        (
            ("sqs://", {"predefined_queues": QUEUE_A}),
            ("sqs://", {"predefined_queues": {"celery": {"url": "https://sqs/1/staging"}}}),
        ),
        (("amqp://h//", {}), ("amqp://h/one", {})),
        (("amqp://h//one", {}), ("amqp://h/one", {})),
    ],
)
def test_two_brokers_are_told_apart(one, other):
    assert broker_of(app_at(one[0], **one[1])) != broker_of(app_at(other[0], **other[1]))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("redis://u:p@h/1", {}), ("redis://:q@h/1", {"visibility_timeout": 5})),
        (("redis://h", {}), ("redis://h:6379/0", {"global_keyprefix": ""})),
        (("rediss://h", {}), ("redis://h", {})),
        (("sentinel://a;sentinel://b", {}), ("sentinel://b;sentinel://a", {})),
        (("redis+socket://:p@/s", {}), ("redis+socket:///s", {})),
        (("amqp://h", {}), ("pyamqp://u:p@h:5672//", {"confirm_publish": True})),
        (("sqs://k:s@", {"wait_time_seconds": 5}), ("sqs://other:s@", {"polling_interval": 1})),
        (
            ("sqs://", {"predefined_queues": QUEUE_A}),
            ("sqs://", {"predefined_queues": {"celery": {"url": "https://sqs/1/prod"}}}),
        ),
        (
            ("filesystem://", {"data_folder_in": "/a", "data_folder_out": "/b"}),
            ("filesystem://", {"data_folder_in": "/b", "data_folder_out": "/a"}),
        ),
    ],
)
def test_one_broker_is_one_whatever_else_is_set(one, other):
    assert broker_of(app_at(one[0], **one[1])) == broker_of(app_at(other[0], **other[1]))


# -- what it says of a message ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("info", "origin"),
    [
        ({"sqs_message": {"MessageId": "m"}}, Origin("m")),
        (
            {"sqs_message": {"MessageId": "m", "Attributes": {"ApproximateReceiveCount": "2"}}},
            Origin("m", redelivered=True),
        ),
        ({"gcpubsub_message": {"message_id": "m"}}, Origin("m")),
        ({"pgmq_message": {"msg_id": 1, "read_ct": 2}}, Origin(None, redelivered=True)),
        ({"azure_message": SimpleNamespace(delivery_count=1)}, Origin(None, redelivered=True)),
        ({"azure_message": SimpleNamespace(delivery_count=0)}, Origin()),
    ],
)
def test_brokers_say_in_their_own_words_which_message_is_a_copy(info, origin):
    assert (
        origin_of(SimpleNamespace(delivery_info=info), redelivery("azureservicebus://")) == origin
    )


@pytest.mark.parametrize("url", ["redis://", "amqp://", "filesystem://"])
def test_other_brokers_messages_are_read_as_celery_reads_them(url):
    assert origin_of(SimpleNamespace(delivery_info=None), redelivery(url)) == Origin()


def test_an_unknown_brokers_tag_is_no_identity():
    message = SimpleNamespace(delivery_info={"exchange": ""})
    assert origin_of(message, redelivery("unheard://")) == Origin("")
