"""Divide hypotheses into batches with a limited number of words, regardless of the lists they belong to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress, count, pairwise
from operator import ne
from typing import NamedTuple

from rescorer.trie import Words


class BatchPlan(NamedTuple):
    """Hypotheses that are scored together."""

    indices: Sequence[int]
    """Indices of these hypotheses in the sequence given to ``plan_batches``."""
    cost: int
    """Upper bound of the number of words to score: canonical words, one ``</s>`` per hypothesis, and the
    words of every distinct context. Words that hypotheses share from their start count once, but each time
    in hypotheses that fit into one batch even so."""


def plan_batches(
    words: Sequence[Words], contexts: Sequence[Words], max_words: int, *, backward: bool = False
) -> Iterator[BatchPlan]:
    """Plan batches of at most ``max_words`` words; a longer hypothesis gets a batch of its own.

    Hypotheses that fit into one batch keep their order. If there are more, they are cut between subtrees of
    their common trie, so that few prefixes are scored in more than one batch.

    Args:
        words: canonical words of each hypothesis.
        contexts: the words that each hypothesis continues.
        max_words: maximum number of words per batch.
        backward: whether a backward model scores them too. Words that hypotheses share from their start then
            count in each of them, because the reversed trie has them once for each way to go on.
    """
    if not words:
        return
    if (cost := _cost(words, contexts)) <= max_words:
        yield BatchPlan(range(len(words)), cost)
        return
    order = sorted(range(len(words)), key=words.__getitem__)
    order.sort(key=contexts.__getitem__)  # stable: hypotheses with equal contexts stay sorted by their words
    remaining = sum(map(len, words)) + len(words) + sum(map(len, contexts))
    begin = total = 0
    for position, i in enumerate(order):
        if total + remaining <= max_words:
            total += remaining
            break
        whole = _whole_cost(words, contexts, i)
        cost = _cost_after(words, contexts, order[position - 1], i, backward) if position > begin else whole
        if position > begin and total + cost > max_words:
            yield BatchPlan(order[begin:position], total)
            begin, total, cost = position, 0, whole
        total += cost
        remaining -= whole
    yield BatchPlan(order[begin:], total)


def count_distinct(words: Sequence[Words], context: Words, *, backward: bool = False) -> int:
    """Count the words of a list like ``BatchPlan.cost``, but those that hypotheses share only once.

    Args:
        backward: as for ``plan_batches``.
    """
    contexts = [context] * len(words)
    order = sorted(range(len(words)), key=words.__getitem__)
    added = sum(_cost_after(words, contexts, before, i, backward) for before, i in pairwise(order))
    return added + (len(words[order[0]]) + 1 + len(context) if order else 0)


def _whole_cost(words: Sequence[Words], contexts: Sequence[Words], i: int) -> int:
    """Count the words of hypothesis i and of its context."""
    return len(words[i]) + 1 + len(contexts[i])


def _cost_after(
    words: Sequence[Words], contexts: Sequence[Words], before: int, i: int, backward: bool
) -> int:
    """Count the words that hypothesis i adds to a batch that ends with the hypothesis sorted before it."""
    if contexts[i] != contexts[before]:
        return _whole_cost(words, contexts, i)
    if words[i] == words[before]:
        return 0
    if backward:
        return len(words[i]) + 1
    shared = next(compress(count(), map(ne, words[before], words[i])), len(words[before]))
    return len(words[i]) - shared + 1


def _cost(words: Sequence[Words], contexts: Sequence[Words]) -> int:
    """Count the words to score in one batch; a context shared by adjacent hypotheses counts once."""
    pairs = zip([None, *contexts], contexts, strict=False)
    context_words = sum(len(context) for previous, context in pairs if context is not previous)
    return sum(map(len, words)) + len(words) + context_words
