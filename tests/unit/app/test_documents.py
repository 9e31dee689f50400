"""How errors name a page of the documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_redislock.app import documents
from celery_redislock.app.documents import TITLES, page
from tests.support.workers import ROOT

METADATA = """Metadata-Version: 2.4
Name: celery-redislock
Version: 0.1.0
Project-URL: Source, https://code.example/celery-redislock
Project-URL: Documentation, https://docs.example/redislock/
"""


def test_the_titles_are_those_of_the_pages() -> None:
    for name, title in TITLES.items():
        text = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
        assert text.startswith(f"# {title}\n")


def test_without_an_address_the_page_is_named_by_its_title_and_no_file_is() -> None:
    text = page("operations", "Rights: the ACL lines")
    assert "page 'Operations: commands, incidents, rights', section 'Rights: the ACL lines'" in text
    assert ".md" not in text


def test_a_page_has_the_address_that_the_installed_package_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "celery_redislock-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    documents._address.cache_clear()

    try:
        said = [page("options"), page("migrating", "From celery-once")]
    finally:
        documents._address.cache_clear()

    assert said == [
        "https://docs.example/redislock/options.html",
        "https://docs.example/redislock/migrating.html#from-celery-once",
    ]
