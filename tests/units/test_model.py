"""Models in pieces of words: scores of tries are those of one text at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.trie import SENTENCE_END, build_trie
from rescorer.units import decoders
from rescorer.units.decoders import Decoder
from rescorer.units.importing import score_alone
from rescorer.units.tokens import (
    MAX_WORD,
    UNREADABLE,
    UnitCounter,
    WordDivider,
    build_unit_trie,
    build_whole_trie,
)
from tests.support.unit_models import PEER_NAMES, START, LetterTokenizer, SentenceTokenizer, unit_model

words = st.sampled_from(["a", "ab", "abc", "b", "on", "abcdefg", "é"])
texts = st.lists(words, max_size=4).map(tuple)
batches = st.lists(st.tuples(texts, st.one_of(st.just(()), texts)), min_size=1, max_size=8)


@pytest.mark.parametrize("name", PEER_NAMES)
@settings(max_examples=4, deadline=None)
@given(batch=batches, scores_end=st.booleans())
def test_scores_of_a_trie_are_those_of_one_text_at_a_time(name, batch, scores_end):
    model, config = unit_model(name, end=2 if scores_end else None, cache_bytes=1 << 16, opening=(5, 6))
    hypotheses, contexts = zip(*batch, strict=True)
    trie = build_trie(hypotheses, contexts)
    for _ in range(2):  # the second time, contexts are cached
        found = model.score(trie).sum_paths(trie)
        expected = [score_alone(model, config, *pair) for pair in batch]
        np.testing.assert_allclose(found, expected, atol=3e-4)


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral-window"])
@settings(max_examples=8, deadline=None)
@given(batch=batches, scores_end=st.booleans())
def test_without_a_start_the_first_unit_is_not_scored(name, batch, scores_end):
    model, config = unit_model(name, end=2 if scores_end else None, cache_bytes=1 << 16, has_start=False)
    hypotheses, contexts = zip(*batch, strict=True)
    trie = build_trie(hypotheses, contexts)
    for _ in range(2):
        found = model.score(trie).sum_paths(trie)
        np.testing.assert_allclose(found, [score_alone(model, config, *pair) for pair in batch], atol=3e-4)


@pytest.mark.parametrize("name", PEER_NAMES)
@settings(max_examples=3, deadline=None)
@given(batch=st.lists(texts.filter(bool), min_size=1, max_size=4))
def test_sequences_that_gradients_flow_through_have_the_scores_of_a_trie(name, batch):
    model, _ = unit_model(name, end=None)
    decoder = model.scorer.decoder
    trainable = Decoder(decoder.config, {name: t.requires_grad_() for name, t in decoder.tensors.items()})
    sequences = [[START, *model.divider.divide_text(words)] for words in batch]
    padded = torch.zeros(len(batch), max(map(len, sequences)), dtype=torch.int64)
    for row, units in zip(padded, sequences, strict=True):
        row[: len(units)] = torch.tensor(units)
    vectors = trainable.batch_vectors(padded)  # (B, T, D)
    log_probs = trainable.scores(vectors[:, :-1]).log_softmax(dim=-1)
    log_probs = log_probs.gather(2, padded[:, 1:, None]).squeeze(2)
    sums = torch.stack([row[: len(units) - 1].sum() for row, units in zip(log_probs, sequences, strict=True)])
    trie = build_trie(batch)
    np.testing.assert_allclose(sums.detach(), model.score(trie).sum_paths(trie), atol=3e-4)
    sums.sum().backward()
    assert all(tensor.grad is not None for tensor in trainable.tensors.values())


@settings(max_examples=30, deadline=None)
@given(batch=batches, scores_end=st.booleans())
def test_texts_that_are_divided_whole_have_the_sums_of_one_text_at_a_time(batch, scores_end):
    model, config = unit_model(end=2 if scores_end else None, whole=True)
    hypotheses, contexts = zip(*batch, strict=True)
    trie = build_trie(hypotheses, contexts)
    scores = model.score(trie)
    expected = [score_alone(model, config, *pair) for pair in batch]
    np.testing.assert_allclose(scores.sum_paths(trie), expected, atol=3e-4)
    without_end = replace(config, end=None)
    expected = [score_alone(model, without_end, *pair) for pair in batch]
    np.testing.assert_allclose(scores.sum_paths(trie, np.ones(len(batch), dtype=bool)), expected, atol=3e-4)


@settings(max_examples=30, deadline=None)
@given(batches)
def test_each_prefix_of_units_is_read_once(batch):
    divider = WordDivider(LetterTokenizer())
    hypotheses, contexts = zip(*batch, strict=True)
    trie = build_trie(hypotheses, contexts)
    units = build_unit_trie(trie, divider).trie
    prefixes = set()
    for hypothesis, context in batch:
        before = len(divider.divide_text(context))
        divided = divider.divide_text((*context, *hypothesis))
        prefixes |= {(context, tuple(divided[before:end])) for end in range(before, len(divided) + 1)}
    assert units.n_nodes == len(prefixes) + len(set(contexts) - {context for context, _ in prefixes})
    for number, (hypothesis, context) in enumerate(batch):
        path = [int(units.words[i]) for i in units.edge_word[units.path_edges(number)][:-1]]
        assert divider.divide_text(context) + path == divider.divide_text((*context, *hypothesis))


@settings(max_examples=30, deadline=None)
@given(batch=batches, whole=st.booleans())
def test_counts_at_least_the_pieces_that_are_read(batch, whole):
    divider = WordDivider(LetterTokenizer(), whole=whole)
    hypotheses, context = [text for text, _ in batch], batch[0][1]
    counted = UnitCounter(divider, 3).count(hypotheses, context)
    trie = build_trie(hypotheses, [context] * len(hypotheses))
    build = build_whole_trie if whole else build_unit_trie
    units = build(trie, divider, (5, 6)).trie
    assert counted.total >= units.n_nodes - 1
    texts = [divider.divide_text((*context, *text)) for text in hypotheses]
    for text, units in zip(hypotheses, texts, strict=True):
        assert counted.lengths[text] >= len(units) + 3


@pytest.mark.parametrize("whole", [False, True])
def test_of_a_word_that_is_too_long_only_the_beginning_is_divided(whole):
    """A word of 4 MB was divided before its list was refused."""

    class Recorder(LetterTokenizer):
        def encode(self, texts):
            assert all(len(text) <= 2 * MAX_WORD for text in texts)
            return super().encode(texts)

    divider, long = WordDivider(Recorder(), whole=whole), "a" * 4_000_000
    counted = UnitCounter(divider).count([("on", long), ("on",)])
    assert [counted.lengths[text] == UNREADABLE for text in (("on", long), ("on",))] == [True, False]
    counted = UnitCounter(divider).count([("on",)], (long,))
    assert counted.lengths[("on",)] == UNREADABLE
    build = build_whole_trie if whole else build_unit_trie
    assert build(build_trie([("on", long)]), divider).trie.n_nodes <= MAX_WORD + 4


def test_pieces_of_long_texts_cost_more():
    counter = UnitCounter(WordDivider(LetterTokenizer()))
    short, long = (counter.count([("on",) * n]).total for n in (100, 10_000))
    assert 100 < short < 400
    assert long > 900 * short


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_units_beyond_the_positions_of_a_model_are_not_computed(name):
    model, config = unit_model(name)  # which has 40 positions
    texts = [("ab", "on"), ("on", "é" * 4000), ("on", "b")]
    trie = build_trie(texts)
    found = model.score(trie).sum_paths(trie)
    for number in (0, 2):
        assert found[number] == pytest.approx(score_alone(model, config, texts[number]), abs=1e-4)
    units = build_unit_trie(trie, model.divider).trie
    ids = np.array([*map(int, units.words), 0])
    vectors, _ = model.scorer._read(units, ids)
    assert len(vectors) < 50


def test_scores_of_words_sum_to_those_of_texts():
    model, config = unit_model()
    trie = build_trie([("ab", "on"), ("ab", "abcdefg", "on")])
    scores = model.score(trie)
    words = scores.log_probs[trie.path_edges(1)]
    assert len(words) == 4  # three words and the end
    assert words.sum() == pytest.approx(score_alone(model, config, ("ab", "abcdefg", "on")), abs=1e-4)
    assert words[0] == pytest.approx(scores.log_probs[trie.path_edges(0)][0])
    assert not scores.unknown.any()


def test_previous_utterances_are_not_read():
    model, _ = unit_model()
    said = ("on", SENTENCE_END, "ab")
    with_past, without = (build_trie([("abc",)], [context]) for context in (said, ("ab",)))
    np.testing.assert_allclose(model.score(with_past).log_probs, model.score(without).log_probs, atol=1e-5)


def test_encodings_are_means_of_the_vectors_of_units():
    model, _ = unit_model()
    trie = build_trie([("ab", "on"), ()])
    found = model.score(trie, {"r": np.eye(model.vector_size)}).encodings["r"]
    decoder = model.scorer.decoder
    units = torch.tensor([START, *model.divider.divide_text(("ab", "on"))])
    assert found.shape == (2, model.vector_size)
    expected = decoder.sequence_vectors(units.tolist()).mean(dim=0)
    np.testing.assert_allclose(found[0], expected.numpy(), atol=1e-4)


def test_finds_texts_whose_words_are_not_divided_by_themselves():
    texts = [("ab", "on"), ("abc", "on")]
    assert WordDivider(LetterTokenizer()).find_inseparable(texts) is None
    assert WordDivider(SentenceTokenizer()).find_inseparable(texts) in texts


@pytest.mark.parametrize("has_bias", [False, True])
def test_scores_of_many_units_are_computed_by_columns(monkeypatch, has_bias):
    monkeypatch.setattr(decoders, "COLUMNS", 7)
    monkeypatch.setattr(decoders, "ROWS", 4)
    random = torch.Generator().manual_seed(1)
    tensors = {"embedding.weight": torch.randn(61, 8, generator=random)}
    if has_bias:
        tensors["output.bias"] = torch.randn(61, generator=random)
    network = decoders.UnitNetwork(tensors)
    vectors = torch.randn(10, 8, generator=random)
    rows, units = torch.arange(30) % 10, torch.arange(30) * 2
    expected = network.scores(vectors.double()).log_softmax(dim=1)[rows, units]
    torch.testing.assert_close(network.log_probs(vectors, rows, units), expected, atol=1e-5, rtol=0)
