"""Refuses forbidden requests, before the app sees them. Pure ASGI.

A foreign page in a user's browser must not reach this one: such a page may have a host name that
leads here (DNS rebinding), or its script may send requests here.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Sequence
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import ConfigError

#: The hosts at which the page answers by default.
LOCAL: Final = ("localhost", "127.0.0.1", "[::1]")
#: The shortest token that is accepted, in characters.
SHORTEST_TOKEN: Final = 16
#: How a browser marks requests of other pages (`Sec-Fetch-Site`). A page of the same site may have
#: another port of the machine, or another name of the domain: such a page is not this one.
OTHERS: Final = frozenset({"cross-site", "same-site"})

#: The headers of every response: load nothing from elsewhere, run nothing inline, store nothing.
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src"
        " 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
        " require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """Refuses foreign `Host` and `Origin` headers, and gives every response its headers."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app = app
        self._hosts = frozenset(map(checked_host, hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refused = self._refusal(Headers(scope=scope))
        if refused is None:
            await self._app(scope, receive, send_safely)
        else:
            status, why = refused
            await JSONResponse({"error": why}, status)(scope, receive, send_safely)

    def _refusal(self, headers: Headers) -> tuple[int, str] | None:
        """The status and the reason, if the request is refused."""
        hosts = headers.getlist("host")
        names = {"*", *(re.sub(r":\d*$", "", host.lower()) for host in hosts)}  # without the port
        if len(hosts) != 1 or not names & self._hosts:
            return 400, "this Host is not allowed: name it with --allowed-host, or allowed_hosts"
        own = {f"{scheme}://{hosts[0].lower()}" for scheme in ("http", "https")}
        for origin in headers.getlist("origin"):
            if origin.lower() not in own:
                return 403, "requests from other sites are refused"
        how = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest"))
        is_link = how == ("navigate", "document")  # the user follows a link to the page
        if headers.get("sec-fetch-site") in OTHERS and not is_link:
            return 403, "requests from other sites are refused"
        return None


def checked_host(host: str) -> str:
    """The host in the form of a `Host` header."""
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    if host != "*" and not re.fullmatch(r"[\w.-]+|\[[0-9a-fA-F:.]+\]", host):
        raise ConfigError(
            f"allowed host {host!r} is not accepted; it must be a name or an address without a"
            ' port, such as "locks.example.com", or "*"'
        )
    return host.lower()


def checked_token(token: str) -> str:
    """The token, if it is long enough and can be sent in a header."""
    if len(token) < SHORTEST_TOKEN or not re.fullmatch(r"[!-~]+", token):
        raise ConfigError(
            f"the page's token is not accepted; it must have at least {SHORTEST_TOKEN} characters,"
            " all of them ASCII and none a space"
        )
    return token


def has_token(given: Sequence[str], token: str) -> bool:
    """Whether these `Authorization` headers carry the token. Compares in constant time."""
    if len(given) != 1:
        return False
    scheme, _, rest = given[0].partition(" ")
    same = hmac.compare_digest(rest.strip().encode("utf-8", "surrogatepass"), token.encode())
    return same and scheme.lower() == "bearer"
