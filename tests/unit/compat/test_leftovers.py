"""What other packages left behind is refused, with the place to read what to write instead."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from celery_redislock import ConfigError, SingletonTask
from celery_redislock.app.documents import TITLES
from celery_redislock.compat import leftovers

ROOT = Path(__file__).parents[3]


@pytest.fixture
def not_in_use(monkeypatch):
    """Nobody has imported the packages, or our modules for them."""
    monkeypatch.setattr(leftovers, "translators", {})
    for name in ("celery_once", "celery_singleton"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def bind(app):
    def body(): ...

    return app.task(base=SingletonTask, name="leftovers.task", shared=False)(body).lock_options


@pytest.mark.parametrize(
    ("name", "package"),
    [(name, package) for package, names in leftovers.SETTINGS_OF.items() for name in names],
)
def test_a_setting_of_another_package_is_refused(make_app, not_in_use, name, package) -> None:
    value = {"backend": "celery_once.backends.Redis"} if name == "ONCE" else "a value"
    with pytest.raises(ConfigError) as caught:
        bind(make_app(**{name: value}))
    message = str(caught.value)
    assert message.startswith(f"app: {name!r} is a setting of {package}, and does nothing here")
    assert f"page 'Migrating from another library', section 'From {package}'" in message
    assert f"celery_redislock.compat.{package.replace('-', '_')}" in message


def test_a_setting_is_left_alone_while_its_package_is_in_use(make_app, not_in_use, monkeypatch):
    monkeypatch.setitem(sys.modules, "celery_singleton", leftovers)
    assert bind(make_app(singleton_lock_expiry=5))


def test_a_setting_is_left_alone_while_our_module_for_it_is_in_use(make_app) -> None:
    from celery_redislock.compat import celery_singleton

    assert "celery-singleton" in leftovers.translators
    assert celery_singleton.Singleton
    assert bind(make_app(singleton_lock_expiry=5))


def test_a_setting_with_a_name_like_it_is_anybodys(make_app, not_in_use) -> None:
    assert bind(make_app(ONCE=5, once={"backend": 1}, singleton_of_mine=2))


def test_every_message_leads_to_a_section_of_the_page() -> None:
    names = ("unique_on", "raise_on_duplicate", "lock_expiry", "once", "heimdall", "ttl")
    texts = [*map(leftovers.replacement, names), *map(leftovers.section, leftovers.SETTINGS_OF)]
    found = {each for text in texts for each in re.findall(r"page '(.+)', section '(.+)'", text)}
    headings = {heading for _, heading in found}
    assert headings == {"From celery-once", "From celery-singleton", "From celery-heimdall"}
    pages = {title: (ROOT / f"docs/{name}.md").read_text("utf-8") for name, title in TITLES.items()}
    assert all(f"\n## {heading}\n" in pages[title] for title, heading in found)


def test_a_program_that_has_only_our_tasks_imports_nothing_else_of_compat() -> None:
    """What the package imports must not either: it is the layer above, as import-linter knows."""
    text = (ROOT / "celery_redislock/__init__.py").read_text(encoding="utf-8")
    assert re.findall(r".*compat.*", text) == [
        "from .compat import leftovers as _leftovers  # noqa: F401  refuses other packages' options"
    ]
