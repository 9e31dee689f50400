"""examples/make_cluster.sh on real servers, each of which has an address of its own, as containers
have.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from celery_redislock import LockUnavailable, RedisLock
from tests.support.clusters import free_port_with_bus
from tests.support.servers import redis_server_binary
from tests.support.waiting import eventually
from tests.support.workers import ROOT

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere loopback has one address"),
    pytest.mark.skipif(not shutil.which("redis-cli"), reason="no redis-cli on this machine"),
]
NAMES = [f"cluster-{number}" for number in range(1, 7)]


class Containers:
    """Nodes with names. Their addresses change when they are started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port_with_bus()
        self._processes: list[subprocess.Popen[bytes]] = []
        self.hosts: dict[str, str] = {}
        for name in NAMES:
            (folder / name).mkdir()

    def start(self) -> None:
        net = "127.{}.{}".format(*random.SystemRandom().sample(range(10, 250), 2))
        self.hosts = {name: f"{net}.{number}" for number, name in enumerate(NAMES, 1)}
        for name, host in self.hosts.items():
            command = [
                *(redis_server_binary(), "--port", str(self.port), "--bind", host),
                *("--bind-source-addr", host),
                *("--dir", str(self._folder / name), "--save", "", "--cluster-enabled", "yes"),
                *("--cluster-node-timeout", "5000", "--repl-diskless-sync-delay", "0"),
            ]
            self._processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        for host in self.hosts.values():
            eventually(lambda at=host: self._answers(at), "the node answers")
        # What Docker's name server says.
        names = "\n".join(f'test "$2" = {name} && echo {at}' for name, at in self.hosts.items())
        getent = self._folder / "getent"
        getent.write_text(f"#!/bin/sh\n{names}\nexit 0\n")
        getent.chmod(0o755)

    def _answers(self, host: str) -> bool:
        with redis.Redis(host=host, port=self.port) as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False

    def make_cluster(self) -> str:
        path = f"{self._folder}:{os.environ['PATH']}"
        done = subprocess.run(
            ["timeout", "120", "sh", str(ROOT / "examples/make_cluster.sh"), *NAMES],
            env={**os.environ, "PORT": str(self.port), "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes.clear()

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"{at}:{self.port}" for at in self.hosts.values())


@pytest.fixture
def containers(tmp_path: Path) -> Iterator[Containers]:
    made = Containers(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def roles(containers: Containers) -> list[str]:
    found = []
    for host in containers.hosts.values():
        with redis.Redis(host=host, port=containers.port, decode_responses=True) as client:
            found.append(client.info("replication")["role"])
    return sorted(found)


def test_it_makes_a_cluster_once_and_nodes_with_new_addresses_meet_again(containers, label) -> None:
    assert "[OK] All 16384 slots covered." in containers.make_cluster()
    eventually(lambda: roles(containers) == ["master"] * 3 + ["slave"] * 3, "half are replicas", 60)
    with RedisLock(containers.url, label, ttl=12) as lock:
        assert lock.fence
    containers.stop()
    containers.start()
    assert "[OK]" not in containers.make_cluster(), "nothing is made anew"
    eventually(lambda: roles(containers) == ["master"] * 3 + ["slave"] * 3, "all are back", 60)

    def is_taken() -> bool:
        """Not while a node still tells the address that another one had before."""
        with contextlib.suppress(LockUnavailable), RedisLock(containers.url, label, ttl=12) as lock:
            return lock.fence > 0
        return False

    eventually(is_taken, "a lock is taken", 60)
