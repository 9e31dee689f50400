"""The documentation site: `make docs`. It is made of the Markdown files here, as they are.

What Sphinx adds to them is made in this file: the navigation, which takes in every page there is;
the changelog; the reference, from the docstrings of all public names.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType, UnionType
from typing import Any, get_args

from celery.utils.dispatch import Signal

import celery_redislock

HERE = Path(__file__).parent
ROOT = HERE.parent

# -- Sphinx ------------------------------------------------------------------------------------

project = "celery-redislock"
copyright = "the celery-redislock developers"  # noqa: A001  Sphinx calls it so
_version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text("utf-8"), re.M)
release = version = _version[1] if _version else ""

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["_*"]
highlight_language = "none"
myst_heading_anchors = 6  # as a Git host names them
suppress_warnings = ["myst.header"]

default_role = "code"  # docstrings say `code`, as the pages do
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_favicon = "../celery_redislock/web/static/icon.svg"
html_static_path = ["_static"]
html_css_files = ["narrow.css"]
html_search_scorer = str(HERE / "_static/scorer.js")
pygments_dark_style = "github-dark"  # furo's own underlines names
html_title = f"celery-redislock {release}"
html_show_sphinx = False
html_copy_source = False

# -- the navigation ----------------------------------------------------------------------------

#: The pages in their order. One that is not there is left out; one that is not named here is
#: taken into the last part.
NAVIGATION = {
    "Use it": [
        *("start", "django", "fastapi", "recipes"),
        *("policies", "options", "testing", "when-not"),
        *("migrating", "migrating-others", "from-redis-py"),
    ],
    "Run it": [
        "deploying",
        "containers",
        "servers",
        "operations",
        "json",
        "monitoring",
        "security",
        "guarantees",
        "performance",
    ],
    "Know it": ["how-it-works", "glossary", "compatibility", "api", "changelog"],
}


def navigation() -> str:
    """The tables of contents, as Markdown for Sphinx."""
    there = {path.stem for path in HERE.glob("*.md")} - {root_doc}
    named = {page for pages in NAVIGATION.values() for page in pages}
    parts = {
        title: [page for page in pages if page in there] for title, pages in NAVIGATION.items()
    }
    parts["Know it"] += sorted(there - named)
    return "\n".join(
        f"```{{toctree}}\n:caption: {title}\n:hidden:\n:maxdepth: 2\n\n"
        + "\n".join(pages)
        + "\n```\n"
        for title, pages in parts.items()
    )


# -- the search --------------------------------------------------------------------------------

#: What people search for, by the page and the heading that answers it. The site's search finds long
#: headings only by most of their text; it leads to these by a word.
SEARCHED = {
    "deploying": {"# Deploying": ["deploy"]},
    "guarantees": {
        "## How a run ends, also by a crash": ["crash"],
        "## Platforms": ["windows", "macos"],
    },
    "operations": {
        "## A lock is stuck": ["stuck lock"],
        "## Sizing the ttl": ["timeout"],
    },
    "options": {"## AsyncRedisLock, for asyncio": ["asyncio"], "## Errors": ["409"]},
    "recipes": {"## Beat: jobs that overlap, and two beats": ["two beats"]},
    "start": {"# Start": ["install"], "## A beat job": ["django-celery-beat"]},
    "testing": {"## With a real Redis": ["tests with redis"]},
    "when-not": {"# When not to use it": ["exactly once"]},
}


def with_index_entries(docname: str, text: str) -> str:
    """The page, with an index entry before each heading that people search for."""
    for start, words in SEARCHED.get(docname, {}).items():
        main = ", ".join(f"! {word}" for word in words)  # others come last in the search
        entry = f"```{{index}} {main}\n```\n\n"
        text = re.sub(rf"^(?={re.escape(start)})", entry, text, count=1, flags=re.M)
    return text


def lead_to_headings(app: Any, error: Exception | None) -> None:
    """Let the search's index lead to the headings, whose titles `scorer.js` shows. Sphinx leads to
    marks before them.
    """
    if error is not None or app.builder.format != "html":
        return
    path = Path(app.outdir) / "searchindex.js"
    text = path.read_text("utf-8")
    index = json.loads(text[text.index("{") : text.rindex("}") + 1])
    for page, headings in SEARCHED.items():
        if page in index["docnames"]:
            file = index["docnames"].index(page)
            for start, words in headings.items():
                anchor = anchor_of(start, index["alltitles"], file)
                for word in words:
                    index["indexentries"][word] = [[file, anchor, True]]
    path.write_text(f"Search.setIndex({json.dumps(index, separators=(',', ':'))})", "utf-8")


def anchor_of(start: str, titles: dict[str, list[list[Any]]], file: int) -> str:
    """The anchor of a page's heading that starts like this; empty for the page's title."""
    for title, places in titles.items():
        for where, anchor in places:
            if where == file and title.startswith(start.lstrip("# ").replace("`", "")):
                return anchor or ""
    raise ValueError(f"no heading starts with {start!r}")


# -- the reference -----------------------------------------------------------------------------

#: The headings of the front door, in order.
HEADINGS = ["Tasks", "Locks outside of tasks", "Policies", "Errors", "Signals"]
LOCKS = (
    celery_redislock.RedisLock,
    celery_redislock.AsyncRedisLock,
    celery_redislock.AsyncAcquisition,
)
#: Modules with names of their own. One that is not there is left out.
MODULES = ["signals", "operations", "testing", "prometheus", "otel", "web", "django"]
MODULES += ["compat.celery_once", "compat.celery_singleton"]
#: Of classes that others of the package work with as well: what is for users.
MEMBERS = {
    "SingletonTask": "lock, lock_key_for, lock_holder, break_lock, apply_async, apply",
    "Lease": "token, label, lost, ensure",
    "LockedTask": "delay_on_commit, apply_async_on_commit",
    "LockAdminMixin": "lock_args, lock_holder, has_break_lock_permission, break_locks",
}


def reference() -> Iterator[str]:
    """The reference, as reStructuredText within Markdown."""
    public = {name: getattr(celery_redislock, name) for name in celery_redislock.__all__}
    for title in HEADINGS:
        yield f"## {title}\n"
        names = [name for name, value in public.items() if heading(value) == title]
        for name in sorted(names, key=lambda name: name != "SingletonTask"):
            yield directive("celery_redislock", name, public[name])
        if title == "Tasks":
            lease = importlib.import_module("celery_redislock.lock.lease").Lease
            yield "What `self.lock` and `current_lock` are in a body:\n"
            yield directive("celery_redislock.lock.lease", "Lease", lease)
    for module in MODULES:
        if importlib.util.find_spec(f"celery_redislock.{module}"):
            yield from module_reference(importlib.import_module(f"celery_redislock.{module}"))


def module_reference(module: ModuleType) -> Iterator[str]:
    """What a module has beside the front door."""
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    names = [name for name in names if name not in celery_redislock.__all__]
    names = [name for name in names if getattr(getattr(module, name), "__doc__", None)]
    yield f"## The module `{module.__name__}`\n"
    yield rst(f".. automodule:: {module.__name__}\n   :no-members:\n   :no-index:")
    for name in names:
        yield directive(module.__name__, name, getattr(module, name))


def heading(value: Any) -> str:
    """Under which heading a name of the front door comes."""
    if isinstance(value, Signal):
        return "Signals"
    if isinstance(value, type) and issubclass(value, Exception):
        return "Errors"
    modules = ("celery_redislock.policies", "celery_redislock.verbs")
    if isinstance(value, UnionType) or getattr(value, "__module__", "") in modules:
        return "Policies"
    return "Locks outside of tasks" if value in LOCKS else "Tasks"


def directive(module: str, name: str, value: Any) -> str:
    """What tells Sphinx to read the docstring."""
    options = []
    if isinstance(value, UnionType):  # it has no docstring of its own
        values = ", ".join(f"`{each.__name__}`" for each in get_args(value))
        return rst(f".. py:data:: {module}.{name}\n\n   One of {values}.")
    if isinstance(value, type):
        kind = "exception" if issubclass(value, Exception) else "class"
        # A named tuple's fields are in its docstring.
        if not issubclass(value, tuple):
            options.append(f":members: {MEMBERS.get(name, '')}")
        if value in LOCKS:
            options.append(":inherited-members:")  # `of` and `key`
    elif isinstance(value, FunctionType):
        kind = "function"
    else:
        kind = "data"
        options.append(":no-value:")
    lines = [f".. auto{kind}:: {module}.{name}", *(f"   {option}".rstrip() for option in options)]
    return rst("\n".join(lines))


def rst(text: str) -> str:
    return f"```{{eval-rst}}\n{text}\n```\n"


# -- for machines that read ---------------------------------------------------------------------


def write_index(app: Any, error: Exception | None) -> None:
    """Write llms.txt (https://llmstxt.org): each page with what it is about, and its source."""
    if error is not None or app.builder.format != "html":
        return
    lines = [f"# {project}", "", "> Celery tasks that run once at a time, by a lock in Redis.", ""]
    for part, pages in NAVIGATION.items():
        lines += [f"## {part}", ""]
        for page in (each for each in pages if (HERE / f"{each}.md").exists()):
            title, about = about_page((HERE / f"{page}.md").read_text("utf-8"))
            lines.append(f"- [{title}]({page}.html){about and ': '}{about}")
        lines.append("")
    (Path(app.outdir) / "llms.txt").write_text("\n".join(lines), "utf-8")


def about_page(text: str) -> tuple[str, str]:
    """A page's title, and its first sentence without links."""
    title = re.search(r"^# (.+)$", text, re.M)
    prose = [part for part in text.split("\n\n")[1:] if re.match(r"[A-Z*`]", part)]
    first = re.sub(r"\[([^]]*)\]\([^)]*\)|\*", r"\1", prose[0].replace("\n", " ")) if prose else ""
    return title[1] if title else "", re.split(r"(?<=[.:]) ", first)[0].rstrip(":")


# -- what the site does to the pages -------------------------------------------------------------


#: A block of code that is, or is from, a file.
FILE = r"<!-- (?:file|from): (\S+) -->\n```(\w+)\n"


def read(app: Any, docname: str, source: list[str]) -> None:
    """Add what is made here; lead links that leave this folder somewhere."""
    if docname == root_doc:
        source[0] += "\n" + navigation()
    if docname == "api":
        source[0] += "\n" + "\n".join(reference())
    if docname == "changelog":
        source[0] = (ROOT / "CHANGELOG.md").read_text("utf-8")
        source[0] = source[0].replace("](docs/", "](")
        source[0] = re.sub(r"\]\((bench|tests)/", r"](../\1/", source[0])
    if docname.startswith("inside/"):  # linked from the pages; in no table of contents or search
        source[0] = f"---\norphan: true\nnosearch: true\n---\n\n{source[0]}"
    source[0] = with_index_entries(docname, source[0])
    source[0] = re.sub(FILE, r"```{code-block} \2\n:caption: \1\n\n", source[0])
    folder = (HERE / docname).parent
    source[0] = re.sub(
        r"\[([^][]*)\]\((\.\./[^)]*|[A-Z][^)/]*\.md[^)]*)\)",
        lambda found: link(found[1], found[2], folder),
        source[0],
    )


def link(text: str, target: str, folder: Path) -> str:
    """A link from a page in a folder. A page, or a file to download; else the name stays."""
    up = "../" * len(folder.relative_to(HERE).parts)
    path = (folder / target.partition("#")[0]).resolve()
    for file, page in ((ROOT / "CHANGELOG.md", "changelog"), (ROOT / "README.md", "index")):
        if path in (file, HERE / file.name):
            return f"[{text}]({up}{page}.md)"
    is_here = path.is_relative_to(HERE) or (path.is_file() and path.suffix != ".md")
    return f"[{text}]({target})" if is_here else text


def adapt(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Adapt a docstring to Sphinx. What is indented after an empty line is code in it; the text
    of a section comes without one.
    """
    if isinstance(value, Signal):
        lines[:] = [about_signal(name.rpartition(".")[2]), ""]
    text = "\n".join(lines)
    text = re.sub(
        r"(?<=\n\n)((?:    .*\n|\n)*    .*)(?=\n|$)",
        lambda found: ".. code-block:: python\n\n" + re.sub("^", "   ", found[0], flags=re.M),
        text,
    )
    # reStructuredText wants `name`s with a mark where the code ends.
    text = re.sub(r"(`+[^`]+`+)(\w?)", lambda m: m[1] + "\\ " * bool(m[2]) + m[2], text)
    lines[:] = text.split("\n")


def omit_any(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """An attribute's type is not worth a line if it may be anything."""
    lines[:] = [line for line in lines if line.strip() != ":type: Any"]


def about_signal(name: str) -> str:
    """What the signal's details say that has happened."""
    details = f"{name.removeprefix('lock_').title()}Details"
    doc = getattr(importlib.import_module("celery_redislock.signals"), details).__doc__
    return f"{doc.partition(chr(10))[0]} Its `details` are `{details}`."


def no_arguments(app: Any, what: str, name: str, *_: Any) -> tuple[str, str] | None:
    """A lease is not made by users: nothing of how it is made."""
    return ("", "") if name.endswith(".Lease") else None


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", read)
    app.connect("build-finished", write_index)
    app.connect("build-finished", lead_to_headings)
    app.connect("autodoc-process-docstring", adapt, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", omit_any, priority=600)
    app.connect("autodoc-process-signature", no_arguments)
    return {"parallel_read_safe": True}
