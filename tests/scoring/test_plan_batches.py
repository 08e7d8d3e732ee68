"""Batch plans keep the budget, lose nothing, and cut between subtrees of the trie."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rescorer.scoring.batch import count_distinct, plan_batches
from rescorer.trie import Words, build_trie

WORDS = st.lists(st.sampled_from("ab"), max_size=5).map(tuple)
CONTEXTS = st.sampled_from([(), ("c",), ("a", "b")])
HYPOTHESES = st.lists(st.tuples(WORDS, CONTEXTS), max_size=20)


def plan(hypotheses: list[tuple[Words, Words]], max_words: int) -> list[tuple[list[int], int]]:
    words, contexts = [words for words, _ in hypotheses], [context for _, context in hypotheses]
    return [(list(indices), cost) for indices, cost in plan_batches(words, contexts, max_words)]


@given(HYPOTHESES, st.integers(1, 40))
def test_batches_hold_every_hypothesis_once_within_the_budget(hypotheses, max_words):
    batches = plan(hypotheses, max_words)
    assert sorted(i for indices, _ in batches for i in indices) == list(range(len(hypotheses)))
    for indices, cost in batches:
        batch = [hypotheses[i] for i in indices]
        assert cost <= max_words or len(set(batch)) == 1
        distinct_contexts = {context for _, context in batch}
        trie = build_trie([words for words, _ in batch], [context for _, context in batch])
        assert cost >= trie.n_edges + sum(map(len, distinct_contexts))


def cut_plainly(hypotheses: list[tuple[Words, Words]], max_words: int) -> list[list[int]]:
    """Add one hypothesis after the other, sorted, to a batch, counting all its distinct words each time."""
    batches: list[list[int]] = [[]]
    for i in sorted(range(len(hypotheses)), key=lambda i: hypotheses[i][::-1]):
        grown = [hypotheses[j] for j in [*batches[-1], i]]
        cost = sum(
            count_distinct([words for words, context in grown if context == shared], shared)
            for shared in {context for _, context in grown}
        )
        if batches[-1] and cost > max_words:
            batches.append([])
        batches[-1].append(i)
    return batches


@given(HYPOTHESES.filter(bool), st.integers(1, 40))
def test_batches_are_cut_where_the_next_hypothesis_does_not_fit(hypotheses, max_words):
    batches, expected = (
        [indices for indices, _ in plan(hypotheses, max_words)],
        cut_plainly(hypotheses, max_words),
    )
    if len(expected) == 1:  # hypotheses that fit into one batch may keep their order
        batches, expected = [sorted(indices) for indices in batches], [sorted(expected[0])]
    assert batches == expected


@given(HYPOTHESES)
def test_hypotheses_that_fit_keep_their_order(hypotheses):
    assert [i for indices, _ in plan(hypotheses, 1000) for i in indices] == list(range(len(hypotheses)))


@given(HYPOTHESES.filter(bool))
def test_hypotheses_of_a_subtree_stay_together_when_cut(hypotheses):
    order = [i for indices, _ in plan(hypotheses, 0) for i in indices]
    for words, context in hypotheses:
        for length in range(len(words) + 1):
            in_subtree = [
                hypotheses[i][1] == context and hypotheses[i][0][:length] == words[:length] for i in order
            ]
            first, last = in_subtree.index(True), len(order) - in_subtree[::-1].index(True)
            assert all(in_subtree[first:last])


def test_every_batch_of_a_list_pays_for_its_context():
    words = [("a",) * n for n in (3, 1, 5, 2)]
    context = ("x", "y")
    assert plan([(hypothesis, context) for hypothesis in words], 8) == [([1, 3, 0], 8), ([2], 8)]
    assert plan([(hypothesis, ()) for hypothesis in words], 15) == [([0, 1, 2, 3], 15)]
