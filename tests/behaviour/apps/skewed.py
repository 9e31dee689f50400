"""The same app on a machine whose clock is `test_skew` seconds ahead. Its monotonic clock, and the
dates of its log, are right.
"""

from __future__ import annotations

import json
import os
import time

_skew = json.loads(os.environ.get("TEST_CONF", "{}")).get("test_skew", 0.0)
_time = time.time
time.time = lambda: _time() + _skew

from tests.behaviour.apps.deliveries import app  # noqa: E402

__all__ = ["app"]
