"""`lock_label`: what a lock is called for people."""

from __future__ import annotations

import logging

import pytest

from celery_redislock import ConfigError, SingletonTask
from celery_redislock.protocol.holders import LONGEST_LABEL, label_text


def labelled(app, lock_label, name="ships", **options):
    @app.task(name=name, shared=False, base=SingletonTask, lock_label=lock_label, **options)
    def ships(order, carrier="post", *, notes=()):
        """Nothing."""

    return ships


@pytest.mark.parametrize(
    ("template", "args", "kwargs", "label"),
    [
        ("order {order}", (4711,), {}, "order 4711"),
        ("order {order} by {carrier}", (4711,), {}, "order 4711 by post"),
        ("{carrier!r:>6}", (1,), {"carrier": "me"}, "  'me'"),
        ("order {order[id]}", ({"id": 5},), {}, "order 5"),
        ("{notes[0]}", (1,), {"notes": ["now"]}, "now"),
        ("all of them", (1,), {}, "all of them"),
        ("{order}", ("one\ntwo\x1b[31m\u202e",), {}, "one\\ntwo\\x1b[31m\\u202e"),
        ("{order}", ("\ud800",), {}, "\\ud800"),
        ("{order}", ("x" * 200,), {}, "x" * 97 + "..."),
        ("{order}", ("\n" * 200,), {}, "\\n" * 48 + "\\" + "..."),
    ],
)
def test_a_label_is_a_template_over_the_calls_arguments(app, template, args, kwargs, label):
    found = labelled(app, template).with_headers({}).label_of_call(args, kwargs)
    assert found == label
    assert len(found) <= LONGEST_LABEL
    assert found.isprintable()
    assert label_text(found) == found


def test_without_the_option_there_is_none(app):
    assert labelled(app, None).with_headers({}).label_of_call((1,), {}) is None


@pytest.mark.parametrize("option", ["lock_key", "lock_label"])
@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("order {id}", "names 'id', which is not an argument of the task; its arguments are:"),
        ("order {", "is not a str.format template"),
        ("order {}", "fields must be named"),
        ("order {0}", "fields must be named"),
        ("order {order!x}", "unknown conversion 'x'"),
        ("order", "but it is also the name of an argument; did you mean"),
    ],
)
def test_a_label_that_cannot_fit_is_refused_like_such_a_key(app, option, template, said):
    with pytest.raises(ConfigError) as caught:
        labelled(app, **{"lock_label": None, option: template}).name  # noqa: B018  binds it
    assert said in str(caught.value)
    assert f"task ships: {option}" in str(caught.value)


@pytest.mark.parametrize("value", ["", 5, ["order"], lambda order: "x", b"order"])
def test_what_is_no_template_is_refused(app, value):
    with pytest.raises(ConfigError, match=r"lock_label=.* is not accepted; it must be None or a"):
        labelled(app, value).name  # noqa: B018


@pytest.mark.parametrize(
    ("template", "args"),
    [
        ("order {order[id]}", (None,)),
        ("order {order.id}", (None,)),
        ("order {order:d}", ("text",)),
        ("order {order[9]}", ([],)),
    ],
)
def test_a_call_that_it_does_not_fit_has_none_and_is_warned_of_once(app, caplog, template, args):
    task = labelled(app, template)
    for _ in range(3):
        assert task.with_headers({}).label_of_call(args, {}) is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"ships: lock_label={template!r} does not fit a call" in record.getMessage()


def test_an_empty_label_is_none(app, caplog):
    assert labelled(app, "{order}").with_headers({}).label_of_call(("",), {}) is None
    assert len(caplog.records) == 1
