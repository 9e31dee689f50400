"""What a task's function takes, and whether it is async: also under decorators. Pure.

Under `def wrapper(*args, **kwargs)` the call `sync(5)` may be passed on as `f(5)`, as
`f(5, session=s)` or as `f(s, 5)`; `functools.wraps` makes all three look the same. So there is a
rule instead: positional arguments are those of the wrapped function, in order.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Final

Signature = inspect.Signature
BY_POSITION: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)
BY_NAME: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
VARIABLE: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def call_signature(function: Any) -> Signature:
    """The arguments of the function's calls: those of the function that its decorators wrap, or of
    the outermost decorator that takes neither `*args` nor `**kwargs`.
    """
    if inspect.ismethod(function):
        signature = call_signature(function.__func__)
        parameters = list(signature.parameters.values())
        has_self = bool(parameters) and parameters[0].kind in BY_POSITION
        return signature.replace(parameters=parameters[has_self:])
    if isinstance(function, functools.partial):
        return inspect.signature(function)
    return own_signature(inspect.unwrap(function, stop=_is_explicit))


def own_signature(function: Any) -> Signature:
    """What a function itself takes, whatever it wraps. Without a signature it may take anything."""
    try:
        return inspect.signature(function, follow_wrapped=False)
    except ValueError:  # not written in Python, such as functools.lru_cache
        return inspect.signature(lambda *args, **kwargs: None)


def _is_explicit(function: Any) -> bool:
    kinds = {parameter.kind for parameter in own_signature(function).parameters.values()}
    return hasattr(function, "__signature__") or not kinds.intersection(VARIABLE)


def is_async(function: Any) -> bool:
    """Whether a call of the function returns something to await. What the function wraps does not
    count: a wrapper may run the `async def` that it wraps.
    """
    if isinstance(function, functools.partial):
        return is_async(function.func)
    called = function if inspect.isroutine(function) else type(function).__call__
    return inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called)
