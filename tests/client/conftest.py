"""A server of the small bundle and a client of it, for tests that call them as they are."""

from __future__ import annotations

import pytest

from rescorer.client import Client
from tests.support.servers import run_server


@pytest.fixture(scope="module")
def server(bundle):
    with run_server(bundle, max_in_flight_lists=256) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with Client(server.target) as client:
        client.wait_ready(10)
        yield client
