"""Less patience with messages that do not come, so that a case in which one is lost is short.

The script's text is changed, in a worker's processes only. Who looks for a script in what the
workers send finds it by `sha_of`.
"""

from __future__ import annotations

import hashlib
import re

from celery_redislock.servers import scripts
from tests.support.scripts import forget

#: Seconds for which a free lock is kept for a task whose message is under way, and after which the
#: message is published again.
KEPT_FOR = 1.5
#: The same while tasks wait in pool slots, as the script has it.
BESIDE_WAITERS = 1.0
#: Seconds after which a task whose message does not come loses its place in the order.
GOES_LAST_AFTER = 5.0
_SPANS = {
    "KEPT_FOR": KEPT_FOR,
    "BESIDE_WAITERS": BESIDE_WAITERS,
    "LONGEST_CHANCE": 6.0,
    "GOES_LAST_AFTER": GOES_LAST_AFTER,
}

_source = scripts._source


def _shorter(name: str) -> str:
    text = _source(name)
    for span, seconds in _SPANS.items() if name == "room" else ():
        text, count = re.subn(rf"(local {span} =) \d+ ", rf"\1 {seconds * 1000:.0f} ", text)
        assert count == 1, "the script has changed"
    return text


def shorten() -> None:
    """Have this process, and those that it forks, be less patient."""
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
