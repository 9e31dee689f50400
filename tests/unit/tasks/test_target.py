"""What an error suggests, where a name is not known."""

from __future__ import annotations

import pytest

from celery_redislock.tasks.target import nearly

KNOWN = ["shop.report", "shop.sync", "account 4711"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("shop.reprot", "; did you mean shop.report?"),
        ("report", "; did you mean shop.report?"),
        ("repor", "; did you mean shop.report?"),
        ("account 4712", "; did you mean account 4711?"),
        ("shop", "; did you mean shop.report or shop.sync?"),
        ("invoices", ""),
    ],
)
def test_a_name_is_suggested_that_is_similar_in_whole_or_in_a_part(text, says):
    assert nearly(text, KNOWN) == says
