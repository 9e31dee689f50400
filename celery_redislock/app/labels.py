"""Makes a lock's label (`lock_label`): its name for people, as the real name may be a digest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded

from ..protocol.holders import label_text
from ..protocol.log import get_logger
from ..protocol.names import NO_HEADERS, KeyMaker, Normalise

logger = get_logger()


class LabelMaker:
    """Makes the labels of one task's calls.

    Args:
        task: the task's name.
        function: what the task runs, for its signature.
        template: the option `lock_label`, formatted like a `lock_key` template.
        normalise: as `KeyMaker` takes it.
        headers: as `KeyMaker` takes it.

    Raises:
        ConfigError: the template does not fit the signature.
    """

    def __init__(
        self,
        task: str,
        function: Callable[..., Any],
        template: str,
        normalise: Normalise,
        headers: Sequence[str] = (),
    ) -> None:
        self._task = task
        self._template = template
        self._maker = KeyMaker(task, function, template, normalise, "lock_label", headers)
        self._has_warned = False

    def label(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        headers: Mapping[str, Any] = NO_HEADERS,
    ) -> str | None:
        """The label of a call with these arguments, as they arrive at the worker; None, with one
        warning, if the template does not fit them. The label has no control characters.
        """
        try:
            return label_text(self._maker.name(args, kwargs, headers))
        except SoftTimeLimitExceeded:
            raise
        except Exception as exc:  # an argument's own methods may raise anything
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "redislock: %s: lock_label=%r does not fit a call, whose lock has no label;"
                    " this is said once: %r", self._task, self._template, exc,
                )  # fmt: skip
            return None
