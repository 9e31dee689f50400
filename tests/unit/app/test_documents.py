"""How errors name a page of the documents."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def test_a_page_has_the_address_that_the_installed_package_names(tmp_path: Path) -> None:
    info = tmp_path / "celery_redislock-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA, encoding="utf-8")
    script = (
        "from celery_redislock.app.documents import page\n"
        "print(page('options'))\n"
        "print(page('migrating', 'From celery-once'))\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    assert said.splitlines() == [
        "https://docs.example/redislock/options.html",
        "https://docs.example/redislock/migrating.html#from-celery-once",
    ]
