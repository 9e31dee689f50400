"""The compose file: what can be known of it without an engine, and with one that it runs."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import uuid
from typing import Any

import pytest
import yaml
from celery.bin.celery import celery as celery_command

from tests.support.workers import ROOT

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
IMAGE = "celery-redislock-example"
OURS = {name: service for name, service in SERVICES.items() if service.get("image") == IMAGE}


def celery_words(command: str) -> tuple[str, str, list[str]]:
    """The app, the subcommand, and its arguments."""
    words = shlex.split(command.replace("$$HOSTNAME", "host"))
    assert words[:2] == ["celery", "-A"], command
    return words[2], words[3], words[4:]


def test_two_workers_and_a_beat_run_the_example_from_one_image():
    plain = [service for service in OURS.values() if "profiles" not in service]
    ran = [celery_words(service["command"])[:2] for service in plain]
    example = "examples.beat_job"
    assert sorted(ran) == [(example, "beat"), (example, "worker"), (example, "worker")]
    (build,) = [service["build"] for service in OURS.values() if "build" in service]
    assert (ROOT / build["context"] / build["dockerfile"]).exists()
    assert "--maxmemory-policy noeviction" in SERVICES["redis"]["command"]


@pytest.mark.parametrize("name", OURS)
def test_celery_takes_each_command(name):
    check = OURS[name]["healthcheck"]["test"][1]
    for command in (OURS[name]["command"], *([check] if check.startswith("celery") else ())):
        app, subcommand, arguments = celery_words(command)
        assert (ROOT / f"{app.replace('.', '/')}.py").exists()
        parsed = celery_command.commands[subcommand]
        if subcommand != "inspect":  # what follows it is of its own making
            parsed.make_parser(parsed.context_class(parsed)).parse_args(list(arguments))


@pytest.mark.parametrize("name", OURS)
def test_a_service_of_ours_can_do_little_is_watched_and_has_time_to_end(name):
    service = OURS[name]
    assert (service["init"], service["read_only"], service["cap_drop"]) == (True, True, ["ALL"])
    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"]
    if celery_words(service["command"])[1] == "worker":
        assert service["stop_grace_period"] == "1m", "Docker would kill it after 10 s"


def test_the_cluster_is_made_of_all_its_nodes_before_its_worker_starts():
    nodes = {
        name for name, each in SERVICES.items() if "cluster-enabled" in each.get("command", "")
    }
    assert len(nodes) == 6, "three primaries, each with a replica"
    maker, worker = SERVICES["make-cluster"], SERVICES["cluster-worker"]
    _, script, *names = shlex.split(maker["command"])
    assert maker["volumes"] == [f"./examples{script}:{script}:ro"]
    assert (ROOT / f"examples{script}").exists()
    assert set(names) == nodes == maker["depends_on"].keys()
    scheme, _, hosts = worker["environment"]["LOCKS_URL"].partition("://")
    assert scheme == "redis+cluster"
    assert {each.partition(":")[0] for each in hosts.split(",")} <= nodes
    for name in (*nodes, "make-cluster", "cluster-worker"):
        assert SERVICES[name]["profiles"] == ["cluster"]
    for each in (SERVICES["cluster-1"], maker):
        assert (each["user"], each["read_only"]) == ("redis", True)
        assert each["cap_drop"] == ["ALL"]
        assert each["security_opt"] == ["no-new-privileges:true"]


#: Not that of a stack which somebody runs here.
PROJECT = f"redislock-test-{uuid.uuid4().hex[:8]}"


def compose(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", "compose", "--project-name", PROJECT, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def needs(*arguments: str) -> None:
    if shutil.which("docker") is None:
        pytest.skip("there is no docker command")
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"docker {' '.join(arguments)}: {done.stderr.strip()[-200:]}")


def test_docker_compose_takes_the_file():
    needs("compose", "version")
    done = compose("--profile", "cluster", "config", "--quiet")
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(900)
def test_docker_compose_runs_it():
    needs("compose", "version")
    needs("info")
    try:
        up = compose("up", "--build", "--detach", "--wait", "--wait-timeout", "300")
        assert up.returncode == 0, up.stderr
        done = compose("exec", "-T", "worker-1", "python", "examples/beat_job.py")
        assert done.returncode == 0, done.stderr
        assert "report: 3 runs" in done.stdout
        assert "0 overlaps" in done.stdout
    finally:
        compose("down", "--volumes", "--timeout", "5")


@pytest.mark.timeout(900)
def test_docker_compose_runs_the_cluster():
    needs("compose", "version")
    needs("info")
    profile = ("--profile", "cluster")
    try:
        assert compose("build").returncode == 0
        up = compose(*profile, "up", "--detach", "--wait", "cluster-worker")
        assert up.returncode == 0, up.stderr
        inside = (*profile, "exec", "-T", "cluster-worker")
        done = compose(*inside, "python", "examples/account_sync.py")
        assert "5 synced, 0 overlaps" in done.stdout, done.stderr
    finally:
        compose(*profile, "down", "--volumes", "--timeout", "5")
