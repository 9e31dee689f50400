"""The page of `celery redislock web`, for an ASGI project of yours: `asgi_app(app)`. Needs the
extra `web`.

    from celery_redislock.web import asgi_app
    application.mount("/locks", asgi_app(celery_app, allowed_hosts=["intern.example.com"]))

Your project decides who may see it: put it behind your own login.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from starlette.types import ASGIApp

from ..errors import ConfigError
from .app import Web
from .guard import LOCAL

__all__ = ["asgi_app"]


def asgi_app(
    app: Any,
    *,
    allow_break: bool = False,
    token: str | None = None,
    allowed_hosts: Sequence[str] = LOCAL,
    every: float = 1.0,
    user_of: Callable[[Any], str | None] | None = None,
) -> ASGIApp:
    """An ASGI app that shows the app's locks. It looks at Redis only while somebody watches.

    Args:
        app: the Celery app, with its tasks.
        allow_break: whether users who have the token may break a lock, drop the tasks that wait
            for it, and end its run.
        token: the secret for that, at least 16 characters; sent as `Authorization: Bearer`.
        allowed_hosts: the host names at which browsers reach the page, without ports. Requests for
            other hosts are refused. "*" allows all, for a project that checks hosts itself.
        every: seconds between two looks at the locks, for all viewers together.
        user_of: tells who a request's user is, from its ASGI scope, for the log and the holder:
            `lambda scope: scope["user"].username`. Without it the page asks for a name.

    Raises:
        ConfigError: `allow_break` without a token, or a wrong value or setting.
    """
    if allow_break and token is None:
        raise ConfigError("asgi_app: allow_break=True needs a token")
    if isinstance(allowed_hosts, str):
        raise ConfigError("asgi_app: allowed_hosts must be a list of names, not one text")
    return Web(app, token if allow_break else None, allowed_hosts, every, user_of)
