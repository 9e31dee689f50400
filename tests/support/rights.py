"""The users of docs/operations.md, with exactly the rights that stand there."""

from __future__ import annotations

import re
from pathlib import Path

import redis

PAGE = Path(__file__).parents[2] / "docs/operations.md"


def acl_lines() -> dict[str, list[str]]:
    """By the user's name, the words of its line."""
    blocks = re.findall(
        r"^ACL SETUSER (\w+) (.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M
    )
    return {name: words.split() for name, words in blocks}


def cluster_rights() -> list[str]:
    """What each of them also needs in a cluster."""
    (words,) = re.findall(r"`(\+cluster\|[^`]*)`", PAGE.read_text(encoding="utf-8"))
    return words.split()


def grant(client: redis.Redis, user: str, *more: str) -> None:
    client.execute_command("ACL", "SETUSER", user, *acl_lines()[user], *more)


def as_user(url: str, user: str) -> str:
    """The URL with the user's name and password."""
    (password,) = (word[1:] for word in acl_lines()[user] if word.startswith(">"))
    return url.replace("://", f"://{user}:{password}@", 1)


def denials(client: redis.Redis, user: str) -> list[str]:
    """What the server has denied this user; not the name that redis-py gives itself, if it may,
    nor the look at an older server, which does not tell rights, for keys of others.
    """
    found = [
        f"{entry['reason']} {entry['object']}"
        for entry in client.acl_log()
        if entry["username"] == user
    ]
    return [each for each in found if "client" not in each and each != "command scan"]
