"""The tables of options and settings, and the pages that tell of them."""

from __future__ import annotations

import re

import celery_redislock
from celery_redislock.app.options import OPTIONS, SETTINGS
from tests.support.workers import ROOT


def test_every_option_setting_and_public_name_is_documented() -> None:
    text = (ROOT / "docs/options.md").read_text(encoding="utf-8")
    names = {*OPTIONS, *SETTINGS, *celery_redislock.__all__}
    assert {name for name in names if not re.search(rf"\b{name}\b", text)} == set()


def test_what_replaces_another_librarys_options_exists() -> None:
    """Each option and setting in the right column of a table for those who migrate is ours."""
    pages = ("migrating", "migrating-others", "from-redis-py")
    text = "\n".join((ROOT / f"docs/{page}.md").read_text("utf-8") for page in pages)
    rows = re.findall(r"^\|[^|\n]*\|([^|\n]*)\|$", text, re.M)
    named = set(re.findall(r"\b((?:lock|on|redislock)_\w+)=?", " ".join(rows)))
    methods = {"lock_key_for", "lock_holder", "on_duplicate"}
    assert named - methods - {*OPTIONS, *SETTINGS} == set()
