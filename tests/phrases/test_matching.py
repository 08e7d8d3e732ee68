"""Phrases in hypotheses: the automaton against a search of all ways to choose phrases."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rescorer import LimitExceeded, Phrase
from rescorer import phrases as phrases_module
from rescorer.phrases import (
    MAX_PHRASE_WORDS,
    MAX_PHRASES,
    STEPS_PER_COMPARISON,
    PhraseMatch,
    PhraseSearch,
    compile_phrases,
    estimate_steps,
)
from tests.support.phrase_search import estimate_search_bytes, find_matches


def split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


words = st.lists(st.sampled_from("abcd"), max_size=8).map(tuple)
texts = st.lists(st.sampled_from("abcd"), min_size=1, max_size=4).map(" ".join)
phrases = st.lists(
    st.builds(Phrase, texts, st.sampled_from([0.5, 1.0, 3.0]), st.lists(texts, max_size=2).map(tuple)),
    max_size=6,
)


def slow_best(phrases, hypothesis, partial):
    """Largest sum of credits: each word is left out, or begins one of the phrases that fit there."""
    if not hypothesis:
        return 0.0
    ways = [slow_best(phrases, hypothesis[1:], partial)]
    for phrase in phrases:
        for text in (phrase.text, *phrase.spellings):
            part = split(text)
            if hypothesis[: len(part)] == part:
                ways.append(phrase.weight * len(part) + slow_best(phrases, hypothesis[len(part) :], partial))
            elif partial and part[: len(hypothesis)] == hypothesis:
                ways.append(phrase.weight * len(hypothesis))
    return max(ways)


@settings(max_examples=300)
@given(phrases, words, st.booleans())
def test_finds_the_best_phrases_that_do_not_overlap(phrases, hypothesis, partial):
    half = len(phrases) // 2
    parts = [phrases] if len(phrases) % 2 else [phrases[:half], phrases[half:]]  # as one set, or as two
    found = find_matches([compile_phrases(part, split) for part in parts], hypothesis, partial=partial)
    assert sum(match.credit for match in found) == pytest.approx(slow_best(phrases, hypothesis, partial))
    end = 0
    for match in found:
        assert match.start >= end
        end = match.start + match.n_words
        part = hypothesis[match.start : end]
        if match.phrase is not None:
            assert " ".join(part) in (match.phrase.text, *match.phrase.spellings)
            assert match.credit == match.phrase.weight * len(part)
        else:
            assert partial
            assert end == len(hypothesis)


def plain_matches(phrase_sets, hypothesis, partial):
    """Choose from the last word on, one hypothesis at a time; of equal sums, the longer, later ones."""
    n = len(hypothesis)
    best, chosen = [0.0] * (n + 1), [None] * n
    for start in reversed(range(n)):
        best[start] = best[start + 1]
        for number, phrases in enumerate(phrase_sets):
            node = phrases.root
            for end in range(start + 1, n + 1):
                if (node := node.children.get(hypothesis[end - 1])) is None:
                    break
                ways = []
                if node.phrase >= 0:
                    ways.append((phrases.phrases[node.phrase], phrases.phrases[node.phrase].weight))
                if partial and end == n and node.longer_weight > 0:
                    ways.append((None, node.longer_weight))
                for phrase, weight in ways:
                    total, length = weight * (end - start) + best[end], end - start
                    before = chosen[start].n_words if chosen[start] else 0
                    if (total, length) >= (best[start], before):
                        best[start] = total
                        chosen[start] = PhraseMatch(
                            phrase, start, length, weight * length, phrase_sets[number]
                        )
    found, position = [], 0
    while position < n:
        found += [chosen[position]] if chosen[position] else []
        position += chosen[position].n_words if chosen[position] else 1
    return found


def lengths(compiled):
    return [one.longest for one in compiled]


@settings(max_examples=60)
@given(
    st.lists(phrases, max_size=3), st.lists(st.tuples(words, st.booleans()), max_size=6), st.integers(1, 40)
)
@example([[], [], [Phrase("a", 0.5)]], [(("a",), False)], 1)  # empty sets take no steps
def test_hypotheses_that_are_searched_together_have_the_phrases_of_each_alone(parts, hypotheses, n_kept):
    compiled = [compile_phrases(part, split) for part in parts]
    search = PhraseSearch(compiled)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(phrases_module, "MAX_KEPT_PLACES", n_kept)
        for hypothesis, partial in hypotheses:
            found = search.find(hypothesis, partial=partial)
            assert found == plain_matches(compiled, hypothesis, partial)
    n_words = sum(len(hypothesis) for hypothesis, _ in hypotheses)
    assert search.steps <= estimate_steps(n_words, lengths(compiled)) / STEPS_PER_COMPARISON


def test_words_that_hypotheses_share_are_looked_up_once():
    compiled = [compile_phrases([Phrase("a " * n) for n in range(1, MAX_PHRASE_WORDS + 1)], split)] * 3
    search = PhraseSearch(compiled)
    steps = []
    for index in range(100):
        before = search.steps
        search.find(("a",) * 200 + (f"w{index}",))
        steps.append(search.steps - before)
    assert max(steps) <= 201 * (1 + MAX_PHRASE_WORDS) + 3 * 17 * MAX_PHRASE_WORDS
    assert sum(steps) < estimate_steps(100 * 201, lengths(compiled)) / STEPS_PER_COMPARISON / 4


@pytest.mark.parametrize(("n_words", "letters"), [(1000, "a"), (4000, "abc"), (50, "ab")])
def test_memory_is_bounded(n_words, letters):
    rng = random.Random(1)
    given = [Phrase(" ".join(rng.choices(letters, k=rng.randrange(1, 17)))) for _ in range(500)]
    compiled, hypothesis = [compile_phrases(given, split)], tuple(rng.choices(letters, k=n_words))
    tracemalloc.start()
    try:
        assert PhraseSearch(compiled).find(hypothesis)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= estimate_search_bytes(n_words, compiled)


def test_only_the_end_of_a_partial_hypothesis_is_credited():
    compiled = [compile_phrases([Phrase("new york city")], split)]
    assert find_matches(compiled, split("in new york")) == []
    (match,) = find_matches(compiled, split("in new york"), partial=True)
    assert (match.phrase, match.start, match.credit) == (None, 1, 2.0)
    assert find_matches(compiled, split("new york is"), partial=True) == []


def test_phrases_that_repeat_a_word_leave_one_match_per_word(monkeypatch):
    compiled = [compile_phrases([Phrase("a " * n, 1 / n) for n in range(1, MAX_PHRASE_WORDS + 1)], split)]
    made = []

    def count(*match):
        made.append(match)
        return PhraseMatch(*match)

    monkeypatch.setattr(phrases_module, "PhraseMatch", count)
    found = find_matches(compiled, ("a",) * 1000)
    assert len(found) == 1000
    assert len(made) <= 1000 + MAX_PHRASE_WORDS**2  # most places have the same words after them


def test_one_phrase_twice_counts_with_its_largest_weight():
    phrases = [Phrase("a b", 2.0), Phrase("a b"), Phrase("x", 5.0, ("a b",))]
    (match,) = find_matches([compile_phrases(phrases, split)], split("a b"))
    assert (match.phrase, match.credit) == (phrases[2], 10.0)


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        ([Phrase("a"), Phrase("")], "phrases[1].text", "has 0 words; expected 1 to 16"),
        ([Phrase("a", spellings=("b", " "))], "phrases[0].spellings[1]", "has 0 words"),
        ([Phrase("a " * (MAX_PHRASE_WORDS + 1))], "phrases[0].text", "has 17 words"),
        ([Phrase("a", 0.0)], "phrases[0].weight", "0.0 for 'a'; expected a number above 0"),
        ([Phrase("a", "3")], "phrases[0].weight", "'3' for 'a'; expected a number above 0"),
        ([Phrase("a", float("nan"))], "phrases[0].weight", "nan"),
        ([Phrase("a", float("inf"))], "phrases[0].weight", "inf"),
        ([Phrase("a", spellings=("b" * 1001,))], "phrases[0].spellings[0]", "1,001 characters"),
        ([Phrase("a")] * (MAX_PHRASES + 1), "phrases", "5,001 phrases"),
    ],
)
def test_wrong_phrases_are_named(given, field, message):
    with pytest.raises(LimitExceeded) as error:
        compile_phrases(given, split)
    assert error.value.field == field
    assert message in str(error.value)
