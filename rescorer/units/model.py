"""A language model in pieces of words, as a ``VectorModel``: a trie of words in, scores of its edges out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from rescorer.models import CONTEXT_CACHE_BYTES
from rescorer.models.contexts import RowCache
from rescorer.models.kernels import to_device
from rescorer.models.tree_attention import tree_vectors
from rescorer.runtime import Phase, phase
from rescorer.trie import EdgeScores, HypothesisTrie
from rescorer.units.decoders import Decoder
from rescorer.units.tokens import WordDivider, build_unit_tree

PROJECTED_ROWS = 8192  # number of context vectors that are converted to float64 at a time


class UnitLanguageModel:
    """A decoder over units.

    Its vocabulary is open: it knows every word, so that no word is unknown to it.

    Args:
        start: units before every text, at least one.
        end: unit that ends a sentence; None: the ends of sentences are not scored.
        context_cache_bytes: size of the cache for what the decoder has computed of contexts; 0 disables it.
    """

    backward = False

    def __init__(
        self,
        decoder: Decoder,
        divider: WordDivider,
        start: Sequence[int],
        end: int | None,
        name: str = "units",
        context_cache_bytes: int = CONTEXT_CACHE_BYTES,
    ) -> None:
        self.name, self.decoder, self.divider = name, decoder, divider
        self.start, self.end = tuple(start), end
        self.context_cache = RowCache(context_cache_bytes)

    @property
    def vector_size(self) -> int:
        return self.decoder.output_size

    def vocabulary(self) -> frozenset[str]:
        return frozenset()

    def share_unknown(self, log_shares: Mapping[str, float], default: float) -> None:
        """Nothing is unknown to it."""

    def log_share(self, word: str) -> float:
        return 0.0

    @torch.inference_mode()
    def score(self, trie: HypothesisTrie, projections: Mapping[str, np.ndarray] | None = None) -> EdgeScores:
        with phase(Phase.TEXT):
            trie = trie.within_sentence
            units = build_unit_tree(trie, self.divider, self.start)
            tree, first = units.tree, units.tree.n_contexts
        with phase(Phase.NETWORK):
            vectors, row_of_node = tree_vectors(self.decoder, tree, self.context_cache)
        with phase(Phase.OUTPUT):
            ends = units.word_ends[trie.end_nodes]
            nodes, targets = tree.parent[first:], tree.word[first:]
            if self.end is not None:
                nodes = np.concatenate([nodes, ends])
                targets = np.concatenate([targets, np.full(len(ends), self.end)])
            log_probs = self._log_probs(vectors, row_of_node[nodes], targets)
            inner, after = np.split(log_probs, [len(tree.parent) - first])
            values = units.fold(trie, inner, np.zeros(len(ends)) if self.end is None else after)
        return EdgeScores(values, np.zeros(trie.n_edges, dtype=bool))

    def _log_probs(self, vectors: Tensor, rows: np.ndarray, units: np.ndarray) -> np.ndarray:
        places, targets = to_device(rows, vectors.device), to_device(units, vectors.device)
        log_probs: np.ndarray = self.decoder.log_probs(vectors, places, targets).cpu().numpy()
        return log_probs
