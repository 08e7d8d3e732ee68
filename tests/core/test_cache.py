"""The cache of a session in rescoring: equal to its slow twin on every way in; nothing where it is off."""

from __future__ import annotations

import json
from dataclasses import replace

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer import ConfigError, Hypothesis, InvalidList, NBestList, Phrase, Rescorer, Utterance, Weights
from rescorer.client import Client
from rescorer.formats.jsonlines import read_lists
from rescorer.protocol.messages import list_to_proto
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub
from rescorer.trie import SENTENCE_END
from rescorer.weights import KnownNames, check_weights, parse_weights, weights_to_dict
from tests.support.reference_scorer import reference_mixture
from tests.support.servers import run_server
from tests.support.session_cache_twin import log_probs_with_cache
from tests.support.tiny_models import write_bundle
from tests.support.tiny_rerankers import random_reranker

TEXTS = ("the cat sat", "the dog ran", "on the mat", "")
WEIGHTS = Weights("w", {"acoustic": 1.0}, {"mixture": 0.5}, mixture={"ngram": 0.5, "neural": 0.5}, cache=0.3)
OFF = replace(WEIGHTS, cache=0.0)
PREVIOUS = (Utterance("the dog ran", "a", 0.5), Utterance("<sil>"), Utterance("fast dog ran on"))
PASTS = ((), PREVIOUS, (Utterance("the dog ran"), *PREVIOUS[1:]), (Utterance("mat", confidence=0.0),))
HISTORY = ("the", "dog", "ran", SENTENCE_END, "fast", "dog", "ran", "on", SENTENCE_END, "the")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return write_bundle(tmp_path_factory.mktemp("bundle"), replace(WEIGHTS, name="default"))


@pytest.fixture(scope="module")
def rescorer(bundle):
    return Rescorer.load(bundle)


def make_list(previous=PREVIOUS, context: str = "", id: str = "u") -> NBestList:
    scores = {"acoustic": (-1.0, -2.0, -3.0, -4.0)}
    return NBestList(id, tuple(map(Hypothesis, TEXTS)), scores, context, previous=tuple(previous))


def by_text(answer):
    return {hypothesis.text: hypothesis for hypothesis in answer.hypotheses}


def test_mixture_is_interpolated_with_the_cache(rescorer):
    found, without = (by_text(rescorer.rescore([make_list(context="the")], w)[0]) for w in (WEIGHTS, OFF))
    for text in TEXTS:
        words, components = tuple(text.split()), found[text].components
        plain = reference_mixture(rescorer.models, WEIGHTS.mixture, words, ("the",))
        expected = sum(log_probs_with_cache(plain, words, HISTORY, (0.5, 1.0), 0.3))
        assert components["mixture"] == pytest.approx(expected, abs=1e-4)
        before = without[text].components
        assert components["cache"] == pytest.approx(components["mixture"] - before["mixture"], abs=1e-6)
        assert components["ngram"] == before["ngram"]  # models alone do not change
        assert "cache" not in before
        assert found[text].total == pytest.approx(without[text].total + 0.5 * components["cache"], abs=1e-6)
    assert found["the dog ran"].components["cache"] > 0 > found["on the mat"].components["cache"]


def test_list_without_a_session_is_answered_as_without_the_cache(rescorer):
    def answer(weights, *previous):
        return rescorer.rescore([make_list(previous)], weights)[0].hypotheses

    assert answer(WEIGHTS) == answer(OFF)
    assert answer(WEIGHTS, Utterance("<sil>")) == answer(OFF)
    assert answer(WEIGHTS, *PREVIOUS) != answer(OFF)


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(len(PASTS))), st.integers(1, 40))
def test_answers_do_not_depend_on_company(rescorer, order, max_words):
    alone = [rescorer.rescore([make_list(past)])[0] for past in PASTS]
    batched = Rescorer(rescorer.bundle, rescorer.models, max_words)
    for i, answer in zip(order, batched.rescore([make_list(PASTS[i]) for i in order]), strict=True):
        assert [h.text for h in answer.hypotheses] == [h.text for h in alone[i].hypotheses]
        for hypothesis, other in zip(answer.hypotheses, alone[i].hypotheses, strict=True):
            assert hypothesis.components == pytest.approx(dict(other.components), abs=1e-4)


def test_mixtures_for_tuning_include_it(rescorer):
    lists = [make_list(past) for past in PASTS]
    shares, caches = [WEIGHTS.mixture, {"ngram": 1.0}, WEIGHTS.mixture], [WEIGHTS.cache, 0.1, 0.0]
    found = rescorer.mixture_log_probs(lists, shares, caches)
    for row, mixture, cache in zip(found, shares, caches, strict=True):
        answers = rescorer.rescore(lists, replace(WEIGHTS, mixture=mixture, cache=cache))
        expected = [by_text(answer)[text].components["mixture"] for answer in answers for text in TEXTS]
        assert row == pytest.approx(expected, abs=1e-4)


def test_unknown_word_of_a_phrase_is_known_to_the_mixture_that_the_cache_joins(rescorer):
    """Being said before and being in a phrase do not count twice."""
    nbest = NBestList("u", (Hypothesis("nobody"),), {"acoustic": (0.0,)}, phrases=(Phrase("nobody"),))
    (word, end) = rescorer.score_text(["nobody"])[0].log_probs["mixture"]
    phrase = rescorer.rescore([nbest], OFF)[0].best.components["mixture"] - end
    assert phrase > word
    said = replace(nbest, previous=(Utterance("nobody"),))
    found = rescorer.rescore([said], WEIGHTS)[0].best.components
    expected = log_probs_with_cache((phrase, end), ("nobody",), ("nobody", SENTENCE_END), (), 0.3)
    assert found["mixture"] == pytest.approx(sum(expected), abs=1e-4)
    assert found["cache"] == pytest.approx(sum(expected) - phrase - end, abs=1e-4)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.slow
def test_service_agrees_with_the_library(bundle, rescorer, workers):
    lists = [make_list(past) for past in PASTS]
    with run_server(bundle, workers=workers) as server, Client(server.target) as client:
        for weights in (None, WEIGHTS, OFF, replace(WEIGHTS, cache=0.1)):
            answers, expected = client.rescore(lists, weights), rescorer.rescore(lists, weights)
            for found, same in zip(answers, expected, strict=True):
                assert found.weights.cache == same.weights.cache
                for hypothesis, other in zip(found.hypotheses, same.hypotheses, strict=True):
                    assert hypothesis.text == other.text
                    assert hypothesis.components == pytest.approx(dict(other.components), abs=1e-4)


def test_file_agrees_with_the_library(run, bundle, rescorer, tmp_path):
    source, output = tmp_path / "lists.jsonl", tmp_path / "out.jsonl"
    hypotheses = [
        {"text": t, "scores": {"acoustic": s}} for t, s in zip(TEXTS, range(-1, -5, -1), strict=True)
    ]
    previous = [{"text": "the dog ran", "speaker": "a", "confidence": 0.5}, "<sil>", "fast dog ran on"]
    source.write_text(json.dumps({"id": "u", "hypotheses": hypotheses, "previous": previous}) + "\n")
    for options, weights in (([], WEIGHTS), (["-w", "cache=0.1"], replace(WEIGHTS, cache=0.1))):
        assert run("rescore", source, "-o", output, "--bundle", bundle, *options)[0] == 0
        written = json.loads(output.read_text())
        (expected,) = rescorer.rescore([make_list()], weights)
        assert written["previous"] == previous
        assert [h["text"] for h in written["hypotheses"]] == [h.text for h in expected.hypotheses]
        assert written["hypotheses"][0]["components"] == pytest.approx(
            dict(expected.best.components), abs=1e-5
        )


@pytest.mark.parametrize("value", [-0.1, 0.51, float("nan"), float("inf"), 10**400, "x", True, None])
def test_wrong_share_is_named(rescorer, value):
    with pytest.raises(ConfigError, match=r"weights\.cache"):
        parse_weights({"cache": value})
    with pytest.raises(ConfigError, match=r"weights\.cache"):
        rescorer.rescore([make_list()], replace(WEIGHTS, cache=value))


def test_share_is_kept_by_files_and_older_versions_read_weights_without_one():
    assert parse_weights(weights_to_dict(WEIGHTS)) == WEIGHTS
    assert "cache" not in weights_to_dict(OFF)


@pytest.mark.parametrize("confidence", [-0.1, 1.5, float("nan"), float("inf"), 10**400])
def test_wrong_confidence_is_named_and_other_lists_rescored(rescorer, tmp_path, confidence):
    lines = [
        {"id": id, "hypotheses": [{"text": "a", "scores": {"acoustic": 0}}], "previous": previous}
        for id, previous in (("bad", ["a", {"text": "b", "confidence": confidence}]), ("good", ["a"]))
    ]
    (tmp_path / "lists.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    items = list(read_lists(tmp_path / "lists.jsonl"))
    error, good = rescorer.rescore_each(items) if isinstance(items[0], NBestList) else items
    assert isinstance(error, InvalidList)
    assert (error.list_id, good.id) == ("bad", "good")
    assert "previous[1].confidence" in str(error) or "line 1" in str(error)  # NaN and infinity are not JSON


@pytest.mark.slow
def test_service_names_wrong_values(bundle):
    nbest = list_to_proto(make_list([Utterance("a"), Utterance("b", confidence=2.0)]))
    with run_server(bundle) as server, grpc.insecure_channel(server.target) as channel:
        stub = RescorerServiceStub(channel)
        answer = stub.Rescore(pb.RescoreRequest(lists=[nbest, list_to_proto(make_list())]))
        assert "previous[1].confidence" in answer.lists[0].status.message
        assert len(answer.lists[1].hypotheses) == len(TEXTS)
        for share in (float("nan"), -1.0, 0.6):
            with pytest.raises(grpc.RpcError) as caught:
                stub.Rescore(pb.RescoreRequest(lists=[nbest], weights=pb.Weights(cache=share)))
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "weights.cache" in caught.value.details()


def test_stream_cannot_have_the_name_of_the_component(rescorer):
    nbest = replace(make_list(), streams={"cache": (0.0,) * 4})
    with pytest.raises(InvalidList, match="reserved"):
        rescorer.rescore([nbest], Weights("w", {}, {"mixture": 1.0}))


def test_mixture_of_backward_models_cannot_have_a_cache():
    weights = Weights("w", mixture={"back": 1.0}, cache=0.1)
    with pytest.raises(ConfigError, match=r"weights\.cache is 0\.1, but .* backward"):
        check_weights(weights, KnownNames(["ngram", "back"], backward={"back"}))
    check_weights(replace(weights, mixture={"ngram": 1.0}), KnownNames(["ngram", "back"], backward={"back"}))


def test_reranker_needs_the_cache_that_it_was_trained_with():
    reranker = random_reranker("r", WEIGHTS)
    weights = replace(WEIGHTS, rerankers={"r": 1.0})
    check_weights(weights, KnownNames(["ngram", "neural"], {"r": reranker}))
    with pytest.raises(ConfigError, match=r"have the cache 0, but reranker 'r' was trained with 0\.3"):
        check_weights(replace(weights, cache=0.0), KnownNames(["ngram", "neural"], {"r": reranker}))
