"""The result of a check."""

from __future__ import annotations

import dataclasses
from typing import Final

OK: Final = "ok"
WARNING: Final = "warning"
ERROR: Final = "error"
UNKNOWN: Final = "unknown"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    level: str  # one of those above
    what: str
    todo: str = ""


#: The finding of a check that needs INFO, which this user may not read.
UNTOLD: Final = Finding(UNKNOWN, "cannot tell: INFO is denied", "allow +info")
