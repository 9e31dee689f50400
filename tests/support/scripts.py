"""Kept for `tests/proofs/faults`: see `tests/contract/changed_scripts.py`."""

from tests.contract.changed_scripts import forget, rewrite

__all__ = ["forget", "rewrite"]
