"""Probabilities of words from models in pieces of words: sums of at most 1, and those of the slow twin."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.trie import SENTENCE_END, build_trie
from rescorer.units import decoders
from rescorer.units.model import END_RATE
from rescorer.units.prompts import Prompt, list_forms, read_before
from rescorer.units.tokens import find_word_starts
from tests.support.unit_models import (
    END,
    LetterTokenizer,
    MarkedTokenizer,
    unit_model,
)

words = st.sampled_from(["a", "ab", "abc", "b", "on", "abcdefg", "é"])
texts = st.lists(words, max_size=4).map(tuple)
batches = st.lists(st.tuples(texts, st.one_of(st.just(()), texts)), min_size=1, max_size=6)


def score_words_alone(model, config, text, history):
    """ln P of each word of a text and of its end, read alone in float64: the slow twin of ``score_words``."""
    tokenizer, decoder = model.divider.tokenizer, model.scorer.decoder
    ends_word = [unit for unit in range(tokenizer.size) if tokenizer.name(unit).startswith("Ġ")]
    ends_word += [] if config.end is None else [config.end]

    def ln_p(before, unit):
        if not before:
            return -math.log(tokenizer.size)  # any unit may be the first
        vectors = decoder.sequence_vectors(before)[-1:]
        return float(decoder.scores(vectors).log_softmax(dim=1)[0, unit].logsumexp(0))

    def divide(word, is_first):
        return tokenizer.encode([word])[0] if is_first else tokenizer.encode([f"a {word}"])[0][1:]

    said = read_before(model.divider, history, model.prompt)
    before, found = [*config.start, *said.units], []
    boundary = 0.0 if said.begins else ln_p(before, ends_word)
    for number, word in enumerate(text):
        log_prob = -boundary
        for unit in divide(word, said.begins and number == 0):
            log_prob += ln_p(before, [unit])
            before.append(unit)
        boundary = ln_p(before, ends_word)
        found.append(log_prob + boundary + (math.log1p(-END_RATE) if config.end is None else 0.0))
    end = math.log(END_RATE) if config.end is None else ln_p(before, [config.end]) - boundary
    return [*found, end]


def marked_model(name="llama", **options):
    return unit_model(name, tokenizer=MarkedTokenizer(), **options)


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral-window"])
@settings(max_examples=4, deadline=None)
@given(batch=batches, scores_end=st.booleans(), has_start=st.booleans(), columns=st.booleans())
def test_words_are_those_of_one_text_at_a_time(name, batch, scores_end, has_start, columns):
    model, config = marked_model(
        name, end=END if scores_end else None, has_start=has_start, cache_bytes=1 << 16
    )
    hypotheses, contexts = zip(*batch, strict=True)
    trie = build_trie(hypotheses, contexts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoders, "COLUMNS", 16 if columns else 4096)
        scores = model.score_words(trie)
    for row, pair in enumerate(batch):
        found = scores.of_words[trie.path_edges(row)]
        np.testing.assert_allclose(found, score_words_alone(model, config, *pair), atol=1e-4)


@pytest.mark.parametrize("form", list_forms())
def test_words_are_those_of_one_text_after_a_conversation(form):
    model, config = marked_model()
    model.prompt = Prompt.read(form)
    histories = [("on", "a", SENTENCE_END), ("ab", SENTENCE_END, "on", SENTENCE_END, "b"), ()]
    trie = build_trie([("a", "ab")] * 3, histories)
    for row, history in enumerate(histories):
        found = model.score_words(trie).of_words[trie.path_edges(row)]
        np.testing.assert_allclose(found, score_words_alone(model, config, ("a", "ab"), history), atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"end": None}, {"has_start": False}])
@pytest.mark.parametrize("said", [(), ("on", "a")])
def test_over_all_words_they_sum_to_at_most_one(options, said):
    model, _ = marked_model(**options)
    letters = MarkedTokenizer.letters
    every = ["".join(part) for length in (1, 2) for part in product(letters, repeat=length)]
    for context in (said, (*said, "ab")):
        trie = build_trie([(), *((word,) for word in every)], [context] * (len(every) + 1))
        scores = model.score_words(trie)
        n_words = trie.n_nodes - trie.n_roots
        of_words, ends = np.exp(scores.of_words[:n_words]), np.exp(scores.of_words[n_words:])
        assert len(of_words) == len(every)
        assert 0.05 < of_words.sum() + ends[trie.end_nodes == 0].sum() <= 1 + 1e-6


@given(batches)
@settings(max_examples=10, deadline=None)
def test_sums_of_whole_texts_stay(batch):
    model, _ = marked_model()
    trie = build_trie(*zip(*batch, strict=True))
    plain, scores = model.score(trie), model.score_words(trie)
    np.testing.assert_allclose(scores.log_probs, plain.log_probs, atol=1e-5)
    before = np.array([0.0 if not context else np.nan for _, context in batch])
    changed = trie.sum_paths(scores.of_words) - plain.sum_paths(trie)
    known = ~np.isnan(before)
    np.testing.assert_allclose(changed[known], 0.0, atol=1e-5)  # all boundaries cancel out
    assert (changed > -1e-5).all()  # the boundary after the context is given


class Named(LetterTokenizer):
    """A tokenizer with given names of its units; each text is its first unit, or its last if it is rare."""

    def __init__(self, *names):
        self.names, self.size = names, len(names)

    def encode(self, texts):
        return [[0 if word.isascii() else self.size - 1 for word in text.split()] for text in texts]

    def name(self, number):
        return self.names[number]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("Ġthe", "the", "Ċ", ".", "Ġ"), [0, 4]),
        (("▁the", "re", "</s>", "<0xE2>", "▁"), [0, 4]),
        (("▁the", "re", "<unk>"), [0, 2]),  # unknown letters may begin a word
        (("the", "##re", "<unk>"), [0, 2]),
        (("the</w>", "the", "re</w>"), [0, 1, 2]),
        (("the", "th@@", "e"), [0, 1, 2]),
        (("the", "re", "<unk>"), None),
    ],
)
def test_finds_the_units_that_begin_words(names, expected):
    found = find_word_starts(Named(*names))
    assert found is None if expected is None else found.tolist() == expected


@pytest.mark.parametrize("whole", [False, True])
def test_units_without_marks_score_no_words(whole):
    model, _ = unit_model(whole=whole)
    assert not model.scores_words
    assert model.score_words(build_trie([("a",)])).word_log_probs is None
