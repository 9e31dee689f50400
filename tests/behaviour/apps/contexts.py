"""Task classes whose `__call__` calls `self.run`, as Flask's documentation says it."""

from __future__ import annotations

from typing import Any

from celery import Task

from celery_redislock import SingletonTask


class ContextTask(SingletonTask):
    """Flask's pattern: `__call__` of the subclass never comes to a base's."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self.app.context(self, *args, **kwargs):
            return self.run(*args, **kwargs)


class Context:
    """A mixin of a package that knows nothing of locks."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self.app.context(self, *args, **kwargs):
            return self.run(*args, **kwargs)


class ContextBase(Context, Task):
    """The same, as a task's base."""

    abstract = True


class MixinBefore(Context, SingletonTask):
    abstract = True


class MixinAfter(SingletonTask, ContextBase):
    abstract = True


#: By the name of a task.
CONTEXTS: dict[str, type[Any]] = {
    "flask_context": ContextTask,
    "mixin_before": MixinBefore,
    "mixin_after": MixinAfter,
}
