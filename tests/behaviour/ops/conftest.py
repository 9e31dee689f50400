"""An app to look at, with keys of its own on the shared server."""

from __future__ import annotations

import pytest

from tests.support.looking import make_app


@pytest.fixture
def app(redis_server, label):
    return make_app(redis_server.url, label)
