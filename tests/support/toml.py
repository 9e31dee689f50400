"""TOML, which Python 3.10 does not read by itself; and the project's own file."""

from __future__ import annotations

import sys
from typing import Any, Final

from tests.support.workers import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

read_toml = tomllib.loads
PROJECT: Final[dict[str, Any]] = read_toml((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
