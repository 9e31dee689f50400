"""`LockedTask`: a locked task that can be sent when Django's transaction commits."""

from __future__ import annotations

from typing import Any

from celery.contrib.django.task import DjangoTask

from ..tasks.task import SingletonTask


class LockedTask(SingletonTask, DjangoTask):
    """A `SingletonTask` with the methods of Celery's `DjangoTask`, the base of a project's other
    tasks.

        @shared_task(base=LockedTask, lock_scope="queued")
        def index_product(product_id): ...

        index_product.delay_on_commit(product.pk)

    The lock is not taken before the commit: with `lock_scope`, the task counts as unique from when
    it is sent. What sending raises is raised by the commit, which has happened by then.
    """

    abstract = True

    def delay_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """Send the task as `delay` does, once the transaction has committed."""
        self._refuse_use({})
        super().delay_on_commit(*args, **kwargs)

    def apply_async_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """Send the task as `apply_async` does, once the transaction has committed."""
        self._refuse_use(kwargs)
        super().apply_async_on_commit(*args, **kwargs)
