"""Python imports this at its start: the `celery` command finds no plugins, as where
celery_redislock is not installed.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

_all_entry_points = importlib.metadata.entry_points


def entry_points(**params: Any) -> Any:
    if params.get("group") == "celery.commands":
        return importlib.metadata.EntryPoints()
    return _all_entry_points(**params)


importlib.metadata.entry_points = entry_points  # type: ignore[assignment]
