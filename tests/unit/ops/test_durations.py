"""Durations on a command line: what is none is refused by the option's own name."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from celery_redislock.ops.command import duration
from celery_redislock.ops.commands.checks import watch
from celery_redislock.ops.commands.export import export
from celery_redislock.ops.commands.history import history
from celery_redislock.ops.commands.looks import list_
from celery_redislock.ops.commands.suspensions import suspend
from celery_redislock.ops.commands.web import web


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("0", 0), ("1.5s", 1.5), ("5m", 300), ("2h", 7200), ("1d", 86400)],
)
def test_a_duration_is_seconds_or_has_a_unit(text: str, seconds: float) -> None:
    assert duration(None, None, text) == seconds  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["-1", "-2h", "nan", "inf", "1e12", "soon", ""])
@pytest.mark.parametrize(
    ("command", "option"),
    [(suspend, "--for"), (history, "--since"), (list_, "--older"), (watch, "--older")],
)
def test_what_is_no_duration_is_said_of_its_option(command: Any, option: str, value: str) -> None:
    refused = CliRunner().invoke(command, [option, value])
    assert refused.exit_code == 2
    assert f"Invalid value for '{option}': {value!r} is not a duration" in refused.output


@pytest.mark.parametrize("value", ["0", "-1", "inf"])
@pytest.mark.parametrize("command", [watch, export, web])
def test_a_pause_between_two_looks_is_a_time(command: Any, value: str) -> None:
    refused = CliRunner().invoke(command, ["--every", value])
    assert refused.exit_code == 2
    assert "Invalid value for '--every'" in refused.output
