"""Orders that meet a fault half way, and tasks that wait under a name that nobody knows here."""

from __future__ import annotations

import json

import pytest

from celery_redislock import operations
from celery_redislock.app.entries import Entry
from celery_redislock.operations import list_locks
from tests.support.looking import client_of, lock_of, make_app, park, run, take


@pytest.fixture
def app(redis_server, label):
    return make_app(redis_server.url, label)


def cut_off_after(count, proxy, monkeypatch, name):
    """The server goes away when this was called so often."""
    original, calls = getattr(operations, name), []

    def then_away(*args, **options):
        reply = original(*args, **options)
        calls.append(1)
        if len(calls) == count:
            proxy.cut_off()
        return reply

    monkeypatch.setattr(operations, name, then_away)


@pytest.mark.parametrize("as_json", [True, False])
def test_what_was_broken_is_told_if_the_server_goes_away_meanwhile(
    app, label, proxy, monkeypatch, as_json
):
    for number in range(5):
        take(app, "sync", str(number))
    far = make_app(proxy.url, label)
    cut_off_after(2, proxy, monkeypatch, "break_slot")

    done = run(far, "break", "--all", "--force", *(["--json"] if as_json else []))

    assert done.exit_code == 1
    assert sum(each.state == "held" for each in list_locks(app)) == 3
    away = "the lock server does not answer: "
    if as_json:
        told = json.loads(done.stdout)
        assert len(told["broken"]) == 2
        assert told["error"].startswith(away)
    else:
        assert done.output.count("broke ") == 2
    assert f"Error: {away}" in done.output


@pytest.mark.parametrize("command", ["break", "drop-waiting"])
def test_what_was_dropped_is_told_if_the_server_goes_away_meanwhile(
    app, label, proxy, monkeypatch, command
):
    for name in ("one", "other"):
        for number in range(2):
            park(app, "report", name, f"{name}-{number}")
    far = make_app(proxy.url, label)
    cut_off_after(1, proxy, monkeypatch, "_drop_all")

    dropping = ["--drop-waiting"] if command == "break" else []
    done = run(far, command, "--all", "--force", "--json", *dropping)

    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert told["dropped"] == 2
    assert "does not answer" in told["error"]
    assert [each.waiting for each in list_locks(app)] == [2]


def test_what_waits_under_a_name_that_the_app_does_not_know_is_dropped_with_its_result(app):
    take(app, "account", "x")
    lock = lock_of(app, "account", "x")
    entry = Entry.of(app.tasks["account"], ["x"], {}, {"task_id": "lost", "headers": {}})
    sealed = entry._replace(task="renamed").sealed(app, lock.key)
    client = client_of(app)
    client.rpush(lock["room"], "lost:0.0")
    client.hset(lock["entries"], "lost:0.0", f"|1.0|{sealed.dump()}")

    dropped = run(app, "break", "--force", "account", "x", "--drop-waiting")

    assert dropped.exit_code == 0, dropped.output
    assert app.AsyncResult("lost").state == "REVOKED"
    assert not client.exists(lock["ended"]), "nobody else could store its result"
