"""What is shipped: the wheel, its types, its entry points."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import celery_redislock
from tests.support.workers import ROOT

SOURCE = ROOT / "celery_redislock"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def installed(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has what pip would install."""
    folder = tmp_path_factory.mktemp("installed")
    wheel.extractall(folder)
    return folder


def python(folder: Path, *arguments: str) -> str:
    """What Python prints there, without this checkout."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_carries_every_module_script_and_type_marker(wheel):
    expected = {
        str(path.relative_to(ROOT))
        for path in SOURCE.rglob("*")
        if path.suffix in (".py", ".lua", ".typed", ".html", ".css", ".js", ".svg")
    }
    assert {"celery_redislock/scripts/acquire.lua", "celery_redislock/py.typed"} <= expected
    names = wheel.namelist()
    assert {name for name in names if name.startswith("celery_redislock/")} == expected
    assert {name for name in names if "/" not in name} == {"celery_redislock_pytest.py"}


def test_pytest_finds_the_fixtures_of_the_wheel_by_itself(installed):
    (installed / "test_it.py").write_text(
        "import celery_redislock\n"
        "def test_it(redislock_memory, held_lock, lose_lock):\n"
        f"    assert celery_redislock.__file__.startswith({str(installed)!r})\n"
    )
    python(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py")


WORKS = """
import sys
from importlib.metadata import entry_points
import celery_redislock
from celery_redislock import RedisLock

with RedisLock(sys.argv[1], "wheel") as lock:
    assert lock.fence
assert "rich" not in sys.modules
(command,) = entry_points(group="celery.commands", name="redislock")
assert {"list", "break", "doctor"} <= {*command.load().commands}
print(celery_redislock.__file__)
"""


def test_the_wheel_works_without_the_checkout_and_adds_a_command_to_celery(installed, redis_server):
    said = python(installed, "-W", "error", "-c", WORKS, redis_server.url)
    assert said.startswith(str(installed))


def test_the_readme_of_the_wheel_has_no_link_that_leads_nowhere(wheel):
    (metadata,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
    text = wheel.read(metadata).decode()
    assert "Description-Content-Type: text/markdown" in text
    assert "make demo" in text
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert [link for link in links if not link.startswith("https://")] == []


def test_the_package_knows_its_version():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'\nversion = "{celery_redislock.__version__}"\n' in text


def test_a_name_that_the_package_has_not_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"^module 'celery_redislock' has no attribute 'Nope'"):
        celery_redislock.Nope  # noqa: B018


@pytest.mark.parametrize("name", ["celery_once", "celery_singleton"])
def test_what_takes_another_packages_place_does_not_need_it(name):
    module = f"celery_redislock.compat.{name}"
    script = (
        f"import sys; sys.modules[{name!r}] = None; import {module} as found\n"
        "assert all(hasattr(found, each) for each in found.__all__)"
    )
    python(ROOT, "-W", "error", "-c", script)
