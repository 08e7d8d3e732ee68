"""Scores of n-gram tables: equal to KenLM's and to Katz's recursion, with NumPy and torch."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.errors import BundleError
from rescorer.models.kernels import TorchArrays
from rescorer.models.ngram_files import read_ngram
from rescorer.models.ngrams import LN_10, TableNgram
from rescorer.trie import build_trie
from tests.conftest import REPOSITORY
from tests.support.kenlm_twin import needs_kenlm, open_twin
from tests.support.random_ngrams import WORDS, katz_log10_probs, random_orders, write_random_arpa
from tests.support.reference_scorer import reference_log_probs
from tests.support.tiny_models import write_arpa

GOLDEN = REPOSITORY / "tests" / "golden" / "kneser-ney"
TEXT_WORDS = (*WORDS, "nobody", "<unk>", "<s>", "</s>", "<UNK>")
texts = st.lists(st.sampled_from(TEXT_WORDS), max_size=9).map(tuple)
batches = st.lists(st.tuples(texts, texts), min_size=1, max_size=10)
seeds = st.integers(0, 10**6)
orders_of_models = st.integers(1, 6)


def load(orders, **options) -> TableNgram:
    with tempfile.TemporaryDirectory() as folder:
        return read_ngram(write_random_arpa(Path(folder) / "m.arpa", orders, **options))


@needs_kenlm
@settings(max_examples=150, deadline=None)
@given(seeds, st.integers(2, 6), batches, st.booleans())
def test_scores_equal_kenlm(seed, order, batch, unknown):
    orders = random_orders(seed, order, unknown=unknown)
    with tempfile.TemporaryDirectory() as folder:
        path = write_random_arpa(Path(folder) / "m.arpa", orders)
        ours, twin = read_ngram(path), open_twin(path, frozenset(WORDS))
    assert ours.order == twin.order == order
    assert ours.vocabulary() == twin.vocabulary()
    trie = build_trie(*zip(*batch, strict=True))
    found, expected = ours.score(trie), twin.score(trie)
    np.testing.assert_array_equal(found.unknown, expected.unknown)
    np.testing.assert_allclose(found.log_probs / LN_10, expected.log_probs / LN_10, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(found.log_probs, expected.log_probs)  # even to the last bit
    context, words = batch[0]
    np.testing.assert_array_equal(ours.next_log_probs(context, words), twin.next_log_probs(context, words))
    np.testing.assert_array_equal(ours.unigram_log_probs(words), twin.unigram_log_probs(words))


def golden_sentences() -> list[str]:
    return (GOLDEN / "text.txt").read_text().splitlines()


def demo_sentences() -> list[str]:
    lines = (REPOSITORY / "demo" / "sentences.tsv").read_text().splitlines()[1:]
    return [line.split("\t")[2] for line in lines]


FIXTURES = {
    "listed": (lambda folder: GOLDEN / "listed.arpa", golden_sentences),
    "cutoffs": (lambda folder: GOLDEN / "cutoffs.arpa", golden_sentences),
    "tiny": (write_arpa, lambda: ["the cat sat on the mat", "the zebra"]),
    "starter": (
        lambda folder: REPOSITORY / "models" / "starter" / "1" / "ngram" / "model.arpa.gz",
        demo_sentences,
    ),
}
"""ARPA files of the repository, and sentences with n-grams of every order in them."""


@needs_kenlm
@pytest.mark.parametrize("name", FIXTURES)
def test_scores_of_fixtures_equal_kenlm(tmp_path, name):
    path, sentences = FIXTURES[name][0](tmp_path), FIXTURES[name][1]()
    ours = read_ngram(path)
    known, random = sorted(ours.vocabulary()), np.random.default_rng(0)
    texts = [tuple(sentence.split()) for sentence in sentences]
    texts += [tuple(random.choice(known, size=8).tolist()) for _ in range(50)]
    texts += [("qqq", *text[::2], "<unk>", text[-1]) for text in texts[:20]]
    halves = [(text[len(text) // 2 :], text[: len(text) // 2]) for text in texts]
    trie = build_trie(*zip(*((text, ()) for text in texts), *halves, strict=True))
    found, expected = ours.score(trie), open_twin(path, ours.vocabulary()).score(trie)
    np.testing.assert_array_equal(found.unknown, expected.unknown)
    np.testing.assert_allclose(found.log_probs / LN_10, expected.log_probs / LN_10, rtol=0, atol=1e-5)


@settings(max_examples=50, deadline=None)
@given(seeds, orders_of_models, batches, st.booleans(), st.booleans(), st.booleans())
def test_scores_equal_katz(seed, order, batch, unknown, gaps, without_zeros):
    """Also where contexts are missing, which KenLM rejects, and at order 1."""
    orders = random_orders(seed, order, unknown=unknown, gaps=gaps)
    model = load(orders, without_zeros=without_zeros)
    hypotheses, contexts = zip(*batch, strict=True)
    trie = build_trie(hypotheses, contexts)
    log_probs = model.score(trie).log_probs
    for i, (words, context) in enumerate(batch):
        expected = np.array(katz_log10_probs(orders, words, context))
        found = log_probs[trie.path_edges(i)]
        np.testing.assert_allclose(found / LN_10, expected, rtol=1e-6, atol=1e-5)  # float32 sums of -100
        np.testing.assert_allclose(found, reference_log_probs(model, words, context), rtol=1e-6, atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(seeds, orders_of_models, batches)
def test_torch_gives_the_same_scores(seed, order, batch):
    model = load(random_orders(seed, order))
    table = model.table.to(TorchArrays("cpu"))
    moved = TableNgram(model.content._replace(table=table))
    trie = build_trie(*zip(*batch, strict=True))
    np.testing.assert_array_equal(moved.score(trie).log_probs, model.score(trie).log_probs)


def test_unknown_words_share_the_probability_of_unk(tmp_path):
    model = read_ngram(write_arpa(tmp_path))
    model.share_unknown({"dog": math.log(0.25)}, math.log(0.5))
    trie = build_trie([("dog",), ("the",), ("cow",)])
    scores = model.score(trie)
    dog, the, cow = (trie.path_edges(i)[0] for i in range(3))
    assert scores.unknown[[dog, the, cow]].tolist() == [True, False, True]
    unk = (-0.3 - 1.2) * LN_10
    assert scores.log_probs[[dog, cow]] == pytest.approx(
        [unk + math.log(0.25), unk + math.log(0.5)], abs=1e-5
    )


def test_a_binary_needs_kenlm(tmp_path, monkeypatch):
    from tests.support.hostile_bundles import KENLM_BINARY

    path = tmp_path / "m.bin"
    path.write_bytes(KENLM_BINARY)
    monkeypatch.setitem(__import__("sys").modules, "kenlm", None)
    with pytest.raises(BundleError, match=r"rescorer\[kenlm\]"):
        read_ngram(path, words=frozenset("a"))
