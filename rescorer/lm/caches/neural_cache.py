"""Neural cache of a session: a word is likely again where a network's state is like that before it was said.

Grave, Joulin & Usunier (2016), "Improving Neural Language Models with a Continuous Cache". Of each word w_t
that was said before a root, the network has the context vector h_t from which it predicts it. For an edge
whose word is predicted from h,

    P_cache(w | h) = Σ_{t: w_t = w} c_t exp(θ h · h_t) / Σ_t c_t exp(θ h · h_t),

where c_t is the confidence of the utterance. Words are compared as texts, so that Σ_w P_cache(w | h) = 1 over
the words of the session and ``</s>``, those included that the network does not know.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rescorer.lm.caches.session_cache import spread_confidences
from rescorer.trie import HypothesisTrie

CHUNK_VALUES = 1 << 20
"""Largest number of products of vectors that are held at once, 8 MB."""


def predict_from_past(
    trie: HypothesisTrie, vectors: Tensor, row_of_node: np.ndarray, past: Sequence[Tensor | None]
) -> np.ndarray:
    """P_cache of the word on each edge, (E,) float64; 0 for words that were not said before the root.

    Args:
        trie: a trie with all that was said before.
        vectors: (U, D) distinct context vectors.
        row_of_node: (N,) row of the vector of each node.
        past: for each root, the vectors from which the words before it are predicted, (T, D); or None.
    """
    probs = np.zeros(trie.n_edges)
    root_of_edge = trie.root_of_node[trie.edge_parent]
    order = np.argsort(root_of_edge, kind="stable")
    ends = np.cumsum(np.bincount(root_of_edge, minlength=trie.n_roots))
    for root, (edges, before) in enumerate(zip(np.split(order, ends[:-1]), past, strict=True)):
        if before is None:
            continue
        said, place = np.unique(trie.contexts[root], return_inverse=True)
        sure = spread_confidences(trie.contexts[root], trie.confidences[root], len(trie.words))
        edges = edges[np.isin(trie.edge_word[edges], said)]
        if not len(edges) or not sure.any():
            continue
        rows, row_of_edge = np.unique(row_of_node[trie.edge_parent[edges]], return_inverse=True)
        states = vectors.index_select(0, torch.from_numpy(rows).to(vectors.device))
        by_word = _sum_by_word(states.float(), before, trie.flatness[root], sure, place, len(said))
        probs[edges] = by_word[row_of_edge, np.searchsorted(said, trie.edge_word[edges])]
    return probs


def _sum_by_word(
    states: Tensor, before: Tensor, flatness: float, sure: np.ndarray, place: np.ndarray, n_words: int
) -> np.ndarray:
    """P_cache of each distinct word of a past after some states, (U, W) float64.

    Args:
        states: (U, D) vectors after which a word is predicted.
        before: (T, D) vectors from which the words of the past are predicted.
        flatness: θ.
        sure: (T,) how much each word of the past counts.
        place: (T,) index of each word of the past among the W distinct ones.
    """
    device, parts = states.device, []
    with np.errstate(divide="ignore"):
        log_sure = torch.from_numpy(np.log(sure)).to(device)
    index = torch.from_numpy(place).to(device)
    for chunk in states.split(max(1, CHUNK_VALUES // len(before))):
        alike = (chunk @ before.t()).double().mul_(flatness).add_(log_sure).softmax(dim=1)  # (n, T)
        parts.append(alike.new_zeros(len(chunk), n_words).index_add_(1, index, alike))
    return torch.cat(parts).cpu().numpy()
