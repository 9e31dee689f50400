"""The page in a browser: Debian's chromium."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from celery_redislock import RedisLock
from celery_redislock.operations import list_suspensions, suspend
from tests.support.looking import (
    end,
    every_state,
    keep,
    lock_named,
    make_app,
    park,
    take,
)
from tests.support.site import TOKEN, Site

#: A text that becomes a script wherever it becomes HTML.
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
PATIENCE = 20_000  # ms
#: The ways in which a run ends, as the history tells them.
ENDS = (
    *("succeeded", "failed", "retried", "ignored", "rejected", "replaced", "lost", "broken"),
    *("died", "terminated", "not run", "released"),
)
#: What is said while nobody looks.
AS_OF = re.compile(r"^as of \d\d:\d\d:\d\d$", re.IGNORECASE)


@pytest.fixture(scope="module")
def browser():
    """One for all tests: its start takes a second of a core."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("chromium is missing, and in CI it must be there")
        pytest.skip("no chromium on this machine (apt-get install chromium)")
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    """A page on which nothing goes wrong that the browser would tell."""
    said = []
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("console", lambda message: said.append(message.text))
    yield page
    page.close()
    # What the server refuses, and that it is away, the browser tells by itself.
    assert [each for each in said if not each.startswith("Failed to load resource")] == []


@contextmanager
def opened(page, app, token=None):
    """The page of this app, opened."""
    with Site(app, token) as site:
        page.goto(site.url)
        expect(page.locator("#live")).to_have_text("live")
        yield site
        page.goto("about:blank")


def tile(page, name):
    return page.locator(f"#tile-{name} strong")


def test_it_shows_the_locks_and_what_becomes_of_them_without_being_loaded_again(page, app, client):
    with opened(page, app):
        expect(page.locator("#none")).to_have_text("Nobody holds a lock, and nobody waits for one.")
        page.evaluate("window.loadedOnce = true")
        made = take(app, "sync", "one", history=True)
        take(app, "report", "two", node="w@two")
        expect(page.locator("#rows tr")).to_have_count(2)
        first = page.locator("#rows tr", has_text="sync")
        expect(first).to_contain_text("id-of-one")
        expect(first).to_contain_text("w@one")
        # The longest life that was seen: the app does not know the ttl of these.
        expect(first.get_by_role("meter")).to_have_attribute(
            "aria-valuemax", re.compile("^5..|600$")
        )
        left = int(first.get_by_role("meter").get_attribute("aria-valuenow"))
        assert 400 < left <= 600
        expect(tile(page, "held")).to_have_text("2")
        expect(page.locator("#lanes rect.bar.running")).to_have_count(2)
        page.locator("#query").fill("node:w@t*")
        expect(page.locator("#rows tr")).to_have_count(1)
        expect(page.locator("#lanes li")).to_have_count(1)
        expect(page.locator("#count")).to_have_text("1 of 2 locks")
        page.locator("#query").fill("")
        end(app, made, "ignored", took=2.0)
        expect(first).to_have_count(0)
        expect(page.locator("#lanes rect.bar.running")).to_have_count(1)
        page.locator("#lanes rect.bar.ignored").hover()
        expect(page.locator("#tip")).to_contain_text("id-of-one")
        expect(page.locator("#tip")).to_contain_text("ignored after 2.0s")
        assert page.evaluate("window.loadedOnce")


def test_what_ran_while_nobody_looked_is_shown_as_the_history_has_it(page, app, client):
    lost = take(app, "sync", "x", age=100, history=True)
    with opened(page, app):
        expect(page.locator("#lanes rect.bar.running")).to_have_count(1)
        page.goto("about:blank")
        end(app, lost, "lost", took=40.0)
        lapsed = take(app, "sync", "x", age=30, history=True)
        client.delete(lapsed.key)
        page.go_back()
        expect(page.locator("#lanes rect.bar")).to_have_count(2)
        page.locator("#lanes rect.bar.lost").hover()
        expect(page.locator("#tip")).to_contain_text("lost after 40s")
        page.locator("#lanes rect.bar.lapsed").hover()
        expect(page.locator("#tip")).to_contain_text("when it ended is not kept")
        expect(tile(page, "lost")).to_have_text("1")
        expect(page.locator("#lanes .gap")).to_have_count(0)


def test_five_thousand_locks_stay_usable(page, app, client, label):
    locks = {
        lock_named(label, f"order:{number}").key: json.dumps(
            {
                "token": f"t{number}",
                "v": 2,
                "task": "shop.sync",
                "task_id": f"i{number}",
                "node": "w@one",
                "acquired_at": time.time() - number,
                "fence": number + 1,
            }
        )
        for number in range(5000)
    }
    client.mset(locks)
    with opened(page, app):
        expect(page.locator("#count")).to_have_text("5,000 locks")
        expect(page.locator("#rows tr")).to_have_count(20)
        expect(page.locator("#rows tr").first).to_contain_text("order:4999")
        expect(page.locator("#page")).to_have_text("page 1 of 250")
        page.locator("#next").click()
        expect(page.locator("#rows tr").first).to_contain_text("order:4979")
        page.locator("#query").fill("order:77 w@one")
        expect(page.locator("#count")).to_have_text("11 of 5,000 locks")
        page.locator("#query").fill("id:i4321")
        expect(page.locator("#rows tr")).to_have_count(1)
        page.locator("#rows a").click()
        expect(page.locator("#lock")).to_contain_text("i4321")
        assert page.locator("#lanes li").count() <= 60


def test_a_lock_is_broken_with_the_token_and_not_without_it(page, app, client):
    made = take(app, "sync", "x")
    with opened(page, app, TOKEN):
        page.locator("#rows a").click()
        expect(page.locator("#lock")).to_contain_text("id-of-x")
        page.get_by_role("button", name="Break …").click()
        page.get_by_label("Your name").fill("anna")
        page.get_by_label("Token").fill("not the token of it")
        page.get_by_role("button", name="Break the lock").click()
        expect(page.locator(".said")).to_have_text("the token is missing or wrong")
        assert client.exists(made.key)
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Break the lock").click()
        expect(page.locator(".said")).to_have_text("The lock is broken.")
        assert not client.exists(made.key)
        page.get_by_role("button", name="Close").click()
        expect(page.locator("#lock .state")).to_have_text("broken")
        expect(page.locator("#lock .leased")).to_have_text("by anna at 127.0.0.1")
        expect(page.locator("#lock").get_by_role("meter")).to_be_hidden()
        assert TOKEN not in page.url
    take(app, "sync", "y")
    with opened(page, app):
        page.locator("#rows tr", has_text="id-of-y").locator("a").click()
        expect(page.locator("#lock")).to_contain_text("id-of-y")
        expect(page.get_by_role("button", name="Break …")).to_be_hidden()


def test_those_who_wait_are_dropped_and_a_run_is_ended_as_the_preview_says(page, app):
    take(app, "report", "x")
    for name in ("one", "two"):
        park(app, "report", "x", name)
    with opened(page, app, TOKEN):
        page.locator("#rows a").click()
        page.get_by_role("button", name="Drop them …").click()
        preview = page.locator("#ordering")
        expect(preview.get_by_role("heading")).to_have_text("Drop 2 tasks?")
        expect(preview.locator(".preview li")).to_contain_text(["id one", "id two"])
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Drop them", exact=True).click()
        expect(page.locator(".said")).to_have_text("2 tasks dropped.")
        page.get_by_role("button", name="Close").click()
        expect(page.locator("#lock h3").first).to_have_text("Nobody waits behind it")
        page.get_by_role("button", name="End the run …").click()
        expect(preview).to_contain_text("id-of-x on w@one")
        page.get_by_role("button", name="End the run", exact=True).click()
        expect(page.locator(".said")).to_contain_text("No worker answered")


def test_a_lock_is_suspended_for_a_while_and_resumed(page, app):
    take(app, "sync", "x")
    with opened(page, app, TOKEN):
        page.locator("#rows a").click()
        page.get_by_role("button", name="Suspend …", exact=True).click()
        page.get_by_label("For").select_option("8 hours")
        page.get_by_label("Why").fill("a migration")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Suspend it").click()
        expect(page.locator(".said")).to_have_text("The lock is suspended.")
        page.get_by_role("button", name="Close").click()
        (suspension,) = list_suspensions(app)
        assert (suspension.why, round(suspension.ends_at - suspension.since)) == (
            "a migration",
            8 * 3600,
        )
        task = app.tasks["sync"]
        task.break_lock("x")
        own = RedisLock(app.conf.redislock_url, suspension.lock, prefix=app.conf.redislock_prefix)
        assert not own.acquire(timeout=0)
        expect(page.locator("#lock .state")).to_have_text("suspended")
        expect(page.locator("#lock")).to_contain_text("a migration")
        expect(page.get_by_role("button", name="Suspend …", exact=True)).to_be_hidden()
        page.get_by_role("button", name="Resume …").click()
        page.get_by_role("button", name="Resume", exact=True).click()
        expect(page.locator(".said")).to_have_text(f"Resumed: lock {suspension.lock}.")
        assert list_suspensions(app) == []
        assert own.acquire(timeout=0)


def test_what_waits_for_a_task_is_dropped_and_what_a_node_holds_is_broken_as_the_previews_say(
    page, app, client
):
    for name in ("x", "y"):
        take(app, "report", name, node="w@gone")
        park(app, "report", name, f"behind-{name}")
    park(app, "report", "y", "too")
    stays = take(app, "sync", "stays", node="w@two")
    kept = take(app, "unique", "sent", queued=True)
    moves = take(app, "sync", "moves", node="w@gone")
    preview = page.locator("#ordering")
    drop, take_away = (page.locator("#list-head button").nth(place) for place in (0, 1))

    def confirm(verb):
        if page.get_by_label("Token").input_value() == "":
            page.get_by_label("Token").fill("not the token of it")
            page.get_by_role("button", name=verb, exact=True).click()
            expect(page.locator(".said")).to_have_text("the token is missing or wrong")
            page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name=verb, exact=True).click()

    with opened(page, app):
        page.locator("#task").select_option("report")
        expect(page.locator("#rows tr")).to_have_count(2)
        expect(drop).to_be_hidden()
    with opened(page, app, TOKEN):
        expect(page.locator("#rows tr")).to_have_count(5)
        expect(drop).to_be_hidden()
        page.locator("#task").select_option("sync")
        expect(drop).to_be_hidden()
        page.locator("#task").select_option("report")
        drop.click()
        expect(preview.get_by_role("heading")).to_have_text("Drop 3 tasks that wait for 2 locks?")
        expect(preview.locator(".preview li")).to_have_count(2)
        confirm("Drop them")
        expect(page.locator(".said")).to_have_text("3 tasks dropped.")
        page.get_by_role("button", name="Close").click()
        expect(drop).to_be_hidden()

        page.locator("#task").select_option("")
        expect(take_away).to_be_hidden()
        page.locator("#node").select_option("w@gone")
        expect(page.locator("#rows tr")).to_have_count(3)
        take_away.click()
        expect(preview.get_by_role("heading")).to_have_text("Break 3 locks?")
        expect(preview.locator(".preview li", has_text="sync")).to_contain_text(
            "id-of-moves on w@gone"
        )
        client.delete(moves.key)
        take(app, "sync", "moves", node="w@two", task_id="newer")
        confirm("Break them")
        expect(page.locator(".said")).to_have_text(re.compile("2 locks broken. Not all: not done"))
    assert all(client.exists(each.key) for each in (stays, kept, moves))


def test_tiles_filter_and_the_address_says_what_is_shown(page, browser, app):
    take(app, "report", "busy")
    park(app, "report", "busy", "waits")
    take(app, "sync", "quiet")
    with opened(page, app):
        expect(page.locator("#rows tr")).to_have_count(2)
        page.locator("#tile-waiting").click()
        expect(page.locator("#rows tr")).to_have_count(1)
        expect(page.locator("#rows")).to_contain_text("report")
        expect(page.locator("#tile-waiting")).to_have_attribute("aria-pressed", "true")
        page.locator("#order").select_option("task")
        page.get_by_text("1 min").click()
        colleague = browser.new_page()
        colleague.goto(page.url)
        expect(colleague.locator("#rows tr")).to_have_count(1)
        expect(colleague.locator("#order")).to_have_value("task")
        expect(colleague.locator("#query")).to_have_value("is:waiting")
        expect(colleague.get_by_label("1 min")).to_be_checked()
        colleague.close()
        page.locator("#rows a").click()
        page.get_by_text("← all locks").click()
        expect(page.locator("#query")).to_have_value("is:waiting")
        page.locator("#tile-waiting").click()
        expect(page.locator("#rows tr")).to_have_count(2)
        expect(page.locator("#tile-waiting .when")).to_have_text("now")
        expect(page.locator("#tile-lost .when")).to_have_text("last 15 min")


def test_trouble_comes_first_and_says_what_it_is(page, app, client):
    take(app, "sync", "held for longest")
    made = take(app, "report", "silent")
    client.pexpire(made.key, 300_000)  # its last extension was 300 s ago
    take(app, "account", "old", age=4000)
    with opened(page, app):
        lines = page.locator("#rows tr")
        expect(lines).to_have_count(3)
        expect(lines.nth(0)).to_contain_text(re.compile("report.*no heartbeat for [5-9]m"))
        expect(lines.nth(1)).to_contain_text(re.compile(r"account.*1h\d\dm.*longer than 5m00s"))
        expect(lines.nth(2)).to_have_attribute("data-trouble", "false")
        page.locator("#query").fill("is:trouble")
        expect(page.locator("#count")).to_have_text("2 of 3 locks")


def test_the_legend_names_what_is_drawn_and_no_two_ends_look_alike(page, app):
    ways = [*ENDS]
    with opened(page, app):
        expect(page.locator("#legend li")).to_have_count(0)
        for number, how in enumerate(ways):
            end(app, take(app, "account", how, age=50 + number, history=True), how, took=5.0)
        expect(page.locator("#legend li")).to_have_count(len(ways))
        looks = page.locator("#lanes g[data-item]").evaluate_all(
            """all => all.map((each) => getComputedStyle(each.querySelector("rect")).fill
                + (each.querySelector("text")?.textContent ?? ""))"""
        )
        assert len(set(looks)) == len(looks) == len(ways)
        page.locator("#query").fill("label:failed")
        expect(page.locator("#legend li")).to_have_text(["\u00d7failed"])
        take(app, "account", "failed")
        expect(page.locator("#legend li")).to_have_text(["runs", "\u00d7failed"])
        expect(page.locator("#zone")).to_have_text(re.compile(r"^All times: (UTC$|.+, GMT.+)"))
        assert {"all tasks", "all nodes"} < {*page.locator("select option").all_text_contents()}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(browser, app, client, scheme):
    """A contrast of 4.5 to 1, as WCAG 2.2 asks in 1.4.3."""
    made = take(app, "report", "silent")
    client.pexpire(made.key, 350_000)
    park(app, "report", "silent", "waits")
    take(app, "sync", "x")
    keep(app, take(app, "account", "kept"))
    take(app, "unique", "sent", queued=True)
    contrasts = (Path(__file__).parent / "contrasts.js").read_text()
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    with opened(page, app, TOKEN):
        expect(page.locator("#rows th")).to_have_count(4)
        assert page.evaluate(contrasts) == []
        page.locator("#rows a").first.click()
        expect(page.locator("#lock .room li")).to_have_count(1)
        assert page.evaluate(contrasts) == []
        page.get_by_role("button", name="Break …").click()
        assert page.evaluate(contrasts) == []
    page.close()


def test_what_comes_from_tasks_stays_text(page, app):
    take(app, "account", HOSTILE, task_id=HOSTILE, node=HOSTILE, description=HOSTILE)
    take(app, "account", "turned\u202eround\nand\x1b[2J", task_id="plain")
    with opened(page, app):
        row = page.locator("#rows tr", has_text="<script>")
        expect(row).to_contain_text(HOSTILE)
        expect(page.locator("#rows")).to_contain_text(r"turned\u{202e}round\u{a}and\u{1b}[2J")
        page.locator("#lanes rect.bar").first.hover()
        row.locator("a").click()
        expect(page.locator("#lock .title")).to_contain_text(HOSTILE)
        expect(page.locator("#lock dd").first).to_have_text(HOSTILE)
        expect(page.locator("#lock dl div", has_text="Says").locator("dd")).to_have_text(HOSTILE)
        assert page.locator("img[src=x]").count() == 0
        assert page.locator("script").count() == 1, "the page's own"
        assert page.evaluate("window.hacked") is None


def test_a_server_that_is_away_greys_the_last_picture_and_comes_back(page, own_redis, label):
    app = make_app(own_redis.url, label)
    take(app, "sync", "x")
    with opened(page, app):
        expect(page.locator("#rows tr")).to_have_count(1)
        own_redis.kill()
        expect(page.locator("#live")).to_have_text(AS_OF)
        expect(page.locator("#trouble")).to_contain_text("The lock server does not answer: ")
        expect(page.locator("#list-title")).to_have_text(AS_OF)
        expect(page.locator("body")).to_have_class("stale")
        expect(page.locator("#rows tr")).to_have_count(1)
        expect(page.locator("#axis .now")).to_have_text(re.compile(r"[\d:]{8}$"))
        own_redis.start()
        expect(page.locator("#live")).to_have_text("live")
        expect(page.locator("#rows tr")).to_have_count(0)
        expect(page.locator("#list-title")).to_have_text("Now")
        expect(page.locator("#trouble")).to_be_hidden()


def test_a_server_that_never_answered_is_not_said_to_have_no_locks(page, own_redis, label):
    app = make_app(own_redis.url, label)
    own_redis.kill()
    with Site(app) as site:
        page.goto(site.url)
        expect(page.locator("#live")).to_have_text("nothing known yet")
        expect(page.locator("#none")).to_have_text("Waiting for the first look.")
        expect(page.locator("#trouble")).to_contain_text("Nothing is known yet.")
        assert {*page.locator("#tiles strong").all_text_contents()} == {"\u2013"}
        expect(page.locator("#count")).to_be_empty()
        expect(page.locator("#lanes-note")).not_to_contain_text("Nothing has happened")
        page.evaluate("location.hash = '#/lock/sync'")
        expect(page.locator("#lock > p.note").first).to_have_text("Not known yet.")
        expect(page.locator("#lock")).not_to_contain_text(re.compile("Nobody|Nothing"))
        page.evaluate("location.hash = '#/'")
        own_redis.start()
        expect(page.locator("#none")).to_contain_text("Nobody holds a lock")
        page.goto("about:blank")


def test_what_waits_in_a_queue_is_one_row_and_a_queue_that_nobody_reads_is_named(
    page, client, redis_server, label
):
    own, other = f"reports-{label}", f"typo-{label}"
    broker = f"{redis_server.url}/4"
    app = make_app(redis_server.url, label, broker_url=broker)
    app.conf.task_routes = {"unique": {"queue": own}}
    for number in range(15):
        app.tasks["unique"].delay(str(number))
    app.tasks["unique"].apply_async(("other",), queue=other)
    for key in client.keys(f"{label}:*:lock:*"):  # as if they had been sent a while ago
        value = json.loads(client.get(key))
        client.set(
            key, json.dumps({**value, "acquired_at": value["acquired_at"] - 60}), keepttl=True
        )
    take(app, "sync", "x")
    with opened(page, app):
        expect(page.locator("#rows tr")).to_have_count(2)
        expect(page.locator("#count")).to_have_text("17 locks")
        row = page.locator("#rows tr", has_text="unique")
        expect(row).to_contain_text("16 locks, kept for messages in a queue")
        expect(row).to_contain_text(f"no worker reads {own}")
        expect(row).to_contain_text(f"15 messages in {own}")
        expect(page.locator("#lanes li")).to_have_count(1)
        told = page.locator("#unread li")
        expect(told).to_have_count(2)
        expect(told.nth(0)).to_have_text(
            re.compile(f"queue {own}: 15 calls of unique wait in it, since [\\d:]{{8}}.$")
        )
        expect(told.nth(1)).to_contain_text(f"queue {other}: 1 call of unique waits in it")
        row.locator("a").click()
        expect(page.locator("#count")).to_have_text("16 of 17 locks")
        expect(page.locator("#rows tr")).to_have_count(16)
        expect(page.locator("#rows tr", has_text=f"1 message in {other}")).to_have_count(1)
        page.locator("#query").fill("")
        # A worker that reads the queue answers, and is busy.
        with app.connection_for_write() as connection, connection.channel() as channel:
            replies = app.control.mailbox.Node("reader", channel=channel)
            replies.handlers["active_queues"] = lambda state: [{"name": own}, {"name": other}]
            with replies.Consumer(channel=channel, on_message=None) as consumer:
                consumer.register_callback(replies.handle_message)
                deadline = time.monotonic() + 30
                while told.count() and time.monotonic() < deadline:
                    page.wait_for_timeout(100)
                    with contextlib.suppress(TimeoutError):
                        connection.drain_events(timeout=0.2)
        expect(told).to_have_count(0)
        expect(row).not_to_contain_text("no worker reads")
        expect(row).to_contain_text(f"15 messages in {own}")


def test_the_keyboard_is_where_one_reads_on_and_the_title_says_what_is_open(page, app):
    for name in ("one", "two"):
        take(app, "account", name, lock_label=f"customer {name}")
    with opened(page, app):
        expect(page).to_have_title("Locks")
        link = page.locator("#rows tr", has_text="customer two").locator("a")
        link.focus()
        page.keyboard.press("Enter")
        expect(page.locator("#lock h2")).to_be_focused()
        expect(page).to_have_title("customer two \u00b7 account \u00b7 Locks")
        page.go_back()
        expect(link).to_be_focused()
        expect(page).to_have_title("Locks")
        page.keyboard.press("Enter")
        page.get_by_role("link", name="all locks").click()
        expect(link).to_be_focused()
        page.locator("#query").fill("is:held")
        expect(page).to_have_title("is:held \u00b7 Locks")


def test_what_operators_keep_from_running_is_shown_above_the_list_also_for_idle_locks(page, app):
    suspend(app, "sync", seconds=3600, why="a migration", by="anna")
    suspend(app, lock="account:idle", seconds=600, by="bert", unknown=True)
    with opened(page, app):
        strip = page.locator("#suspended li")
        expect(strip).to_have_count(2)
        expect(strip.nth(0)).to_have_text(
            # With the date, if midnight is less than ten minutes away.
            re.compile(r"lock account:idle until (.+ )?[\d:]{8}, for 9m\d\ds more. By bert$")
        )
        expect(strip.nth(1)).to_contain_text("task sync until ")
        expect(strip.nth(1)).to_contain_text("By anna: a migration")
        above = """() => document.querySelector("#suspended").getBoundingClientRect().bottom
            <= document.querySelector("#list").getBoundingClientRect().top"""
        assert page.evaluate(above)
        strip.nth(0).locator("a").click()
        expect(page.locator("#lock .suspended li")).to_have_count(1)
        expect(page.locator("#lock .suspended")).to_contain_text("By bert")


@pytest.mark.parametrize("width", [400, 1280])
def test_it_fits_a_telephone_and_the_dark(browser, app, client, width):
    every_state(app)
    take(app, "account", "a-name-without-any-space" * 20, node="n" * 100, task_id="t" * 200)
    for age in (200_000, 90_000, 400):
        task_id = "01234567-89ab-cdef-0123-456789abcdef"
        old = take(app, "report", "old", age=age, history=True, turned_away=1234, task_id=task_id)
        end(app, old, "terminated", took=300.0)
    park(app, "report", "old", "waits", lock_label="a label with many words in it")
    client.pexpire(take(app, "report", "old", age=90_000, description="page 3 of 40").key, 500_000)
    suspend(app, "sync", seconds=3600, why="w" * 100, by="anna")
    layout = (Path(__file__).parent / "layout.js").read_text()
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme="dark")
    with opened(page, app, TOKEN):
        expect(page.locator("#rows th")).to_have_count(13)
        expect(page.locator("#lanes li")).not_to_have_count(0)
        assert page.evaluate(layout) == []
        ground = "getComputedStyle(document.body).backgroundColor"
        assert page.evaluate(ground) == "rgb(14, 17, 22)"
        for link in page.locator("#rows th a").all():
            link.click()
            expect(page.locator("#lock .slot")).not_to_have_count(0)
            assert page.evaluate(layout) == []
            page.go_back()
        page.locator("#rows tr", has_text="page 3 of 40").locator("a").click()
        expect(page.locator("#lock tbody tr.terminated")).to_have_count(3)
        page.get_by_role("button", name="Break …").click()
        assert page.evaluate(layout) == []
    page.close()
