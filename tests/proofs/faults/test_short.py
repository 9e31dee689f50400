"""The short form of the fault bench."""

from __future__ import annotations

import argparse

import pytest

from tests.proofs.harness import run_one

from .cases import FULL, SHORT, Faults
from .stage import Address


@pytest.mark.parametrize("case", SHORT, ids=lambda case: case.id)
def test_no_promise_is_broken(case, tmp_path, request):
    assert FULL[case.id] == case
    if case.skip_reason:
        pytest.skip(case.skip_reason)
    rabbitmq = None
    if case.broker == "rabbitmq":
        server = request.getfixturevalue("rabbitmq")
        rabbitmq = Address(server.url, server.port)
    result = run_one(Faults(), case.id, 1, argparse.Namespace(), tmp_path, rabbitmq)
    wrong = "\n".join(filter(None, [result.error, *result.wrong]))
    again = f"python -m tests.proofs faults --only {case.id}"
    assert not result.failed, f"{wrong}\n{again}\n{result.history}"
