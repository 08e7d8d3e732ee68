"""Slots: readings in a trie against one reading at a time; what a slot takes, and what it leaves alone."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from tempfile import NamedTemporaryFile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer import LimitExceeded, NBestList, Phrase
from rescorer.lm.ngrams import read_ngram
from rescorer.phrases.finder import PhraseFinder
from rescorer.phrases.matching import fill_slots, find_matches, phrase_log_probs
from rescorer.phrases.phrase_set import compile_phrases
from rescorer.phrases.slots import MAX_READ, read_slots
from rescorer.types import Hypothesis
from tests.support.random_ngrams import katz_log10_probs, random_orders, write_random_arpa

SLOTS = {"d", "e", "unseen"}
"""Words of the random n-grams that stand for phrases, and one that they do not have."""


def split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def slow_log_probs(orders, words, matches, context) -> list[float]:
    """ln P of each word and of ``</s>``: every reading apart, equal beginnings counted once."""
    vocabulary = {ngram[0] for ngram in orders[0]}
    slots = [match for match in matches if match.slot]
    beginnings: list[dict] = [{} for _ in range(len(words) + 1)]
    for choice in product((False, True), repeat=min(len(slots), MAX_READ)):
        replaced = {m.start: m for m, chosen in zip(slots, choice, strict=False) if chosen}
        if any(match.slot not in vocabulary for match in replaced.values()):
            continue
        tokens, within, position = [], [], 0  # one entry per token; the words of a slot have several values
        while position < len(words):
            match = replaced.get(position)
            tokens.append(match.slot if match else words[position])
            within.append(match.slot_log_probs if match else (0.0,))
            position += len(within[-1])
        credits = phrase_log_probs(words, matches).tolist()
        log10_probs = katz_log10_probs(orders, tuple(tokens), context)
        log_prob, labels = 0.0, []
        for token, values, log10_prob in zip((*tokens, ""), (*within, (0.0,)), log10_probs, strict=True):
            token_log_prob = log10_prob * math.log(10)
            if token and token not in vocabulary:  # a word, since slots are known
                token_log_prob = max(token_log_prob, credits[len(labels)])
            log_prob += token_log_prob
            for value in values:
                log_prob += value
                labels.append((token, len(values)))
                beginnings[len(labels) - 1][tuple(labels)] = log_prob
    sums = [math.fsum(map(math.exp, found.values())) for found in beginnings]
    return [math.log(after / before) for before, after in zip([1.0, *sums], sums, strict=False)]


TEXTS = st.lists(st.sampled_from("abx"), min_size=1, max_size=3).map(" ".join)
PHRASE = st.builds(
    Phrase,
    TEXTS,
    st.sampled_from((1.0, 2.5)),
    st.lists(TEXTS, max_size=1).map(tuple),
    st.sampled_from(("", *sorted(SLOTS))),
)


@given(
    seed=st.integers(0, 2**32 - 1),
    order=st.integers(1, 4),
    sets=st.lists(st.lists(PHRASE, min_size=1, max_size=4), min_size=1, max_size=2),
    hypotheses=st.lists(st.lists(st.sampled_from("abxd"), max_size=7).map(tuple), min_size=1, max_size=4),
    context=st.lists(st.sampled_from("abd"), max_size=3).map(tuple),
    partial=st.booleans(),
)
def test_equals_one_reading_at_a_time(seed, order, sets, hypotheses, context, partial):
    orders = random_orders(seed, order)
    with NamedTemporaryFile() as file:
        model = read_ngram(write_random_arpa(Path(file.name), orders))
    compiled = [compile_phrases(phrases, split, SLOTS) for phrases in sets]
    matches = [fill_slots(compiled, words, find_matches(compiled, words)) for words in hypotheses]
    n = len(hypotheses)
    readings = read_slots(hypotheses, [context] * n, matches, [partial] * n)
    sums = readings.sum_scores({"ngram": model.score(readings.trie)}) if readings.hypotheses else {}
    assert sums.keys() == {row for row, found in enumerate(matches) if any(match.slot for match in found)}
    for row, by_model in sums.items():
        expected = slow_log_probs(orders, hypotheses[row], matches[row], context)
        assert by_model["ngram"] == pytest.approx(expected[:-1] if partial else expected, abs=1e-4)


def test_the_phrases_of_a_slot_share_its_probability():
    """By weight, with spellings and the phrases of all sets; a phrase that is given twice counts once."""
    phrases = [
        Phrase("a b", 3.0, slot="d"),
        Phrase("a", 1.0, ("a c", "b"), slot="d"),
        Phrase("a", 0.5, slot="d"),
        Phrase("c", 0.5),
    ]
    others = [Phrase("e", 2.0, slot="d")]
    sets = [compile_phrases(part, split, SLOTS) for part in (phrases, others)]
    found = {}
    for text in ("a b", "a", "a c", "b", "e", "c"):
        (match,) = fill_slots(sets, split(text), find_matches(sets, split(text)))
        found[text] = match
    shares = {text: math.exp(math.fsum(match.slot_log_probs)) for text, match in found.items() if match.slot}
    assert shares == pytest.approx({"a b": 3 / 8, "a": 1 / 8, "a c": 1 / 8, "b": 1 / 8, "e": 2 / 8})
    assert found["a b"].slot_log_probs == pytest.approx((math.log(5 / 8), math.log(3 / 5)))
    assert found["c"].slot_log_probs == ()


def test_slots_are_known_in_canonical_form_or_refused():
    finder = PhraseFinder(lambda text: split(text.lower()), {}, {"$name", "$city"})
    (phrases,) = finder.select((Phrase("Ada", slot="$NAME"),))
    assert phrases.slot_of == {0: "$name"}
    with pytest.raises(LimitExceeded) as caught:
        finder.select((Phrase("b"), Phrase("Ada", slot="$nam")))
    expected = "'$nam' for 'Ada' is not a slot; the bundle has: $city, $name; did you mean '$name'?"
    assert (caught.value.field, caught.value.message) == ("phrases[1].slot", expected)
    with pytest.raises(LimitExceeded, match="the bundle has none"):
        PhraseFinder(split, {}).select((Phrase("Ada", slot="$name"),))


def test_the_beginning_of_a_phrase_fills_no_slot():
    finder = PhraseFinder(split, {}, {"d"})
    nbest = NBestList("u", (Hypothesis("c a", partial=True),), phrases=(Phrase("a b", slot="d"),))
    ((match,),) = finder.find(nbest, [("c", "a")])
    assert (match.phrase, match.slot, match.credit) == (None, "", 1.0)


def test_later_phrases_are_read_as_words():
    phrases = compile_phrases([Phrase("a", slot="d")], split, {"d"})
    words = ("a",) * (MAX_READ + 2)
    matches = fill_slots([phrases], words, find_matches([phrases], words))
    (hypothesis,) = read_slots([words], [()], [matches], [False]).hypotheses
    assert len(hypothesis.readings) == 2**MAX_READ
    assert {reading.words[MAX_READ:] for reading in hypothesis.readings} == {("a", "a")}
    assert np.unique([len(reading.words) for reading in hypothesis.readings]).tolist() == [MAX_READ + 2]
