"""Rerankers that encode words: the same scores in the library, in files and over gRPC, in any company."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from rescorer import Rescorer
from rescorer.client import Client
from rescorer.extensions import used_rerankers
from rescorer.formats.score_rows import SCORE_DECIMALS
from rescorer.protocol.messages import list_to_proto
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.reranking.reranker import replace_by_base
from rescorer.trie import WordEncoder
from tests.service.api.test_rerankers import LISTS, list_scores
from tests.support.servers import run_server

COMPONENT = "reranker:transformer"
COMPANY_TOLERANCE = 1e-3
"""Scores of networks are float32, whose last digits depend on the shape of the batch."""


@pytest.fixture(scope="module")
def served_bundle(transformer_bundle):
    return transformer_bundle


@pytest.fixture(scope="module", params=["thread", "process"])
def server_settings(request):
    return {"workers": int(request.param == "process")}


@pytest.fixture(scope="module")
def rescorer(transformer_bundle):
    return Rescorer.load(transformer_bundle)


def scores_of(answer):
    """Score of the reranker for each hypothesis, in input order."""
    hypotheses = sorted(answer.hypotheses, key=lambda hypothesis: hypothesis.original_rank)
    return np.array([hypothesis.components[COMPONENT] for hypothesis in hypotheses])


def test_library_service_and_files_agree(run, rescorer, client, transformer_bundle, tmp_path):
    weights = rescorer.bundle.weights["transformer"]
    in_company = rescorer.rescore(LISTS, weights)
    over_grpc_in_company = client.rescore(LISTS, "transformer")
    for index, nbest in enumerate(LISTS):
        (expected,) = rescorer.rescore([nbest], weights)
        (answer,) = client.rescore([nbest], "transformer")
        np.testing.assert_allclose(scores_of(answer), scores_of(expected), rtol=0, atol=1e-9)
        for other in (in_company[index], over_grpc_in_company[index]):
            np.testing.assert_allclose(scores_of(other), scores_of(expected), atol=COMPANY_TOLERANCE)
            assert [h.text for h in other.hypotheses] == [h.text for h in expected.hypotheses]
        source, output = tmp_path / f"{index}.jsonl", tmp_path / f"{index}.out.jsonl"
        rows = [
            {"text": h.text, "scores": {"acoustic": score}}
            for h, score in zip(nbest.hypotheses, nbest.streams["acoustic"], strict=True)
        ]
        source.write_text(json.dumps({"id": nbest.id, "context": nbest.context, "hypotheses": rows}))
        arguments = ("--bundle", transformer_bundle, "--weights", "transformer")
        assert run("rescore", source, "-o", output, *arguments)[0] == 0
        from_file = list_scores(json.loads(output.read_text()))
        found = [from_file[rank][0][COMPONENT] for rank in sorted(from_file)]
        np.testing.assert_allclose(found, scores_of(expected).round(SCORE_DECIMALS), rtol=0, atol=1e-9)


def test_scores_are_those_of_the_reranker(rescorer):
    weights, reranker = rescorer.bundle.weights["transformer"], rescorer.bundle.rerankers["transformer"]
    for nbest, answer in zip(LISTS, rescorer.rescore(LISTS, weights), strict=True):
        prepared = rescorer.ranker.prepare(nbest, rescorer.ranker.bind(weights))
        hypotheses = sorted(answer.hypotheses, key=lambda hypothesis: hypothesis.original_rank)
        components = {
            name: np.array([hypothesis.components[name] for hypothesis in hypotheses])
            for name in hypotheses[0].components
        }
        (encoding,) = rescorer.encode([nbest], reranker.encoder)
        expected = reranker.score(components, prepared.words, prepared.context, encoding)
        np.testing.assert_allclose(scores_of(answer), expected, atol=COMPANY_TOLERANCE)
        assert not any(name.startswith("encoding") for name in components)


def test_lists_that_are_cut_into_batches_get_the_same_scores(rescorer, transformer_bundle):
    weights = rescorer.bundle.weights["transformer"]
    small = Rescorer.load(transformer_bundle, max_batch_words=7)
    for found, expected in zip(small.rescore(LISTS, weights), rescorer.rescore(LISTS, weights), strict=True):
        np.testing.assert_allclose(scores_of(found), scores_of(expected), atol=COMPANY_TOLERANCE)
    with (
        run_server(transformer_bundle, max_words=6, max_batch_tokens=16) as server,
        Client(server.target) as client,
    ):
        (found,) = client.rescore(LISTS[:1], "transformer")
    (expected,) = rescorer.rescore(LISTS[:1], weights)
    np.testing.assert_allclose(scores_of(found), scores_of(expected), atol=COMPANY_TOLERANCE)


def test_requests_with_and_without_encodings_share_a_batch(stub):
    lists = [list_to_proto(nbest) for nbest in LISTS]
    futures = [
        stub.Rescore.future(pb.RescoreRequest(lists=lists, weights_name=name))
        for name in ("transformer", "default") * 4
    ]
    answers = [future.result() for future in futures]
    for with_words, without in zip(answers[::2], answers[1::2], strict=True):
        assert all(COMPONENT in h.components for nbest in with_words.lists for h in nbest.hypotheses)
        assert not any(COMPONENT in h.components for nbest in without.lists for h in nbest.hypotheses)


def test_base_weights_stand_in_where_the_network_is_missing(rescorer):
    ranker, weights = rescorer.ranker, rescorer.bundle.weights["transformer"]
    options = ranker.ngram_only(ranker.bind(weights))
    degraded = options.weights
    assert degraded.rerankers == {}
    used = used_rerankers(rescorer.bundle, weights)
    assert degraded.streams == replace_by_base(weights, used).streams
    assert not any(component.encoders(degraded) for component in options.components)
    with pytest.raises(ValueError, match="needs the encodings"):
        rescorer.bundle.rerankers["transformer"].centre_encoding(None)


def test_a_weight_of_zero_encodes_nothing(rescorer):
    weights = replace(rescorer.bundle.weights["transformer"], rerankers={"transformer": 0.0})
    components = rescorer.ranker.bind(weights).components
    assert not any(component.encoders(weights) for component in components)
    assert isinstance(rescorer.bundle.rerankers["transformer"].encoder, WordEncoder)


def test_models_list_the_sizes_of_transformers(client):
    (found,) = client.get_model().rerankers
    sizes = found.transformer
    assert (found.hidden_units, sizes.layers, sizes.width, sizes.heads) == (5, 2, 6, 2)
    assert (sizes.encoder, sizes.encoding_size) == ("neural", 4)
