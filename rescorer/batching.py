"""Divide hypotheses into batches with a limited number of words, regardless of the lists they belong to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rescorer.trie import Words


class BatchPlan(NamedTuple):
    """Hypotheses that are scored together."""

    indices: Sequence[int]
    """Indices of these hypotheses in the sequence given to ``plan_batches``."""
    cost: int
    """Number of words to score: canonical words, one ``</s>`` per hypothesis, and the words of every distinct
    context."""


def plan_batches(words: Sequence[Words], contexts: Sequence[Words], max_words: int) -> Iterator[BatchPlan]:
    """Plan batches of at most ``max_words`` words; a longer hypothesis gets a batch of its own.

    Hypotheses that fit into one batch keep their order. If there are more, they are cut between subtrees of
    their common trie, so that few prefixes are scored in more than one batch.

    Args:
        words: canonical words of each hypothesis.
        contexts: the words that each hypothesis continues.
        max_words: maximum number of words per batch.
    """
    order: Sequence[int] = range(len(words))
    if _cost(words, contexts) > max_words:
        order = sorted(order, key=lambda i: (contexts[i], words[i]))
    begin = total = 0
    previous: Words | None = None
    for position, i in enumerate(order):
        cost = len(words[i]) + 1
        cost_with_context = cost + len(contexts[i])
        if contexts[i] is not previous:
            cost = cost_with_context
        if position > begin and total + cost > max_words:
            yield BatchPlan(order[begin:position], total)
            begin, total, cost = position, 0, cost_with_context
        total, previous = total + cost, contexts[i]
    if begin < len(order):
        yield BatchPlan(order[begin:], total)


def _cost(words: Sequence[Words], contexts: Sequence[Words]) -> int:
    """Count the words to score in one batch; a context shared by adjacent hypotheses counts once."""
    pairs = zip([None, *contexts], contexts, strict=False)
    context_words = sum(len(context) for previous, context in pairs if context is not previous)
    return sum(map(len, words)) + len(words) + context_words
