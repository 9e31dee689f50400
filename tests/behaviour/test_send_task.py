"""What `app.send_task` of a locked task refuses, and what it does not."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redislock import ConfigError, SingletonTask


class Registry:
    """As Celery accepts it: its `send_task` asks for no more."""

    def __init__(self, tasks: Any) -> None:
        self._tasks = tasks

    def __getitem__(self, name: str) -> Any:
        return self._tasks[name]

    def __contains__(self, name: str) -> bool:
        return name in self._tasks


@pytest.mark.parametrize("name", ["registered", "elsewhere"])
def test_a_registry_of_tasks_need_not_have_get(
    make_app: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    app = make_app(result_backend="cache+memory://")

    @app.task(base=SingletonTask, name="registered")
    def registered(number: int) -> None: ...

    app.finalize()
    monkeypatch.setattr(app, "_tasks", Registry(app._tasks))

    assert app.send_task(name, (5,)).id
    if name == "registered":
        with pytest.raises(ConfigError, match="lock_ttl"):
            app.send_task(name, (5,), lock_ttl=5)
