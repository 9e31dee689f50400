"""The rights that docs/operations.md grants workers are those that the code needs, and no more."""

from __future__ import annotations

import re

from celery_redislock.ops.doctor.rights import COMMANDS, EXTRA
from celery_redislock.servers import hash_slots
from tests.support.rights import acl_lines, cluster_rights
from tests.support.workers import ROOT

SOURCES = ROOT / "celery_redislock"


def test_the_line_of_workers_has_exactly_the_commands_that_the_sources_use() -> None:
    paths = {*SOURCES.glob("scripts/*.lua")} - {SOURCES / "scripts/suspend.lua"}  # an operator's
    scripts = "".join(path.read_text() for path in paths)
    used = set(re.findall(r"redis\.p?call\((?:in_front == '1' and )?'([A-Z]+)'", scripts))
    used |= set(re.findall(r"'LPUSH' or '([A-Z]+)'", scripts))
    # What only people look at, in `looking`, is not what workers need.
    servers = (f"servers/{name}" for name in ("scripts", "talk", "restarts"))
    for name in (*servers, "protocol/calls", "protocol/rooms"):
        used |= set(re.findall(r'"([A-Z]{3,})"', (SOURCES / f"{name}.py").read_text()))
    used = {name.lower() for name in used} | {"select"}
    used -= {"wrongtype", "readonly", "busy", "extended", "retaken", "withscores"}
    used -= {"moved", "ask", "tryagain", "masterdown", "clusterdown", "sentinel"}  # in replies
    used -= {"cluster", "slots"}  # only in a cluster, see below
    used.remove("wait")  # only with `redislock_min_replicas`

    granted = {word[1:] for word in acl_lines()["workers"] if word.startswith("+")}
    assert granted == used
    assert cluster_rights() == [f"+{'|'.join(each).lower()}" for each in hash_slots.COMMANDS]
    assert {command.split()[0] for command in (*COMMANDS, *EXTRA)} == used
    assert {word for word in acl_lines()["workers"] if word[0] in "~-"} == {"~redislock:*", "-@all"}


def test_operators_may_suspend_and_watchers_may_see_it() -> None:
    text = (SOURCES / "scripts/suspend.lua").read_text()
    used = {f"+{name.lower()}" for name in re.findall(r"redis\.call\('([A-Z]+)'", text)}
    assert used <= {*acl_lines()["operators"]}
    assert "+mget" in acl_lines()["watchers"]
