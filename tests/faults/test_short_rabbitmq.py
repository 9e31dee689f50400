"""The short form of the fault bench, on RabbitMQ: each kind of fault once, with a fixed seed."""

from __future__ import annotations

from tests.faults.short import assert_nothing_breaks, short_cases
from tests.faults.stage import Address


@short_cases("rabbitmq")
def test_no_promise_is_broken(case, tmp_path, rabbitmq):
    assert_nothing_breaks(case, tmp_path, Address(rabbitmq.url, rabbitmq.port))
