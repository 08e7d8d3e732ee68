"""A language model in pieces of words, as a ``VectorModel``: a trie of words in, scores of its edges out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rescorer.models import CONTEXT_CACHE_BYTES
from rescorer.models.contexts import RowCache
from rescorer.models.kernels import project_rows, to_device
from rescorer.models.language_model import VectorModel
from rescorer.models.tree_attention import PrefixTree, build_prefix_tree
from rescorer.runtime import Phase, phase
from rescorer.trie import EdgeScores, HypothesisTrie, Words
from rescorer.units.tokens import WordDivider, build_unit_trie

MAX_DIFFERENCE = 1e-4
"""Largest difference per word, in nats, between scores of tries and of one text at a time."""


class UnitDecoder(Protocol):
    """A network that reads units."""

    output_size: int  # D, length of a context vector

    def read_tree(self, tree: PrefixTree, cache: RowCache) -> tuple[Tensor, np.ndarray]:
        """Context vectors of a tree, (U, D), and the row of each node's vector, (N,)."""

    def log_probs(self, vectors: Tensor, rows: Tensor, units: Tensor) -> Tensor:
        """ln P(units[e] | vectors[rows[e]]) of every edge e, (E,) float64."""

    def sequence_log_probs(self, units: Sequence[int], dtype: torch.dtype = torch.float64) -> Tensor:
        """ln P of each unit after the first given those before it, (T - 1,): the slow twin."""


class DecoderScorer:
    """Scores tries of units by a decoder; their words are numbers of units.

    Args:
        start: unit before every text.
        end: unit that ends texts.
        context_cache_bytes: size of the cache for what the decoder has computed of contexts; 0 disables it.
    """

    def __init__(
        self, decoder: UnitDecoder, start: int, end: int, context_cache_bytes: int = CONTEXT_CACHE_BYTES
    ) -> None:
        self.decoder, self.start, self.end = decoder, start, end
        self.context_cache = RowCache(context_cache_bytes)

    @property
    def vector_size(self) -> int:
        """Length of a context vector."""
        return self.decoder.output_size

    def score(self, trie: HypothesisTrie, projections: Mapping[str, np.ndarray] | None = None) -> EdgeScores:
        """See ``VectorModel``."""
        ids = np.append(_read_numbers(trie.words), self.end)
        vectors, rows = self._read(trie, ids)
        with phase(Phase.OUTPUT):
            log_probs = self._log_probs(vectors, rows[trie.edge_parent], ids[trie.edge_word])
            encodings = {
                name: trie.mean_paths(project_rows(vectors, projection)[rows])
                for name, projection in (projections or {}).items()
            }
        return EdgeScores(log_probs, np.zeros(trie.n_edges, dtype=bool), encodings)

    @torch.inference_mode()
    def score_ends(self, trie: HypothesisTrie, units: Sequence[int]) -> np.ndarray:
        """ln P of several units after each of the trie's ``end_nodes``, (M, units) float64."""
        vectors, rows = self._read(trie, np.append(_read_numbers(trie.words), self.end))
        places = np.repeat(rows[trie.end_nodes], len(units))
        targets = np.tile(np.array(units, dtype=np.int64), len(trie.end_nodes))
        return self._log_probs(vectors, places, targets).reshape(-1, len(units))

    def _read(self, trie: HypothesisTrie, ids: np.ndarray) -> tuple[Tensor, np.ndarray]:
        """Context vectors, (U, D), and the row of each node of a trie, (N,)."""
        with phase(Phase.NETWORK):
            tree = build_prefix_tree(trie, ids, _read_numbers, self.start)
            vectors, row_of_node = self.decoder.read_tree(tree, self.context_cache)
            return vectors, row_of_node[tree.trie_nodes]

    def _log_probs(self, vectors: Tensor, rows: np.ndarray, units: np.ndarray) -> np.ndarray:
        places, targets = to_device(rows, vectors.device), to_device(units, vectors.device)
        log_probs: np.ndarray = self.decoder.log_probs(vectors, places, targets).cpu().numpy()
        return log_probs


def _read_numbers(words: Words) -> np.ndarray:
    """The units that words of a trie of units stand for, (n,) int64."""
    return np.array(list(map(int, words)), dtype=np.int64)


class UnitLanguageModel:
    """A language model over units, of which words are made.

    Its vocabulary is open: no word is unknown to it, so that it has no share in P(``<unk>``).

    Args:
        scorer: scores tries of units.
        opening: units before every text, besides the first one.
        scores_end: whether the end of a sentence counts.
    """

    backward = False

    def __init__(
        self,
        scorer: VectorModel | DecoderScorer,
        divider: WordDivider,
        name: str = "units",
        opening: Sequence[int] = (),
        *,
        scores_end: bool = True,
    ) -> None:
        self.name, self.scorer, self.divider = name, scorer, divider
        self.opening, self.scores_end = tuple(opening), scores_end

    @property
    def vector_size(self) -> int:
        return self.scorer.vector_size

    def vocabulary(self) -> frozenset[str]:
        return frozenset()

    def share_unknown(self, log_shares: Mapping[str, float], default: float) -> None:
        """Change nothing, because no word is unknown."""

    def log_share(self, word: str) -> float:
        return 0.0

    @torch.inference_mode()
    def score(self, trie: HypothesisTrie, projections: Mapping[str, np.ndarray] | None = None) -> EdgeScores:
        trie = trie.within_sentence
        with phase(Phase.TEXT):
            units = build_unit_trie(trie, self.divider, self.opening)
        found = self.scorer.score(units.trie, projections)
        log_probs = found.log_probs
        if not self.scores_end:
            log_probs[units.trie.n_nodes - units.trie.n_roots :] = 0.0
        values = units.fold(trie, log_probs)
        return EdgeScores(values, np.zeros(trie.n_edges, dtype=bool), found.encodings)
