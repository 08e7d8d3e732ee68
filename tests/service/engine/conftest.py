"""Fixtures: a bundle with an n-gram model only, the library with it, and a server that can be paused."""

from __future__ import annotations

import pytest

from rescorer import Rescorer
from rescorer.types import Weights
from tests.support.random_lists import connect
from tests.support.servers import run_server
from tests.support.tiny_models import write_bundle


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    weights = Weights("default", {"acoustic": 1.0}, {"mixture": 2.0}, 0.1, -1.0, {"ngram": 1.0})
    return write_bundle(tmp_path_factory.mktemp("ngram"), weights, neural=False)


@pytest.fixture(scope="module")
def library(folder):
    """The same models, used through the library."""
    return Rescorer.load(folder)


@pytest.fixture
def server_and_stub(folder):
    with run_server(folder, max_words=20, max_batch_tokens=200) as server:
        channel, stub = connect(server)
        yield server, stub
        server.scorer.gate.set()
        channel.close()
