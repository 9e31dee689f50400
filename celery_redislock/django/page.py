"""The page of locks behind a Django project's login, as an ASGI app."""

from __future__ import annotations

from importlib import import_module
from io import BytesIO
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.conf import settings
from django.contrib.auth import get_user
from django.core.exceptions import DisallowedHost
from django.core.handlers.asgi import ASGIRequest
from django.db import close_old_connections
from django.shortcuts import resolve_url
from starlette.responses import JSONResponse, RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ..web import asgi_app
from ..web.guard import Guard
from .project import load_tasks


def locks_page(
    app: Any, *, permission: str | None = None, login_url: str | None = None, every: float = 1.0
) -> ASGIApp:
    """The page of locks, as `celery_redislock.web.asgi_app`, for users whom Django knows. Mount it
    in `asgi.py`. It only reads. Needs the extra `web`.

        application = Starlette(
            routes=[Mount("/locks", locks_page(celery_app)), Mount("/", get_asgi_application())]
        )

    Django's session says who the user is; no other middleware of the project runs. The hosts are
    those of `ALLOWED_HOSTS`.

    Args:
        app: the Celery app. Its tasks are loaded, so Django must be set up.
        permission: the permission that a user needs, such as "shop.change_product"; None to let
            all staff in.
        login_url: where others are sent, a URL or its name; None for `LOGIN_URL`.
        every: seconds between two looks at the locks, for all viewers together.

    Raises:
        ConfigError: a wrong value or setting.
    """
    load_tasks(app)
    page = asgi_app(app, allowed_hosts=["*"], every=every)
    # The hosts are Django's to check. The outer guard gives its headers to refusals too.
    return Guard(Login(page, permission, login_url), ["*"])


class Login:
    """Lets only some users through."""

    def __init__(self, page: ASGIApp, permission: str | None, login_url: str | None) -> None:
        self._page = page
        self._permission = permission
        self._login_url = login_url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = None
        if scope["type"] == "http":
            async with ThreadSensitiveContext():  # a thread for the request, as Django has it
                refused = await sync_to_async(self._look, thread_sensitive=True)(scope)
        await (refused or self._page)(scope, receive, send)

    def _look(self, scope: Scope) -> ASGIApp | None:
        close_old_connections()
        try:
            return self._refuse(ASGIRequest(scope, BytesIO()))
        finally:
            close_old_connections()

    def _refuse(self, request: Any) -> ASGIApp | None:
        """The answer to a request that may not pass."""
        try:
            request.get_host()
        except DisallowedHost:
            return _says(400, "this Host is not allowed: name it in ALLOWED_HOSTS")
        sessions = import_module(settings.SESSION_ENGINE)
        key = request.COOKIES.get(settings.SESSION_COOKIE_NAME)
        request.session = sessions.SessionStore(key)
        user = get_user(request)
        if not user.is_authenticated:
            if not request.path.endswith("/"):  # the page's files and data
                return _says(401, "log in first")
            from django.contrib.auth.views import redirect_to_login  # needs Django to be set up

            where = resolve_url(self._login_url or settings.LOGIN_URL)
            login = redirect_to_login(request.get_full_path(), where)
            return RedirectResponse(login["Location"], 302)
        is_staff = user.is_active and getattr(user, "is_staff", False)
        may = is_staff if self._permission is None else user.has_perm(self._permission)
        return None if may else _says(403, "you may not see the locks")


def _says(status: int, why: str) -> ASGIApp:
    return JSONResponse({"error": why}, status)
