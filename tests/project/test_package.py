"""What is shipped: the wheel, the types, the imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import celery_redislock

ROOT = Path(__file__).parents[2]


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function without its docstring."""
    text = ast.get_docstring(function, clean=False)
    docstring = 0 if text is None else text.count("\n") + 1
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


def test_functions_fit_a_screen():
    """Classes and files are as long as their one job."""
    functions = [
        lines_of(node)
        for path in (ROOT / "celery_redislock").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert sorted(functions)[len(functions) * 9 // 10] <= 19
    assert max(functions) <= 50


#: What code of `tasks` and `worker` may assign on objects that are not its own: Celery's, and
#: what the owner's class says is set by others.
FOREIGN = {
    "task.__class__", "task.Request", "task.runs_in_children", "task.acks_after_body",
    "task.hears_acks", "task.worker_consumer", "result.ignored", "context.headers",
    "record.exc_info", "record.exc_text", "record.levelno", "record.levelname", "record.args",
    "LockRequest._not_asked_until", "_MainThread.due",
}  # fmt: skip


def assigned_in(tree: ast.AST) -> set[str]:
    """The attributes that code assigns, as it names them."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            found.add(ast.unparse(node))
    return found


def test_nobody_but_its_owner_assigns_the_state_of_a_delivery():
    for folder in ("tasks", "worker"):
        for path in sorted((ROOT / "celery_redislock" / folder).glob("*.py")):
            found = assigned_in(ast.parse(path.read_text()))
            others = {each for each in found if each.split(".")[:-1] not in (["self"], ["cls"])}
            assert others <= FOREIGN, path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_carries_every_module_script_and_type_marker(wheel):
    source = ROOT / "celery_redislock"
    expected = {
        str(path.relative_to(ROOT))
        for path in source.rglob("*")
        if path.suffix in (".py", ".lua", ".typed", ".html", ".css", ".js", ".svg")
    }
    assert {"celery_redislock/scripts/acquire.lua", "celery_redislock/py.typed"} <= expected
    names = zipfile.ZipFile(wheel).namelist()
    assert {name for name in names if name.startswith("celery_redislock/")} == expected
    assert {name for name in names if "/" not in name} == {"celery_redislock_pytest.py"}


def test_pytest_finds_the_fixtures_of_the_wheel_by_itself(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    (tmp_path / "test_it.py").write_text(
        "import celery_redislock\n"
        "def test_it(redislock_memory, held_lock, lose_lock):\n"
        f"    assert celery_redislock.__file__.startswith({str(tmp_path)!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_adds_a_command_to_celery(wheel):
    names = zipfile.ZipFile(wheel)
    (points,) = [name for name in names.namelist() if name.endswith("/entry_points.txt")]
    text = names.read(points).decode()
    assert "[celery.commands]" in text
    assert "redislock = celery_redislock.ops.cli:redislock" in text


def test_the_readme_of_the_wheel_has_no_link_that_leads_nowhere(wheel):
    names = zipfile.ZipFile(wheel)
    (metadata,) = [name for name in names.namelist() if name.endswith("/METADATA")]
    text = names.read(metadata).decode()
    assert "Description-Content-Type: text/markdown" in text
    assert "make demo" in text
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert [link for link in links if not link.startswith("https://")] == []


def test_the_package_knows_its_version():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'\nversion = "{celery_redislock.__version__}"\n' in text


def test_the_wheel_works_without_the_checkout(wheel, tmp_path, redis_server):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    script = (
        "import sys; from celery_redislock import RedisLock\n"
        "import celery_redislock; print(celery_redislock.__file__)\n"
        "with RedisLock(sys.argv[1], 'wheel') as lock: assert lock.fence\n"
        "assert 'rich' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, redis_server.url],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path))


SENDS = """
import sys
from celery import Celery
from celery_redislock import SingletonTask

app = Celery(broker="memory://")
app.conf.redislock_url = sys.argv[1]

@app.task(base=SingletonTask, lock_key="{n}")
def add(n): ...

add.delay(1)
package = sys.modules["celery_redislock"]
needless = ("servers.server", "lock.heartbeat", "lock.redis_lock", "tasks.tracer", "worker.sweeper")
assert not [name for name in needless if f"celery_redislock.{name}" in sys.modules]
"""


def test_a_program_that_only_sends_tasks_imports_nothing_that_runs_them(redis_server):
    asks = SENDS + (
        "from celery_redislock import RedisLock\n"
        "assert package.RedisLock is sys.modules['celery_redislock.lock.redis_lock'].RedisLock\n"
    )
    subprocess.run([sys.executable, "-c", asks, redis_server.url], check=True, timeout=60)


def test_the_pools_processes_inherit_what_runs_tasks(redis_server, label):
    starts = SENDS + (
        "from celery import signals\n"
        "worker = type('Within', (), {'app': app})\n"
        "signals.worker_init.send(sender=worker)\n"
        "loaded = set(sys.modules)\n"
        "from celery.app.trace import build_tracer\n"
        "add.__trace__ = build_tracer(add.name, add, app=app)\n"
        "request = {'id': 'one', 'delivery_info': {}, 'properties': {}}\n"
        f"assert add.__trace__('one', ('{label}',), {{}}, request).info is None\n"
        "ours = {n for n in set(sys.modules) - loaded if n.startswith('celery_redislock')}\n"
        "assert not ours, ours\n"
    )
    subprocess.run([sys.executable, "-c", starts, redis_server.url], check=True, timeout=60)


def test_a_name_that_the_package_has_not_is_an_attribute_error():
    import celery_redislock

    with pytest.raises(AttributeError, match=r"^module 'celery_redislock' has no attribute 'Nope'"):
        celery_redislock.Nope  # noqa: B018
