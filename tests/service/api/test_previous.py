"""Previous utterances over gRPC: the answers of the library, and errors that name the field."""

from __future__ import annotations

import grpc
import pytest

from rescorer import Hypothesis, InvalidList, NBestList, Rescorer, Utterance
from rescorer.client import Client
from rescorer.protocol.messages import list_to_proto
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub
from tests.support.servers import run_server
from tests.support.tiny_models import write_bundle

PASTS = [(), ("the dog ran",), ("the dog ran", "on the mat"), ("nobody <sil>", "", "the cat")]


def make_list(past, number: int) -> NBestList:
    hypotheses = (Hypothesis("the cat sat"), Hypothesis("the dog ran"))
    previous = tuple(Utterance(text, "caller") for text in past)
    return NBestList(str(number), hypotheses, {"acoustic": (-1.0, -2.0)}, previous=previous)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return write_bundle(tmp_path_factory.mktemp("carried"), carried=True)


@pytest.mark.parametrize("workers", [0, 1])
def test_service_agrees_with_the_library(bundle, workers):
    lists = [make_list(past, number) for number, past in enumerate(PASTS)]
    expected = Rescorer.load(bundle).rescore(lists)
    assert len({answer.best.components["neural"] for answer in expected}) == len(PASTS)
    with run_server(bundle, workers=workers) as server, Client(server.target) as client:
        found = client.rescore(lists)
    for answer, other in zip(found, expected, strict=True):
        assert answer.previous == other.previous
        assert [h.text for h in answer.hypotheses] == [h.text for h in other.hypotheses]
        for hypothesis, same in zip(answer.hypotheses, other.hypotheses, strict=True):
            assert hypothesis.components == pytest.approx(dict(same.components), abs=1e-4)


def test_errors_name_the_utterance(bundle):
    long_text = make_list(["the", "the " * 40], 0)
    long_name = NBestList("1", long_text.hypotheses, long_text.streams, previous=(Utterance("a", "s" * 90),))
    with (
        run_server(bundle, max_words=30, max_name_chars=80) as server,
        grpc.insecure_channel(server.target) as channel,
    ):
        lists = [list_to_proto(nbest) for nbest in (long_text, long_name, make_list(["the"], 2))]
        answer = RescorerServiceStub(channel).Rescore(pb.RescoreRequest(lists=lists))
    messages = [item.status.message for item in answer.lists]
    assert "previous[1].text" in messages[0]
    assert "max_words" in messages[0]
    assert "previous[0].speaker" in messages[1]
    assert not messages[2]


def test_wrong_utterance_is_not_sent():
    nbest = NBestList("u", (Hypothesis("a"),), previous=("not an utterance",))
    with pytest.raises(InvalidList, match=r"previous\[0\]: expected an Utterance, got str"):
        list_to_proto(nbest)
