"""What a pool process reads of a message."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redislock.app.delivery import KEY, Delivery, Kept, restore_route
from celery_redislock.protocol.keys import lock_keys


def delivered(header: dict[str, Any] | None = None, **mark: Any) -> Delivery:
    raw: dict[str, Any] = {"properties": {"delivery_tag": "of this copy", KEY: mark}}
    if header is not None:
        raw[KEY] = {"v": 2, **header}
    return Delivery.take_from(raw)


def test_a_message_that_was_deferred_is_still_the_one_that_was_sent():
    """The broker gives what is published again an identity of its own: compared by that, a copy of
    the first message would be another message, and run again.
    """
    first = delivered()
    assert first.sent == "of this copy"
    header = first.next_header(None, copied=False)
    assert delivered(header[KEY]).sent == "of this copy"
    later = delivered({"sent": "as it was sent"})
    assert later.sent == "as it was sent"
    assert later.next_header(None, copied=False)[KEY]["sent"] == "as it was sent"


@pytest.mark.parametrize("sent", ["", None])
def test_a_copy_that_has_lost_its_identity_does_not_get_that_of_its_message(sent):
    assert delivered({"sent": sent}).sent == ""


def test_deferrals_in_a_row_are_counted_by_their_reason():
    message = delivered({"deferrals": 7, "outages": 2, "behind": 0})
    behind = message.next_header(None, copied=True, behind=True)[KEY]
    assert [behind[each] for each in ("deferrals", "outages", "behind")] == [8, 0, 1]
    again = delivered(behind).next_header(None, copied=True, behind=True)[KEY]
    assert [again[each] for each in ("deferrals", "outages", "behind")] == [9, 0, 2]
    away = delivered(again).next_header(None, copied=True, outage=True)[KEY]
    assert [away[each] for each in ("deferrals", "outages", "behind")] == [10, 1, 0]


def test_a_deferred_message_keeps_its_reservation():
    kept = Kept("1|name", "token")
    header = Delivery("t").next_header(kept, copied=False, outage=True)
    assert Kept.of(header) == kept
    assert Kept.of({}) is None
    assert Kept.of({KEY: {"kept": ["1|name", 5]}}) is None


def test_a_lock_id_that_is_none_has_no_more_slots():
    keys = lock_keys("redislock", "name", 2)
    assert Kept("3|name", "token").has_more_slots(keys)
    assert not Kept("2|name", "token").has_more_slots(keys)
    assert not Kept("many|name", "token").has_more_slots(keys)


@pytest.mark.parametrize("header", [{}, {KEY: "ours"}, {KEY: {"route": [5]}}, {KEY: {"v": 99}}])
def test_a_message_without_a_route_of_ours_keeps_its_own(header):
    own = {"exchange": "", "routing_key": "celery"}
    raw = {"delivery_info": dict(own), **header}
    restore_route(raw)
    assert raw["delivery_info"] == own
    restore_route({**raw, KEY: {"v": 2, "route": ["an exchange", "a key"]}})
    assert raw["delivery_info"] == {"exchange": "an exchange", "routing_key": "a key"}
