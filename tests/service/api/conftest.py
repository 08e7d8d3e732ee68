"""Stubs for tests that send messages to the server as they are."""

from __future__ import annotations

import grpc
import pytest

from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub


@pytest.fixture(scope="module")
def channel(server):
    with grpc.insecure_channel(server.target) as channel:
        yield channel


@pytest.fixture(scope="module")
def stub(channel):
    return RescorerServiceStub(channel)
