"""Unknown words of phrases take the phrase model's probability: arrays against one word at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer import Phrase
from rescorer.extensions import PhraseReader
from rescorer.phrases import ENTRY_PROBABILITY, compile_phrases
from rescorer.trie import EdgeScores, build_trie
from tests.support.phrase_search import find_matches

MIXTURE = {"ngram": 0.25, "neural": 0.75}
PHRASES = [Phrase("a b", 3.0), Phrase("a c d"), Phrase("e", 2.0, ("d d",))]


def split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def slow_phrase_model(words: tuple[str, ...]) -> list[float]:
    """Log-probability of each word: the share of weight of the spellings that go on like this."""
    spellings = [(split(text), p.weight) for p in PHRASES for text in (p.text, *p.spellings)]
    total, answer = sum(weight for _, weight in spellings) / ENTRY_PROBABILITY, []
    for n in range(1, len(words) + 1):
        mass = sum(weight for text, weight in spellings if text[:n] == words[:n])
        answer.append(math.log(mass / total))
        total = mass
    return answer


@given(
    st.lists(st.lists(st.sampled_from("abcdef"), max_size=6).map(tuple), min_size=1, max_size=5),
    st.sets(st.sampled_from("abcdef")),
    st.sets(st.sampled_from("abcdef")),
    st.integers(0, 2**32 - 1),
)
def test_equals_one_word_at_a_time(hypotheses, known_by_ngram, known_by_network, seed):
    trie = build_trie(hypotheses)
    words = (*trie.words, "</s>")
    random = np.random.default_rng(seed)
    known = {"ngram": {*known_by_ngram, "</s>"}, "neural": {*known_by_network, "</s>"}}
    scores = {
        name: EdgeScores(
            random.uniform(-12, 0, trie.n_edges),
            np.array([words[w] not in known[name] for w in trie.edge_word]),
        )
        for name in MIXTURE
    }
    phrases = compile_phrases(PHRASES, split)
    matches = [find_matches([phrases], hypothesis) for hypothesis in hypotheses]
    reader = PhraseReader(trie, scores, MIXTURE, "ngram")
    for row, (hypothesis, found) in enumerate(zip(hypotheses, matches, strict=True)):
        expected = dict.fromkeys((*MIXTURE, "mixture", "oov"), 0.0)
        edges = trie.path_edges(row)
        for match in found:
            part = hypothesis[match.start : match.start + match.n_words]
            for offset, phrase_log_prob in enumerate(slow_phrase_model(part)):
                edge, before, after = edges[match.start + offset], 0.0, 0.0
                for name, share in MIXTURE.items():
                    old = new = float(scores[name].log_probs[edge])
                    if part[offset] not in known[name]:
                        new = max(old, phrase_log_prob)
                        expected["oov"] -= name == "ngram"
                    expected[name] += new - old
                    before += share * math.exp(old)
                    after += share * math.exp(new)
                expected["mixture"] += math.log(after / before)
        assert reader.find_gains(row, hypothesis, found) == pytest.approx(expected, abs=1e-9)


def test_probabilities_of_the_phrase_model_sum_to_one():
    root = compile_phrases(PHRASES, split).root

    def sum_below(node) -> float:
        own = node.mass - sum(child.mass for child in node.children.values())
        return own + sum(map(sum_below, node.children.values()))

    assert sum_below(root) == pytest.approx(root.mass) == pytest.approx(8.0)


def test_masses_may_be_further_apart_than_a_float_holds():
    phrases = compile_phrases([Phrase("a b", 5e-324), Phrase("e", 100.0)], split)
    log_probs = phrases.word_log_probs(("a", "b"))
    assert log_probs == pytest.approx((math.log(5e-324) - math.log(1e4), 0.0))
