"""Tokens, which prove who holds a lock."""

from __future__ import annotations

import os


def new_token() -> str:
    """A token: 128 random bits as hex digits."""
    return os.urandom(16).hex()  # `secrets` does the same, but its import takes milliseconds
