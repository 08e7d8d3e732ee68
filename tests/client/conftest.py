"""Settings of the server that tests of clients call."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def server_settings():
    return {"max_in_flight_lists": 256}
