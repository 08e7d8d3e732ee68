"""Owns how hypotheses are cut into batches within a budget of words, whatever the sizes of their lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rescorer.trie import Words


def word_costs(words: Sequence[Words], contexts: Sequence[Words]) -> list[int]:
    """What each hypothesis adds to a batch: its words, ``</s>``, and its context where that is a new one."""
    costs = [len(each) + 1 for each in words]
    for i, context in enumerate(contexts):  # a context is run through once for all that share it
        if i == 0 or context is not contexts[i - 1]:
            costs[i] += len(context)
    return costs


def budget_cuts(costs: Sequence[int], budget: int) -> Iterator[tuple[int, int]]:
    """Consecutive ranges whose costs sum to at most ``budget``, or hold one item that alone costs more."""
    begin = total = 0
    for i, cost in enumerate(costs):
        if i > begin and total + cost > budget:
            yield begin, i
            begin, total = i, 0
        total += cost
    if begin < len(costs):
        yield begin, len(costs)


def subtree_order(words: Sequence[Words], contexts: Sequence[Words]) -> list[int]:
    """An order in which the hypotheses of any subtree of their common trie are neighbours."""
    return sorted(range(len(words)), key=lambda i: (contexts[i], words[i]))
