"""The result backend: it takes time, as the lock server does, and says what was stored."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from celery.backends.base import KeyValueStoreBackend

from . import baton

#: The least and the most seconds that a request takes, there and back.
TAKES = (0.0004, 0.004)


class Store:
    """What the backend keeps, and who hears of each state."""

    def __init__(self) -> None:
        self.values: dict[Any, Any] = {}
        self.hears: Callable[[str, str, Any], None] = lambda task_id, state, result: None
        #: What is told once it is stored, by who stores it: one that dies before has not.
        self.telling: dict[Any, Callable[[], Any]] = {}


store = Store()


def use(hears: Callable[[str, str, Any], None]) -> None:
    """Begin empty, and call this with the task's id, its state and its result."""
    store.values.clear()
    store.hears = hears


class Backend(KeyValueStoreBackend):
    implements_incr = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.expires = None

    def _takes(self) -> None:
        baton.world.sleep(baton.world.delays.uniform(*TAKES) / 2)

    def get(self, key: Any) -> Any:
        self._takes()
        value = store.values.get(self._text(key))
        self._takes()
        return value

    def mget(self, keys: Any) -> list[Any]:
        return [self.get(key) for key in keys]

    def set(self, key: Any, value: Any) -> None:
        self._takes()
        store.values[self._text(key)] = value
        self._tell()
        self._takes()

    def _tell(self) -> None:
        store.telling.pop(baton.world.current, int)()

    def delete(self, key: Any) -> None:
        store.values.pop(self._text(key), None)

    def incr(self, key: Any) -> int:
        self._takes()
        text = self._text(key)
        store.values[text] = int(store.values.get(text, 0)) + 1
        return int(store.values[text])

    def expire(self, key: Any, value: Any) -> None:
        pass

    def _store_result(
        self, task_id: str, result: Any, state: str, *args: Any, **kwargs: Any
    ) -> Any:
        self._takes()
        store.telling[baton.world.current] = partial(store.hears, task_id, state, result)
        stored = super()._store_result(task_id, result, state, *args, **kwargs)
        self._tell()  # of what Celery's backends refuse, too: SUCCESS stays
        return stored

    def _text(self, key: Any) -> str:
        return key.decode() if isinstance(key, bytes) else str(key)
