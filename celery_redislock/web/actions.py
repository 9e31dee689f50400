"""What the page's users may do who know the token."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request

from .. import operations
from ..inspection.about import About
from ..inspection.locks import Found, lock
from ..inspection.states import RUNNING
from ..protocol.holders import loaded, one_line
from ..protocol.log import logger
from .guard import checked_token, has_token

#: The largest body of a request, in bytes, and the longest name of its user, in characters.
LARGEST: Final = 65536
LONGEST_NAME: Final = 100
#: Seconds for which the workers may answer that they end a run.
ANSWERS: Final = 2.0


class Action(NamedTuple):
    """What is to be done, as it was asked for."""

    name: str  # the lock's
    key: str  # the slot's
    holder: str  # the mark of the holder that was shown, see `Found.mark`; "" for none
    by: str  # who asks for it
    seconds: float = 0.0  # for how long a lock is to be suspended
    why: str = ""  # it is to be suspended


class Actions:
    """Carries out what the page's users ask for who have the token; see `web.asgi_app`."""

    def __init__(
        self, known: About, token: str | None, user_of: Callable[[Any], str | None] | None
    ) -> None:
        self._known, self._app = known, known.app
        self._token = None if token is None else checked_token(token)
        self._user_of = user_of
        self._kinds: dict[str, Callable[[Action], dict[str, Any]]] = {
            "break": self._break,
            "drop": self._drop,
            "end": self._end,
            "suspend": self._suspend,
            "resume": self._resume,
        }

    @property
    def about(self) -> dict[str, Any]:
        """What the page must know: whether it may act, and whether users say who they are."""
        return {"may_break": self._token is not None, "asks_name": self._user_of is None}

    async def carry_out(self, request: Request) -> dict[str, Any]:
        """Do what the request asks for. Returns what was done."""
        if self._token is None:
            raise HTTPException(403, "this page only reads: start it with --allow-break")
        where = request.client.host if request.client else "an unknown address"
        if not has_token(request.headers.getlist("authorization"), self._token):
            # Somebody may be guessing the token.
            logger.warning("redislock: the page refused an action from %s: wrong token", where)
            raise HTTPException(
                401, "the token is missing or wrong", {"WWW-Authenticate": "Bearer"}
            )
        carry_out = self._kinds.get(request.path_params["action"])
        if carry_out is None:
            raise HTTPException(404, f"no such action; there are: {', '.join(self._kinds)}")
        needed = ("key", "holder") if carry_out in (self._break, self._end) else ("key",)
        action = _read(await _body(request), needed, self._known)
        who = self._user_of(request.scope) if self._user_of is not None else action.by
        who = one_line(str(who or "the page's user"))[:LONGEST_NAME]
        return await asyncio.to_thread(carry_out, action._replace(by=f"{who} at {where}"))

    def _shown(self, action: Action) -> Found:
        """The slot, if its holder is still the one that was shown."""
        for each in lock(self._app, action.name):
            shown = each.mark
            is_shown = shown is not None and hmac.compare_digest(shown, action.holder)
            if is_shown and each.key == action.key:
                return each
        raise HTTPException(409, "not done: another run holds it now, or it is free")

    def _break(self, action: Action) -> dict[str, Any]:
        shown = self._shown(action)
        if not operations.break_locks(self._app, [shown], by=action.by):
            raise HTTPException(409, "not broken: another run holds it now, or it is free")
        text = "redislock: %s, held by %s, was broken by %s"
        logger.warning(text, shown.key, shown.holder or "nobody yet", action.by)
        return {"broken": [shown.to_dict()]}

    def _drop(self, action: Action) -> dict[str, Any]:
        found = lock(self._app, action.name)
        dropped = operations.drop_waiting(self._app, found[:1])
        text = "redislock: %d tasks that waited for %s were dropped by %s"
        logger.warning(text, dropped, action.key, action.by)
        return {"dropped": dropped}

    def _end(self, action: Action) -> dict[str, Any]:
        shown = self._shown(action)
        holder = shown.holder
        if shown.state not in RUNNING or holder is None or not holder.task_id:
            raise HTTPException(409, "not done: no task's run holds the lock")
        replies = self._app.control.revoke(
            holder.task_id, terminate=True, reply=True, timeout=ANSWERS
        )
        nodes = sorted(str(node) for reply in replies or () for node in reply)
        text = "redislock: the run of %s, which holds %s, was revoked and terminated by %s"
        logger.warning(text, holder, shown.key, action.by)
        return {"ended": shown.to_dict(), "answered": nodes}

    def _suspend(self, action: Action) -> dict[str, Any]:
        try:
            suspension = operations.suspend(
                self._app,
                lock=action.name,
                seconds=action.seconds,
                why=action.why,
                by=action.by,
                unknown=True,  # the page shows it
            )
        except ValueError as exc:
            raise HTTPException(400, str(exc)) from None
        text = "redislock: %s is suspended for %g s by %s: %s"
        logger.warning(text, action.key, action.seconds, suspension.by, suspension.why)
        return {"suspended": suspension.to_dict()}

    def _resume(self, action: Action) -> dict[str, Any]:
        found = next((each.suspension for each in lock(self._app, action.name)), None)
        if found is None:
            raise HTTPException(409, "not done: it is not suspended")
        operations.resume(self._app, found.task, lock=found.lock)
        logger.warning("redislock: %s was resumed by %s", found.target, action.by)
        return {"ended": found.to_dict(), "target": found.target}


async def _body(request: Request) -> Any:
    """The request's JSON; None if it is none."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "the body must be application/json")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST:
            raise HTTPException(413, "the body is too large")
    return loaded(body)


def _read(given: Any, needed: tuple[str, ...], known: About) -> Action:
    """The action in the body of a request."""
    given = given if isinstance(given, dict) else {}
    fields = {name: given.get(name, "") for name in ("key", "holder", "by", "why")}
    seconds = given.get("seconds", 0.0)
    are_texts = all(isinstance(each, str) for each in fields.values())
    if not are_texts or not given.keys() >= {*needed} or not fields["holder"].isascii():
        wanted = '{"key": "...", "holder": "...", "by": "..."}'
        raise HTTPException(400, f"the body must be {wanted}: key and holder as in /api/lock")
    name = known.name_of(fields["key"])
    if name is None:
        raise HTTPException(404, "this is not the key of a lock")
    return Action(name, **fields, seconds=seconds)
