"""Makes the name of a call's lock from the call's arguments: the same one in sender and worker, on
every Python version, by position or by name. Pure.
"""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from ..errors import ConfigError
from .canonical import canonical, digest_name
from .signatures import BY_NAME, BY_POSITION, VARIABLE, Signature, call_signature, own_signature

Normalise = Callable[[Any], Any]
NO_HEADERS: Final[Mapping[str, Any]] = {}


class NoLock(ValueError):
    """The task's `lock_key` gives None for a call, which then takes no lock."""


class KeyMaker:
    """Makes the lock names of one task's calls. Raises `ConfigError` if `lock_key` does not fit the
    signature or `lock_headers`.

    A call needs only the arguments that `lock_key` names. Others may be missing, or unknown to the
    signature: a decorator or a receiver of `task_prerun` may add or remove them.

    Args:
        normalise: carries a value through the task's serializer and back, so that a default in the
            signature looks as if it had been sent; None if calls are not sent.
        option: the option's name in error messages: `lock_label` is such a template too.
        kind: what is called, in error messages.
    """

    def __init__(
        self,
        task: str,
        function: Callable[..., Any],
        lock_key: str | Sequence[str] | Callable[..., Any] | None,
        normalise: Normalise | None,
        option: str = "lock_key",
        headers: Sequence[str] = (),
        kind: str = "task",
    ) -> None:
        self._task = task
        self._kind = kind
        self._option = option
        self._headers = headers
        self._parameters = parameters = call_signature(function).parameters
        self._defaults = {
            p.name: _default(p.name, p.default, normalise) if normalise else p.default
            for p in parameters.values()
            if p.default is not p.empty
        }
        self._by_position = [p.name for p in parameters.values() if p.kind in BY_POSITION]
        self._by_name = {p.name for p in parameters.values() if p.kind in BY_NAME}
        #: The names for arguments that no parameter takes. No parameter can be called "*".
        self._rest = self._of_kind(inspect.Parameter.VAR_POSITIONAL) or "*"
        self._more = self._of_kind(inspect.Parameter.VAR_KEYWORD) or "**"
        self._is_plain = len(parameters) == len({*self._by_position} & self._by_name)
        #: The arguments that `lock_key` names; None for all.
        self._chosen: tuple[str, ...] | None = ()
        self._name: Callable[[tuple[Any, ...], Mapping[str, Any], Mapping[str, Any]], str]
        if lock_key is None:
            self._chosen = None
            self._name = self._by_digest
        elif isinstance(lock_key, str):
            self._template = lock_key
            self._choose(self._fields_of(lock_key))
            self._name = self._by_template
        elif callable(lock_key):
            check_callable(f"{kind} {task}: {option}", kind, lock_key, own_signature(function))
            if headers:
                raise self._without_headers("a callable", headers[0])
            self._callable = lock_key
            self._name = self._by_callable
        else:
            self._choose(lock_key)
            self._name = self._by_digest

    @property
    def binds(self) -> bool:
        """Whether the name depends on how arguments are bound to parameters."""
        return self._chosen != ()

    def name(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        headers: Mapping[str, Any] = NO_HEADERS,
    ) -> str:
        """The lock's name for a call with these arguments, as they arrive at the worker, and with
        the headers of its message, or a request.

        Raises:
            TypeError: the call lacks an argument that `lock_key` names; or a header that
                `lock_headers` names is no text or number.
            NoLock: the task's `lock_key` callable returned None.
            Exception: whatever a `lock_key` callable raises.
        """
        return self._name(tuple(args), kwargs, headers)

    def arguments(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        headers: Mapping[str, Any] = NO_HEADERS,
    ) -> dict[str, Any]:
        """What goes into the name: arguments with their defaults, and headers. Raises as `name`."""
        if self._chosen is None or self._name == self._by_callable:
            parts = self._bound(tuple(args), kwargs)
        else:
            parts = self._named(tuple(args), kwargs)
        if self._headers:
            values = _values(self._task, self._headers, headers)
            parts.update({f"headers[{name}]": values.get(name) for name in self._headers})
        return parts

    def _by_digest(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], headers: Mapping[str, Any]
    ) -> str:
        return digest_name(self._task, self.arguments(args, kwargs, headers))

    def _by_template(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], headers: Mapping[str, Any]
    ) -> str:
        arguments = self._named(args, kwargs)
        if self._headers:
            arguments["headers"] = _values(self._task, self._headers, headers)
        try:
            name = self._template.format_map(arguments)
        except (LookupError, AttributeError, TypeError) as exc:
            raise ValueError(
                f"{self._task}: {self._option}={self._template!r} does not fit this call: {exc!r}"
            ) from exc
        return self._checked(name)

    def _by_callable(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], headers: Mapping[str, Any]
    ) -> str:
        name = self._callable(*args, **kwargs)
        if name is None and self._kind == "task":
            raise NoLock(f"{self._task}: {self._option} gives None for this call: it takes no lock")
        return self._checked(name)

    def _checked(self, name: Any) -> str:
        if not isinstance(name, str) or not name:
            raise ValueError(
                f"{self._task}: {self._option} gives the lock name {name!r} for this call; it must"
                " be a non-empty str"
            )
        return name

    def _named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of this call that `lock_key` names. Raises `TypeError` if it lacks one."""
        if not self._chosen:
            return {}
        bound = self._bound(args, kwargs)
        known = {**bound[self._more], **bound} if self._more in bound else bound
        named = {}
        for name in self._chosen:
            if name in known:
                named[name] = known[name]
            elif not self._may_lack(name, bound):
                raise TypeError(
                    f"{self._task}: {self._option} names {name!r}, which this call lacks. Pass it"
                    f" by name, or use a callable {self._option} that takes the call's own"
                    " arguments"
                )
        return named

    def _may_lack(self, name: str, bound: Mapping[str, Any]) -> bool:
        """Whether a call may lack this argument, and then has a key of its own: `**kwargs` takes
        the argument, and no extra positional argument can be it.
        """
        declared = self._parameters.get(name)
        return declared.kind in VARIABLE if declared else self._rest not in bound

    def _bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The call's arguments by their names, with defaults. Different calls give different
        results, even if they do not fit the signature.
        """
        places = self._by_position
        bound = {**self._defaults, **dict(zip(places, args, strict=False))}
        if self._is_plain and len(args) <= len(places) and kwargs.keys() <= {*places[len(args) :]}:
            return {**bound, **kwargs}
        if rest := args[len(places) :]:
            bound[self._rest] = rest
        more: dict[str, Any] = {}
        for name, value in kwargs.items():
            takes = name in self._by_name and name not in places[: len(args)]
            (bound if takes else more)[name] = value
        if more:
            bound[self._more] = more
        return bound

    def _fields_of(self, template: str) -> list[str]:
        """The arguments that a template names."""
        where = f"{self._kind} {self._task}: {self._option}={template!r}"
        fields = _template_fields(where, template)
        if not fields and template in self._parameters:
            is_key = self._option == "lock_key"
            meant = f"lock_key=[{template!r}] or " if is_key else ""
            raise ConfigError(
                f"{where} would be one {'lock' if is_key else 'text'} for all calls, but it is also"
                f" the name of an argument; did you mean {meant}'{{{template}}}'?"
            )
        of_headers = self._header_fields(where, fields) if self._headers else ()
        return [_head_of(field) for field in fields if field not in of_headers]

    def _header_fields(self, where: str, fields: Sequence[str]) -> list[str]:
        """The fields for headers: any template may have them, `lock_key` must have them all."""
        known = {f"headers[{name}]": name for name in self._headers}
        used = [field for field in fields if _head_of(field) == "headers"]
        for field, name in known.items():
            if field not in used and self._option == "lock_key":
                raise self._without_headers(repr(self._template), name)
        if used and "headers" in self._parameters:
            raise ConfigError(
                f"{where} and lock_headers: the task has an argument named 'headers', so the field"
                f" {{{used[0]}}} could mean both; give lock_key as a list, or rename the argument"
            )
        for field in used:
            if field not in known:
                raise ConfigError(
                    f"{where}: the field {{{field}}} is not one of the headers that lock_headers"
                    f" names: {', '.join(f'{{{each}}}' for each in known)}"
                )
        return used

    def _without_headers(self, what: str, header: str) -> ConfigError:
        return ConfigError(
            f"task {self._task}: lock_headers names {header!r}, and lock_key is {what}, whose text"
            " is the lock's whole name; accepted are no lock_key, a list of argument names, or a"
            f" template with the field {{headers[{header}]}}"
        )

    def _choose(self, names: Sequence[str]) -> None:
        known = self._parameters
        for name in names:
            if name not in known and self._more not in known:
                raise ConfigError(
                    f"{self._kind} {self._task}: {self._option} names {name!r}, which is not an"
                    f" argument of the {self._kind}; its arguments are:"
                    f" {', '.join(known) or 'none'}"
                )
        self._chosen = tuple(dict.fromkeys(names))

    def _of_kind(self, kind: Any) -> str | None:
        return next((p.name for p in self._parameters.values() if p.kind is kind), None)


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


def _values(task: str, names: Sequence[str], headers: Mapping[str, Any]) -> dict[str, Any]:
    """The values of those named headers that the message has: at the top level, where Celery sends
    them, or else within `headers`, where protocol 1, eager calls and some tools put them.
    """
    nested = headers.get("headers")
    values = {}
    for name in names:
        value = headers.get(name)
        if value is None and isinstance(nested, Mapping):
            value = nested.get(name)
        if value is None:
            continue
        if not isinstance(value, str | int | float):
            raise TypeError(
                f"{task}: lock_headers names {name!r}, whose value is a {type(value).__name__}; it"
                " must be a str, an int, a float or a bool"
            )
        values[name] = value
    return values


def has_fields(text: str) -> bool:
    """Whether this is a template with fields. A text with a single brace is none."""
    try:
        return bool(list(_fields(text)))
    except ValueError:
        return False


def _template_fields(where: str, template: str) -> list[str]:
    try:
        fields = list(_fields(template))
    except ValueError as exc:
        raise ConfigError(
            f"{where} is not a str.format template: {exc}; it must be one such as"
            " 'account:{account_id}'"
        ) from None
    if any(not _head_of(field) or _head_of(field).isdigit() for field in fields):
        raise ConfigError(f"{where}: fields must be named, as in '{{account_id}}'")
    return fields


def _head_of(field: str) -> str:
    """The argument that a field such as `order.id` or `order[id]` names."""
    return field.replace("[", ".").split(".")[0]


def _fields(template: str) -> Iterator[str]:
    """The fields of a template, and those within its format specs."""
    for _, field, spec, conversion in string.Formatter().parse(template):
        if field is None:
            continue
        if conversion not in (None, "a", "r", "s"):
            raise ValueError(f"unknown conversion {conversion!r}")
        yield field
        yield from _fields(spec or "")


def check_callable(where: str, kind: str, function: Callable[..., Any], calls: Signature) -> None:
    """Refuse an option's callable, with a `ConfigError`, if no call with this signature fits it."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without a signature
        return
    if next(iter(signature.parameters), None) == "self" and "self" not in calls.parameters:
        raise ConfigError(
            f"{where}'s callable gets the call's own arguments, without self;"
            " remove self from its parameters"
        )
    if not _some_call_fits(calls, signature):
        raise ConfigError(
            f"{where}'s callable takes {signature}, but no call of the {kind} fits"
            " that; it must take the call's own arguments:"
            f" {', '.join(calls.parameters) or 'none'}"
        )


class WithDefaults:
    """Calls an option's callable with the arguments of a call of the function, and the defaults of
    those left out: in their order, or, if the callable does not take them so, by their names.
    Raises `ConfigError` if it does not take all of them.
    """

    def __init__(
        self, where: str, kind: str, option: Callable[..., Any], function: Callable[..., Any]
    ) -> None:
        self._option = option
        own, self._calls = own_signature(function), call_signature(function)
        check_callable(where, kind, option, own)
        named = [p for p in self._calls.parameters.values() if p.kind not in VARIABLE]
        every = self._calls.bind_partial()
        every.arguments.update((p.name, None) for p in named)
        self._adds_defaults = self._in_order = True
        if self._takes(every):
            return
        self._in_order = False
        if self._takes(every):
            return
        self._adds_defaults = False
        if own != self._calls:  # a decorator may give arguments that no call has
            return
        raise ConfigError(
            f"{where}'s callable takes {inspect.signature(option)}, but gets every argument of a"
            f" call of the {kind}, with the defaults of those left out:"
            f" {', '.join(p.name for p in named)}; it must take them all, or have **kwargs"
        )

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What the callable returns for this call."""
        if self._adds_defaults:
            try:
                bound = self._calls.bind_partial(*args, **kwargs)
            except TypeError:  # the call fails, whatever the callable says of it
                return self._option(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = self._arguments(bound)
        return self._option(*args, **kwargs)

    def _takes(self, bound: inspect.BoundArguments) -> bool:
        try:
            signature = inspect.signature(self._option)
        except (TypeError, ValueError):  # a builtin without a signature
            return True
        args, kwargs = self._arguments(bound)
        try:
            signature.bind(*args, **kwargs)
        except TypeError:
            return False
        return True

    def _arguments(self, bound: inspect.BoundArguments) -> tuple[Sequence[Any], Mapping[str, Any]]:
        if self._in_order:
            return bound.args, bound.kwargs
        by_name = bound.arguments.copy()
        for p in self._calls.parameters.values():
            if p.kind in VARIABLE:
                rest = by_name.pop(p.name, ())
                by_name.update(rest if isinstance(rest, dict) else {})
        return (), by_name


def _some_call_fits(task: Signature, other: Signature) -> bool:
    """Whether there is a call that both the task and the other accept."""
    parameters = task.parameters.values()
    kinds = {p.kind for p in parameters}
    positional = [p for p in parameters if p.kind in BY_POSITION]
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
            # Beyond what the task requires, the call passes only what the other still needs.
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
        if p.kind in BY_NAME and p.default is p.empty and p.name not in bound:
            yield p.name
