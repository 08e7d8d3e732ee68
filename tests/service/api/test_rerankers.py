"""Rerankers over gRPC: the same scores as in the library and in files, in any company, within the limits."""

from __future__ import annotations

import json
from dataclasses import replace

import grpc
import pytest

from rescorer import Hypothesis, InvalidList, NBestList, Rescorer, Weights
from rescorer.errors import ConfigError
from rescorer.extensions import make_ranker
from rescorer.models.bundle import read_bundle
from rescorer.protocol.messages import list_to_proto, weights_from_proto, weights_to_proto
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.service.api.rescoring import prepare_lists
from rescorer.service.engine.request_bounds import check_response_size
from rescorer.service.settings import load_settings

TEXTS = ("the cat sat on the mat", "the cat sad on a mat", "the cat cat sat", "", "the zebra sat on the mat")
LISTS = [
    NBestList("u1", tuple(map(Hypothesis, TEXTS)), {"acoustic": (0.0, -0.5, -1.0, -2.0, -0.2)}, "on the mat"),
    NBestList("u2", tuple(map(Hypothesis, TEXTS[::-1])), {"acoustic": (0.0, -0.5, -1.0, -2.0, -0.2)}),
    NBestList("one", (Hypothesis("the cat"),), {"acoustic": (-1.0,)}),
    NBestList("equal", (Hypothesis("the dog ran"),) * 3, {"acoustic": (-1.0,) * 3}),
    NBestList("empty", (Hypothesis(""),) * 2, {"acoustic": (-2.0, -1.0)}),
]


@pytest.fixture(scope="module")
def served_bundle(reranker_bundle):
    return reranker_bundle


@pytest.fixture(scope="module")
def server_settings():
    return {"max_decision_steps": 1_000_000}


@pytest.fixture(scope="module")
def rescorer(reranker_bundle):
    return Rescorer.load(reranker_bundle)


def list_scores(answer):
    return {
        h["original_rank"]: (h["components"], h["total"]) for h in answer["hypotheses"]
    }  # fmt: skip


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_files_library_and_service_agree(run, rescorer, client, reranker_bundle, tmp_path, name):
    weights = rescorer.bundle.weights[name]
    expected = rescorer.rescore(LISTS, weights)
    alone = [answer for nbest in LISTS for answer in rescorer.rescore([nbest], weights)]
    by_name = client.rescore(LISTS, name)
    by_value = client.rescore(LISTS, replace(weights, mixture={}))
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    with source.open("w") as file:
        for nbest in LISTS:
            rows = [
                {"text": h.text, "scores": {"acoustic": score}}
                for h, score in zip(nbest.hypotheses, nbest.streams["acoustic"], strict=True)
            ]
            file.write(json.dumps({"id": nbest.id, "context": nbest.context, "hypotheses": rows}) + "\n")
    assert run("rescore", source, "-o", output, "--bundle", reranker_bundle, "--weights", name)[0] == 0
    from_file = [list_scores(json.loads(line)) for line in output.read_text().splitlines()]
    for index, answer in enumerate(expected):
        assert answer.weights.rerankers == {name: 1.0}
        component = f"reranker:{name}"
        for other in (alone[index], by_name[index], by_value[index]):
            assert other.weights == replace(answer.weights, held_out={})
            assert [h.original_rank for h in other.hypotheses] == [h.original_rank for h in answer.hypotheses]
            for one, two in zip(other.hypotheses, answer.hypotheses, strict=True):
                assert one.components == pytest.approx(two.components, abs=1e-4)
                assert one.total == pytest.approx(two.components[component], abs=1e-4)
        for hypothesis in answer.hypotheses:
            components, total = from_file[index][hypothesis.original_rank + 1]
            assert components[component] == pytest.approx(total, abs=1e-6)
            assert total == pytest.approx(hypothesis.total, abs=1e-4)


def test_weights_survive_a_round_trip():
    weights = Weights("w", {"a": 1.0}, {"mixture": 0.5}, rerankers={"linear": 0.5, "mlp": -1.0})
    assert weights_from_proto(weights_to_proto(weights)) == weights


def test_refuses_rerankers_and_lists_that_do_not_fit(client):
    with pytest.raises(ConfigError, match="names 'liner'; the bundle has linear, mlp; did you mean 'linear'"):
        client.rescore(LISTS, Weights(rerankers={"liner": 1.0}))
    with pytest.raises(ConfigError, match="but reranker 'mlp' was trained with"):
        client.rescore(LISTS, Weights(rerankers={"mlp": 1.0}, mixture={"ngram": 1.0}))
    nbest = replace(LISTS[0], streams={"am": LISTS[0].streams["acoustic"]})
    with pytest.raises(InvalidList, match="reranker 'mlp' needs it; the list has: am"):
        client.rescore([nbest], "mlp")


def test_work_of_rerankers_is_bounded(stub):
    texts = [f"the {'cat ' * (i % 9)}sat" for i in range(300)]
    long, short = (
        pb.NBestList(
            id="u",
            hypotheses=[pb.Hypothesis(text=text) for text in texts[:n]],
            streams=[pb.ScoreStream(name="acoustic", base=1, sign=1, values=[0.0] * n)],
        )
        for n in (300, 40)
    )
    answers = stub.Rescore(pb.RescoreRequest(lists=[long, short], weights_name="mlp")).lists
    assert "maximum and reranker:mlp takes" in answers[0].status.message
    assert "max_decision_steps); send fewer hypotheses" in answers[0].status.message
    assert answers[1].status.code == 0
    assert stub.Rescore(pb.RescoreRequest(lists=[long])).lists[0].status.code == 0
    with pytest.raises(grpc.RpcError) as error:
        stub.Rescore(pb.RescoreRequest(lists=[short] * 60, weights_name="mlp"))
    assert "maximum and reranker:mlp of the first" in error.value.details()


def test_bounds_the_size_of_answers(reranker_bundle, stub):
    ranker, settings = make_ranker(read_bundle(reranker_bundle)), load_settings(bundle=reranker_bundle)
    request = pb.RescoreRequest(lists=[list_to_proto(nbest) for nbest in LISTS], weights_name="mlp")
    bound = check_response_size(request, request.ByteSize(), ranker, settings.max_response_bytes)
    response = stub.Rescore(request)
    assert response.ByteSize() <= bound
    assert prepare_lists(ranker, request, settings).decision_tokens > 0


def test_base_weights_stand_in_where_a_model_is_missing(rescorer):
    ranker, weights = rescorer.ranker, rescorer.bundle.weights["mlp"]
    degraded = ranker.ngram_only(ranker.bind(replace(weights, rerankers={"mlp": 2.0}))).weights
    assert degraded.rerankers == {}
    assert (degraded.streams, degraded.lm, degraded.word) == ({"acoustic": 2.0}, {"ngram": 2.0}, 1.0)
    options = ranker.bind(weights)
    ranked = ranker.rank(ranker.prepare(LISTS[0], options), (), ranker.first_pass(options))
    assert list(ranked.order) == list(range(len(TEXTS)))
    n_words = [len(text.split()) for text in TEXTS]
    expected = [a + 0.5 * n for a, n in zip(LISTS[0].streams["acoustic"], n_words, strict=True)]
    assert ranked.totals == pytest.approx(expected)
    assert not any(name.startswith("reranker:") for name in ranked.components)


def test_a_reranker_that_needs_only_the_ngram_runs_where_others_are_missing(rescorer):
    bundle = rescorer.bundle
    own = replace(bundle.rerankers["mlp"], models={"ngram": ""})
    ranker = make_ranker(replace(bundle, rerankers={"mlp": own}))
    options = ranker.ngram_only(ranker.bind(bundle.weights["mlp"]))
    assert options.weights.rerankers == {"mlp": 1.0}


def test_models_list_their_rerankers(client, rescorer):
    linear, mlp = client.get_model().rerankers
    assert (linear.name, linear.hidden_units, mlp.name, mlp.hidden_units) == ("linear", 0, "mlp", 4)
    assert (list(mlp.streams), mlp.members) == (["acoustic"], 3)
    assert tuple(mlp.features) == rescorer.bundle.rerankers["mlp"].features
