"""What a task's function takes, and whether it is async: also under decorators. Pure.

A call binds to the outermost wrapper. That often takes `*args, **kwargs`, and fills in some
arguments of the function that it wraps. Signatures do not say which; its source mostly does.

Why read the source? Under `def wrapper(*args, **kwargs)` the call `sync(5)` may be passed on as
`f(5)`, as `f(5, session=s)` or as `f(s, 5)`, and `functools.wraps` makes all three look the same.
Without the source, each call by position whose named argument is not the first would have to be
refused. If the source does not say, the call is refused. Nothing is guessed: see `KeyMaker`.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import linecache
import textwrap
import tokenize
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

_Function = Callable[..., Any]
_Parameter = inspect.Parameter

_BY_PLACE: Final = (_Parameter.POSITIONAL_ONLY, _Parameter.POSITIONAL_OR_KEYWORD)


class CallSignature(NamedTuple):
    """The arguments of a function's calls.

    Attributes:
        signature: the arguments that a caller gives.
        lax: a decorator may fill in some of them, or take more.
        told: it is known how many arguments decorators put in front of them.
        hides: the arguments behind a decorator's own are not known.
    """

    signature: inspect.Signature
    lax: bool = False
    told: bool = True
    hides: bool = False


def call_signature(function: Any) -> CallSignature:
    """The arguments that a caller of the function gives, before its decorators change them.

    A wrapper without `*args` and `**kwargs` takes what its signature says. Any other takes its own
    arguments, and then those of what it wraps, without those that it puts in front. Its source says
    how many these are. If it does not, the wrapper is assumed to put none there.
    """
    is_method = inspect.ismethod(function)
    layers = list(_layers(function.__func__ if is_method else function))
    innermost = inspect.signature(layers[-1])
    lax = innermost != own_signature(layers[-1])
    call = CallSignature(innermost, lax, told=not lax)
    for wrapper, wrapped in reversed(list(itertools.pairwise(layers))):
        call = _through(wrapper, wrapped, call)
    return call._replace(signature=_without_self(call.signature)) if is_method else call


def own_signature(function: Any) -> inspect.Signature:
    """What a wrapper itself takes, whatever it wraps. Without a signature it may take anything."""
    try:
        return inspect.signature(function, follow_wrapped=False)
    except ValueError:  # not written in Python, such as functools.lru_cache
        if getattr(function, "__wrapped__", None) is None:
            raise
        return inspect.signature(lambda *args, **kwargs: None)


def is_async(function: Any) -> bool:
    """Whether a call of the function returns something to await, as far as that can be known.

    A wrapper may run the `async def` that it wraps. So it counts as async only if its source says
    that it returns the wrapped function's result.
    """
    if inspect.ismethod(function):
        function = function.__func__
    if isinstance(function, functools.partial):
        return is_async(function.func)
    called = function if inspect.isroutine(function) else type(function).__call__
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        return True
    wrapped = getattr(function, "__wrapped__", None)
    return wrapped is not None and _returns_what_it_calls(function, wrapped) and is_async(wrapped)


def _layers(function: Any) -> Iterator[_Function]:
    """The function and what it wraps, from the outside in, up to one with `__signature__`."""
    seen = set()
    while function is not None and id(function) not in seen:
        seen.add(id(function))
        yield function
        if getattr(function, "__signature__", None) is not None:
            return
        function = getattr(function, "__wrapped__", None)


def _through(wrapper: _Function, wrapped: _Function, inner: CallSignature) -> CallSignature:
    """The arguments of a wrapper's calls, given those of what it wraps."""
    signature = own_signature(wrapper)
    own, behind = _by_kind(signature), _by_kind(inner.signature)
    if not own.rest and not own.more:
        return CallSignature(signature)
    hidden = CallSignature(signature, lax=True, hides=True)
    told = inner.told
    if own.rest:
        filled = _filled_in_front(wrapper, wrapped)
        told = told and filled is not None
        if filled is None:
            names = [p.name for p in own.places]
            if names != [p.name for p in behind.places[: len(names)]]:
                return hidden
            filled = len(names)
        places, names_only = [*own.places, *behind.places[filled:]], behind.names
    else:
        places = own.places
        by_name = [p for p in behind.places if p.kind is p.POSITIONAL_OR_KEYWORD]
        names_only = [*(p.replace(kind=p.KEYWORD_ONLY) for p in by_name), *behind.names]
    taken = {p.name for p in (*own.places, *own.names)}
    parameters = [
        *places,
        *(behind.rest if own.rest else ()),
        *own.names,
        *(p for p in names_only if own.more and p.name not in taken),
        *(behind.more if own.more else ()),
    ]
    try:
        return CallSignature(inspect.Signature(parameters), True, told, inner.hides)
    except ValueError:  # such as a name that is there twice
        return hidden


class _Kinds(NamedTuple):
    """Parameters: positional ones, `*args`, keyword-only ones, and `**kwargs`."""

    places: list[_Parameter]
    rest: list[_Parameter]
    names: list[_Parameter]
    more: list[_Parameter]


def _by_kind(signature: inspect.Signature) -> _Kinds:
    def of(*kinds: Any) -> list[_Parameter]:
        return [p for p in signature.parameters.values() if p.kind in kinds]

    return _Kinds(
        of(*_BY_PLACE),
        of(_Parameter.VAR_POSITIONAL),
        of(_Parameter.KEYWORD_ONLY),
        of(_Parameter.VAR_KEYWORD),
    )


def _without_self(signature: inspect.Signature) -> inspect.Signature:
    parameters = list(signature.parameters.values())
    if parameters and parameters[0].kind in _BY_PLACE:
        del parameters[0]
    return signature.replace(parameters=parameters)


# -- reading a wrapper's source ---------------------------------------------------------------


def _filled_in_front(wrapper: _Function, wrapped: _Function) -> int | None:
    """How many arguments the wrapper passes before its `*args`; None if the source does not say."""
    definition, names = _definition(wrapper), _names_of(wrapped, wrapper)
    if definition is None or definition.args.vararg is None:
        return None
    rest, nodes = definition.args.vararg.arg, list(ast.walk(definition))
    bound = _kept(nodes, lambda value: _is_bound(value, rest))
    calls = [_given(node, names) for node in nodes if isinstance(node, ast.Call)]
    found = {_place_of(rest, bound, given) for given in calls if given is not None}
    told = len(found) == 1 and not any(_is_name(node, {rest}, ast.Store) for node in nodes)
    return found.pop() if told else None


def _returns_what_it_calls(wrapper: _Function, wrapped: _Function) -> bool:
    """Whether the wrapper returns the wrapped function's result as it is, perhaps by a variable."""
    definition, names = _definition(wrapper), _names_of(wrapped, wrapper)
    if definition is None:
        return False
    nodes = list(_own_nodes(definition))

    def is_result(value: ast.AST | None) -> bool:
        return isinstance(value, ast.Call) and _is_name(value.func, names)

    kept = _kept(nodes, is_result)
    return any(
        isinstance(node, ast.Return) and (is_result(node.value) or _is_name(node.value, kept))
        for node in nodes
    )


def _kept(nodes: Sequence[ast.AST], is_it: Callable[[ast.expr], bool]) -> set[str]:
    """The variables to which such a value, and no other, is assigned."""
    kept = {
        target.id
        for node in nodes
        if isinstance(node, ast.Assign) and is_it(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return {name for name in kept if sum(_is_name(n, {name}, ast.Store) for n in nodes) == 1}


def _definition(wrapper: Any) -> ast.FunctionDef | None:
    """The source of a function; None if there is none."""
    code = getattr(wrapper, "__code__", None)
    if code is None:
        return None
    # Not `inspect.getsource`: it gives the source of what is wrapped, and searches all modules.
    lines = linecache.getlines(code.co_filename, wrapper.__globals__)[code.co_firstlineno - 1 :]
    try:
        (definition,) = ast.parse(textwrap.dedent("".join(inspect.getblock(lines)))).body
    except (SyntaxError, ValueError, tokenize.TokenError):  # a lambda, a file that has changed
        return None
    is_it = isinstance(definition, ast.FunctionDef) and definition.name == code.co_name
    return definition if is_it else None  # type: ignore[return-value]


def _names_of(wrapped: _Function, wrapper: Any) -> set[str]:
    """The wrapper's names for what it wraps."""
    code = getattr(wrapper, "__code__", None)
    if code is None:
        return set()
    cells = zip(code.co_freevars, wrapper.__closure__ or (), strict=True)
    return {name for name, cell in cells if _content(cell) is wrapped}


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def _given(call: ast.Call, names: Collection[str]) -> list[ast.expr] | None:
    """The positional arguments that a call passes to the function with these names; None if it does
    not call it. A helper that gets the function is assumed to call it with the arguments after it.
    """
    if _is_name(call.func, names):
        return call.args
    for at, each in enumerate(call.args, start=1):
        if _is_name(each, names) and any(isinstance(a, ast.Starred) for a in call.args[at:]):
            return call.args[at:]
    return None


def _place_of(rest: str, bound: Collection[str], given: list[ast.expr]) -> int | None:
    """How many arguments come before `*rest`, or before `*bound.args`, which is the same; None if
    neither is there, or another `*` is before it.
    """
    for place, each in enumerate(given):
        if isinstance(each, ast.Starred):
            value = each.value
            is_it = _is_name(value, {rest}) or (
                isinstance(value, ast.Attribute)
                and value.attr == "args"
                and _is_name(value.value, bound)
            )
            return place if is_it else None
    return None


def _is_bound(value: ast.expr, rest: str) -> bool:
    """Whether it is `signature.bind(*rest, **kwargs)` or the same with `bind_partial`."""
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr in ("bind", "bind_partial")
        and _place_of(rest, (), value.args) == 0
    )


def _own_nodes(definition: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function's body, without those of inner functions."""
    for node in ast.iter_child_nodes(definition):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            yield from _own_nodes(node)


def _is_name(node: ast.AST | None, names: Collection[str], context: type = ast.Load) -> bool:
    return isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, context)
