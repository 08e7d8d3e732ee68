"""Random lists of a few words, requests with them, and the comparison of answers with the library."""

from __future__ import annotations

import random

import grpc
import pytest

from rescorer import Hypothesis, NBestList
from rescorer.protocol.messages import list_to_proto
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub

WORDS = ("the", "cat", "sat", "on", "mat", "zebra", "qqq")


def make_list(name: str, rng: random.Random, n: int = 4) -> NBestList:
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(0, 6))) for _ in range(n)]
    hypotheses = tuple(Hypothesis(text, partial=rng.random() < 0.1) for text in texts)
    context = " ".join(rng.choices(WORDS, k=rng.choice([0, 0, 2])))
    return NBestList(name, hypotheses, {"acoustic": tuple(rng.uniform(-9, 0) for _ in texts)}, context)


def make_request(*lists: NBestList, **fields) -> pb.RescoreRequest:
    return pb.RescoreRequest(lists=[list_to_proto(nbest) for nbest in lists], **fields)


def assert_scored(answer: pb.RescoredList, expected) -> None:
    assert (answer.id, answer.status.code) == (expected.id, 0)
    for actual, hypothesis in zip(answer.hypotheses, expected.hypotheses, strict=True):
        assert actual.original_rank - 1 == hypothesis.original_rank
        assert actual.total == pytest.approx(hypothesis.total, abs=1e-9)
        assert dict(actual.components) == pytest.approx(dict(hypothesis.components), abs=1e-9)


def connect(server) -> tuple[grpc.Channel, RescorerServiceStub]:
    # By default channels of one process share a connection, which the server regards as one client.
    channel = grpc.insecure_channel(server.target, options=[("grpc.use_local_subchannel_pool", 1)])
    return channel, RescorerServiceStub(channel)
