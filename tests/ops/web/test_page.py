"""The page in a browser: Debian's chromium."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from contextlib import contextmanager

import pytest
from playwright.sync_api import expect, sync_playwright

from celery_redislock.protocol import calls, holders
from celery_redislock.protocol.keys import lock_keys
from tests.support.looking import make_app, take
from tests.support.site import TOKEN, Site
from tests.support.waiting import eventually

#: A text that becomes a script wherever it becomes HTML.
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
PATIENCE = 20_000  # ms


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


@pytest.fixture
def app(redis_server, label):
    app = make_app(redis_server.url, label)
    yield app
    store_of(app).close()


def store_of(app):
    return app.tasks["sync"].app_locks.server


@contextmanager
def opened(page, app, token=None):
    """The page of this app, opened."""
    with Site(app, token) as site:
        page.goto(site.url)
        expect(page.locator("#live")).to_have_text("live")
        yield site
        page.goto("about:blank")


def tile(page, name):
    return page.locator(f"#tile-{name} dd")


def test_it_shows_the_locks_and_what_becomes_of_them_without_being_loaded_again(page, app):
    with opened(page, app):
        expect(page.locator("#none")).to_have_text("Nobody holds a lock, and nobody waits for one.")
        page.evaluate("window.loadedOnce = true")
        made, _ = take(app, "sync", "one")
        take(app, "report", "two", node="w@two")
        expect(page.locator("#rows tr")).to_have_count(2)
        first = page.locator("#rows tr", has_text="sync")
        expect(first).to_contain_text("id-of-one")
        expect(first).to_contain_text("w@one")
        # The longest life that was seen: the app does not know the ttl of these.
        expect(first.get_by_role("meter")).to_have_attribute("aria-valuemax", re.compile("^5.|60$"))
        left = int(first.get_by_role("meter").get_attribute("aria-valuenow"))
        assert 40 < left <= 60
        expect(tile(page, "held")).to_have_text("2")
        expect(page.locator("#lanes rect.bar.running")).to_have_count(2)
        page.locator("#query").fill("node:w@t*")
        expect(page.locator("#rows tr")).to_have_count(1)
        expect(page.locator("#lanes li")).to_have_count(1)
        expect(page.locator("#count")).to_have_text("1 of 2 locks")
        page.locator("#query").fill("")
        store_of(app).run(calls.settle(made))
        expect(first).to_have_count(0)
        expect(page.locator("#lanes rect.bar.running")).to_have_count(1)
        page.locator("#lanes rect.bar.ended").hover()
        expect(page.locator("#tip")).to_contain_text("id-of-one")
        expect(page.locator("#tip")).to_contain_text("ran for")
        assert page.evaluate("window.loadedOnce")


def test_marks_come_from_the_workers_events(page, redis_server, proxy, label):
    app = make_app(redis_server.url, label, broker_url=f"{proxy.url}/4")
    made, _ = take(app, "sync", "x")
    about = {"redislock_key": made.keys.lock, "redislock_task": "sync", "name": "sync"}
    with opened(page, app), app.events.default_dispatcher() as events:
        mark = page.locator("#lanes path.mark.skipped")

        def is_heard():  # by a page that has begun to listen
            events.send("task-lock-skipped", uuid="twin", redislock_holder_task_id="boss", **about)
            page.wait_for_timeout(300)
            return mark.count()

        eventually(is_heard, "the mark is there")
        mark.first.hover()
        expect(page.locator("#tip")).to_contain_text("because of boss")
        assert int(tile(page, "away").inner_text()) >= 1
        events.send("task-lock-queued", uuid="later", **about)
        expect(page.locator("#lanes rect.waiting.open")).to_have_count(1)
        events.send("task-lock-acquired", uuid="later", **about)
        expect(page.locator("#lanes rect.waiting.open")).to_have_count(0)
        events.send("task-lock-lost", uuid="id-of-x", redislock_reason="it expired", **about)
        expect(tile(page, "lost")).to_have_text("1")
        proxy.cut_off()
        expect(page.locator("#lanes-note")).to_contain_text("no events: ")
        proxy.reconnect()
        expect(page.locator("#lanes-note")).to_be_empty()
    store_of(app).close()


def test_five_thousand_locks_stay_usable(page, app, client, label):
    pipeline = client.pipeline()
    for number in range(5000):
        name = f"order:{number}"
        value = holders.encode(
            f"t{number}", ttl_ms=60_000, task="shop.sync", task_id=f"i{number}", node="w@one"
        )
        record = {**json.loads(value), "acquired_at": time.time() - number, "fence": number + 1}
        pipeline.set(lock_keys(label, name).lock, json.dumps(record), ex=600)
    pipeline.execute()
    with opened(page, app):
        expect(page.locator("#count")).to_have_text("5,000 locks")
        expect(page.locator("#rows tr")).to_have_count(50)
        expect(page.locator("#rows tr").first).to_contain_text("order:4999")
        expect(page.locator("#page")).to_have_text("page 1 of 100")
        page.locator("#next").click()
        expect(page.locator("#rows tr").first).to_contain_text("order:4949")
        page.locator("#query").fill("order:77 w@one")
        expect(page.locator("#count")).to_have_text("11 of 5,000 locks")
        page.locator("#query").fill("id:i4321")
        expect(page.locator("#rows tr")).to_have_count(1)
        page.locator("#rows a").click()
        expect(page.locator("#lock")).to_contain_text("i4321")
        assert page.locator("#lanes li").count() <= 60


def test_a_lock_is_broken_with_the_token_and_not_without_it(page, app, client):
    made, _ = take(app, "sync", "x")
    with opened(page, app, TOKEN):
        page.locator("#rows a").click()
        expect(page.locator("#lock")).to_contain_text("id-of-x")
        page.get_by_role("button", name="Break …").click()
        page.get_by_label("Token").fill("not the token of it")
        page.get_by_role("button", name="Break the lock").click()
        expect(page.locator(".said")).to_have_text("the token is missing or wrong")
        assert client.exists(made.keys.lock)
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Break the lock").click()
        expect(page.locator(".said")).to_have_text("The lock is broken.")
        assert not client.exists(made.keys.lock)
        page.get_by_role("button", name="Close").click()
        expect(page.locator("#lock .state")).to_have_text("broken")
        assert TOKEN not in page.url
    take(app, "sync", "y")
    with opened(page, app):
        page.locator("#rows tr", has_text="id-of-y").locator("a").click()
        expect(page.locator("#lock")).to_contain_text("id-of-y")
        expect(page.get_by_role("button", name="Break …")).to_be_hidden()


def test_what_comes_from_tasks_stays_text(page, app):
    take(app, "account", HOSTILE, task_id=HOSTILE, node=HOSTILE, token="a")
    take(app, "account", "turned\u202eround\nand\x1b[2J", task_id="plain", token="b")
    with opened(page, app):
        row = page.locator("#rows tr", has_text="<script>")
        expect(row).to_contain_text(HOSTILE)
        expect(page.locator("#rows")).to_contain_text(r"turned\u{202e}round\u{a}and\u{1b}[2J")
        page.locator("#lanes rect.bar").first.hover()
        row.locator("a").click()
        expect(page.locator("#lock .title")).to_contain_text(HOSTILE)
        expect(page.locator("#lock dd").first).to_have_text(HOSTILE)
        assert page.locator("img[src=x]").count() == 0
        assert page.locator("script").count() == 1, "the page's own"
        assert page.evaluate("window.hacked") is None


def test_a_server_that_is_away_greys_the_last_picture_and_comes_back(page, own_redis, label):
    app = make_app(own_redis.url, label)
    take(app, "sync", "x")
    with opened(page, app):
        expect(page.locator("#rows tr")).to_have_count(1)
        own_redis.kill()
        expect(page.locator("#live")).to_have_text("Redis does not answer")
        expect(page.locator("#trouble")).to_be_visible()
        expect(page.locator("body")).to_have_class("stale")
        expect(page.locator("#rows tr")).to_have_count(1)
        own_redis.start()
        expect(page.locator("#live")).to_have_text("live")
        expect(page.locator("#rows tr")).to_have_count(0)
        expect(page.locator("#trouble")).to_be_hidden()
    store_of(app).close()


def test_a_server_that_never_answered_is_not_said_to_have_no_locks(page, own_redis, label):
    app = make_app(own_redis.url, label)
    own_redis.kill()
    with Site(app) as site:
        page.goto(site.url)
        expect(page.locator("#live")).to_have_text("Redis does not answer")
        expect(page.locator("#none")).to_have_text("Waiting for the first look.")
        expect(page.locator("#trouble")).not_to_contain_text("said last")
        own_redis.start()
        expect(page.locator("#none")).to_contain_text("Nobody holds a lock")
        page.goto("about:blank")
    store_of(app).close()


def test_the_keyboards_focus_stays_when_another_lock_goes(page, app):
    made, _ = take(app, "sync", "first")
    time.sleep(0.01)  # by the server's clock, the longest held is shown first
    take(app, "report", "second")
    take(app, "account", "third")
    with opened(page, app):
        expect(page.locator("#rows tr")).to_have_count(3)
        link = page.locator("#rows tr", has_text="id-of-second").locator("a")
        link.focus()
        store_of(app).run(calls.settle(made))
        expect(page.locator("#rows tr")).to_have_count(2)
        expect(link).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#lock")).to_contain_text("id-of-second")


def test_a_text_without_end_is_cut(page, app):
    take(app, "sync", "x", lock_label="l" * 200_000, node="n" * 200_000)
    with opened(page, app):
        expect(page.locator("#rows tr")).to_have_count(1)
        assert len(page.locator("#rows").text_content()) < 5000
        page.locator("#rows a").click()
        expect(page.locator("#lock dd").first).to_have_text("id-of-x")
        assert len(page.locator("#lock").text_content()) < 5000


def test_it_fits_a_telephone_and_the_dark(browser, app):
    take(app, "sync", "x")
    take(app, "account", "a-name-without-any-space" * 20, node="n" * 100, task_id="t" * 200)
    page = browser.new_page(viewport={"width": 400, "height": 800}, color_scheme="dark")
    with opened(page, app):
        expect(page.locator("#rows tr")).to_have_count(2)
        width = "document.documentElement.scrollWidth"
        assert page.evaluate(width) == 400
        ground = "getComputedStyle(document.body).backgroundColor"
        assert page.evaluate(ground) == "rgb(14, 17, 22)"
        page.locator("#rows a").first.click()
        expect(page.locator("#lock")).to_be_visible()
        assert page.evaluate(width) == 400
    page.close()
