"""Publishing a task's message again as it came, in whatever process.

Tracing tools put the sender's trace into a message's headers when a task is sent. A process that
publishes a message again is not its sender: it may be the holder of its lock, or an operator's. So
the message keeps the headers with which it came, and gets no others but Celery's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from celery.app.task import Context

from .delivery import KEY
from .internals import outside_of_tasks, serializer_of

#: Sentry, for one, looks for its headers within a header of this name.
_NESTED: Final = "headers"


def message_options(
    task: Any,
    raw: Mapping[str, Any],
    request: Any,
    header: Mapping[str, Any],
    content_type: str | None,
) -> dict[str, Any]:
    """The options that publish a task as it came: id, callbacks, expiry, route, format and all.

    Args:
        task: the task.
        raw: the request as Celery hands it to the tracer.
        request: the same, as the task sees it.
        header: our header, under its key.
        content_type: of the message.
    """
    options = dict(task.signature_from_request(request).options)
    for name in ("redelivered", "is_eager"):  # of the delivery, not of the message
        options.pop(name, None)
    known = request.__dict__
    if "ignore_result" in known:  # Celery 5.5 forgets it
        options["ignore_result"] = request.ignore_result
    for name in ("argsrepr", "kwargsrepr"):
        if known.get(name):
            options[name] = known[name]
    serializer = serializer_of(content_type)
    if serializer is not None:
        options["serializer"] = serializer
    options["headers"] = {**_headers(raw, options.get("headers")), **header}
    return options


def publish_again(app: Any, name: str, args: Any, kwargs: Any, options: Mapping[str, Any]) -> None:
    """Publish a task with the headers in these options, as no task's child and in no new trace.

    Args:
        app: the Celery app.
        name: the task's name.
        args: its arguments.
        kwargs: its keyword arguments.
        options: what `message_options` gave.
    """
    headers = options["headers"]
    with outside_of_tasks(), app.producer_or_acquire() as producer:
        app.send_task(
            name,
            args,
            kwargs,
            **{**options, "headers": {k: v for k, v in headers.items() if k != _NESTED}},
            add_to_parent=False,
            producer=_AsItCame(producer, headers),
        )


class _AsItCame:
    """A producer of messages with these headers, and no others but Celery's. It comes last, after
    tools have added theirs.
    """

    def __init__(self, producer: Any, headers: Mapping[str, Any]) -> None:
        self._producer = producer
        self._headers = headers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, *args: Any, headers: Mapping[str, Any], **options: Any) -> Any:
        added = custom_headers(headers)
        celerys = {k: v for k, v in headers.items() if k != _NESTED and k not in added}
        return self._producer.publish(*args, headers={**celerys, **self._headers}, **options)


def _headers(raw: Mapping[str, Any], shown: Mapping[str, Any] | None) -> dict[str, Any]:
    """The headers with which a message came, without Celery's and ours.

    Args:
        raw: the request as Celery hands it to the tracer.
        shown: those that the task sees and that a retry sends; if some are nested, only these.
    """
    found = dict(shown or {})
    if raw.get(_NESTED):
        found = {**custom_headers(raw), _NESTED: found}
    found.pop(KEY, None)
    return found


def custom_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The headers at the top level of a message that are not Celery's."""
    others = Context({k: v for k, v in headers.items() if k != _NESTED})
    return others.as_execution_options()["headers"] or {}
