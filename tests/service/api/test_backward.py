"""Backward models over gRPC: the scores of the library, from a thread and from worker processes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rescorer import Rescorer
from rescorer.errors import RescorerError
from rescorer.protocol.v1 import models_pb2 as pb
from rescorer.protocol.v1.models_pb2_grpc import ModelServiceStub
from tests.core.test_backward_bundle import LISTS, TEXTS
from tests.support.backward_models import write_bundle


@pytest.fixture(scope="module")
def served_bundle(tmp_path_factory):
    return write_bundle(tmp_path_factory.mktemp("bundle"))


@pytest.fixture(scope="module", params=["thread", "process"])
def server_settings(request):
    return {"workers": int(request.param == "process")}


@pytest.fixture(scope="module")
def rescorer(served_bundle):
    return Rescorer.load(served_bundle)


def components_of(answer):
    hypotheses = sorted(answer.hypotheses, key=lambda hypothesis: hypothesis.original_rank)
    return [pytest.approx(hypothesis.components, abs=1e-4) for hypothesis in hypotheses]


def test_service_and_library_agree(client, rescorer):
    for found, expected in zip(client.rescore(LISTS), rescorer.rescore(LISTS), strict=True):
        hypotheses = sorted(found.hypotheses, key=lambda hypothesis: hypothesis.original_rank)
        assert [hypothesis.components for hypothesis in hypotheses] == components_of(expected)
        assert found.best.text == expected.best.text
    for found, expected in zip(client.score_text(TEXTS), rescorer.score_text(TEXTS), strict=True):
        for name, values in expected.log_probs.items():
            assert found.log_probs[name] == pytest.approx(values, abs=1e-4)


def test_requests_may_weigh_backward_models_and_not_mix_them(client, rescorer):
    weights = replace(rescorer.bundle.weights["default"], lm={"back": 1.0, "leftward": 2.0})
    (found,), (expected,) = client.rescore(LISTS[:1], weights), rescorer.rescore(LISTS[:1], weights)
    assert found.best.total == pytest.approx(expected.best.total, abs=1e-4)
    with pytest.raises(RescorerError, match="the backward model 'back'"):
        client.rescore(LISTS[:1], replace(weights, mixture={"ngram": 0.5, "back": 0.5}))


def test_description_of_the_model_says_the_direction(channel):
    model = ModelServiceStub(channel).GetModel(pb.GetModelRequest(), timeout=20).model
    found = {part.name: part.backward for part in model.language_models}
    assert found == {"ngram": False, "neural": False, "back": True, "leftward": True}


def test_degraded_requests_use_the_forward_ngram(rescorer):
    degraded = rescorer.ranker.ngram_only(rescorer.ranker.bind("default")).weights
    assert degraded.lm == {"ngram": pytest.approx(2.0)}
    assert degraded.mixture == {"ngram": 1.0}
