"""`LockAdminMixin`: the admin shows who holds the locks of a model's rows, and takes them away."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin import helpers
from django.contrib.admin.utils import quote, unquote
from django.core import checks
from django.template.response import TemplateResponse

from .. import operations
from ..app.internals import check_arguments
from ..errors import LockUnavailable
from ..inspection.locks import Found, read_locks
from ..protocol.log import logger
from ..tasks.locked import LockedTask
from .project import NoLock, is_celery_command, locked_task
from .words import said


class LockAdminMixin:
    """For a `ModelAdmin` whose rows have a task with a lock:

        @admin.register(Product)
        class ProductAdmin(LockAdminMixin, admin.ModelAdmin):
            lock_task = "shop.tasks.index_product"
            list_display = ("name", "lock_holder")

    `lock_holder` is a column that says who holds a row's lock: one exchange for the whole page. The
    action `break_locks` takes the locks of chosen rows away.

    Attributes:
        lock_task: the task, or its name.
    """

    lock_task: Any = None
    actions: Any = ("break_locks",)  # Any, as type checkers compare it with ModelAdmin's

    def lock_args(self, obj: Any) -> tuple[Any, ...]:
        """The arguments of the task's call for this row, all that have no default, also those that
        are not part of the lock's key. By default the primary key alone.
        """
        return (obj.pk,)

    def has_break_lock_permission(self, request: Any) -> bool:
        """Whether the user may take locks away. By default: may change the model's rows."""
        allowed: bool = self.has_change_permission(request)  # type: ignore[attr-defined]
        return allowed

    # -- the column ---------------------------------------------------------------------------

    @admin.display(description="lock")
    def lock_holder(self, obj: Any) -> str:
        """Who holds the row's lock, for `list_display` and `readonly_fields`; "-" if nobody does,
        and that it is unknown while the lock server does not answer.
        """
        if obj.pk is None:  # in the form of a new row
            return "-"
        rows = vars(obj).get("_redislock_rows") or _Rows(self, [obj])
        return rows.told(obj)

    def get_changelist_instance(self, request: Any) -> Any:
        shown = super().get_changelist_instance(request)  # type: ignore[misc]
        rows = _Rows(self, shown.result_list)
        for obj in shown.result_list:  # each row is the object that the column gets
            obj._redislock_rows = rows
        return shown

    # -- the action ---------------------------------------------------------------------------

    @admin.action(description="Take the lock away", permissions=["break_lock"])
    def break_locks(self, request: Any, queryset: Any) -> TemplateResponse | None:
        """Take the locks of the chosen rows away from those who hold them, once the user has seen
        and confirmed who that is. A run that took a lock meanwhile keeps it.
        """
        confirmed = bool(request.POST.get("post"))
        try:
            if confirmed:
                chosen = map(unquote, request.POST.get("rows", "").split(","))
                queryset = queryset.filter(pk__in=[*filter(None, chosen)])
            task = locked_task(self.lock_task)
            slots = self._slots(task, queryset)
            if confirmed:
                self._break(request, task, slots)
                return None
        except LockUnavailable as exc:
            text = f"The lock server does not answer: {exc.reason}"
            self._tell(request, text, messages.ERROR)
            return None
        except (TypeError, ValueError) as exc:  # the task's key does not fit `lock_args`
            self._tell(request, str(exc), messages.ERROR)
            return None
        return self._confirmation(request, slots)

    def _slots(self, task: LockedTask, rows: Any) -> list[tuple[Any, list[Found]]]:
        """Each row with the slots of its lock that somebody holds, or that it is suspended."""
        keys = [task.keys_of_call(self.lock_args(obj), {}) for obj in rows]
        found = read_locks(task.app_locks.server, keys, task.name)
        return [*zip(rows, found, strict=True)]

    def _confirmation(self, request: Any, slots: list[tuple[Any, list[Found]]]) -> TemplateResponse:
        model_admin: Any = self
        rows = [(obj, [said(each) for each in found]) for obj, found in slots]
        context = {
            **model_admin.admin_site.each_context(request),
            "title": "Take the lock away",
            "subtitle": None,
            "opts": model_admin.opts,
            "media": model_admin.media,
            "rows": rows,
            "action_checkbox_name": helpers.ACTION_CHECKBOX_NAME,
            "chosen": ",".join(quote(str(obj.pk)) for obj, _ in slots),
            "marks": ",".join(filter(None, (each.mark for _, found in slots for each in found))),
        }
        request.current_app = model_admin.admin_site.name
        return TemplateResponse(request, "celery_redislock/break_locks.html", context)

    def _break(self, request: Any, task: LockedTask, slots: list[tuple[Any, list[Found]]]) -> None:
        shown, by = {*request.POST.get("held", "").split(",")}, request.user.get_username()
        for obj, found in slots:
            chosen = [each for each in found if each.mark in shown]
            broken = operations.break_locks(task.app, chosen, by=by) if chosen else []
            for each in broken:
                who = said(each)
                logger.warning(
                    "redislock: %s, held by %s, was broken by %s",
                    each.key, each.holder or "nobody yet", by,
                )  # fmt: skip
                text = f"Took the lock away from its holder: {who}."
                self.log_change(request, obj, text)  # type: ignore[attr-defined]
                self._tell(request, f"{obj}: {text}", messages.SUCCESS)
            if not broken:
                text = f"{obj}: nothing was taken away: the lock is free, or another run has it."
                self._tell(request, text, messages.WARNING)

    def _tell(self, request: Any, text: str, level: int) -> None:
        self.message_user(request, text, level)  # type: ignore[attr-defined]

    # -- the check ----------------------------------------------------------------------------

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """Django's checks of the class, and whether `lock_task` is a task with a lock that a row's
        primary key alone can call, unless `lock_args` gives more.
        """
        found: list[checks.CheckMessage] = super().check(**kwargs)  # type: ignore[misc]
        if is_celery_command():
            return found
        hint = "Set lock_task to a task whose base is LockedTask or SingletonTask, or its name."
        try:
            task = locked_task(self.lock_task)
            if task.typing and type(self).lock_args is LockAdminMixin.lock_args:
                hint = "Override lock_args: it must give every argument that has no default."
                check_arguments(task, ("primary key",), {})
        except (NoLock, TypeError) as exc:
            where = f"The value of 'lock_task' is not accepted: {str(exc).rstrip('.')}."
            return [*found, checks.Error(where, hint=hint, obj=type(self), id="redislock.E008")]
        except Exception:
            return found  # tasks cannot be loaded, or options are wrong: `check_locks` says so
        return found


class _Rows:
    """The holders of the rows of a page. They are asked for when the first one is shown."""

    def __init__(self, model_admin: LockAdminMixin, objects: Any) -> None:
        self._admin = model_admin
        self._objects = list(objects)

    @cached_property
    def _found(self) -> dict[Any, Found | None] | str:
        """Who has each row's lock, by primary key; or why that is not known."""
        try:
            task = locked_task(self._admin.lock_task)
            slots = self._admin._slots(task, self._objects)
        except LockUnavailable as exc:
            logger.warning("redislock: the admin cannot show who holds locks: %s", exc.reason)
            return "the lock server does not answer"
        except (TypeError, ValueError) as exc:  # the task's key does not fit `lock_args`
            logger.error("redislock: the admin cannot show who holds locks: %s", exc)
            return str(exc)
        return {obj.pk: next(iter(found), None) for obj, found in slots}

    def told(self, obj: Any) -> str:
        known = self._found
        if isinstance(known, str):
            return f"unknown: {known}"
        found = known.get(obj.pk)
        return "-" if found is None else said(found)
