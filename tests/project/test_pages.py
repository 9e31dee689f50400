"""The documentation: all code on its pages runs or is looked at, its links lead somewhere, and the
site is built without a warning.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

import celery_redislock
from docs.conf import SEARCHED
from tests.support.pages import (
    CONFIGURATION,
    KNOWN,
    PAGES,
    RUN_BY,
    SHELL,
    Block,
    all_blocks,
    blocks,
    check_configuration,
    configured_commands,
    inline_commands,
)
from tests.support.programs import python
from tests.support.shell import check_shell, plugin
from tests.support.workers import ROOT

INSIDE = ROOT / "docs/inside"
OTHERS = ("CHANGELOG.md", "SECURITY.md", "bench/RESULTS.md")
DOCUMENTS = [
    *(*PAGES, *(ROOT / each for each in OTHERS)),
    *(*INSIDE.glob("*.md"), *(ROOT / "tests").rglob("*.md")),
]
DB = 10
#: How many blocks of a page do not run. Each says why.
NOT_RUN = {"docs/migrating.md": 2, "docs/migrating-others.md": 3}


def test_the_guarantees_quote_the_last_run_of_the_fault_bench():
    figures = (ROOT / "tests/proofs/FIGURES.md").read_text(encoding="utf-8")
    (head,) = re.findall(r"^\| fault \|(.*)\|$", figures, re.MULTILINE)
    (total,) = re.findall(r"^\| all \|(.*)\|$", figures, re.MULTILINE)
    names, cells = ([cell.strip() for cell in row.split("|")] for row in (head, total))
    of = dict(zip(names, cells, strict=True))
    quoted = (ROOT / "docs/guarantees.md").read_text(encoding="utf-8")
    (paragraph,) = (text for text in quoted.split("\n\n") if "[last full run]" in text)
    said = re.sub(r"\(\S*FIGURES\.md\S*\)", "", paragraph.replace(",", ""))
    for column in ("cases", "messages", "bodies", "parked", "suspended", "forgot", "both"):
        assert f" {of[column]}" in said, column
    for column in ("child s", "worker s"):
        assert f" {of[column].partition(' / ')[2]} s" in said, column
    assert of["by us"] == of["wrong"] == "0", "nothing was lost by us"


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def code(page: Path) -> list[Block]:
    return [*blocks(page), *inline_commands(page), *configured_commands(page)]


# -- the code on the pages --------------------------------------------------------------------


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(each.runs_here for each in blocks(page))], ids=name
)
def test_python_on_the_page_runs(page, redis_server):
    url = f"{redis_server.url}/{DB}"
    done = python("-m", "tests.support.run_page", str(page), url)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(each.language in SHELL for each in code(page))],
    ids=name,
)
def test_commands_on_the_page_are_there_with_their_options(page, client):
    for block in code(page):
        if block.language in SHELL and block.kind != "not run":
            check_shell(block, client)


def test_configuration_on_the_pages_can_be_read():
    for block in all_blocks():
        if block.language in CONFIGURATION:
            check_configuration(block)


def test_what_is_quoted_stands_in_the_file():
    for block in all_blocks():
        if block.kind == "from":
            assert block.text in (ROOT / block.note).read_text(encoding="utf-8"), str(block)


def test_every_block_is_run_or_looked_at_or_says_why_not():
    not_run: Counter[str] = Counter()
    for block in all_blocks():
        assert block.language in KNOWN, f"{block}: `text`, or a language that is looked at"
        if block.kind == "not run":
            not_run[block.page] += 1
        elif block.language == "python" and block.page in RUN_BY:
            assert block.kind == RUN_BY[block.page][1], f"{block} is not run"
    assert not_run == NOT_RUN


def test_pages_that_other_tests_run_are_named_there():
    for page, (test, _) in RUN_BY.items():
        if (ROOT / page).exists():
            imported = (ROOT / "tests/support/migrated.py").read_text(encoding="utf-8")
            assert page in (ROOT / test).read_text(encoding="utf-8") + imported


def test_python_that_does_not_run_compiles():
    for block in all_blocks():
        if block.language == "python" and block.kind == "not run":
            compile(block.text, str(block), "exec")


@pytest.mark.parametrize(
    "command",
    [
        'make proofs ARGS="--nothing"',
        "celery -A proj redislock list --older soon",
        "celery -A proj control revoke 51d92c56 --terminate",
        "redis-cli GET",
    ],
)
def test_a_command_that_is_not_there_is_noticed(command, client):
    block = Block("README.md", 1, "console", f"$ {command}\n", "", "")
    with pytest.raises((AssertionError, FileNotFoundError)):
        check_shell(block, client)


def test_the_table_of_commands_has_each_command_and_options_that_it_takes():
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    table = text[text.index("| command | does |") :].partition("\n\n")[0]
    redislock, told = plugin("redislock"), set()
    for row in table.splitlines()[2:]:
        (command,) = {shlex.split(each)[0] for each in re.findall("`([^`]+)`", row.split("|")[1])}
        told.add(command)
        options = {flag for each in redislock.commands[command].params for flag in each.opts}
        named = set(re.findall(r"`[^`]*?(--[\w-]+)", row))
        assert named <= options, f"{command} has no {named - options}"
    assert told == {*redislock.commands}


# -- what the pages name ----------------------------------------------------------------------


def test_every_module_and_script_is_documented():
    table = (INSIDE / "modules.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\S+\.py)` \|", table, re.M)) == modules()
    text = (INSIDE / "redis.md").read_text(encoding="utf-8")
    scripts = {path.name for path in (ROOT / "celery_redislock").glob("scripts/*.lua")}
    assert {name for name in scripts if f"`{name}`" not in text} == set()


def modules() -> set[str]:
    """The package's modules by their names in the table."""
    package = ROOT / "celery_redislock"
    files = (path.relative_to(package).as_posix() for path in package.rglob("*.py"))
    return {name for name in files if not name.endswith("/__init__.py")}


def anchors(document: Path) -> set[str]:
    """The headings of a document as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_links_within_the_documents_lead_somewhere(document):
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        other = document.parent / path if path else document
        assert other.exists(), target
        assert not anchor or anchor in anchors(other), target


# -- the site ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    command = re.search(r"python -m (sphinx -W .*) docs build/docs$", makefile, re.M)
    assert command, "`make docs` makes an error of each warning"
    done = subprocess.run(
        [sys.executable, "-m", *command[1].split(), "docs", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=290,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.timeout(300)
def test_the_site_has_every_page_and_takes_nothing_from_elsewhere(site):
    for page in (ROOT / "docs").glob("*.md"):
        html = (site / f"{page.stem}.html").read_text(encoding="utf-8")
        for loaded in re.findall(r"<(?:script|link|img)\b[^>]*?(?:src|href)=\"([^\"]+)\"", html):
            assert not loaded.startswith(("http:", "https:", "//")), loaded
        (icon,) = re.findall(r'rel="shortcut icon" href="([^"]+)"', html)
        assert (site / icon).is_file()
        for other in (ROOT / "docs").glob("*.md"):
            itself = "#" if other == page else f"{other.stem}.html"
            assert f'href="{itself}"' in html, f"{page.name} does not lead to {other.name}"


@pytest.mark.timeout(300)
def test_the_reference_has_every_public_name(site):
    html = (site / "api.html").read_text(encoding="utf-8")
    names = {
        name for name in celery_redislock.__all__ if f'id="celery_redislock.{name}"' not in html
    }
    assert names == set()
    changes = (site / "changelog.html").read_text(encoding="utf-8")
    assert f"{celery_redislock.__version__} (" in changes


@pytest.mark.timeout(300)
def test_machines_find_every_page_by_what_it_is_about(site):
    text = (site / "llms.txt").read_text(encoding="utf-8")
    pages = re.findall(r"^- \[[^]]+\]\((\S+)\.html\): .{15,}$", text, re.M)
    assert {*pages} >= {page.stem for page in (ROOT / "docs").glob("*.md")} - UNTOLD
    assert all((site / f"{page}.html").exists() for page in pages)


@pytest.fixture(scope="module")
def browser():
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        assert not os.environ.get("CI"), "chromium is missing, and in CI it must be there"
        pytest.skip("no chromium on this machine (apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


def wider_than_the_window(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > window.innerWidth"))


@pytest.mark.timeout(300)
def test_no_page_is_wider_than_a_telephone(site, browser):
    page = browser.new_page(viewport={"width": 400, "height": 900})
    wider = []
    for html in sorted(site.rglob("*.html")):
        page.goto(html.as_uri())
        wider += [html.name] if wider_than_the_window(page) else []
    assert wider == []


#: The left and right edges of what a page's sections consist of; and its blocks that are cut.
EDGES = """() => {
    const parts = document.querySelectorAll("article section > :is(p, ul, [class*=highlight])");
    const edges = [...parts].map(each => each.getBoundingClientRect());
    const blocks = [...document.querySelectorAll("article pre")];
    return [
        [...new Set(edges.map(each => `${Math.round(each.left)} ${Math.round(each.right)}`))],
        blocks.filter(each => each.scrollWidth > each.clientWidth).map(each => each.innerText),
    ];
}"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("width", [1280, 1366, 1600])
def test_code_is_as_wide_as_prose_and_is_not_cut(site, browser, width):
    page = browser.new_page(viewport={"width": width, "height": 900})
    for source in (ROOT / "docs").glob("*.md"):
        page.goto((site / f"{source.stem}.html").as_uri())
        edges, cut = page.evaluate(EDGES)
        assert len(edges) <= 1, source.name
        assert cut == [] or source.stem == "api", source.name
        assert not wider_than_the_window(page), source.name


@pytest.mark.timeout(300)
def test_the_search_leads_first_to_the_heading_that_answers_it(site, browser):
    page = browser.new_page()
    for stem, headings in SEARCHED.items():
        for heading, words in headings.items():
            for word in words:
                page.goto(f"{(site / 'search.html').as_uri()}?q={word}")
                first = page.locator("#search-results li a").first
                first.wait_for()
                address = first.get_attribute("href") or ""
                assert re.search(rf"\b{stem}\.html\b", address), f"{word}: {address}"
                title = heading.lstrip("# ").replace("`", "")
                assert title in (first.text_content() or ""), word


#: Pages that `llms.txt` need not tell of in a sentence.
UNTOLD = {"index", "api", "changelog", "glossary"}
