"""Lists whose hypotheses repeat each other cost what their distinct prefixes cost, with the same results."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.scoring.batch import count_distinct, plan_batches
from rescorer.text import Normaliser
from rescorer.trie import build_trie
from rescorer.types import Hypothesis, NBestList
from tests.support.reference_scorer import reference_log_probs

words = st.lists(st.sampled_from("abc"), max_size=6).map(tuple)
repetitive = st.lists(words, min_size=1, max_size=4).flatmap(
    lambda distinct: st.lists(st.sampled_from(distinct), min_size=1, max_size=12)
)


def make_texts(position: int | None, n: int = 2000, length: int = 1000) -> list[str]:
    """Texts that are identical or differ in one word."""
    base = ["the", "cat", "sat", "on"] * (length // 4)
    return [
        " ".join(base if position is None else [*base[:position], f"w{i}", *base[position + 1 :]])
        for i in range(n)
    ]


@given(repetitive, words)
def test_distinct_words_are_the_edges_of_the_trie(hypotheses, context):
    trie = build_trie(hypotheses, [context] * len(hypotheses))
    assert count_distinct(hypotheses, context) == trie.n_edges + len(context)


@given(st.lists(st.tuples(words, words), min_size=1, max_size=20), st.integers(3, 40))
def test_plans_cover_all_hypotheses_within_the_limit(pairs, max_words):
    contexts, hypotheses = zip(*pairs, strict=True)
    plans = list(plan_batches(hypotheses, contexts, max_words))
    assert sorted(i for plan in plans for i in plan.indices) == list(range(len(pairs)))
    for plan in plans:
        trie = build_trie([hypotheses[i] for i in plan.indices], [contexts[i] for i in plan.indices])
        edges = trie.n_edges + sum(map(len, trie.contexts))
        assert edges <= plan.cost
        assert plan.cost <= max(max_words, 13)  # a hypothesis with its context and its end


@given(repetitive, words)
def test_repetitive_lists_score_like_one_hypothesis_at_a_time(library, hypotheses, context):
    nbest = NBestList(
        "x",
        tuple(Hypothesis(" ".join(hypothesis)) for hypothesis in hypotheses),
        {"acoustic": (-1.0,) * len(hypotheses)},
        " ".join(context),
    )
    (answer,) = library.rescore([nbest])
    for hypothesis in answer.hypotheses:
        for name, model in library.models.items():
            expected = reference_log_probs(model, hypotheses[hypothesis.original_rank], context)
            assert hypothesis.components[name] == pytest.approx(expected.sum(), abs=1e-3)


@pytest.mark.parametrize(("position", "distinct"), [(None, 1001), (999, 4999), (500, 1_000_500 + 2000)])
def test_long_lists_are_planned_by_their_distinct_prefixes(position, distinct):
    normalise = Normaliser().normalise
    hypotheses = [normalise(text) for text in make_texts(position)]
    assert count_distinct(hypotheses, ()) <= distinct
    plans = list(plan_batches(hypotheses, [()] * len(hypotheses), 16_384))
    assert len(plans) <= distinct // 14_000 + 1


def test_equal_texts_share_their_scores(library):
    first, second, other = library.score_text(["the cat", "the cat", "the"])
    assert first == second
    assert first.log_probs["ngram"] is second.log_probs["ngram"]
    assert np.isclose(other.log_probs["ngram"][0], first.log_probs["ngram"][0])
