"""What is wrong with the lock server, for people."""

from __future__ import annotations

from ..errors import LockUnavailable


def is_denied(exc: LockUnavailable) -> bool:
    """Whether the server answered, but denied this user the command."""
    return _has(exc, "NOPERM", "NoPermission", "no permissions")


def is_refused(exc: LockUnavailable) -> bool:
    """Whether the server answered, but does not let this user in."""
    signs = ("AuthenticationError", "WRONGPASS", "NOAUTH", "invalid username-password")
    return _has(exc, *signs, "invalid password")


def _has(exc: LockUnavailable, *signs: str) -> bool:
    return any(sign in str(exc.reason) for sign in signs)


def why(exc: LockUnavailable) -> str:
    """What is wrong, in one line."""
    if is_denied(exc):
        return f"no rights: {exc.reason}"
    if is_refused(exc):
        return f"the lock server refuses this user or password: {exc.reason}"
    from ..servers.talk import said_of  # not at the start of each command

    return f"the lock server {said_of(exc)}"
