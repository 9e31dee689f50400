"""Shorter turns, so that a case in which one lapses is short.

The script's text is changed, in a worker's processes only. Who looks for a script in what the
workers send finds it by `sha_of`.
"""

from __future__ import annotations

import hashlib

from celery_redislock.servers import scripts
from tests.support.scripts import forget

#: How long the first turn lasts, in seconds. Each is twice as long as the one before.
PAUSE = 1.5
#: So often a turn is offered.
OFFERS = 4
#: Seconds for which the message of the first two turns is waited for: others may go before it.
LONGEST = 2 * PAUSE
#: The shortest that a turn lasts: if pool slots wait as well. See `turns.lua`.
SHORTEST = 1.0

_source = scripts._source


def _shorter(name: str) -> str:
    text = _source(name)
    if name != "turns":
        return text
    long = "local PAUSE = 5000 "
    assert long in text, "the script has changed"
    assert f"local OFFERS = {OFFERS} " in text, "the script has changed"
    return text.replace(long, f"local PAUSE = {PAUSE * 1000:.0f} ")


def shorten() -> None:
    """Have this process, and those that it forks, give shorter turns."""
    scripts._source = _shorter
    scripts.text_of.cache_clear()
    forget()


def sha_of(script: str) -> str:
    """What a worker calls this script."""
    kept, scripts._source = scripts._source, _shorter
    try:
        text = scripts.text_of.__wrapped__(script)
    finally:
        scripts._source = kept
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
