"""The keys of a lock in Redis."""

from __future__ import annotations

from hypothesis import assume, example, given
from hypothesis import strategies as st
from redis.crc import key_slot

from celery_redislock.core.keys import BUCKETS, LockKeys, keys_of_mark, lock_keys


def keys_in_redis(keys: LockKeys) -> set[str]:
    return {*keys[1:-1], *keys.slots}


@given(st.text(min_size=1), st.text(), st.integers(1, 9))
def test_all_keys_of_a_lock_are_in_one_hash_slot(name: str, entry_id: str, limit: int) -> None:
    keys = lock_keys("redislock", name, limit)
    everything = {*keys_in_redis(keys), keys.done_by(entry_id)}
    assert len(everything) == len(keys) - 1 + limit - 1
    assert len({key_slot(key.encode()) for key in everything}) == 1


@given(st.text(min_size=1), st.integers(1, 9))
def test_the_mark_of_a_lock_leads_back_to_its_keys(name: str, limit: int) -> None:
    keys = lock_keys("redislock", name, limit)
    assert keys_of_mark("redislock", keys.mark) == keys


@given(st.text(min_size=1), st.text(min_size=1))
@example("0", "241")  # in one bucket
def test_no_two_locks_share_a_key_beside_those_of_their_bucket(first: str, second: str) -> None:
    assume(first != second)
    ours, theirs = lock_keys("redislock", first, 3), lock_keys("redislock", second, 3)
    of_the_bucket = {ours.fence, ours.rooms, ours.history}
    assert not (keys_in_redis(ours) & keys_in_redis(theirs)) - of_the_bucket


def test_any_number_of_locks_has_no_more_fence_counters_than_there_are_buckets() -> None:
    counters = {lock_keys("redislock", str(number)).fence for number in range(20 * BUCKETS)}
    assert len(counters) == BUCKETS == 1024
