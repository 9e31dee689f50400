"""From a call's arguments to the name of its lock. Pure.

A call has the same name wherever it is computed: at the sender before publishing, in the worker's
main process, and in the pool; on every Python version; by position or by name.
"""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from ..errors import ConfigError
from .canonical import canonical, digest_name
from .signatures import call_signature, own_signature

Signature = inspect.Signature
_BY_NAME: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_VARIABLE: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
Normalise = Callable[[Any], Any]


class KeyMaker:
    """Makes the lock names of one task's calls.

    Under a decorator that adds arguments of its own, an argument that `lock_key` names is the
    caller's, by position or name. `call_signature` says how they are told apart. If they cannot be
    told apart, the call is refused: it must not share another call's lock.

    Args:
        task: the task's name.
        function: what the task runs, for its signature.
        lock_key: the value of the option.
        normalise: carries a value through the task's serializer and back, so that a default in the
            signature is as if it had been sent.
        option: the option's name in messages: another option may be such a template too.

    Raises:
        ConfigError: `lock_key` does not fit the signature.
    """

    def __init__(
        self,
        task: str,
        function: Callable[..., Any],
        lock_key: str | Sequence[str] | Callable[..., Any] | None,
        normalise: Normalise,
        option: str = "lock_key",
    ) -> None:
        self._task = task
        self._option = option
        self._call = call_signature(function)
        self._signature = self._call.signature
        self._outer = own_signature(function)
        self._defaults = {
            name: _default(name, parameter.default, normalise)
            for name, parameter in self._signature.parameters.items()
            if parameter.default is not parameter.empty
        }
        #: Whether the name depends on how arguments are bound to parameters.
        self.binds = not callable(lock_key)
        self._kwargs_name = _name_of_kind(self._signature, inspect.Parameter.VAR_KEYWORD)
        self._names = _plain_names(self._signature)
        self._name: Callable[[tuple[Any, ...], Mapping[str, Any]], str]
        if lock_key is None:
            self._name = self._by_all_arguments
        elif isinstance(lock_key, str):
            self._template = lock_key
            fields = _template_fields(f"task {task}: {option}={lock_key!r}", lock_key)
            if not fields and lock_key in self._signature.parameters:
                raise self._argument_alone(lock_key)
            self._check(fields)
            self._chosen = tuple(dict.fromkeys(fields))
            self.binds = bool(fields)
            self._name = self._by_template
        elif callable(lock_key):
            _check_callable(task, lock_key, self._outer)
            self._callable = lock_key
            self._name = self._by_callable
        else:
            self._chosen = tuple(lock_key)
            self._check(self._chosen)
            self._name = self._by_chosen_arguments

    def name(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The lock's name for a call with these arguments, as they arrive at the worker.

        Raises:
            TypeError: the arguments do not fit the task's signature.
            Exception: whatever a `lock_key` callable raises.
        """
        return self._name(tuple(args), kwargs)

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that go into the name, with the defaults of those that the call leaves out.

        Raises:
            TypeError: the arguments do not fit the task's signature.
        """
        if self._name == self._by_callable:
            return dict(self._outer.bind(*args, **kwargs).arguments)
        if self._name == self._by_all_arguments:
            return self._bind(tuple(args), kwargs)
        return self._named(tuple(args), kwargs)

    def _by_all_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        return self._digest_name(self._bind(args, kwargs))

    def _by_chosen_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        return self._digest_name(self._named(args, kwargs))

    def _by_template(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        arguments = self._named(args, kwargs)
        try:
            name = self._template.format_map(arguments)
        except (LookupError, AttributeError, TypeError) as exc:
            raise ValueError(
                f"{self._task}: {self._option}={self._template!r} does not fit this call: {exc!r}"
            ) from exc
        return self._checked(name)

    def _by_callable(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        return self._checked(self._callable(*args, **kwargs))

    def _checked(self, name: Any) -> str:
        if not isinstance(name, str) or not name:
            raise ValueError(
                f"{self._task}: {self._option} gives the lock name {name!r} for this call; it must"
                " be a non-empty str"
            )
        return name

    def _digest_name(self, arguments: Mapping[str, Any]) -> str:
        return digest_name(self._task, arguments)

    def _named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of this call that `lock_key` names.

        An argument of **kwargs that the call leaves out has no entry: that gives a key of its own.
        No other argument is left out: a decorator may fill it in, and different calls would have
        the same key.

        Raises:
            TypeError: the call lacks one of them, or it cannot be told which argument it is.
        """
        bound = self._fitted(args, kwargs)
        if bound is None:
            bound = dict(kwargs)  # a decorator takes other arguments: only names tell them apart
        elif self._kwargs_name and (extra := bound.get(self._kwargs_name)):
            bound = {**extra, **bound}
        named = {name: bound[name] for name in self._chosen if name in bound}
        if len(named) < len(self._chosen):
            for name in self._chosen:
                if name not in named and self._declares(name):
                    raise self._untold(name)
        if not self._call.told:
            self._refuse_if_in_front(args, kwargs)
        return named

    def _declares(self, name: str) -> bool:
        parameter = self._signature.parameters.get(name)
        return parameter is not None and parameter.kind not in _VARIABLE

    def _refuse_if_in_front(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Refuse a call that would also fit if a decorator put an argument in front of its own.

        It is not known whether one does. A named argument is the caller's, so no argument is in
        front if `lock_key` names the first one.
        """
        if not args:
            return
        first = next(iter(self._signature.parameters), None)
        if first not in self._chosen and self._fits((None, *args), kwargs):
            for name in self._chosen:
                if name not in kwargs and self._declares(name):
                    raise self._untold(name)

    def _fits(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        known = {name: value for name, value in kwargs.items() if self._takes(name)}
        try:
            self._signature.bind_partial(*args, **known)
        except TypeError:
            return False
        return True

    def _untold(self, name: str) -> TypeError:
        return TypeError(
            f"{self._task}: {self._option} names {name!r}. This call does not contain it, or a"
            " decorator hides which value it has. Pass it by name, or use a callable lock_key that"
            " takes the call's own arguments"
        )

    def _argument_alone(self, name: str) -> ConfigError:
        is_key = self._option == "lock_key"
        meant = f"lock_key=[{name!r}] or " if is_key else ""
        return ConfigError(
            f"task {self._task}: {self._option}={name!r} would be one"
            f" {'lock' if is_key else 'text'} for all calls, but it is also the name of an"
            f" argument; did you mean {meant}'{{{name}}}'?"
        )

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        bound = self._fitted(args, kwargs)
        # A decorator may take other arguments than the function that it wraps.
        return dict(self._outer.bind(*args, **kwargs).arguments) if bound is None else bound

    def _fitted(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
        """The call's arguments by their names, with defaults. Under a decorator some may be
        missing; None if they do not fit.
        """
        names = self._names
        if names and (not kwargs or kwargs.keys() <= {*names[len(args) :]}):
            # The same as `bind`, in a fifth of the time.
            arguments = {**self._defaults, **dict(zip(names, args, strict=False)), **kwargs}
            if len(arguments) == len(names) >= len(args):
                return arguments
        try:
            bound = self._signature.bind(*args, **kwargs).arguments
        except TypeError:
            if not self._call.lax:
                raise
            return self._fitted_partly(args, kwargs)
        return {**self._defaults, **bound}

    def _fitted_partly(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        self._outer.bind(*args, **kwargs)
        known = {name: value for name, value in kwargs.items() if self._takes(name)}
        taken = {name: value for name, value in kwargs.items() if name not in known}
        try:
            bound = self._signature.bind_partial(*args, **known).arguments
        except TypeError:
            return None
        if taken.keys() & bound.keys():
            return None
        return {**self._defaults, **bound, **taken}

    def _takes(self, name: str) -> bool:
        """Whether the argument can be passed by this name."""
        parameter = self._signature.parameters.get(name)
        by_name = parameter is not None and parameter.kind in _BY_NAME
        return by_name or self._kwargs_name is not None

    def _check(self, names: Sequence[str]) -> None:
        known = self._signature.parameters
        anything = self._kwargs_name and not self._call.hides
        for name in names:
            if name not in known and not anything:
                raise ConfigError(
                    f"task {self._task}: {self._option} names {name!r}, which is not an argument of"
                    f" the task; its arguments are: {', '.join(known) or 'none'}"
                )


def _default(name: str, value: Any, normalise: Normalise) -> Any:
    """A parameter's default as it would arrive if the caller had passed it."""
    dump = getattr(type(value), "model_dump", None)
    try:
        if dump is not None and not hasattr(type(value), "__json__"):
            value = dump(value, mode="json")  # as Celery sends a pydantic model
        value = normalise(value)
        canonical(value)
    except Exception:  # anything that a serializer raises for a value that it cannot carry
        # No caller can send this value, so the parameter's name can represent it.
        return {"__default__": name}
    return value


def _name_of_kind(signature: Signature, kind: Any) -> str | None:
    return next((p.name for p in signature.parameters.values() if p.kind is kind), None)


def _plain_names(signature: Signature) -> tuple[str, ...]:
    """The parameters' names if each can be passed by position or by name; else nothing."""
    parameters = signature.parameters.values()
    plain = all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)
    return tuple(signature.parameters) if plain else ()


def _template_fields(where: str, template: str) -> list[str]:
    try:
        names = [field.replace("[", ".").split(".")[0] for field in _fields(template)]
    except ValueError as exc:
        raise ConfigError(
            f"{where} is not a str.format template: {exc}; it must be one such as"
            " 'account:{account_id}'"
        ) from None
    if any(not name or name.isdigit() for name in names):
        raise ConfigError(f"{where}: fields must be named, as in '{{account_id}}'")
    return names


def _fields(template: str) -> Iterator[str]:
    """The fields of a template, also those within format specs."""
    for _, field, spec, conversion in string.Formatter().parse(template):
        if field is None:
            continue
        if conversion not in (None, "a", "r", "s"):
            raise ValueError(f"unknown conversion {conversion!r}")
        yield field
        yield from _fields(spec or "")


def _check_callable(task: str, function: Callable[..., Any], calls: Signature) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without a signature
        return
    if next(iter(signature.parameters), None) == "self":
        raise ConfigError(
            f"task {task}: lock_key's callable gets the call's own arguments, without self;"
            " remove self from its parameters"
        )
    if not _some_call_fits(calls, signature):
        raise ConfigError(
            f"task {task}: lock_key's callable takes {signature}, but no call of the task fits"
            " that; it must take the call's own arguments:"
            f" {', '.join(calls.parameters) or 'none'}"
        )


def _some_call_fits(task: Signature, other: Signature) -> bool:
    """Whether there is a call that both the task and the other accept."""
    parameters = task.parameters.values()
    kinds = {p.kind for p in parameters}
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    most = len(positional)
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        most += len(other.parameters)
    for count in range(most + 1):
        args = (None,) * count
        left = [*positional[count:], *(p for p in parameters if p.kind is p.KEYWORD_ONLY)]
        must = {p.name for p in left if p.default is p.empty}
        may = {p.name for p in left if p.kind is not p.POSITIONAL_ONLY}
        if not must <= may:
            continue
        try:
            # Beside what it must pass, the call passes only what the other still needs.
            asked = set(_names_left(other, other.bind_partial(*args).arguments))
            if inspect.Parameter.VAR_KEYWORD in kinds:
                may |= asked
            other.bind(*args, **dict.fromkeys(must | (asked & may)))
        except TypeError:
            continue
        return True
    return False


def _names_left(signature: Signature, bound: Mapping[str, Any]) -> Iterator[str]:
    """The arguments without a default that are not bound, and can be passed by name."""
    for p in signature.parameters.values():
        by_name = p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        if by_name and p.default is p.empty and p.name not in bound:
            yield p.name
