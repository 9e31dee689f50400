"""`celery redislock web`."""

from __future__ import annotations

import secrets
from typing import Any

import click

from ..command import BETWEEN_LOOKS, problem, with_app


@click.command(short_help="Serve a page that shows the locks live.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=5556, show_default=True)
@click.option(
    "--allowed-host",
    "allowed",
    multiple=True,
    metavar="NAME",
    help="A name at which browsers reach the page, beside localhost and --host. Repeatable.",
)
@click.option(
    "--every",
    type=BETWEEN_LOOKS,
    default=1.0,
    show_default=True,
    help="Seconds between two looks at the locks.",
)
@click.option("--allow-break", is_flag=True, help="Let those who know the token break locks.")
@click.option(
    "--token",
    envvar="REDISLOCK_WEB_TOKEN",
    help="That token. Better in the environment, as REDISLOCK_WEB_TOKEN: all users of a machine"
    " can see its command lines. Without either one is made and printed.",
)
@with_app
def web(
    app: Any,
    host: str,
    port: int,
    allowed: tuple[str, ...],
    every: float,
    allow_break: bool,
    token: str | None,
) -> None:
    """Serve a page that shows the locks, their waiters, and a timeline, live."""
    try:
        from ...servers.urls import host_port
        from ...web.app import Web
        from ...web.serve import hosts_of, listen, serve
    except ImportError:
        raise problem("web needs a server: pip install 'celery-redislock[web]'") from None
    made = allow_break and not token
    token = (token or secrets.token_urlsafe(24)) if allow_break else None
    page = Web(app, token, hosts_of(host, allowed), every)
    try:
        listening = listen(host, port)
    except OSError as exc:
        raise problem(f"cannot listen at {host}:{port}: {exc.strerror or exc}") from exc
    click.echo(f"The locks are at http://{host_port(host, listening.getsockname()[1])}/")
    if token is not None:
        click.echo(
            f"Token for breaking locks: {token}" if made else "Breaking locks needs the token"
        )
    if host not in ("127.0.0.1", "::1", "localhost"):
        click.echo("Everybody who reaches this address can read the page", err=True)
    serve(page, listening)
