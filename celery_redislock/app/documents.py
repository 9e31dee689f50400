"""How errors name a page of the documents: by its title, since an installation has none."""

from __future__ import annotations

from typing import Final

TITLES: Final = {
    "migrating": "Migrating from another library",
    "migrating-others": "Migrating: celery-heimdall, celery-once-task, a lock of your own",
    "operations": "Operations: commands, incidents, rights",
    "options": "Options, settings, methods, signals, errors",
}


def page(name: str, section: str = "") -> str:
    """Where to read more, as a phrase: a heading of one of the pages in `TITLES`."""
    part = f", section {section!r}" if section else ""
    return f"the documentation of celery-redislock, page {TITLES[name]!r}{part}"
