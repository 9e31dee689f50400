"""The Django project of examples/, as its tests run it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.workers import ROOT

PROJECT = ROOT / "examples/django_project"


def set_up(monkeypatch: pytest.MonkeyPatch, redis_url: str, folder: Path) -> None:
    """Set the environment of its processes. The database is in the folder, and so may modules be.

    Args:
        monkeypatch: pytest's.
        redis_url: its Redis, with the number of the database.
        folder: a test's own.
    """
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT, PROJECT, folder))))
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "shop.settings")
    monkeypatch.setenv("DATABASE", str(folder / "db.sqlite3"))
    for name in ("CELERY_BROKER_URL", "CELERY_RESULT_BACKEND"):
        monkeypatch.delenv(name, raising=False)
