"""The neural cache in rescoring: equal to its slow twin on every way in; nothing where it is off."""

from __future__ import annotations

import json
from dataclasses import replace

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer import ConfigError, Hypothesis, NBestList, Rescorer, Utterance, Weights
from rescorer.client import Client
from rescorer.evaluation.scored_lists import load_cached_rescorer, score_lists
from rescorer.evaluation.systems import score_mixtures
from rescorer.protocol.messages import list_to_proto
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub
from rescorer.trie import SENTENCE_END
from rescorer.weights import parse_weights, weights_to_dict
from tests.support.neural_cache_twin import log_probs_with_neural_cache, neural_cache_probs
from tests.support.reference_scorer import reference_mixture
from tests.support.servers import run_server
from tests.support.session_cache_twin import log_probs_with_cache
from tests.support.tiny_models import write_bundle

TEXTS = ("the cat sat", "the dog ran", "on the mat", "")
MIXTURE = {"ngram": 0.5, "neural": 0.5}
WEIGHTS = Weights("w", {"acoustic": 1.0}, mixture=MIXTURE, neural_cache=0.3, flatness=0.8)
BOTH = replace(WEIGHTS, cache=0.2)
OFF = replace(WEIGHTS, neural_cache=0.0)
PREVIOUS = (Utterance("the dog ran", "a", 0.5), Utterance("<sil>"), Utterance("fast zebra ran on"))
PASTS = ((), PREVIOUS, (Utterance("the dog ran"), *PREVIOUS[1:]), (Utterance("mat", confidence=0.0),))
HISTORY = ("the", "dog", "ran", SENTENCE_END, "fast", "zebra", "ran", "on", SENTENCE_END, "the")


@pytest.fixture(scope="module", params=[False, True], ids=["reset", "carried"])
def bundle(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("bundle")
    return write_bundle(folder, replace(WEIGHTS, name="default"), carried=request.param)


@pytest.fixture(scope="module")
def rescorer(bundle):
    return Rescorer.load(bundle)


def make_list(previous=PREVIOUS, context: str = "", id: str = "u") -> NBestList:
    hypotheses = tuple(Hypothesis(text, {"reference": "the dog ran"}) for text in TEXTS)
    return NBestList(
        id, hypotheses, {"acoustic": (-1.0, -2.0, -3.0, -4.0)}, context, previous=tuple(previous)
    )


def components(answers) -> list[dict[str, float]]:
    found = []
    for answer in answers:
        by_text = {hypothesis.text: hypothesis for hypothesis in answer.hypotheses}
        found += [{"total": by_text[text].total, **by_text[text].components} for text in TEXTS]
    return found


def assert_same(answers, expected, tolerance: float = 1e-4):
    for own, other in zip(components(answers), components(expected), strict=True):
        assert own == pytest.approx(other, abs=tolerance)


@pytest.mark.parametrize("weights", [WEIGHTS, BOTH])
def test_mixture_is_interpolated_with_the_caches(rescorer, weights):
    found = components(rescorer.rescore([make_list(context="the")], weights))
    without = components(rescorer.rescore([make_list(context="the")], OFF))
    for text, parts, plain in zip(TEXTS, found, without, strict=True):
        words = tuple(text.split())
        history = HISTORY if rescorer.bundle.reads_previous else ("the",)
        log_probs = reference_mixture(rescorer.models, MIXTURE, words, history)
        if weights.cache:
            log_probs = log_probs_with_cache(log_probs, words, HISTORY, (0.5, 1.0), weights.cache)
        cached = neural_cache_probs(rescorer.models["neural"], words, HISTORY, 0.8, (0.5, 1.0))
        mixed = log_probs_with_neural_cache(log_probs, cached, HISTORY, (0.5, 1.0), 0.3)
        assert parts["mixture"] == pytest.approx(sum(mixed), abs=1e-3)
        assert parts["neural_cache"] == pytest.approx(sum(mixed) - sum(log_probs), abs=1e-3)
        own = parts["neural_cache"] + parts.get("cache", 0.0)
        assert parts["mixture"] == pytest.approx(plain["mixture"] + own, abs=1e-6)
        assert "neural_cache" not in plain


def test_list_without_a_session_is_answered_as_without_the_cache(rescorer):
    for past in (PASTS[0], PASTS[3], (Utterance("<sil>"),)):
        with_cache, without = (rescorer.rescore([make_list(past)], w)[0].hypotheses for w in (WEIGHTS, OFF))
        assert [h.total for h in with_cache] == [h.total for h in without]


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(len(PASTS))), st.integers(1, 40))
def test_answers_do_not_depend_on_company(rescorer, order, max_words):
    alone = [rescorer.rescore([make_list(PASTS[i])])[0] for i in order]
    batched = Rescorer(rescorer.bundle, rescorer.models, max_words)
    assert_same(batched.rescore([make_list(PASTS[i]) for i in order]), alone)


def test_mixtures_for_tuning_include_it(rescorer, bundle, tmp_path):
    lists = [make_list(past) for past in PASTS]
    rows = [WEIGHTS, BOTH, OFF, replace(BOTH, flatness=0.1, mixture={"neural": 1.0})]
    arguments = (
        [w.mixture for w in rows],
        [w.cache for w in rows],
        [(w.neural_cache, w.flatness) for w in rows],
    )
    kept = load_cached_rescorer(bundle, "cpu", tmp_path, pytest.fail)
    for own in (rescorer, kept, kept):  # the last one reads scores from files
        found = own.mixture_log_probs(lists, *arguments)
        for row, weights in zip(found, rows, strict=True):
            expected = [parts["mixture"] for parts in components(rescorer.rescore(lists, weights))]
            assert row == pytest.approx(expected, abs=1e-4)


def test_tuning_tries_it_only_with_sessions(rescorer):
    start = rescorer.ranker.effective_weights(OFF)
    scored, _ = score_lists(rescorer, [replace(make_list(), reference="the dog ran")], start)
    choices = score_mixtures(rescorer, scored, start, ("neural_cache",)).choices
    assert {choice.neural_cache for choice in choices} > {0.0, 0.1}
    assert {choice.cache for choice in choices} == {0.0}
    scored, _ = score_lists(rescorer, [replace(make_list(()), reference="the dog ran")], start)
    assert score_mixtures(rescorer, scored, start, ("neural_cache",)) is None


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.slow
def test_service_agrees_with_the_library(bundle, rescorer, workers):
    lists = [make_list(past) for past in PASTS]
    with run_server(bundle, workers=workers) as server, Client(server.target) as client:
        for weights in (None, WEIGHTS, OFF, BOTH, replace(WEIGHTS, flatness=0.1)):
            assert_same(client.rescore(lists, weights), rescorer.rescore(lists, weights))
        nbest = list_to_proto(make_list())
        with grpc.insecure_channel(server.target) as channel:
            stub = RescorerServiceStub(channel)
            for wrong in ({"neural_cache": 0.6}, {"flatness": -1.0}, {"flatness": 101.0}):
                with pytest.raises(grpc.RpcError) as caught:
                    stub.Rescore(pb.RescoreRequest(lists=[nbest], weights=pb.Weights(**wrong)))
                assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
                assert f"weights.{next(iter(wrong))}" in caught.value.details()


def test_file_agrees_with_the_library(run, bundle, rescorer, tmp_path):
    source, output = tmp_path / "lists.jsonl", tmp_path / "out.jsonl"
    scores = zip(TEXTS, range(-1, -5, -1), strict=True)
    hypotheses = [{"text": text, "scores": {"acoustic": score}} for text, score in scores]
    previous = [{"text": "the dog ran", "speaker": "a", "confidence": 0.5}, "<sil>", "fast zebra ran on"]
    source.write_text(json.dumps({"id": "u", "hypotheses": hypotheses, "previous": previous}) + "\n")
    for options, flatness in (([], 0.8), (["-w", "flatness=0.2"], 0.2)):
        assert run("rescore", source, "-o", output, "--bundle", bundle, *options)[0] == 0
        best = json.loads(output.read_text())["hypotheses"][0]
        expected = rescorer.rescore([make_list()], replace(WEIGHTS, flatness=flatness))[0].best
        assert best["text"] == expected.text
        assert best["components"] == pytest.approx(dict(expected.components), abs=1e-5)


@pytest.mark.parametrize("value", [-0.1, 0.51, float("nan"), float("inf"), 10**400, "x", True, None])
def test_wrong_share_is_named(rescorer, value):
    with pytest.raises(ConfigError, match=r"weights\.neural_cache"):
        parse_weights({"neural_cache": value})
    with pytest.raises(ConfigError, match=r"weights\.neural_cache"):
        rescorer.rescore([make_list()], replace(WEIGHTS, neural_cache=value))


@pytest.mark.parametrize("value", [0, -0.1, 100.1, float("nan"), float("inf"), "x", True, None])
def test_wrong_flatness_is_named(rescorer, value):
    with pytest.raises(ConfigError, match=r"weights\.flatness"):
        parse_weights({"flatness": value})
    with pytest.raises(ConfigError, match=r"weights\.flatness"):
        rescorer.rescore([make_list()], replace(WEIGHTS, flatness=value))


def test_most_extreme_flatness_gives_finite_scores(rescorer):
    answers = rescorer.rescore([make_list()], replace(WEIGHTS, flatness=100.0))
    assert np.isfinite([parts["mixture"] for parts in components(answers)]).all()


def test_mixture_without_a_network_is_refused(rescorer, tmp_path):
    with pytest.raises(ConfigError, match=r"weights\.neural_cache is 0\.3, but no model of the mixture"):
        rescorer.rescore([make_list()], replace(WEIGHTS, mixture={"ngram": 1.0}))
    alone = Rescorer.load(write_bundle(tmp_path, neural=False))
    with pytest.raises(ConfigError, match=r"the bundle has: none"):
        alone.rescore([make_list()], replace(WEIGHTS, mixture={}))


def test_weights_are_kept_by_files_and_older_versions_read_those_without_it():
    assert parse_weights(weights_to_dict(WEIGHTS)) == WEIGHTS
    assert not {"neural_cache", "flatness"} & set(weights_to_dict(replace(OFF, flatness=0.3)))
