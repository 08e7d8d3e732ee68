"""All ways to divide a word into pieces, and the sum of their probabilities."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.unit_models import END, MarkedTokenizer, unit_model
from tools.segmentations import draw_words, list_ways, measure, spell_pieces


def test_lists_the_ways_with_the_fewest_pieces_first():
    pieces = {"Ġa": 0, "b": 1, "Ġab": 2, "c": 3, "bc": 4, "Ġabd": 5}
    assert [*list_ways("Ġabc", pieces)] == [(2, 3), (0, 4), (0, 1, 3)]
    assert [*list_ways("Ġx", pieces)] == []


def test_sums_over_the_ways_of_a_word():
    model, config = unit_model(tokenizer=MarkedTokenizer())
    joined, word = 3, ("on", "ab")  # one more way: a piece that stands for the whole word
    pieces = spell_pieces(model) | {"Ġab": joined}
    usual, every = measure(model, word, "Ġ", pieces)
    decoder, starts = model.scorer.decoder, [*model.divider.word_starts, END]
    expected = []
    for way in (model.divider.divide(["ab"], after_space=True)[0], [joined]):
        units = [*config.start, *model.divider.divide_text(("on",)), *way]
        log_probs = decoder.scores(decoder.sequence_vectors(units)).log_softmax(dim=1)
        first = len(units) - len(way)
        found = sum(float(log_probs[first + i - 1, unit]) for i, unit in enumerate(way))
        expected.append(found + float(log_probs[-1, starts].logsumexp(0)))
    assert usual == pytest.approx(expected[0], abs=1e-4)
    assert every == pytest.approx(np.logaddexp(*expected), abs=1e-4)


def test_words_are_drawn_with_those_before_them():
    drawn = draw_words([("a", "b", "é"), ("c",)], 5, seed=1)
    assert drawn == [("a", "b")]
