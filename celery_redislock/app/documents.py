"""How errors name a page of the documents. Pure.

An installation has no documents: an error gives a page's address, which the package's metadata has
once the project has a home (`[project.urls]`, "Documentation"), and until then the page's title.
"""

from __future__ import annotations

import functools
from importlib.metadata import PackageNotFoundError, metadata
from typing import Final

#: The titles of the pages that errors name.
TITLES: Final = {
    "migrating": "Migrating from another library",
    "operations": "Operations: commands, incidents, rights",
    "options": "Options, settings, methods, signals, errors",
}


def page(name: str, section: str = "") -> str:
    """Where to read more, as a phrase.

    Args:
        name: the page, one of `TITLES`.
        section: a heading of the page.
    """
    address = _address()
    if address is None:
        part = f", section {section!r}" if section else ""
        return f"the documentation of celery-redislock, page {TITLES[name]!r}{part}"
    anchor = f"#{section.lower().replace(' ', '-')}" if section else ""
    return f"{address}/{name}.html{anchor}"


@functools.cache
def _address() -> str | None:
    """The address of the documents, if there is one."""
    try:
        lines = metadata("celery-redislock").get_all("Project-URL") or ()
    except PackageNotFoundError:  # a checkout that is not installed
        return None
    urls = {label.lower(): url for label, _, url in (line.partition(", ") for line in lines)}
    url = urls.get("documentation")
    return None if url is None else url.rstrip("/")
