"""A language model in pieces of words, as a ``VectorModel``: a trie of words in, scores of its edges out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rescorer.models import CONTEXT_CACHE_BYTES
from rescorer.models.contexts import ContextCache, RowCache
from rescorer.models.kernels import project_rows, to_device
from rescorer.models.neural import read_recurrently
from rescorer.models.tree_attention import PrefixTree, build_prefix_tree
from rescorer.runtime import Phase, phase
from rescorer.trie import EdgeScores, HypothesisTrie, Words
from rescorer.units.decoders import TOGETHER
from rescorer.units.prompts import Prompt
from rescorer.units.recurrent import RecurrentDecoder
from rescorer.units.tokens import (
    UnitTrie,
    WholeTrie,
    WordDivider,
    build_unit_trie,
    build_whole_trie,
)

END_RATE = 1 / 16
"""Probability of the end of a sentence after each word, where a model does not score ends."""
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

    def log_probs(
        self, vectors: Tensor, rows: Tensor, units: Tensor, together: Tensor | None = None
    ) -> Tensor:
        """See ``decoders.score_edges``."""

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
        return self.score_together(trie, np.zeros(0, dtype=np.int64), projections)[0]

    @torch.inference_mode()
    def score_together(
        self,
        trie: HypothesisTrie,
        nodes: np.ndarray,
        projections: Mapping[str, np.ndarray] | None = None,
        together: np.ndarray | None = None,
    ) -> tuple[EdgeScores, np.ndarray]:
        """Score every edge, and find the probability of any of several units after some nodes.

        Args:
            nodes: (n,) nodes of the trie; without a start, no roots without a context.
            together: the units.

        Returns:
            The scores as ``score`` returns them, and (n,) float64 ln P that one of the units comes next.
        """
        ids = np.append(_read_numbers(trie.words), self.end or 0)
        leaves = self.end is not None or bool(projections) or len(nodes) > 0
        vectors, rows = self._read(trie, ids, leaves=leaves)
        log_probs = np.zeros(trie.n_edges)
        scored = slice(trie.n_edges if self.end is not None else trie.n_nodes - trie.n_roots)
        with phase(Phase.OUTPUT):
            places = np.append(rows[trie.edge_parent[scored]], rows[nodes])
            targets = np.append(ids[trie.edge_word[scored]], np.full(len(nodes), TOGETHER))
            found = self._log_probs(vectors, places, targets, together)
            log_probs[scored], sums = np.split(found, [len(found) - len(nodes)])
            if self.start is None:
                is_empty = np.array([not len(context) for context in trie.contexts], dtype=bool)
                at_root = trie.edge_parent < trie.n_roots
                log_probs[at_root] = np.where(is_empty[trie.edge_parent[at_root]], 0.0, log_probs[at_root])
            encodings = {
                name: trie.mean_paths(project_rows(vectors, projection)[rows])
                for name, projection in (projections or {}).items()
            }
        return EdgeScores(log_probs, np.zeros(trie.n_edges, dtype=bool), encodings), sums

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

    def _log_probs(
        self, vectors: Tensor, rows: np.ndarray, units: np.ndarray, together: np.ndarray | None = None
    ) -> np.ndarray:
        """ln P of units, (n,), from the vectors at some rows; no scores are computed at other rows.

        Args:
            together: see ``decoders.score_edges``.
        """
        device = vectors.device
        used, index = np.unique(rows, return_inverse=True)
        vectors = vectors.index_select(0, to_device(used, device))
        places, targets = to_device(index, device), to_device(units, device)
        chosen = None if together is None else to_device(together, device)
        log_probs: np.ndarray = self.decoder.log_probs(vectors, places, targets, chosen).cpu().numpy()
        return log_probs


def _read_numbers(words: Words) -> np.ndarray:
    """The units that words of a trie of units stand for, (n,) int64."""
    return np.array(list(map(int, words)), dtype=np.int64)


class UnitLanguageModel:
    """A language model over units, of which words are made.

    Its vocabulary is open: no word is unknown to it, so that it has no share in P(``<unk>``).

    Probabilities of words follow from those of units, see ``UnitTrie.complete``. Where the model does not say
    all that they need, a constant stands in, so that they still sum to at most 1: a model without an end ends
    texts at the rate ``END_RATE``, and without a start, any unit of the tokenizer may be the first.

    Args:
        scorer: scores tries of units.
        opening: units before every text, besides the first one.
        prompt: what is read before a sentence; None: only its context.
    """

    backward = False

    def __init__(
        self,
        scorer: DecoderScorer,
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

    @property
    def scores_words(self) -> bool:
        return self.divider.word_starts is not None

    @property
    def reads_previous(self) -> bool:
        return self.prompt is not None and self.prompt.max_units > 0

    def score(self, trie: HypothesisTrie, projections: Mapping[str, np.ndarray] | None = None) -> EdgeScores:
        return self._score(trie, projections)

    def score_words(
        self, trie: HypothesisTrie, projections: Mapping[str, np.ndarray] | None = None
    ) -> EdgeScores:
        return self._score(trie, projections, self.divider.word_starts)

    @torch.inference_mode()
    def _score(
        self,
        trie: HypothesisTrie,
        projections: Mapping[str, np.ndarray] | None,
        word_starts: np.ndarray | None = None,
    ) -> EdgeScores:
        """Score a trie.

        Args:
            word_starts: units that begin words; None: no probabilities of words are needed.
        """
        if self.prompt is None:
            trie = trie.within_sentence
        with phase(Phase.TEXT):
            build = build_whole_trie if self.divider.whole else build_unit_trie
            units = build(trie, self.divider, self.opening, self.prompt)
        if word_starts is None or isinstance(units, WholeTrie):
            found, words = self.scorer.score(units.trie, projections), None
        else:
            starts = word_starts if self.scorer.end is None else np.union1d(word_starts, self.scorer.end)
            nodes = np.unique(units.word_ends[~units.is_start])
            found, sums = self.scorer.score_together(units.trie, nodes, projections, starts)
            boundaries = np.append(sums, 0.0)[np.searchsorted(nodes, units.word_ends)]
            words = self._complete(trie, units, units.fold(trie, found.log_probs), boundaries)
        values = units.fold(trie, found.log_probs)
        encodings = {name: units.rows(rows) for name, rows in found.encodings.items()}
        unknown = np.zeros(trie.n_edges, dtype=bool)
        return EdgeScores(values, unknown, encodings, word_log_probs=words)

    def _complete(
        self, trie: HypothesisTrie, units: UnitTrie, values: np.ndarray, boundaries: np.ndarray
    ) -> np.ndarray:
        """ln P of each word and ``</s>``, (E,); see ``UnitTrie.complete``, whose arguments these are too."""
        completed, n_inner = units.complete(trie, values, boundaries), trie.n_nodes - trie.n_roots
        nodes, above = np.arange(trie.n_roots, trie.n_nodes), trie.parent[trie.n_roots :]
        one_of_all = math.log(self.divider.tokenizer.size)
        if self.scorer.start is None:  # nothing predicts the first unit where nothing was read
            is_read = np.array([len(context) > 0 for context in units.trie.contexts], dtype=bool)
            is_first = units.is_start & ~np.append(is_read, np.zeros(trie.n_nodes - trie.n_roots, dtype=bool))
            completed[is_first[trie.edge_parent]] -= one_of_all
        completed[:n_inner][units.word_ends[nodes] == units.word_ends[above]] -= one_of_all  # without units
        if self.scorer.end is None:
            completed[:n_inner] += math.log1p(-END_RATE)
            completed[n_inner:] = math.log(END_RATE)
        return completed
