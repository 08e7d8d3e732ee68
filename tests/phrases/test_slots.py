"""Slots: readings in a trie against one reading at a time; what a slot takes, and what it leaves alone."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer import LimitExceeded, NBestList, Phrase
from rescorer.models.ngram_files import read_ngram
from rescorer.phrases import (
    MAX_PHRASE_SLOTS,
    MAX_READINGS,
    PhraseFinder,
    compile_phrases,
    fill_slots,
    phrase_log_probs,
    read_slots,
)
from rescorer.types import Hypothesis
from tests.support.phrase_search import find_matches
from tests.support.random_ngrams import katz_log10_probs, random_orders, write_random_arpa

SLOTS = {"d", "e", "unseen"}
"""Words of the random n-grams that stand for phrases, and one that they do not have."""


def split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def slow_log_probs(orders, words, matches, context) -> list[float]:
    """ln P of each word and of ``</s>``: every reading apart, equal beginnings counted once."""
    vocabulary = {ngram[0] for ngram in orders[0]}
    beginnings: list[dict] = [{} for _ in range(len(words) + 1)]
    for choice in product(*((None, *match.slots) for match in matches)):
        replaced = {m.start: share for m, share in zip(matches, choice, strict=True) if share}
        if any(share.slot not in vocabulary for share in replaced.values()):
            continue
        tokens, within, position = [], [], 0  # one entry per token; the words of a slot have several values
        while position < len(words):
            share = replaced.get(position)
            tokens.append(share.slot if share else words[position])
            within.append(share.log_probs if share else (0.0,))
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


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    order=st.integers(1, 4),
    sets=st.lists(st.lists(PHRASE, min_size=1, max_size=4), min_size=1, max_size=2),
    hypotheses=st.lists(st.lists(st.sampled_from("abxd"), max_size=7).map(tuple), min_size=1, max_size=4),
    context=st.lists(st.sampled_from("abd"), max_size=3).map(tuple),
    partial=st.booleans(),
    max_words=st.integers(1, 200),
)
def test_equals_one_reading_at_a_time(seed, order, sets, hypotheses, context, partial, max_words):
    orders = random_orders(seed, order)
    with NamedTemporaryFile() as file:
        model = read_ngram(write_random_arpa(Path(file.name), orders))
    compiled = [compile_phrases(phrases, split, SLOTS) for phrases in sets]
    matches = [fill_slots(compiled, words, find_matches(compiled, words), {}) for words in hypotheses]
    n = len(hypotheses)
    sums = {}
    for readings in read_slots(hypotheses, [context] * n, matches, [partial] * n, max_words):
        n_words = sum(len(reading.words) + 1 for read in readings.hypotheses for reading in read.readings)
        assert n_words <= max_words or len(readings.hypotheses) == 1
        sums |= readings.sum_scores({"ngram": model.score(readings.trie)})
    assert sums.keys() == {row for row, found in enumerate(matches) if any(match.slots for match in found)}
    for row, by_model in sums.items():
        expected = slow_log_probs(orders, hypotheses[row], matches[row], context)
        assert by_model["ngram"] == pytest.approx(expected[:-1] if partial else expected, abs=1e-4)


def read_shares(sets, texts, slots=SLOTS) -> dict[str, dict[str, float]]:
    """P of each text in each of the slots in which it is read."""
    compiled = [compile_phrases(phrases, split, slots) for phrases in sets]
    shares = {}
    for text in texts:
        (match,) = fill_slots(compiled, split(text), find_matches(compiled, split(text)), {})
        shares[text] = {share.slot: math.exp(math.fsum(share.log_probs)) for share in match.slots}
    return shares


def test_the_phrases_of_a_slot_share_its_probability():
    """By weight, with spellings and the phrases of all sets; in one set, equal phrases count once."""
    phrases = [
        Phrase("a b", 3.0, slot="d"),
        Phrase("a", 1.0, ("a c", "b"), slot="d"),
        Phrase("a", 0.5, slot="d"),
        Phrase("c", 0.5),
    ]
    others = [Phrase("e", 2.0, slot="d")]
    shares = read_shares([phrases, others], ("a b", "a", "a c", "b", "e", "c"))
    assert shares.pop("c") == {}
    assert {text: share["d"] for text, share in shares.items()} == pytest.approx(
        {"a b": 3 / 8, "a": 1 / 8, "a c": 1 / 8, "b": 1 / 8, "e": 2 / 8}
    )
    compiled = [compile_phrases(part, split, SLOTS) for part in (phrases, others)]
    (match,) = fill_slots(compiled, ("a", "b"), find_matches(compiled, ("a", "b")), {})
    assert match.slots[0].log_probs == pytest.approx((math.log(5 / 8), math.log(3 / 5)))


def test_weights_of_equal_phrases_in_different_sets_add_up():
    """So the probabilities of a slot have the sum 1, and a set given twice changes nothing."""
    request = [Phrase("a b", slot="d"), Phrase("a", slot="d"), Phrase("c", 2.0, slot="d")]
    own = [Phrase("a b", 3.0, slot="d"), Phrase("e", slot="d")]
    texts = ("a b", "a", "c", "e")
    shares = {text: share["d"] for text, share in read_shares([request, own], texts).items()}
    assert shares == pytest.approx({"a b": 4 / 8, "a": 1 / 8, "c": 2 / 8, "e": 1 / 8})
    once, twice = (read_shares(sets, ("a b", "a", "c")) for sets in ([request], [request, request]))
    assert {text: share["d"] for text, share in once.items()} == pytest.approx(
        {text: share["d"] for text, share in twice.items()}
    )


@pytest.mark.parametrize("in_one_set", [True, False])
@pytest.mark.parametrize("other_weight", [0.5, 1.0, 2.0])
def test_equal_phrases_without_a_slot_or_with_another_leave_a_slot_as_it_is(in_one_set, other_weight):
    """Whichever of them has the largest weight or comes last."""
    name, city = Phrase("a b", slot="d"), Phrase("a b", other_weight, slot="e")
    plain, other = Phrase("a b", other_weight), Phrase("c", slot="d")
    for phrases in product(*[[name, city, plain, other]] * 4):
        if len(set(phrases)) == 4:
            sets = [list(phrases)] if in_one_set else [[phrase] for phrase in phrases]
            assert read_shares(sets, ["a b"])["a b"] == pytest.approx({"d": 1 / 2, "e": 1.0})


def test_a_phrase_has_at_most_so_many_slots_that_all_are_read():
    slots = [f"${i}" for i in range(MAX_PHRASE_SLOTS + 1)]
    phrases = [Phrase("a", slot=slot) for slot in slots]
    with pytest.raises(LimitExceeded, match="'a' has other slots already; expected at most 7") as caught:
        compile_phrases(phrases, split, slots)
    assert caught.value.field == "phrases[7].slot"
    sets = [phrases[:-1], [Phrase("a", 2.0, slot=slots[-1]), Phrase("b", slot=slots[-1])]]
    assert read_shares(sets, ["a"], slots)["a"] == dict.fromkeys(slots[:-1], 1.0)


def test_slots_are_known_in_canonical_form_or_refused():
    finder = PhraseFinder(lambda text: split(text.lower()), {}, {"$name", "$city"})
    (phrases,) = finder.select((Phrase("Ada", slot="$NAME"),))
    assert phrases.find_slots(("ada",)) == ("$name",)
    (phrases,) = PhraseFinder(lambda text: split(text.replace("$", "")), {}, {"$name"}).select(
        (Phrase("Ada", slot="$name"),)
    )
    assert phrases.find_slots(("Ada",)) == ("$name",)  # although a hypothesis never has the word
    with pytest.raises(LimitExceeded) as caught:
        finder.select((Phrase("b"), Phrase("Ada", slot="$nam")))
    expected = "'$nam' for 'Ada' is not a slot; the bundle has: $city, $name; did you mean '$name'?"
    assert (caught.value.field, caught.value.message) == ("phrases[1].slot", expected)
    with pytest.raises(LimitExceeded, match="the bundle has none"):
        PhraseFinder(split, {}).select((Phrase("Ada", slot="$name"),))
    with pytest.raises(LimitExceeded, match=r"phrases\[0\].slot: 3 for 'Ada'; expected a string"):
        finder.select((Phrase("Ada", slot=3),))
    finder = PhraseFinder(split, {}, {f"${i:05}" for i in range(10_000)})
    with pytest.raises(LimitExceeded, match=r"\$00019 and 9,980 more$"):
        finder.select((Phrase("Ada", slot="name" * 1_000_000),))


def test_the_beginning_of_a_phrase_fills_no_slot():
    finder = PhraseFinder(split, {}, {"d"})
    nbest = NBestList("u", (Hypothesis("c a", partial=True),), phrases=(Phrase("a b", slot="d"),))
    ((match,),) = finder.find(nbest, [("c", "a")])
    assert (match.phrase, match.slots, match.credit) == (None, (), 1.0)


def test_later_phrases_are_read_as_words():
    for slots in (["d"], ["d", "e"]):
        phrases = compile_phrases([Phrase("a", slot=slot) for slot in slots], split, SLOTS)
        words = ("a",) * 5
        matches = fill_slots([phrases], words, find_matches([phrases], words), {})
        n_slots = [len(match.slots) for match in matches]
        assert n_slots == ([1, 1, 1, 0, 0] if len(slots) == 1 else [2, 1, 0, 0, 0])
        ((hypothesis,),) = (part.hypotheses for part in read_slots([words], [()], [matches], [False], 999))
        assert len(hypothesis.readings) == math.prod(n + 1 for n in n_slots) <= MAX_READINGS
        assert len({reading.words for reading in hypothesis.readings}) == len(hypothesis.readings)
        assert {reading.words[3:] for reading in hypothesis.readings} == {("a", "a")}


def test_equal_hypotheses_are_read_once():
    finder = PhraseFinder(split, {}, {"d"})
    words = ("a", "b")
    texts = (Hypothesis("a b"), Hypothesis("a b"), Hypothesis("a b", partial=True))
    nbest = NBestList("u", texts, phrases=(Phrase("a", slot="d"),))
    matches = finder.find(nbest, [words] * 3)
    (readings,) = read_slots([words] * 3, [()] * 3, matches, [False, False, True], 999)
    assert [hypothesis.rows for hypothesis in readings.hypotheses] == [(0, 1), (2,)]
