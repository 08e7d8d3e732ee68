"""Read sequences of different lengths by a recurrent network, one word of all of them at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from rescorer.lm.contexts.context_cache import Rows
from rescorer.lm.networks import ContextNetwork
from rescorer.trie import HypothesisTrie, sort_by_length

AddInputs = Callable[[Tensor, int, list[int]], None]
"""Adds to the inputs of the words at a position of some sequences, in place."""


def read_sequences(
    network: ContextNetwork,
    inputs: Tensor,
    sequences: Sequence[np.ndarray],
    before: Rows,
    add_inputs: AddInputs,
) -> Rows:
    """Return the vectors and states after some sequences; those of an empty one are those before it.

    Args:
        inputs: (W, I) inputs of distinct words.
        sequences: indices of the words of each sequence among these.
        before: vectors and states before the sequences.
        add_inputs: called for each position.
    """
    lengths = np.array(list(map(len, sequences)))
    order, n_reaching = sort_by_length(lengths)  # sequences that have ended are the last rows
    position = np.concatenate([np.arange(lengths[row]) for row in order])
    words = np.concatenate([sequences[row] for row in order])[np.argsort(position, kind="stable")]
    by_position = torch.from_numpy(words).to(inputs.device).split(n_reaching.tolist())
    rows, is_sorted = order.tolist(), bool((order == np.arange(len(order))).all())
    index = None if is_sorted else torch.from_numpy(order).to(inputs.device)
    after = before if index is None else tuple(part.index_select(0, index) for part in before)
    for position_now, found in enumerate(by_position):
        n = len(found)
        gates = inputs.index_select(0, found)  # many times as fast as inputs[...]
        add_inputs(gates, position_now, rows[:n])
        vectors, state = network.step(gates, tuple(part[:n] for part in after[1:]))
        ended = (part[n:] for part in after)
        new = (vectors, *state)
        after = new if n == len(rows) else tuple(map(torch.cat, zip(new, ended, strict=True)))
    return after if index is None else tuple(part.index_copy(0, index, part) for part in after)


def find_read(trie: HypothesisTrie, unread: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Find the words of a trie that a network has to read, which few of those of long contexts are.

    Args:
        unread: words of the context of each root that are not in the cache.

    Returns:
        Their indices, and for each word of the trie, and ``</s>``, its place among them.
    """
    is_read = np.zeros(len(trie.words) + 1, dtype=bool)
    is_read[-1] = True
    is_read[trie.node_word[trie.n_roots :]] = True
    for words in unread:
        is_read[words] = True
    return np.flatnonzero(is_read), np.cumsum(is_read) - 1
