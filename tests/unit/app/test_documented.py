"""What documents list is all that there is."""

from __future__ import annotations

from pathlib import Path

from celery_redislock import lock_conflict
from celery_redislock.app.outcomes import Outcome
from celery_redislock.signals import ConflictDetails
from celery_redislock.tasks.ends import End

DOCS = Path(__file__).parents[3] / "docs"


def test_every_outcome_of_a_conflict_is_documented():
    documented = ConflictDetails.__doc__ or ""
    outcomes = [each for each in Outcome if each.signal is lock_conflict]
    assert all(f'"{each.label}"' in documented for each in outcomes)


def test_the_table_of_ends_has_every_end():
    page = (DOCS / "inside/deliveries.md").read_text(encoding="utf-8")
    table = page.partition("<!-- ends:begin -->")[2].partition("<!-- ends:end -->")[0]
    _, _, *rows = table.strip().splitlines()
    assert {row.split("|")[1].strip() for row in rows} == {end.label for end in End}
