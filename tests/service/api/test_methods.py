"""Methods of the gRPC service over loopback, called with bare stubs as from any other language."""

from __future__ import annotations

import math

import grpc
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.service.server import SERVICE
from tests.support.stubs import LIMITS, make_list_message


@pytest.fixture(scope="module")
def server_settings():
    return LIMITS


def test_response_has_ranks_components_weights_and_timing(stub, server):
    message = make_list_message()
    message.fields.update({"speaker": "s1", "n": 3})
    message.hypotheses[1].fields.update({"times": [0.5, None]})
    response = stub.Rescore(pb.RescoreRequest(lists=[message]))
    (answer,) = response.lists
    assert (answer.id, answer.status.code, dict(answer.fields)) == ("u1", 0, {"speaker": "s1", "n": 3})
    assert [hypothesis.rank for hypothesis in answer.hypotheses] == [1, 2]
    assert sorted(hypothesis.original_rank for hypothesis in answer.hypotheses) == [1, 2]
    by_rank = {hypothesis.original_rank: hypothesis for hypothesis in answer.hypotheses}
    assert by_rank[2].text == "the mat"
    assert list(by_rank[2].fields["times"]) == [0.5, None]
    assert not by_rank[1].HasField("fields")
    assert set(by_rank[1].components) == {"acoustic", "ngram", "neural", "mixture", "words", "oov"}
    assert sum(math.exp(hypothesis.log_posterior) for hypothesis in answer.hypotheses) == pytest.approx(1.0)
    assert response.model == "tiny/1"
    assert (response.weights.name, dict(response.weights.lm)) == ("default", {"mixture": 2.0})
    assert dict(response.weights.mixture) == {"ngram": 0.5, "neural": 0.5}
    assert response.timing.compute_ms > 0
    assert response.timing.queue_ms >= 0


def test_answers_an_empty_request(stub):
    assert stub.Rescore(pb.RescoreRequest(model="tiny")).model == "tiny/1"
    assert list(stub.ScoreText(pb.ScoreTextRequest()).scores) == []
    answer = stub.Rescore(pb.RescoreRequest(lists=[make_list_message(texts=["", "the"])])).lists[0]
    assert {hypothesis.text for hypothesis in answer.hypotheses} == {"", "the"}


def test_request_sets_weights_merging_and_context(stub):
    heavy = pb.Weights(name="mine", streams={"acoustic": 100.0}, lm={"ngram": 1.0})
    plain = stub.Rescore(pb.RescoreRequest(lists=[make_list_message(values=[-2.0, -1.0])], weights=heavy))
    assert plain.lists[0].hypotheses[0].original_rank == 2
    assert plain.weights.name == "mine"
    merged = stub.Rescore(
        pb.RescoreRequest(lists=[make_list_message(texts=["The cat", "a", "the, cat"])], merge=True)
    )
    assert [list(hypothesis.merged_ranks) for hypothesis in merged.lists[0].hypotheses] == [[1, 3], [2]]
    sent = make_list_message(texts=["<sil>", "the cat", ""])
    dropped = stub.Rescore(pb.RescoreRequest(lists=[sent], drop_empty=True)).lists[0]
    assert [hypothesis.original_rank for hypothesis in dropped.hypotheses] == [2]
    assert (list(dropped.dropped_ranks), dropped.hypotheses[0].log_posterior) == ([1, 3], 0.0)
    assert len(stub.Rescore(pb.RescoreRequest(lists=[sent])).lists[0].hypotheses) == 3
    alone, continued = make_list_message(texts=["on the mat"]), make_list_message(texts=["on the mat"])
    continued.context = "the cat sat"
    totals = [
        answer.hypotheses[0].total
        for answer in stub.Rescore(pb.RescoreRequest(lists=[alone, continued])).lists
    ]
    assert totals[1] != pytest.approx(totals[0], abs=1e-3)


def test_scores_texts_word_by_word(stub):
    response = stub.ScoreText(pb.ScoreTextRequest(texts=["The dog", ""], context="the cat sat on"))
    first, second = response.scores
    assert (first.text, list(first.words), list(first.unknown)) == ("The dog", ["the", "dog"], [False, True])
    assert {name: len(log_probs.values) for name, log_probs in first.log_probs.items()} == {
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


def test_stream_is_answered_in_order_and_ends_at_an_invalid_message(stub):
    requests = [
        pb.RescoreStreamRequest(lists=[make_list_message(f"u{i}"), make_list_message(f"v{i}")])
        for i in range(20)
    ]
    ids = [[answer.id for answer in response.lists] for response in stub.RescoreStream(iter(requests))]
    assert ids == [[f"u{i}", f"v{i}"] for i in range(20)]
    invalid = pb.RescoreStreamRequest(lists=[make_list_message()], weights_name="other")
    responses = stub.RescoreStream(iter([requests[0], invalid, requests[1]]))
    assert next(responses).lists[0].id == "u0"
    with pytest.raises(grpc.RpcError, match="the bundle has"):
        next(responses)


def test_reflection_lists_the_service_and_its_methods(channel):
    database = ProtoReflectionDescriptorDatabase(channel)
    assert {SERVICE, "grpc.health.v1.Health"} <= set(database.get_services())
    file = database.FindFileContainingSymbol(SERVICE)
    assert [method.name for method in file.service[0].method] == ["Rescore", "RescoreStream", "ScoreText"]
