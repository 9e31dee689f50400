"""The collector of prometheus-client when a survey takes long, or fails."""

from __future__ import annotations

import threading

import pytest

from tests.support.looking import make_app
from tests.support.waiting import eventually

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry

from celery_redislock.ops import collector
from celery_redislock.prometheus import Collector


@pytest.fixture
def app(redis_server, label):
    return make_app(redis_server.url, label)


def registered(app):
    registry = CollectorRegistry()
    registry.register(Collector(app, every=0.1))
    return registry


def test_a_survey_that_takes_long_is_there_for_the_next_scrape(app, monkeypatch):
    monkeypatch.setattr(collector, "PATIENCE", 0.01)
    goes_on, real = threading.Event(), collector.figures

    def takes_long(locks):
        goes_on.wait(60)
        return real(locks)

    monkeypatch.setattr(collector, "figures", takes_long)
    registry = registered(app)
    assert list(registry.collect()) == [], "nothing is known yet"
    goes_on.set()
    eventually(lambda: registry.get_sample_value("redislock_up") == 1, "the survey is there")


def test_what_fails_is_said_once_and_is_no_figure(app, monkeypatch, caplog):
    registry = registered(app)
    assert registry.get_sample_value("redislock_up") == 1
    when = registry.get_sample_value("redislock_survey_timestamp_seconds")
    surveys = []

    def fails(locks):
        surveys.append(1)
        raise RuntimeError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(collector, "figures", fails)
        eventually(lambda: registry.get_sample_value("redislock_up") == 0, "it failed")
        eventually(lambda: list(registry.collect()) and len(surveys) > 2, "it is tried again")
        names = {each.name for each in registry.collect()}
        assert names == {
            *("redislock_up", "redislock_survey_timestamp_seconds"),
            "redislock_survey_duration_seconds",
        }
        assert registry.get_sample_value("redislock_survey_timestamp_seconds") >= when
    assert caplog.text.count("nothing to export") == 1
    assert "a bug" in caplog.text
    eventually(lambda: registry.get_sample_value("redislock_up") == 1, "it goes on")
