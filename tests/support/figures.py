"""Figures that the bench writes into the documents, so that nobody copies them by hand."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


class MissingMarkers(ValueError):
    """The document has no such section, has it twice, or its markers are in disorder."""


def write_section(path: str | os.PathLike[str], name: str, markdown: str) -> None:
    """Replace what stands between `<!-- figures:NAME:begin -->` and `<!-- figures:NAME:end -->`.

    The markers stay, each on a line of its own with a blank line beside it. Raises
    `MissingMarkers` if there is not exactly one pair, in this order; then nothing is written.
    """
    document = Path(path)
    text = document.read_text(encoding="utf-8")
    begin, end = (f"<!-- figures:{name}:{edge} -->" for edge in ("begin", "end"))
    for marker in (begin, end):
        if (found := text.count(marker)) != 1:
            raise MissingMarkers(f"{document}: {marker} must be there once, and is {found} times")
    before, rest = text.split(begin)
    if end not in rest:
        raise MissingMarkers(f"{document}: {end} stands before {begin}")
    after = rest.split(end)[1]
    _replace(document, f"{before}{begin}\n\n{markdown.strip()}\n\n{end}{after}")


def _replace(document: Path, text: str) -> None:
    """In one step, so that a reader never meets half a document."""
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=document.parent, prefix=f".{document.name}.", delete=False
    ) as new:
        new.write(text)
    new_path = Path(new.name)
    new_path.chmod(document.stat().st_mode)
    new_path.replace(document)
