"""Read sequences of different lengths by a recurrent network, one word of all of them at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from rescorer.lm.context_cache import Rows
from rescorer.lm.networks import ContextNetwork
from rescorer.trie import sort_by_length

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
