"""The compose file: what can be known of it without an engine, and with one that it runs."""

from __future__ import annotations

import re
import shlex
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from celery.bin.celery import celery as celery_command

from tests.support.compose import Stack, docker, on_an_engine
from tests.support.servers import free_port
from tests.support.shell import plugin
from tests.support.waiting import eventually
from tests.support.workers import ROOT

pytestmark = pytest.mark.timeout(600)

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
#: No other project's, and so no other checkout's.
IMAGE = "${COMPOSE_PROJECT_NAME}-example"
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
    check = OURS[name]["healthcheck"]["test"][-1]
    for command in (OURS[name]["command"], *re.findall(r"(celery -A .+?) &&", check)):
        app, subcommand, arguments = celery_words(command)
        assert (ROOT / f"{app.replace('.', '/')}.py").exists()
        parsed = celery_command.commands.get(subcommand) or plugin(subcommand)
        if subcommand not in ("inspect", "redislock"):  # what follows is of its own making
            parsed.make_parser(parsed.context_class(parsed)).parse_args(list(arguments))


@pytest.mark.parametrize("name", OURS)
def test_a_service_of_ours_can_do_little_is_watched_and_has_time_to_end(name):
    service = OURS[name]
    assert (service["init"], service["read_only"], service["cap_drop"]) == (True, True, ["ALL"])
    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"]["test"]
    if celery_words(service["command"])[1] == "worker":
        assert service["stop_grace_period"] == "1m", "Docker would kill it after 10 s"


@pytest.mark.parametrize("name", SERVICES)
def test_no_log_fills_the_disk(name):
    assert SERVICES[name]["logging"]["options"] == {"max-size": "10m", "max-file": "3"}


def test_a_probe_comes_soon_and_no_new_engine_is_needed_for_it():
    for name, service in SERVICES.items():
        if "healthcheck" in service:
            check = service["healthcheck"]
            assert check["interval"] in ("2s", "3s", "5s"), name
            assert "start_interval" not in check, "engines before 25 refuse it"


def test_the_page_is_published_on_this_machine_only():
    published = {name: each["ports"] for name, each in SERVICES.items() if "ports" in each}
    assert published == {"web": ["127.0.0.1:${REDISLOCK_WEB_PORT:-5556}:5556"]}
    assert SERVICES["web"]["profiles"] == ["web"]
    assert "--allow-break" in SERVICES["web"]["command"]
    assert SERVICES["web"]["environment"]["REDISLOCK_WEB_TOKEN"] == "${REDISLOCK_WEB_TOKEN:-}"


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


# -- on an engine -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack.copied(tmp_path_factory.mktemp("compose"), "compose")
    try:
        yield stack
    finally:
        stack.remove()


@on_an_engine
def test_it_starts_at_once_and_runs_the_example(stack):
    stack("build")
    began = time.monotonic()
    stack("up", "--detach", "--wait", "--wait-timeout", "300")
    assert time.monotonic() - began < 60, "no probe waits for the interval of another one"
    done = stack.execute("worker-1", "python", "examples/beat_job.py")
    assert "report: 3 runs" in done
    assert "0 overlaps" in done


@on_an_engine
def test_what_is_built_again_takes_what_is_fetched_from_the_layer_that_is_there(stack):
    with (stack.folder / "celery_redislock/__init__.py").open("a", encoding="utf-8") as code:
        code.write("# A changed line.\n")
    said = stack.run("--progress", "plain", "build")
    assert said.returncode == 0, said.stderr
    steps = re.findall(r"^#(\d+) \[.*?\] RUN (.*)$", said.stdout + said.stderr, re.M)
    cached = set(re.findall(r"^#(\d+) CACHED$", said.stdout + said.stderr, re.M))
    fetches = [number for number, command in steps if "needs.txt" in command]
    assert fetches
    assert set(fetches) <= cached


@on_an_engine
def test_what_of_ours_runs_can_do_nothing_but_its_work(stack):
    looks = "id -u; grep CapEff /proc/1/status; touch /app/x || echo read-only"
    uid, _, capabilities, wrote = stack.execute("worker-1", "sh", "-c", looks).split()
    assert (uid, int(capabilities, 16), wrote) == ("65534", 0, "read-only")
    assert stack.execute("worker-1", "ls", "/app").split() == [
        "LICENSE", "README.md", "celery_redislock", "celery_redislock_pytest.py", "examples",
        "pyproject.toml",
    ]  # fmt: skip


@on_an_engine
def test_a_beat_that_stands_still_is_started_again(stack):
    def started() -> str:
        return docker("inspect", "--format", "{{.State.StartedAt}}", stack.container("beat"))

    before = started()
    stops_it = (
        "import os, signal; [os.kill(int(p), signal.SIGSTOP) for p in os.listdir('/proc')"
        " if p.isdigit() and b'beat_job\\0beat' in open(f'/proc/{p}/cmdline', 'rb').read()]"
    )
    stack.execute("beat", "python", "-c", stops_it)
    stack.execute("beat", "sh", "-c", "touch -d '11 minutes ago' /tmp/celerybeat-schedule*")
    eventually(lambda: started() != before, "it is ended, and started", 60)
    stack("up", "--detach", "--wait", "beat")


@on_an_engine
def test_the_page_is_on_this_machine_only_and_acts_by_its_token(stack):
    port = free_port()
    stack.environment = {"REDISLOCK_WEB_PORT": str(port), "REDISLOCK_WEB_TOKEN": "t" * 32}
    stack("--profile", "web", "up", "--detach", "--wait", "web")
    ports = docker("port", stack.container("web")).split()
    assert ports == ["5556/tcp", "->", f"127.0.0.1:{port}"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/locks") as reply:
        assert reply.status == 200
    ask = urllib.request.Request(f"http://127.0.0.1:{port}/api/locks/break", b"{}", method="POST")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(ask)
    assert refused.value.code in (401, 403)
