"""The page as it is served, without a browser: what it gives, to whom, and what it refuses."""

from __future__ import annotations

import asyncio
import itertools
import re
import socket
import subprocess
import sys
import time

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from celery_redislock import ConfigError
from celery_redislock.web import asgi_app
from tests.support.looking import end, lock_of, make_app, park, run, take, told
from tests.support.rights import as_user, denials, grant
from tests.support.site import TOKEN, Site, messages
from tests.support.waiting import eventually


@pytest.fixture
def site(app):
    with Site(app, TOKEN) as site:
        yield site


# -- what it gives ----------------------------------------------------------------------------


def test_the_locks_are_those_of_the_list_command(site, app, client, label):
    take(app, "sync", "one")
    made = take(app, "report", "two")
    run(app, "break", "--force", made.key)
    client.set(f"{label}:{{0}}:lock:misplaced", "not ours")
    given = site.get("api/locks").json()
    listed = told(app, "list")
    moving = ("held_for", "lives_for")
    for each, other in zip(given, listed, strict=True):
        assert {k: v for k, v in each.items() if k not in moving} == {
            k: v for k, v in other.items() if k not in moving
        }
        for name in moving:
            assert (each[name] is None) is (other[name] is None)
    assert made.value["token"] not in str(given), "no token proves anything to whoever reads"


def test_one_lock_is_told_with_those_that_wait(site, app):
    made = take(app, "report", "x")
    for name in ("first", "second"):
        park(app, "report", "x", name)
    found = site.lock(name=made.name)
    for room in (found["room"], site.lock(key=made.key)["room"]):
        assert [each["task_id"] for each in room] == ["first", "second"]
    assert found["locks"][0]["waiting"] == 2
    assert made.value["token"] not in str(found)
    assert site.get("api/lock").status_code == 400
    assert site.lock(name="nobody's")["locks"] == []


def test_the_page_takes_nothing_from_elsewhere_and_has_nothing_within_its_text(site):
    html = site.get("").text
    assert not re.search(r"<(script|style)[^>]*>[^<]", html), "nothing inline"
    assert not re.search(r"\s(on\w+|style)=", html)
    kinds = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    left, seen = re.findall(r'(?:src|href)="([^"#]+)"', html), set()
    while left:
        path = left.pop()
        if path in seen:
            continue
        seen.add(path)
        answer = site.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["content-type"].startswith(kinds[path.rpartition(".")[2]])
        outside = re.findall(r"https?://[^\"')\s]+", answer.text)
        assert set(outside) <= {"http://www.w3.org/2000/svg"}, path
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", answer.text
        )
        left += [f"static/{name}" for name in re.findall(r'from "\./([^"]+)"', answer.text)]
    assert len(seen) > 5, "the modules, too"
    for path in ("static/nothing.js", "static/../app.py", "static/%2e%2e/app.py", "nothing"):
        assert site.get(path).status_code == 404


def test_every_answer_has_strict_headers(site):
    answers = [
        *(site.get(path) for path in ("", "static/page.js", "api/locks", "nothing", "api/lock")),
        site.get("", host="evil.example"),
        site.order({}, origin="http://evil.example"),
        site.order({}),
    ]
    assert {each.status_code for each in answers} == {200, 400, 401, 403, 404}
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        assert "server" not in answer.headers


# -- live -------------------------------------------------------------------------------------


def runs_that_failed(message):
    return [run for run in message.get("runs", ()) if run.get("how") == "failed"]


def test_a_viewer_gets_everything_first_and_then_what_changed(site, app, client):
    made = take(app, "sync", "one", history=True)
    viewer = messages(site)
    first = next(viewer)
    assert "about" in first, "that is all of it"
    assert [row["key"] for row in first["rows"]] == [made.key]
    (row,) = first["rows"]
    assert row["holder"]
    assert "token" not in row
    assert 500 < row["expires_at"] - first["now"] <= 600
    assert first["runs"] == [], "none has ended"
    other = take(app, "sync", "two")
    changed = next(each for each in viewer if each.get("rows"))
    assert "about" not in changed
    assert [row["key"] for row in changed["rows"]] == [other.key]
    end(app, made, "failed", took=2.0)
    gone = next(each for each in viewer if each.get("gone"))
    assert gone["gone"] == [row["key"]]
    (ended,) = next(filter(None, map(runs_that_failed, itertools.chain([gone], viewer))))
    assert (ended["task_id"], round(ended["ended"] - ended["began"], 3)) == ("id-of-one", 2.0)
    viewer.close()


def test_one_look_serves_all_who_watch_and_nobody_looks_when_they_left(own_redis, label):
    def looks():
        """Each look scans the keys once: there are few."""
        with own_redis.client() as client:
            return client.info("commandstats").get("cmdstat_scan", {}).get("calls", 0)

    with Site(make_app(own_redis.url, label)) as site:
        viewers = [messages(site) for _ in range(5)]
        for viewer in viewers:
            next(viewer)
        before = looks()
        for _ in range(5):
            for viewer in viewers:
                next(viewer)
        assert looks() - before <= 10, "five viewers, and five looks or a few more"
        for viewer in viewers:
            viewer.close()

        def rests():
            before = looks()
            time.sleep(0.5)  # more than two looks
            return looks() == before

        eventually(rests, "nobody watches, and it rests")


def test_a_server_that_is_away_is_an_error_that_says_so(own_redis, label):
    with Site(make_app(own_redis.url, label)) as site:
        viewer = messages(site)
        assert next(viewer)["trouble"] == ""
        own_redis.kill()
        assert next(each for each in viewer if each.get("trouble"))
        answer = eventually(
            lambda: (got := site.get("api/locks")).status_code == 503 and got, "it is noticed"
        )
        assert "does not answer" in answer.json()["error"]
        own_redis.start()
        assert next(each for each in viewer if each.get("trouble") == "")
        viewer.close()


# -- who may ask ------------------------------------------------------------------------------


def test_foreign_hosts_are_refused(site):
    port = site.port
    for host in (f"localhost:{port}", "127.0.0.1", f"[::1]:{port}", "LOCALHOST"):
        assert site.get("api/locks", host=host).status_code == 200, host
    for host in ("evil.example", f"evil.example:{port}", "localhost.evil.example", "10.0.0.1", ""):
        answer = site.get("api/locks", host=host)
        assert answer.status_code == 400, host
        assert "--allowed-host" in answer.text
        assert site.get("api/changes", host=host).status_code == 400
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(b"GET /api/locks HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert raw.recv(100).split()[1] == b"400"


def test_other_hosts_are_allowed_by_name(app):
    with Site(app, allowed_hosts=("Locks.Example.com", "::1")) as site:
        assert site.get("api/locks", host="locks.example.com").status_code == 200
        assert site.get("api/locks", host="[::1]:5").status_code == 200
        assert site.get("api/locks").status_code == 400
    with Site(app, allowed_hosts=("*",)) as site:
        assert site.get("api/locks", host="whatever").status_code == 200


def test_requests_of_other_sites_are_refused(site):
    assert site.get("api/locks", origin=f"http://{site.address}").status_code == 200
    for origin in (
        "http://evil.example",
        "null",
        "http://127.0.0.1:1",
        f"http://{site.address}@evil.example",
    ):
        assert site.get("api/locks", origin=origin).status_code == 403, origin
        assert site.order({}, TOKEN, origin=origin).status_code == 403
    followed = {"sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    for other in ("cross-site", "same-site"):  # the second is another port, or another name
        assert site.get("api/locks", sec_fetch_site=other).status_code == 403
        assert site.get("", sec_fetch_site=other, **followed).status_code == 200, "a link"
    for own in ("same-origin", "none"):
        assert site.get("api/locks", sec_fetch_site=own).status_code == 200


# -- breaking ---------------------------------------------------------------------------------


def test_a_lock_is_broken_with_the_token_and_only_the_one_that_was_shown(site, app, client):
    made = take(app, "sync", "x")
    key = made.key
    (shown,) = site.lock(key=key)["locks"]
    order = {"key": key, "holder": shown["holder"]}
    for authorization in ("", "Bearer wrong", "Bearer", f"Basic {TOKEN}"):
        answer = site.order(order, authorization=authorization)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
    assert site.order({**order, "token": TOKEN}).status_code == 401, "not in the body"
    answer = site.http.post(f"/api/locks/break?token={TOKEN}", json=order)
    assert answer.status_code == 401, "nor in the address"
    assert client.exists(key)
    answer = site.order(order, TOKEN)
    assert answer.status_code == 200
    assert [each["task_id"] for each in answer.json()["broken"]] == ["id-of-x"]
    assert not client.exists(key)
    take(app, "sync", "x", task_id="next")
    answer = site.order(order, TOKEN)
    assert answer.status_code == 409
    assert "another run holds it" in answer.json()["error"]
    assert client.exists(key)


def test_every_wrong_token_is_logged(site, caplog):
    for _ in range(3):
        assert site.order({}, "a-guess-of-the-token").status_code == 401
    lines = [each.getMessage() for each in caplog.records if "token" in each.getMessage()]
    assert lines == ["redislock: the page refused an action from 127.0.0.1: wrong token"] * 3


def test_an_order_that_is_none_is_refused(site, app, client, label):
    made = take(app, "sync", "x")
    key = made.key
    bad = [b"", b"{", b"[]", b'"x"', b"[" * 60_000, {}, {"key": key}, {"key": key, "holder": 5}]
    for body in (*bad, {"key": key, "holder": "\u00e9"}):
        assert site.order(body, TOKEN).status_code == 400, body
    assert site.order(b"x" * 70_000, TOKEN).status_code == 413
    plain = {"content-type": "text/plain"}
    assert site.order({}, TOKEN, **plain).status_code == 415, "as a form of another site would be"
    for other in (label, "somebody:else", f"{label}:{{0}}:lock:misplaced"):
        assert site.order({"key": other, "holder": "x"}, TOKEN).status_code == 404
    foreign = lock_of(app, "sync", "foreign").key
    client.set(foreign, "not ours")
    assert site.lock(key=foreign)["locks"][0]["holder"] is None
    assert site.order({"key": foreign, "holder": ""}, TOKEN).status_code == 409
    (sent,) = site.lock(key=take(app, "unique", "x", queued=True).key)["locks"]
    no_run = site.order({"key": sent["key"], "holder": sent["holder"]}, TOKEN, "end")
    assert (no_run.status_code, "no task's run holds" in no_run.text) == (409, True)
    assert client.exists(foreign, key, sent["key"]) == 3
    assert site.get("api/locks/break").status_code == 405
    unknown = site.order({"key": key}, TOKEN, "mend")
    assert (unknown.status_code, "break, drop, end" in unknown.text) == (404, True)


def test_a_page_that_only_reads_breaks_nothing(app, client):
    made = take(app, "sync", "x")
    with Site(app) as site:
        (shown,) = site.lock(key=made.key)["locks"]
        order = {"key": made.key, "holder": shown["holder"]}
        for authorization in ("", f"Bearer {TOKEN}", "Bearer None", "Bearer"):
            answer = site.order(order, authorization=authorization)
            assert answer.status_code == 403
            assert "--allow-break" in answer.text
    assert client.exists(made.key)


def test_the_rights_of_those_who_look_are_enough_and_those_of_operators_to_break(own_redis):
    with own_redis.client() as client:
        grant(client, "watchers")
        grant(client, "operators")
        made = take(make_app(own_redis.url, "redislock"), "report", "x")
        looks = make_app(as_user(own_redis.url, "watchers"), "redislock")
        park(make_app(own_redis.url, "redislock"), "report", "x", "waits")
        with Site(looks, TOKEN) as site:
            viewer = messages(site)
            (row,) = next(viewer)["rows"]
            assert [each["task_id"] for each in row["next"]] == ["waits"]
            (shown,) = site.lock(key=made.key)["locks"]
            order = {"key": made.key, "holder": shown["holder"]}
            assert denials(client, "watchers") == []
            refused = site.order(order, TOKEN)
            assert refused.status_code == 503
            assert "NOPERM" in refused.text or "no permissions" in refused.text.lower()
            viewer.close()
        with Site(make_app(as_user(own_redis.url, "operators"), "redislock"), TOKEN) as site:
            assert site.order(order, TOKEN).status_code == 200
            assert denials(client, "operators") == []


def test_an_order_is_logged_and_told_with_the_name_of_who_gave_it(site, app, caplog):
    made = take(app, "report", "x")
    park(app, "report", "x", "waits")
    (shown,) = site.lock(key=made.key)["locks"]
    order = {"key": made.key, "holder": shown["holder"], "by": "anna\n"}
    dropped = site.order(order, TOKEN, "drop")
    assert dropped.json() == {"dropped": 1}
    assert site.lock(key=made.key)["room"] == []
    assert site.order(order, TOKEN).status_code == 200
    said = [each.getMessage() for each in caplog.records]
    assert any(each.endswith(r"were dropped by anna\n at 127.0.0.1") for each in said), said
    assert any(each.endswith(r"was broken by anna\n at 127.0.0.1") for each in said), said
    (broken,) = site.get("api/locks").json()
    assert broken["broken_by"] == r"anna\n at 127.0.0.1"


def test_the_project_says_who_gives_an_order(app, caplog):
    made = take(app, "sync", "x")
    with Site(app, TOKEN, user_of=lambda scope: scope["client"][0] + " as eve") as site:
        (shown,) = site.lock(key=made.key)["locks"]
        order = {"key": made.key, "holder": shown["holder"], "by": "anna"}
        assert site.order(order, TOKEN).status_code == 200
        assert next(messages(site))["about"]["asks_name"] is False
    assert "was broken by 127.0.0.1 as eve at 127.0.0.1" in caplog.text


# -- within a project -------------------------------------------------------------------------


def test_it_can_be_mounted_in_another_app(app):
    made = take(app, "sync", "x")
    project = Starlette(routes=[Mount("/ops/locks", asgi_app(app, every=0.1))])

    async def ask():
        transport = httpx.ASGITransport(app=project)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return [
                await http.get("/ops/locks", follow_redirects=True),
                await http.get("/ops/locks/static/page.css"),
                await http.get("/ops/locks/api/locks"),
                await http.get("/ops/locks/", headers={"host": "evil.example"}),
            ]

    page, style, locks, refused = asyncio.run(ask())
    assert [each.status_code for each in (page, style, locks, refused)] == [200, 200, 200, 400]
    assert str(page.url).endswith("/ops/locks/"), "or what it loads would not be found"
    assert [each["key"] for each in locks.json()] == [made.key]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"allow_break": True}, "needs a token"),
        ({"allow_break": True, "token": "short"}, "at least 16 characters"),
        ({"allow_break": True, "token": "with a space in it"}, "none a space"),
        ({"allowed_hosts": "localhost"}, "a list of names"),
        ({"allowed_hosts": ["http://x"]}, "a name or an address"),
        ({"every": 0}, "above 0"),
    ],
)
def test_a_wrong_option_is_an_error(app, options, said):
    with pytest.raises(ConfigError, match=said):
        asgi_app(app, **options)


def test_the_command_prints_where_it_is_and_a_token_that_it_made(redis_server, tmp_path, label):
    (tmp_path / "served.py").write_text(
        "from celery import Celery\n"
        f"app = Celery('served', broker='memory://')\n"
        f"app.conf.redislock_url = {redis_server.url!r}\napp.conf.redislock_prefix = {label!r}\n"
    )
    command = "from celery.bin.celery import main; main()"
    arguments = ("-A", "served", "redislock", "web", "--port", "0", "--allow-break")
    process = subprocess.Popen(
        [sys.executable, "-c", command, *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        where, token = process.stdout.readline(), process.stdout.readline()
        url = where.removeprefix("The locks are at ").strip()
        assert url.startswith("http://127.0.0.1:")
        said = token.removeprefix("Token for breaking locks: ").strip()
        assert len(said) >= 32

        def answer():
            try:
                return httpx.get(f"{url}api/locks")
            except httpx.TransportError:
                return None

        assert eventually(answer, "it answers").json() == []
        order = {"key": "x", "holder": "x"}
        assert httpx.post(f"{url}api/locks/break", json=order).status_code == 401
        bearer = {"authorization": f"Bearer {said}"}
        allowed = httpx.post(f"{url}api/locks/break", json=order, headers=bearer)
        assert allowed.status_code == 404
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=20)
    (told,) = errors.splitlines()[1:]  # after where the locks are; and it ends without a word
    assert told == "redislock: the page refused an action from 127.0.0.1: wrong token"


def test_a_port_that_is_taken_is_an_error_in_one_line(app):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = run(app, "web", "--port", str(taken.getsockname()[1]))
    assert result.exit_code == 1
    assert result.output.startswith("Error: cannot listen at 127.0.0.1:")
    result = run(app, "web", "--allow-break", "--token", "short")
    assert result.exit_code == 1
    assert "at least 16 characters" in result.output
