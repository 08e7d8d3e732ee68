"""N-grams of classes and n-grams with a gap: equal to Katz's recursion over classes and gapped contexts."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.models.kernels import TorchArrays
from rescorer.models.ngram_files import read_ngram
from rescorer.models.ngrams import LN_10, ClassMembers, TableNgram
from rescorer.trie import build_trie
from tests.support.random_ngrams import WORDS, Orders, katz_log10_probs, random_orders, write_random_arpa
from tests.support.reference_scorer import reference_log_probs

MEMBERS = [f"w{i}" for i in range(9)]
"""Words in classes, whose names are ``WORDS``."""
texts = st.lists(st.sampled_from((*MEMBERS, *WORDS, "nobody", "<unk>", "<s>", "</s>")), max_size=9).map(tuple)
batches = st.lists(st.tuples(texts, texts), min_size=1, max_size=8)
seeds = st.integers(0, 10**6)


def load(orders: Orders, **content) -> TableNgram:
    with tempfile.TemporaryDirectory() as folder:
        model = read_ngram(write_random_arpa(Path(folder) / "m.arpa", orders))
    return TableNgram(model.content._replace(**content))


def draw_members(seed: int, names: tuple[str, ...]) -> tuple[ClassMembers, dict[str, tuple[str, float]]]:
    """Draw the class and log10 P(word | class) of each word; also as a dictionary."""
    random = np.random.default_rng(seed)
    classes = random.choice([names.index(word) for word in WORDS], size=len(MEMBERS)).astype(np.int32)
    log10_probs = -random.exponential(size=len(MEMBERS)).astype(np.float32)
    plain = {
        word: (names[number], float(value))
        for word, number, value in zip(MEMBERS, classes, log10_probs, strict=True)
    }
    return ClassMembers(tuple(MEMBERS), classes, log10_probs), plain


@settings(max_examples=20, deadline=None)
@given(seeds, st.integers(1, 5), st.integers(0, 3), st.booleans(), batches)
def test_scores_equal_katz_over_classes_and_a_gap(seed, order, skip, has_classes, batch):
    orders = random_orders(seed, order)
    model, plain = load(orders, skip=skip), {word: (word, 0.0) for word in WORDS}
    if has_classes:
        members, plain = draw_members(seed, model.content.unit_names)
        model = TableNgram(model.content._replace(members=members))
    hypotheses, contexts = zip(*batch, strict=True)
    trie = build_trie(hypotheses, contexts)
    log_probs = model.score(trie).log_probs
    for i, (words, context) in enumerate(batch):
        units = [[plain.get(word, ("<unk>", 0.0)) for word in text] for text in (words, context)]
        names = [tuple(name for name, _ in text) for text in units]
        within = np.array([*(value for _, value in units[0]), 0.0])
        expected = np.array(katz_log10_probs(orders, *names, skip)) + within
        found = log_probs[trie.path_edges(i)]
        np.testing.assert_allclose(found / LN_10, expected, rtol=1e-6, atol=1e-5)
        np.testing.assert_allclose(found, reference_log_probs(model, words, context), rtol=1e-6, atol=1e-5)
        if words:
            after = model.next_log_probs((*context, *words[:-1]), [words[-1]])
            if words[-1] not in ("<s>", "</s>"):  # as the next word, </s> ends the sentence
                np.testing.assert_allclose(after, found[len(words) - 1], rtol=1e-6, atol=1e-5)


@settings(max_examples=10, deadline=None)
@given(seeds, st.integers(2, 4), st.integers(0, 2), batches)
def test_torch_gives_the_same_scores(seed, order, skip, batch):
    model = load(random_orders(seed, order), skip=skip)
    moved = TableNgram(model.content._replace(table=model.table.to(TorchArrays("cpu"))))
    trie = build_trie(*zip(*batch, strict=True))
    np.testing.assert_array_equal(moved.score(trie).log_probs, model.score(trie).log_probs)


def test_words_of_a_class_differ_by_their_share_of_it():
    model = load(random_orders(1, 3))
    names = model.content.unit_names
    shares = np.log10(np.array([0.2, 0.8, 1.0], np.float32))
    members = ClassMembers(("x", "y", "z"), np.array([names.index(word) for word in "aab"], np.int32), shares)
    model = TableNgram(model.content._replace(members=members))
    assert model.vocabulary() == {"x", "y", "z"}
    log_probs = model.unigram_log_probs(["x", "y", "a"])
    assert np.exp(log_probs[1] - log_probs[0]) == pytest.approx(4)
    assert model.log_share("a") == 0.0  # </s> and <unk> have no share until one is given
    trie = build_trie([("x",), ("a",)])
    assert model.score(trie).unknown[[trie.path_edges(i)[0] for i in (0, 1)]].tolist() == [False, True]
