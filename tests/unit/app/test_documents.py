"""How errors name a page of the documents."""

from __future__ import annotations

from celery_redislock.app.documents import TITLES, page
from tests.support.workers import ROOT


def test_the_titles_are_those_of_the_pages() -> None:
    for name, title in TITLES.items():
        text = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
        assert text.startswith(f"# {title}\n")


def test_without_an_address_the_page_is_named_by_its_title_and_no_file_is() -> None:
    text = page("operations", "Rights: the ACL lines")
    assert "page 'Operations: commands, incidents, rights', section 'Rights: the ACL lines'" in text
    assert ".md" not in text
