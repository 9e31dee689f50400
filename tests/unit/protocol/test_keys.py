"""The keys of a lock in Redis."""

from __future__ import annotations

import sys
import zlib

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from redis.crc import key_slot

from celery_redislock import RedisLock
from celery_redislock.protocol.keys import (
    BUCKETS,
    LONGEST_NAME,
    LockKeys,
    key_parts,
    keys_of_lock_id,
    lock_keys,
)

#: Any text that Python can have, with halves of surrogate pairs too.
ANY_TEXT = st.text(st.characters(exclude_categories=()), min_size=1)


def keys_in_redis(keys: LockKeys) -> set[str]:
    return {*keys[2:-1], *keys.slots}


@given(ANY_TEXT, st.text(), st.integers(1, 9))
def test_all_keys_of_a_lock_are_in_one_hash_slot(name: str, entry_id: str, limit: int) -> None:
    keys = lock_keys("redislock", name, limit)
    everything = {*keys_in_redis(keys), keys.done_by(entry_id)}
    assert len(everything) == len(keys) - 2 + limit - 1
    assert len({key_slot(key.encode()) for key in everything}) == 1


@given(ANY_TEXT, st.integers(1, 9))
def test_the_mark_of_a_lock_leads_back_to_its_keys(name: str, limit: int) -> None:
    keys = lock_keys("redislock", name, limit)
    assert keys_of_lock_id("redislock", keys.lock_id) == keys


@pytest.mark.parametrize("text", ["", "name", "x|name", "0|name", "-1|name", "1001|name"])
def test_what_is_no_lock_id_is_refused_before_its_keys_are_made(text: str) -> None:
    """It may come from a message, or from whoever may write the lock server."""
    with pytest.raises(ValueError, match=r"invalid literal|no lock has"):
        keys_of_lock_id("redislock", text)


@given(ANY_TEXT, ANY_TEXT)
@example("0", "241")  # in one bucket
@example("\ud800", "\\ud800")
@example("\ud800", "\udbff")
@example("x" * 1000, "x" * 1001)
@example("x" * 1000, "x" * 999 + "y")
def test_no_two_locks_share_a_key_beside_those_of_their_bucket(first: str, second: str) -> None:
    assume(first != second)
    ours, theirs = lock_keys("redislock", first, 3), lock_keys("redislock", second, 3)
    of_the_bucket = {ours.fence, ours.rooms, ours.history, ours.turned, ours.suspended}
    assert not (keys_in_redis(ours) & keys_in_redis(theirs)) - of_the_bucket


def test_any_number_of_locks_has_no_more_fence_counters_than_there_are_buckets() -> None:
    counters = {lock_keys("redislock", str(number)).fence for number in range(20 * BUCKETS)}
    assert len(counters) == BUCKETS == 1024


@pytest.mark.parametrize(
    ("name", "beginning"),
    [
        ("x" * (LONGEST_NAME + 1), "x" * 200 + "..."),
        ("account:" + "y" * 1_000_000, "account:yyy"),
        ("account:\ud800:5", "account:\\ud800:5..."),
        ("\udfff" * 1000, "\\udfff\\udfff"),
    ],
)
def test_a_name_that_is_too_long_or_no_text_keeps_its_beginning(name: str, beginning: str) -> None:
    keys = lock_keys("redislock", name)
    assert keys.name.startswith(beginning)
    assert len(keys.name) <= LONGEST_NAME
    assert lock_keys("redislock", keys.name) == keys
    assert key_parts("redislock", keys.lock.encode()) == ("lock", keys.name)
    assert RedisLock("redis://127.0.0.1:1/0", name).key == keys.lock


@pytest.mark.parametrize(
    "name", ["x" * LONGEST_NAME, "größer" * 20, "\U0001f512", "\\ud800", "a\nb"]
)
def test_any_other_name_stays_as_it_is(name: str) -> None:
    keys = lock_keys("redislock", name)
    assert keys.name == name
    assert keys.lock.endswith(f":lock:{name}")


def test_a_longer_name_in_redis_is_not_ours() -> None:
    for length, is_ours in ((LONGEST_NAME, True), (LONGEST_NAME + 1, False)):
        name = "x" * length
        bucket = zlib.crc32(name.encode()) % BUCKETS
        key = f"redislock:{{{bucket}}}:lock:{name}"
        assert (key_parts("redislock", key.encode()) is not None) is is_ours


def test_long_names_are_not_remembered() -> None:
    def remembered() -> int:
        return sum(sys.getsizeof(text) for text in lock_keys("redislock", long)[:-1])

    long = "z" * 1_000_000
    assert remembered() < 10_000


def test_a_kind_that_is_no_text_is_not_ours() -> None:
    bucket = zlib.crc32(b"name") % BUCKETS
    assert key_parts("redislock", b"redislock:{%d}:lock:name" % bucket) == ("lock", "name")
    assert key_parts("redislock", b"redislock:{%d}:lo\xffck:name" % bucket) is None
