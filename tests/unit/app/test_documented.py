"""What documents list is all that there is, and errors name pages by their titles."""

from __future__ import annotations

import re

import celery_redislock
from celery_redislock import lock_conflict
from celery_redislock.app.documents import TITLES, page
from celery_redislock.app.options import OPTIONS, SETTINGS
from celery_redislock.app.outcomes import Outcome
from celery_redislock.signals import ConflictDetails
from celery_redislock.tasks.ends import End
from tests.support.workers import ROOT


def text_of(name: str) -> str:
    return (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")


def test_every_outcome_of_a_conflict_is_documented() -> None:
    documented = ConflictDetails.__doc__ or ""
    outcomes = [each for each in Outcome if each.signal is lock_conflict]
    assert all(f'"{each.label}"' in documented for each in outcomes)


def test_the_table_of_ends_has_every_end() -> None:
    text = text_of("inside/deliveries")
    table = text.partition("<!-- ends:begin -->")[2].partition("<!-- ends:end -->")[0]
    _, _, *rows = table.strip().splitlines()
    assert {row.split("|")[1].strip() for row in rows} == {end.label for end in End}


def test_every_option_setting_and_public_name_is_documented() -> None:
    text = text_of("options")
    names = {*OPTIONS, *SETTINGS, *celery_redislock.__all__}
    assert {name for name in names if not re.search(rf"\b{name}\b", text)} == set()


def test_what_replaces_another_librarys_options_exists() -> None:
    """Each option and setting in the right column of a table for those who migrate is ours."""
    text = "\n".join(map(text_of, ("migrating", "migrating-others", "from-redis-py")))
    rows = re.findall(r"^\|[^|\n]*\|([^|\n]*)\|$", text, re.M)
    named = set(re.findall(r"\b((?:lock|on|redislock)_\w+)=?", " ".join(rows)))
    methods = {"lock_key_for", "lock_holder", "on_duplicate"}
    assert named - methods - {*OPTIONS, *SETTINGS} == set()


def test_the_titles_are_those_of_the_pages() -> None:
    assert all(text_of(name).startswith(f"# {title}\n") for name, title in TITLES.items())


def test_without_an_address_the_page_is_named_by_its_title_and_no_file_is() -> None:
    text = page("operations", "Rights: the ACL lines")
    assert "page 'Operations: commands, incidents, rights', section 'Rights: the ACL lines'" in text
    assert ".md" not in text
