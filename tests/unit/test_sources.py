"""How the package's own code is written."""

from __future__ import annotations

import ast

from tests.support.workers import ROOT


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
    "LockRequest._not_asked_until", "_MainThread.due", "settings.resolve_again", "task.__trace__",
    "sources.lock_of_call",
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
