"""A Docker engine for the tests of containers: one that is there, or one that is made for them.

What is made is a small Debian in a folder, with Docker and Compose. Its `dockerd` runs in there, in
namespaces of its own for mounts, processes and the network: with the last process all of that is
gone, also bridges and rules of the firewall. Only files are left, all in that folder.

The images are that Debian, under the names that the compose file and the Dockerfile use, each with
an entrypoint that does what the published image's does. It has no way out of this machine: what pip
installs in a container was fetched before, into a folder of the image.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

import docker
import pytest

from tests.support import debian
from tests.support.toml import PROJECT
from tests.support.workers import ROOT

T = TypeVar("T")

#: Set while the tests of containers are to run: `make test-containers` does that.
FLAG: Final = "TEST_CONTAINERS"
#: Beside the smallest Debian: the engine, and what the images have.
PACKAGES: Final = (
    *("docker.io", "docker-cli", "docker-compose", "iptables", "iproute2"),
    *("python3", "python-is-python3", "redis-server", "rabbitmq-server"),
)
#: What no image is to have: it would be most of it.
ENGINES_OWN: Final = (
    *("./usr/bin/docker*", "./usr/sbin/docker*", "./usr/bin/containerd*", "./usr/bin/ctr"),
    *("./usr/sbin/runc", "./usr/libexec/docker", "./var/cache/apt", "./var/lib/apt/lists"),
    *("./var/lib/docker", "./run", "./usr/share/doc", "./usr/share/man", "./usr/share/locale"),
)
#: Seconds within which the engine answers.
PATIENCE: Final = 60.0

#: Makes a folder the root, and runs a command there. With `chroot` the real root would stay that of
#: the namespace, and so of what `docker exec` runs.
_ENTER: Final = 'cd "$0"; pivot_root . mnt; cd /; umount -l /mnt; exec "$@"'
_REDIS: Final = """#!/bin/sh
set -e
[ "$1" = redis-server ] && set -- "$@" --protected-mode no
[ "$(id -u)" = 0 ] || exec "$@"
chown redis /data
exec setpriv --reuid=redis --regid=redis --clear-groups "$@"
"""
_RABBITMQ: Final = """#!/bin/sh
set -e
{
    echo loopback_users.guest = false
    echo log.console = true
    [ -z "$RABBITMQ_DEFAULT_USER" ] || echo "default_user = $RABBITMQ_DEFAULT_USER"
    [ -z "$RABBITMQ_DEFAULT_PASS" ] || echo "default_pass = $RABBITMQ_DEFAULT_PASS"
} > /etc/rabbitmq/rabbitmq.conf
chown -R rabbitmq /var/lib/rabbitmq
exec setpriv --reuid=rabbitmq --regid=rabbitmq --clear-groups "$@"
"""
#: How `docker commit` makes each image of the one that was imported.
IMAGES: Final = {
    "python:3.13-slim": ('CMD ["python3"]',),
    "redis:7": (
        *("WORKDIR /data", "VOLUME /data", "EXPOSE 6379"),
        *('ENTRYPOINT ["/entrypoint-redis"]', 'CMD ["redis-server"]'),
    ),
    "rabbitmq:4": (
        *("ENV HOME=/var/lib/rabbitmq", "ENV PATH=/usr/lib/rabbitmq/bin:/usr/sbin:/usr/bin:/bin"),
        *("VOLUME /var/lib/rabbitmq", "EXPOSE 5672"),
        *('ENTRYPOINT ["/entrypoint-rabbitmq"]', 'CMD ["rabbitmq-server"]'),
    ),
}


def on_an_engine(test: T) -> T:
    """A test that `make test-containers` runs, beside a stack of another checkout."""
    reason = "make test-containers runs it, on a Docker engine"
    skip = pytest.mark.skipif(not os.environ.get(FLAG), reason=reason)
    return skip(pytest.mark.usefixtures("neighbour")(test))


def trouble() -> str:
    """Why no container can be started here, or ""."""
    if shutil.which("docker") is None:
        return "there is no docker command"
    with_compose = subprocess.run(
        ["docker", "compose", "version"], capture_output=True, check=False
    )
    if with_compose.returncode:
        return "docker has no compose"
    try:
        client = docker.from_env(timeout=5)
        with contextlib.closing(client):
            client.ping()
    except Exception as exc:  # a socket that is not there, a TLS error, no permission
        return f"no Docker engine answers: {exc}"
    return ""


def cannot_be_made() -> str:
    """Why none can be made here, or ""."""
    if sys.platform != "linux":
        return f"this is {platform.system()}"
    if os.geteuid() != 0:
        return "only root can make one"
    missing = [each for each in ("unshare", "pivot_root", "chroot") if shutil.which(each) is None]
    if missing:
        return f"there is no {missing[0]}"
    try:
        debian.mirror()
    except debian.NotToBeHad as exc:
        return str(exc)
    return ""


# -- what is fetched --------------------------------------------------------------------------


def prepare(folder: Path) -> None:
    """Make the small Debian. Mounts what it needs meanwhile: in a namespace of its own, please.

    Raises:
        debian.NotToBeHad: something cannot be fetched.
    """
    root = folder / "root"
    debian.debootstrap(folder / "debian", root, *PACKAGES)
    _fetch_wheels(root / "opt/wheels")
    (root / "etc/pip.conf").write_text(
        "[global]\nno-index = true\nfind-links = /opt/wheels\nbreak-system-packages = true\n"
        "root-user-action = ignore\ndisable-pip-version-check = true\n"
    )
    _install_pip(root)
    for name, text in (("redis", _REDIS), ("rabbitmq", _RABBITMQ)):
        entrypoint = root / f"entrypoint-{name}"
        entrypoint.write_text(text)
        entrypoint.chmod(0o755)
    (root / "data").mkdir()
    shutil.chown(root / "data", _uid(root, "redis"))
    command = folder / "bin/docker"
    command.parent.mkdir()
    command.write_text(
        f'#!/bin/sh\nexec chroot {root} /usr/bin/env -C "$PWD" /usr/bin/docker "$@"\n'
    )
    command.chmod(0o755)


def _uid(root: Path, user: str) -> int:
    lines = (root / "etc/passwd").read_text().splitlines()
    (line,) = [each for each in lines if each.startswith(f"{user}:")]
    return int(line.split(":")[2])


def _fetch_wheels(folder: Path) -> None:
    """Fetch what examples/Dockerfile installs, for the Python of the images."""
    project = PROJECT["project"]
    needs = ["pip", *PROJECT["build-system"]["requires"], *project["dependencies"]]
    needs += project["optional-dependencies"]["web"]
    machine = platform.machine()
    platforms = [f"--platform=manylinux{each}_{machine}" for each in ("_2_28", "_2_17", "2014")]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "-q", "--dest", str(folder)),
            *("--only-binary=:all:", "--python-version=3.13", *platforms, *needs),
        ],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise debian.NotToBeHad(f"pip: {done.stderr.strip()}")


def _install_pip(root: Path) -> None:
    """Install pip as the published image has it. Debian's could not replace Debian's packages."""
    (wheel,) = root.glob("opt/wheels/pip-*.whl")
    inside = f"/{wheel.relative_to(root)}"
    subprocess.run(
        ["chroot", root, "python3", f"{inside}/pip", "install", "-q", inside], check=True
    )


# -- the engine -------------------------------------------------------------------------------


@contextlib.contextmanager
def running(folder: Path) -> Iterator[dict[str, str]]:
    """Run the engine of this folder, with its images. In namespaces of its own, please.

    Yields:
        The environment in which `docker` and its clients find it.
    """
    root, image = folder / "root", folder / "image"
    _mount(root, image)
    subprocess.run(["chroot", root, "ip", "link", "set", "lo", "up"], check=True)
    # The path of a socket must be short, and a checkout's need not be.
    with tempfile.TemporaryDirectory(prefix="engine-") as place:
        env = {
            **os.environ,
            "DOCKER_HOST": f"unix://{place}/socket",
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "DOCKER_CONFIG": place,
        }
        with (folder / "dockerd.log").open("wb") as log:
            dockerd = subprocess.Popen(
                [
                    *("unshare", "--mount", "sh", "-ec", _ENTER, root),
                    *("dockerd", "--host", env["DOCKER_HOST"]),
                    *("--data-root", "/var/lib/docker", "--cgroup-parent", f"/{group_of(folder)}"),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**env, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            )
        try:
            _await(dockerd, env, folder / "dockerd.log")
            _import_images(image, env)
            yield env
        finally:
            dockerd.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                dockerd.wait(30)


def _mount(root: Path, image: Path) -> None:
    """Mount what is needed inside, and what containers mount, at the same paths as outside. The
    other folder shows the root as it was before, for the images.
    """
    image.mkdir(exist_ok=True)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "--bind", root, image], check=True)
    # A root that is no mount cannot be left, as each container's process must.
    subprocess.run(["mount", "--bind", root, root], check=True)
    for kind, name in (("proc", "proc"), ("tmpfs", "run")):
        subprocess.run(["mount", "-t", kind, kind, root / name], check=True)
    for each in (Path("/sys"), Path("/dev"), ROOT, Path(tempfile.gettempdir())):
        inside = root / each.relative_to("/")
        inside.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "--rbind", each, inside], check=True)


def _await(dockerd: subprocess.Popen[bytes], env: dict[str, str], log: Path) -> None:
    give_up = time.monotonic() + PATIENCE
    while True:
        asked = subprocess.run(["docker", "info"], env=env, capture_output=True, check=False)
        if asked.returncode == 0:
            return
        if dockerd.poll() is not None or time.monotonic() > give_up:
            said = f"{asked.stderr.decode()}\n{log.read_text()[-4000:]}"
            raise AssertionError(f"the engine does not start: {said}")
        time.sleep(0.3)


def _import_images(image: Path, env: dict[str, str]) -> None:
    there = ["docker", "image", "inspect", *IMAGES]
    if subprocess.run(there, env=env, capture_output=True, check=False).returncode == 0:
        return
    left_out = [f"--exclude={each}" for each in ENGINES_OWN]
    pack = ["tar", "-C", str(image), *left_out, "-c", "."]
    with subprocess.Popen(pack, stdout=subprocess.PIPE) as tar:
        subprocess.run(
            ["docker", "import", "-", "stand-in"],
            env=env, stdin=tar.stdout, stdout=subprocess.DEVNULL, check=True,
        )  # fmt: skip
    for name, changes in IMAGES.items():
        told = ["docker", "create", "stand-in", "true"]
        made = subprocess.run(told, env=env, capture_output=True, text=True, check=True)
        container = made.stdout.strip()
        options = [word for change in changes for word in ("--change", change)]
        for command in (("commit", *options, container, name), ("rm", container)):
            subprocess.run(["docker", *command], env=env, stdout=subprocess.DEVNULL, check=True)


# -- all of it --------------------------------------------------------------------------------


def in_namespaces(*kinds: str, command: Sequence[str]) -> int:
    """Run a command in new namespaces. With it ends whatever it has started."""
    options = [f"--{kind}" for kind in kinds]
    if "pid" in kinds:
        options += ["--fork", "--kill-child", "--mount-proc"]
    return subprocess.run(["unshare", *options, *command], check=False).returncode


def group_of(folder: Path) -> str:
    """The name of the control group of its containers: another checkout's is another one."""
    return f"engine-{zlib.crc32(str(folder).encode()):08x}"


def remove_groups(folder: Path) -> None:
    """Remove the control groups of its containers, whose processes are killed."""
    for group in sorted(Path("/sys/fs/cgroup").glob(f"**/{group_of(folder)}/**/"), reverse=True):
        give_up = time.monotonic() + 5
        while True:
            try:
                group.rmdir()
                break
            except OSError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.1)


def remove(folder: Path) -> None:
    """Remove the folder."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        assert not line.split()[1].startswith(f"{folder}/"), f"something is still mounted: {line}"
    shutil.rmtree(folder, ignore_errors=False)
