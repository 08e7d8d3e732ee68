"""What the gRPC service answers over loopback, spoken to with bare stubs as any other language would."""

from __future__ import annotations

import math

import grpc
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub
from rescorer.service.server import SERVICE
from tests.support.servers import run_server
from tests.support.stubs import LIMITS, make_list_message


@pytest.fixture(scope="module")
def server(bundle):
    with run_server(bundle, **LIMITS) as server:
        yield server


@pytest.fixture(scope="module")
def channel(server):
    with grpc.insecure_channel(server.target) as channel:
        yield channel


@pytest.fixture(scope="module")
def stub(channel):
    return RescorerServiceStub(channel)


def test_an_answer_holds_everything_that_led_to_it(stub, server):
    message = make_list_message()
    message.fields.update({"speaker": "s1", "n": 3})
    message.hypotheses[1].fields.update({"times": [0.5, None]})
    response = stub.Rescore(pb.RescoreRequest(lists=[message]))
    (answer,) = response.lists
    assert (answer.id, answer.status.code, dict(answer.fields)) == ("u1", 0, {"speaker": "s1", "n": 3})
    assert [each.rank for each in answer.hypotheses] == [1, 2]
    assert sorted(each.original_rank for each in answer.hypotheses) == [1, 2]
    by_place = {each.original_rank: each for each in answer.hypotheses}
    assert by_place[2].text == "the mat"
    assert list(by_place[2].fields["times"]) == [0.5, None]
    assert not by_place[1].HasField("fields")
    assert set(by_place[1].components) == {"acoustic", "ngram", "neural", "mixture", "words", "oov"}
    assert sum(math.exp(each.log_posterior) for each in answer.hypotheses) == pytest.approx(1.0)
    assert response.model == "tiny/1"
    assert (response.weights.name, dict(response.weights.lm)) == ("default", {"mixture": 2.0})
    assert dict(response.weights.mixture) == {"ngram": 0.5, "neural": 0.5}
    assert response.timing.compute_ms > 0
    assert response.timing.queue_ms >= 0


def test_an_empty_request_is_answered(stub):
    assert stub.Rescore(pb.RescoreRequest(model="tiny")).model == "tiny/1"
    assert list(stub.ScoreText(pb.ScoreTextRequest()).scores) == []
    answer = stub.Rescore(pb.RescoreRequest(lists=[make_list_message(texts=["", "the"])])).lists[0]
    assert {each.text for each in answer.hypotheses} == {"", "the"}


def test_weights_merge_and_context_are_of_the_request(stub):
    heavy = pb.Weights(name="mine", streams={"acoustic": 100.0}, lm={"ngram": 1.0})
    plain = stub.Rescore(pb.RescoreRequest(lists=[make_list_message(values=[-2.0, -1.0])], weights=heavy))
    assert plain.lists[0].hypotheses[0].original_rank == 2
    assert plain.weights.name == "mine"
    merged = stub.Rescore(
        pb.RescoreRequest(lists=[make_list_message(texts=["The cat", "a", "the, cat"])], merge=True)
    )
    assert [list(each.merged_ranks) for each in merged.lists[0].hypotheses] == [[1, 3], [2]]
    alone, continued = make_list_message(texts=["on the mat"]), make_list_message(texts=["on the mat"])
    continued.context = "the cat sat"
    totals = [
        each.hypotheses[0].total for each in stub.Rescore(pb.RescoreRequest(lists=[alone, continued])).lists
    ]
    assert totals[1] != pytest.approx(totals[0], abs=1e-3)


def test_texts_are_scored_word_by_word(stub):
    response = stub.ScoreText(pb.ScoreTextRequest(texts=["The dog", ""], context="the cat sat on"))
    first, second = response.scores
    assert (first.text, list(first.words), list(first.unknown)) == ("The dog", ["the", "dog"], [False, True])
    assert {name: len(each.values) for name, each in first.log_probs.items()} == {
        "ngram": 3,
        "neural": 3,
        "mixture": 3,
    }
    assert len(second.log_probs["mixture"].values) == 1
    assert response.model == "tiny/1"
    other = stub.ScoreText(
        pb.ScoreTextRequest(texts=["the dog"], weights=pb.Weights(mixture={"ngram": 1.0, "neural": 0.0}))
    ).scores[0]
    assert list(other.log_probs["mixture"].values) == pytest.approx(list(other.log_probs["ngram"].values))


def test_a_stream_is_answered_in_order_and_ends_at_a_bad_message(stub):
    requests = [
        pb.RescoreStreamRequest(lists=[make_list_message(f"u{i}"), make_list_message(f"v{i}")])
        for i in range(20)
    ]
    ids = [[each.id for each in response.lists] for response in stub.RescoreStream(iter(requests))]
    assert ids == [[f"u{i}", f"v{i}"] for i in range(20)]
    bad = pb.RescoreStreamRequest(lists=[make_list_message()], weights_name="other")
    responses = stub.RescoreStream(iter([requests[0], bad, requests[1]]))
    assert next(responses).lists[0].id == "u0"
    with pytest.raises(grpc.RpcError, match="the bundle has"):
        next(responses)


def test_reflection_tells_the_service_and_its_methods(channel):
    database = ProtoReflectionDescriptorDatabase(channel)
    assert {SERVICE, "grpc.health.v1.Health"} <= set(database.get_services())
    file = database.FindFileContainingSymbol(SERVICE)
    assert [method.name for method in file.service[0].method] == ["Rescore", "RescoreStream", "ScoreText"]
