"""Encodings of words: components keep what varies in lists, and exported networks score as in training."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.client import Client
from rescorer.evaluation.error_analysis import encode_words, explain_list
from rescorer.evaluation.scored_lists import score_lists
from rescorer.extensions import used_rerankers
from rescorer.models.bundle import read_bundle
from rescorer.pipeline import Rescorer
from rescorer.reranking.networks import PerceptronSizes, TransformerSizes
from rescorer.text import Normaliser
from rescorer.trie import WordEncoder
from rescorer.types import Hypothesis, NBestList, Weights
from rescorer.units.importing import import_model, read_huggingface
from rescorer_training.recipe.bundles import BundleParts, make_bundle
from rescorer_training.reranker import arrays as arrays_module
from rescorer_training.reranker import fitting, training
from rescorer_training.reranker.arrays import (
    WITH_ENCODING,
    Candidate,
    compress_encoding,
    encode_lists,
    find_components,
)
from rescorer_training.reranker.training import (
    TrainingLists,
    compare_rules,
    publish_with_reranker,
    train_reranker,
)
from tests.support.servers import run_server
from tests.support.tiny_models import write_arpa
from tests.support.tiny_rerankers import random_ensemble
from tests.support.unit_models import write_letter_model

N_FEATURES, VECTOR_SIZE = 3, 12


@st.composite
def networks(draw):
    """Networks of all kinds over three features and some components of context vectors."""
    size, members = draw(st.integers(1, VECTOR_SIZE)), draw(st.integers(1, 3))
    units = draw(st.integers(0, 3))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    inputs = N_FEATURES + size
    transformer, perceptron = TransformerSizes(inputs, 0, 1, 4, 2, 3), PerceptronSizes(inputs, 0, units)
    ensemble = random_ensemble(transformer if draw(st.booleans()) else perceptron, members, random)
    return ensemble, WordEncoder("neural", random.normal(size=(VECTOR_SIZE, size))), random


@given(networks())
def test_exported_networks_score_as_in_training(problem):
    ensemble, encoder, random = problem
    x, vectors = random.normal(size=(5, N_FEATURES)), random.normal(size=(5, VECTOR_SIZE))
    compressed, short = compress_encoding(ensemble, encoder)
    expected = ensemble.score(np.hstack([x, vectors @ encoder.projection]))
    found = compressed.score(x, vectors @ short.projection)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    assert compressed.sizes.encoding == short.projection.shape[1] <= encoder.projection.shape[1]


@given(st.integers(1, 8), st.integers(2, 20), st.integers(0, 99))
def test_components_are_uncorrelated_and_vary_by_1_on_average(size, n, seed):
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(n, size)) @ random.normal(size=(size, size))
    vectors = np.hstack([vectors - vectors.mean(axis=0), np.zeros((n, 2))])
    projection = find_components(vectors)
    components = vectors @ projection
    covariance = components.T @ components / n
    assert np.diag(covariance).mean() == pytest.approx(1.0)
    np.testing.assert_allclose(covariance, np.diag(np.diag(covariance)), atol=1e-6)
    assert projection.shape[1] == np.linalg.matrix_rank(vectors, tol=1e-4 * np.abs(vectors).max())


def test_vectors_that_do_not_vary_have_no_components():
    assert find_components(np.zeros((5, 3))).shape == (3, 0)


WORDS = ("the", "cat", "sat", "on", "mat", "dog")


def make_lists(n_lists: int = 48) -> list[NBestList]:
    random = np.random.default_rng(5)
    lists = []
    for number in range(n_lists):
        reference = random.choice(WORDS, 5)
        texts = []
        for _ in range(4):
            text = reference.copy()
            text[random.integers(5, size=random.integers(0, 4))] = random.choice(WORDS)
            texts.append(Hypothesis(" ".join(text)))
        scores = {"acoustic": tuple(random.normal(size=4).tolist())}
        group, words = f"g{number % 12}", " ".join(reference)
        lists.append(NBestList(f"u{number}", tuple(texts), scores, reference=words, group=group))
    return lists


@pytest.fixture(scope="module")
def llm_bundle(tmp_path_factory):
    """A bundle of an n-gram and an imported model in pieces of words."""
    pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("llm")
    import_model(read_huggingface(write_letter_model(folder / "llama")), folder / "units", [("the", "cat")])
    (folder / "valid.txt").write_text("the cat sat\n")
    weights = Weights("default", {"acoustic": 1.0}, {"mixture": 0.1})
    parts = BundleParts(
        "toy", 1, {"ngram": write_arpa(folder)}, {}, Normaliser(), weights, folder / "valid.txt", {},
        {"llm": folder / "units"},
    )  # fmt: skip
    make_bundle(parts, folder / "toy" / "1")
    return folder / "toy" / "1"


@pytest.mark.parametrize(
    ("bundle_name", "n_hidden", "n_layers"),
    [("bundle", 0, 0), ("bundle", 2, 0), ("bundle", 0, 1), ("llm_bundle", 0, 0)],
)
def test_published_rerankers_score_as_in_training(
    bundle_name, request, tmp_path, monkeypatch, n_hidden, n_layers
):
    bundle, model = request.getfixturevalue(bundle_name), "llm" if bundle_name == "llm_bundle" else "neural"
    candidate = Candidate(WITH_ENCODING, "expected errors", 1.0, n_hidden, n_layers, members=2)
    monkeypatch.setattr(fitting, "N_EPOCHS", 2)
    monkeypatch.setattr(training, "make_candidates", lambda *_, **__: (candidate,))
    monkeypatch.setattr(arrays_module, "MIN_LISTS_FOR_NETWORKS", 20)
    fitted = []
    compress = training.compress_encoding
    monkeypatch.setattr(training, "compress_encoding", lambda *a: fitted.append(a[0]) or compress(*a))
    rescorer, lists = Rescorer.load(bundle), make_lists()
    base = rescorer.ranker.effective_weights(rescorer.bundle.weights["default"])
    scored, _ = score_lists(rescorer, lists, base)
    own = TrainingLists(scored, base, list(rescorer.models))
    encoded = encode_lists(rescorer, lists)
    rules = compare_rules(own, rescorer)
    reranker, report = train_reranker(own, rules, "words", encoded=encoded)
    assert f"encoding:{model}" in {weight.name for weight in report.weights}
    publish_with_reranker(rescorer.bundle, reranker, "", tmp_path / "mine" / "1")
    published = Rescorer.load(tmp_path / "mine" / "1")
    answers = published.rescore(lists, read_bundle(tmp_path / "mine" / "1").weights["words"])
    arrays = training.compute_features(own)[1]
    arrays = encoded.append_to(arrays)
    for answer, (begin, end) in zip(answers, pairwise(arrays.offsets.tolist()), strict=True):
        expected = fitted[0].score(arrays.x[begin:end])
        totals = {h.original_rank: h.total for h in answer.hypotheses}
        found = np.array([totals[k] for k in sorted(totals)])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    if model == "llm":
        check_elsewhere(tmp_path / "mine" / "1", lists, answers)


def check_elsewhere(folder, lists, answers):
    """A server and explanations have the scores of a reranker that the library has."""
    expected = [{h.original_rank: h.total for h in answer.hypotheses} for answer in answers]
    with run_server(folder) as server, Client(server.target) as client:
        for answer, totals in zip(client.rescore(lists, "words"), expected, strict=True):
            assert {h.original_rank: h.total for h in answer.hypotheses} == pytest.approx(totals, abs=1e-4)
    rescorer = Rescorer.load(folder)
    weights = rescorer.bundle.weights["words"]
    scored, _ = score_lists(rescorer, lists, weights)
    rerankers = used_rerankers(rescorer.bundle, weights)
    encodings = encode_words(rescorer, lists, rerankers)
    for item, encoding, totals in zip(scored, encodings, expected, strict=True):
        for candidate in explain_list(item, weights, rerankers, encoding).best:
            parts = candidate.features["reranker:words"]
            assert "encoding:llm" in parts
            total = totals[candidate.first_pass_rank - 1]
            assert sum(part.term for part in parts.values()) == pytest.approx(total, abs=1e-4)


def test_encodes_by_networks_and_only_many_lists(bundle, ngram_bundle, monkeypatch):
    lists = make_lists(20)
    assert encode_lists(Rescorer.load(bundle), lists) is None
    monkeypatch.setattr(arrays_module, "MIN_LISTS_FOR_NETWORKS", 20)
    assert encode_lists(Rescorer.load(ngram_bundle), lists) is None
    encoded = encode_lists(Rescorer.load(bundle), lists)
    centred = np.concatenate([part - part.mean(axis=0) for part in encoded.encodings])
    assert (centred**2).mean() == pytest.approx(1.0, abs=1e-3)
    assert encoded.names[0] == "encoding:neural:0"
