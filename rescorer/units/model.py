"""A language model in pieces of words, as a ``VectorModel``: a trie of words in, scores of its edges out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rescorer.models import CONTEXT_CACHE_BYTES
from rescorer.models.contexts import ContextCache, RowCache
from rescorer.models.kernels import project_rows, to_device
from rescorer.models.language_model import VectorModel
from rescorer.models.neural import read_recurrently
from rescorer.models.tree_attention import PrefixTree, build_prefix_tree
from rescorer.runtime import Phase, phase
from rescorer.trie import EdgeScores, HypothesisTrie, Words
from rescorer.units.prompts import Prompt
from rescorer.units.recurrent import RecurrentDecoder
from rescorer.units.tokens import WordDivider, build_unit_trie, build_whole_trie

MAX_DIFFERENCE = 1e-4
"""Largest difference per word, in nats, between scores of tries and of one text at a time."""


class TreeDecoder(Protocol):
    """A network that reads trees of units."""

    output_size: int  # D, length of a context vector

    @property
    def n_positions(self) -> int:
        """Number of units of a text that it can read."""

    def read_tree(
        self, tree: PrefixTree, cache: RowCache, *, leaves: bool = True, root: bool = True
    ) -> tuple[Tensor, np.ndarray]:
        """See ``tree_attention.tree_vectors``."""

    def log_probs(self, vectors: Tensor, rows: Tensor, units: Tensor) -> Tensor:
        """ln P(units[e] | vectors[rows[e]]) of every edge e, (E,) float64."""

    def sequence_log_probs(self, units: Sequence[int], dtype: torch.dtype = torch.float64) -> Tensor:
        """ln P of each unit after the first given those before it, (T - 1,): the slow twin."""


class DecoderScorer:
    """Scores tries of units by a decoder; their words are numbers of units.

    Args:
        start: unit before every text; None: there is none, and the first unit of a text has ln P 0.
        end: unit that ends texts; None: ends are not scored, and have ln P 0.
        context_cache_bytes: size of the cache for what the decoder has computed of contexts; 0 disables it.
    """

    def __init__(
        self,
        decoder: TreeDecoder | RecurrentDecoder,
        start: int | None,
        end: int | None,
        context_cache_bytes: int = CONTEXT_CACHE_BYTES,
    ) -> None:
        self.decoder, self.start, self.end = decoder, start, end
        cache = ContextCache if isinstance(decoder, RecurrentDecoder) else RowCache
        self.context_cache: RowCache = cache(context_cache_bytes)

    @property
    def vector_size(self) -> int:
        """Length of a context vector."""
        return self.decoder.output_size

    def score(self, trie: HypothesisTrie, projections: Mapping[str, np.ndarray] | None = None) -> EdgeScores:
        """See ``VectorModel``."""
        ids = np.append(_read_numbers(trie.words), self.end or 0)
        vectors, rows = self._read(trie, ids, leaves=self.end is not None or bool(projections))
        log_probs = np.zeros(trie.n_edges)
        scored = slice(trie.n_edges if self.end is not None else trie.n_nodes - trie.n_roots)
        with phase(Phase.OUTPUT):
            log_probs[scored] = self._log_probs(
                vectors, rows[trie.edge_parent[scored]], ids[trie.edge_word[scored]]
            )
            if self.start is None:
                is_empty = np.array([not len(context) for context in trie.contexts], dtype=bool)
                at_root = trie.edge_parent < trie.n_roots
                log_probs[at_root] = np.where(is_empty[trie.edge_parent[at_root]], 0.0, log_probs[at_root])
            encodings = {
                name: trie.mean_paths(project_rows(vectors, projection)[rows])
                for name, projection in (projections or {}).items()
            }
        return EdgeScores(log_probs, np.zeros(trie.n_edges, dtype=bool), encodings)

    @torch.inference_mode()
    def score_ends(self, trie: HypothesisTrie, units: Sequence[int]) -> np.ndarray:
        """ln P of several units after each of the trie's ``end_nodes``, (M, units) float64."""
        vectors, rows = self._read(trie, np.append(_read_numbers(trie.words), 0))
        places = np.repeat(rows[trie.end_nodes], len(units))
        targets = np.tile(np.array(units, dtype=np.int64), len(trie.end_nodes))
        return self._log_probs(vectors, places, targets).reshape(-1, len(units))

    def _read(
        self, trie: HypothesisTrie, ids: np.ndarray, *, leaves: bool = True
    ) -> tuple[Tensor, np.ndarray]:
        """Context vectors, (U, D), and the row of each node of a trie, (N,); see ``tree_vectors``."""
        with phase(Phase.NETWORK):
            if isinstance(self.decoder, RecurrentDecoder):
                assert isinstance(self.context_cache, ContextCache)
                assert self.start is not None
                vectors = read_recurrently(self.decoder, trie, ids, self.start, self.context_cache)
                return vectors, np.arange(trie.n_nodes)
            tree = build_prefix_tree(trie, ids, _read_numbers, self.start or 0)
            if self.start is None:
                tree = replace(tree, position=np.maximum(tree.position - 1, 0))
            vectors, row_of_node = self.decoder.read_tree(
                tree, self.context_cache, leaves=leaves, root=self.start is not None
            )
            return vectors, row_of_node[tree.trie_nodes]

    def _log_probs(self, vectors: Tensor, rows: np.ndarray, units: np.ndarray) -> np.ndarray:
        """ln P of units, (n,), from the vectors at some rows; no scores are computed at other rows."""
        device = vectors.device
        used, index = np.unique(rows, return_inverse=True)
        vectors = vectors.index_select(0, to_device(used, device))
        places, targets = to_device(index, device), to_device(units, device)
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
        prompt: what is read before a sentence; None: only its context.
    """

    backward = False

    def __init__(
        self,
        scorer: VectorModel | DecoderScorer,
        divider: WordDivider,
        name: str = "units",
        opening: Sequence[int] = (),
        prompt: Prompt | None = None,
    ) -> None:
        self.name, self.scorer, self.divider = name, scorer, divider
        self.opening, self.prompt = tuple(opening), prompt

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
        if self.prompt is None:
            trie = trie.within_sentence
        with phase(Phase.TEXT):
            build = build_whole_trie if self.divider.whole else build_unit_trie
            units = build(trie, self.divider, self.opening, self.prompt)
        found = self.scorer.score(units.trie, projections)
        values = units.fold(trie, found.log_probs)
        encodings = {name: units.rows(rows) for name, rows in found.encodings.items()}
        return EdgeScores(values, np.zeros(trie.n_edges, dtype=bool), encodings)
