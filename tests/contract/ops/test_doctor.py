"""`celery redislock doctor`: what it asks the server, and what workers have left there."""

from __future__ import annotations

import json

import pytest

from celery_redislock.app.settings import app_locks
from celery_redislock.app.whereabouts import whereabouts
from celery_redislock.ops.doctor.checkup import Checkup
from celery_redislock.ops.doctor.rights import check_rights
from celery_redislock.ops.doctor.server import check_round_trip
from celery_redislock.ops.doctor.workers import check_workers
from celery_redislock.servers import looking
from celery_redislock.worker.sweeper import Sweeper
from tests.support.looking import make_app, run
from tests.support.waiting import eventually


def test_a_server_that_answers_late_is_told(redis_server, label):
    checkup = Checkup(make_app(redis_server.url, label, redislock_ttl=0.5))
    checkup.__dict__["trips"] = ([0.001] * 19 + [0.9], 0.0)
    assert [each.level for each in check_round_trip(checkup)] == ["warning"]
    checkup.__dict__["trips"] = ([0.9] * 20, 0.0)
    assert [each.level for each in check_round_trip(checkup)] == ["error"]


@pytest.mark.parametrize("marks", [True, False])
def test_a_restart_that_only_a_closed_connection_would_show_is_an_error(
    own_redis, label, monkeypatch, marks
):
    if not marks:  # as before Redis 7
        monkeypatch.setattr(looking, "MARK", "return redis.UNKNOWN and '%s'")
    with own_redis.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-info")
    found = list(check_rights(Checkup(make_app(own_redis.url, label))))
    assert [each.level for each in found] == ["warning" if marks else "error"]
    assert "INFO is denied" in found[0].what
    assert found[0].todo == "ACL SETUSER <user> +info"


def test_workers_of_another_broker_under_the_same_prefix_are_told(redis_server, label):
    server = f"{redis_server.url}/0"

    def project(key_prefix):
        app = make_app(
            server, label, broker_url=redis_server.url,
            broker_transport_options={"global_keyprefix": key_prefix},
        )  # fmt: skip
        Sweeper(app).sweep()
        return app

    def examined(app):
        found = json.loads(run(app, "doctor", "--json").stdout)
        ((level, what),) = [(f["level"], f["what"]) for f in found if f["check"] == "prefix"]
        return level, what

    with project("a:") as ours:
        assert examined(ours)[0] == "ok"

        def told():
            with project("b:"):
                level, what = examined(ours)
            return level == "warning" and what

        what = eventually(told, "they were seen: a worker looks every 2 s, the key lives so long")
    assert what.startswith("workers with another broker use these locks (1 ")


@pytest.mark.parametrize(
    ("told", "level", "said"),
    [
        ({"error": "KeyError('lock_server')"}, "unknown", "w@old did not tell where"),
        (None, "unknown", "w@old did not tell where"),
        ({"tasks": ["sync"]}, "error", "w@old has the locks of sync on "),
        ({"tasks": ["of.another.project"]}, "ok", "1 worker and the server agree"),
        ({"tasks": 5}, "unknown", "w@old did not tell where"),
    ],
)
def test_what_a_worker_of_another_release_tells_is_understood(
    redis_server, label, monkeypatch, told, level, said
):
    replies = {"locks": {"w@old": []}, "lock_server": {} if told is None else {"w@old": told}}
    answers = {name: [each] if each else [] for name, each in replies.items()}
    app = make_app(redis_server.url, label)
    monkeypatch.setattr(
        app.control, "broadcast", lambda command, **options: answers[command], raising=False
    )
    findings = [*check_workers(Checkup(app))]
    assert [(each.level, each.what.startswith(said)) for each in findings] == [(level, True)]


def test_a_worker_whose_address_is_another_and_that_tells_no_id_may_be_elsewhere(
    redis_server, label, monkeypatch
):
    app = make_app(redis_server.url, label)
    theirs = {**whereabouts(app_locks(app)), "ids": [], "databases": ["alias:6379/0"]}
    answers = {"locks": [], "lock_server": [{"w@one": {**theirs, "tasks": ["sync", "report"]}}]}
    monkeypatch.setattr(
        app.control, "broadcast", lambda command, **options: answers[command], raising=False
    )
    (finding,) = check_workers(Checkup(app))
    assert finding.level == "warning"
    assert finding.what.startswith("w@one has the locks of report, sync on ")
    assert "which may be another server than" in finding.what
