"""The canonical text of a call"s arguments, and its digest."""

from __future__ import annotations

from datetime import time, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from hypothesis import assume, given
from hypothesis import strategies as st
from kombu.utils import json as kombu_json

from celery_redislock.protocol.canonical import canonical, digest
from tests.unit.protocol.test_names import key_at_worker, plain, singleton


def test_int_keys_of_a_dict_are_the_texts_that_json_makes_of_them(app: Celery) -> None:
    task = singleton(app, plain)
    assert task.lock_key_for({1: "a"}) == task.lock_key_for({"1": "a"})


def test_a_digest_is_128_bits_of_sha_256_over_the_canonical_text() -> None:
    # `printf '{"a":[1,true],"b":null}' | sha256sum`
    assert canonical({"b": None, "a": (1, True)}) == '{"a":[1,true],"b":null}'
    assert digest({"b": None, "a": (1, True)}) == "08f0d52ecf92d01c82ac42a1919f98b2"


#: Digests that were given once, as `GOLDEN`.
OLD_DIGESTS = [
    ({}, "44136fa355b3678a1146ad16f7e8649e"),
    ({"a": []}, "50e8660084976a10f0b3b9b3a6352d58"),
    ({"x": 0.0, "y": [1.5, float("inf"), True, None]}, "253d7280653bee673949ef40802697a3"),
    ({"d": {"b": [{"c": (1, (2,))}], "a": {2: "x", None: 1}}}, "0a000d8da628f453a399f47ab5209e87"),
    ({"s": [{frozenset([1, (2, 3)]), "z"}], "t": time(1, 2)}, "25d51bff08da5e125d0f18e8f64e5b90"),
    ({"n": float("nan")}, "df38c4379aa2b6d4a7151668f11c6cdf"),
]


@pytest.mark.parametrize(
    ("value", "expected"), OLD_DIGESTS, ids=[digest for _, digest in OLD_DIGESTS]
)
def test_a_digest_is_the_same_for_ever(value: dict[str, Any], expected: str) -> None:
    assert digest(value) == expected


def in_levels(count: int) -> Any:
    """A value with so many levels, lists and dicts in turn."""
    value: Any = 1
    for level in range(count):
        value = [value] if level % 2 else {"k": value}
    return value


def test_a_value_may_have_a_hundred_levels_and_not_thousands_or_itself(app: Celery) -> None:
    task = singleton(app, plain)
    assert task.lock_key_for(in_levels(100)) == key_at_worker(task, in_levels(100))
    assert task.lock_key_for(in_levels(100)) != task.lock_key_for(in_levels(102))
    itself: list[Any] = [1]
    itself.append({"again": itself})
    for value in (in_levels(20_000), itself):
        with pytest.raises(TypeError, match="contains itself, or is nested this deep"):
            canonical(value)


def nested(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        ),
        max_leaves=6,
    )


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    # What a careless encoding would take for another value.
    st.sampled_from(["", "1", "true", "null", "[]", "{}", '"', "a,b", '":"', "set[]", 'date"']),
    st.sampled_from([0, 1, 0.0, -0.0, 1.0]),
)


JSON_LIKE = nested(LEAVES)


#: Values that kombu's JSON carries as themselves.
CARRIED = nested(
    LEAVES
    | st.binary()
    | st.uuids()
    | st.decimals(allow_nan=False)
    | st.dates()
    | st.times()
    | st.datetimes()
    | st.datetimes(timezones=st.just(timezone(timedelta(hours=-3, minutes=30))))
)


#: Few values, so that two equal ones come up often.
SMALL = nested(st.sampled_from([None, True, 1, 1.0, "1", "", "a"]))


def shape(value: Any) -> Any:
    """A value with its types, as a second and plainer account of what "the same" means."""
    if isinstance(value, list | tuple):
        return ("list", tuple(map(shape, value)))
    if isinstance(value, dict):
        return ("dict", frozenset((key, shape(item)) for key, item in value.items()))
    if isinstance(value, float) and value == 0:
        value = abs(value)  # zero has no sign
    return (type(value).__name__, repr(value))


@given(st.tuples(JSON_LIKE, JSON_LIKE) | st.tuples(SMALL, SMALL))
def test_equal_values_have_equal_texts_and_others_have_not(both: Any) -> None:
    first, second = both
    assert (canonical(first) == canonical(second)) == (shape(first) == shape(second))


@given(st.dictionaries(st.text(), JSON_LIKE, max_size=5), st.randoms())
def test_the_order_of_a_dicts_items_does_not_matter(value: dict[str, Any], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert canonical(dict(items)) == canonical(value)


@given(CARRIED)
def test_a_value_keeps_its_text_on_its_way_through_a_message(value: Any) -> None:
    assume("__type__" not in repr(value))  # kombu's own mark
    assert canonical(kombu_json.loads(kombu_json.dumps(value))) == canonical(value)
