"""Merge a batch of hypotheses into a prefix trie, stored as flat arrays ordered by depth.

The trie is built over canonical words and knows no word ids of any model. ``EdgeScores`` are the scores that
a model returns for its edges. Encodings of the words of hypotheses, which rerankers read, are means of the
context vectors from which a model predicts these words and the end of the sentence, times the projection of a
``WordEncoder``; they are projected where the model runs, so that K numbers per hypothesis leave that process.

    nodes   roots (one per distinct context), then every distinct prefix, shallow before deep
    edges   first the edge into each node that is not a root, in node order; then one ``</s>`` edge out of
            each node where a hypothesis ends, predicted from that node and never advanced into

Backward models read the suffix trie, ``HypothesisTrie.reversed``: the trie of the reversed hypotheses, in
which those that end alike share nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, count, pairwise

import numpy as np

from rescorer.errors import ConfigError, quote
from rescorer.types import SENTENCE_END as SENTENCE_END
from rescorer.types import Words as Words


@dataclass(frozen=True)
class HypothesisTrie:
    """Distinct prefixes of a batch of hypotheses.

    Attributes:
        words: distinct words of the batch; edges refer to them by index, and ``len(words)`` is ``</s>``.
        contexts: (R,) arrays of word indices: for each root, the words spoken before it; ``len(words)`` ends
            an utterance before the sentence of the hypotheses.
        parent: (N,) int64 node above each node; a root is its own parent.
        node_word: (N,) int64 word on the edge into each node; meaningless for roots.
        level_bounds: level d consists of nodes ``level_bounds[d]`` … ``level_bounds[d+1]-1``; level 0 is the
            roots.
        hypothesis_node: (H,) int64 node where each hypothesis ends; equal hypotheses share a node.
        end_nodes: (M,) int64 distinct nodes where hypotheses end, in ascending order.
        confidences: for each root, how sure each utterance before its sentence is; empty: all are certain.
        flatness: for each root, the θ of its neural cache, see ``models.contexts``; 0: no neural cache.
    """

    words: Words
    contexts: tuple[np.ndarray, ...]
    parent: np.ndarray
    node_word: np.ndarray
    level_bounds: tuple[int, ...]
    hypothesis_node: np.ndarray
    end_nodes: np.ndarray
    confidences: tuple[tuple[float, ...], ...]
    flatness: tuple[float, ...]

    @cached_property
    def within_sentence(self) -> HypothesisTrie:
        """This trie without the utterances before the sentence, which most models ignore."""
        ends = [np.flatnonzero(context == len(self.words)) for context in self.contexts]
        if not any(map(len, ends)):
            return self
        starts = [places[-1] + 1 if len(places) else 0 for places in ends]
        contexts = (context[start:] for context, start in zip(self.contexts, starts, strict=True))
        return replace(self, contexts=tuple(contexts), confidences=((),) * self.n_roots)

    @property
    def n_nodes(self) -> int:
        return len(self.parent)

    @property
    def n_roots(self) -> int:
        return len(self.contexts)

    @property
    def n_edges(self) -> int:
        return self.n_nodes - self.n_roots + len(self.end_nodes)

    @cached_property
    def edge_parent(self) -> np.ndarray:
        """(E,) node from whose state each edge is predicted."""
        return np.concatenate([self.parent[self.n_roots :], self.end_nodes])

    @cached_property
    def edge_word(self) -> np.ndarray:
        """(E,) index of the word on each edge; ``len(words)`` is ``</s>``."""
        ends = np.full(len(self.end_nodes), len(self.words))
        return np.concatenate([self.node_word[self.n_roots :], ends])

    @cached_property
    def root_of_node(self) -> np.ndarray:
        """(N,) int64 root above each node."""
        root = np.arange(self.n_nodes)
        for level in self.levels():
            root[level] = root[self.parent[level]]
        return root

    @cached_property
    def _end_index(self) -> np.ndarray:
        """(H,) int64 position among ``end_nodes`` of the node where each hypothesis ends."""
        return np.searchsorted(self.end_nodes, self.hypothesis_node)

    def in_direction(self, backward: bool) -> HypothesisTrie:
        """The trie that a model reads: ``reversed`` for a backward model, this one for any other."""
        return self.reversed if backward else self

    @cached_property
    def reversed(self) -> HypothesisTrie:
        """The trie of the same hypotheses, in the same order, read from their last words to their first ones.

        It has one root: what was said before a sentence lies beyond the end of a backward reading.
        """
        nodes, lengths = self._walk_up(self.end_nodes)  # which reads hypotheses backwards
        flat_words = self.node_word[nodes]
        no_context = (np.zeros(0, dtype=np.int64),)
        trie = grow_trie(self.words, no_context, np.zeros_like(lengths), flat_words, lengths)
        return replace(trie, hypothesis_node=trie.hypothesis_node[self._end_index])

    def levels(self) -> list[slice]:
        """The nodes of each level below the roots."""
        return [slice(*bounds) for bounds in pairwise(self.level_bounds[1:])]

    @property
    def parent_in_level(self) -> np.ndarray:
        """(N,) position of each node's parent among the nodes of the level above."""
        parent = self.parent.copy()
        for above, level in zip(self.level_bounds, self.levels(), strict=False):
            parent[level] -= above
        return parent

    def sum_paths(self, edge_values: np.ndarray, partial: np.ndarray | None = None) -> np.ndarray:
        """Sum (E,) edge values along the path of each hypothesis, from its first word to ``</s>``, (H,)
        float64. The ``</s>`` of partial hypotheses, (H,) bool, is left out; None: no hypothesis is partial.
        """
        n_inner = self.n_nodes - self.n_roots
        sums = np.zeros(self.n_nodes)
        for level in self.levels():
            edges = slice(level.start - self.n_roots, level.stop - self.n_roots)
            sums[level] = sums[self.parent[level]] + edge_values[edges]
        end_values = edge_values[n_inner:][self._end_index]
        if partial is not None:
            end_values = np.where(partial, 0.0, end_values)
        return sums[self.hypothesis_node] + end_values

    def mean_paths(self, node_values: np.ndarray) -> np.ndarray:
        """Average (N, K) values of nodes along the path of each hypothesis, from its root: (H, K) float64."""
        sums = node_values.astype(np.float64)
        n_nodes = np.ones(self.n_nodes)
        for level in self.levels():
            parent = self.parent[level]
            sums[level] += sums[parent]
            n_nodes[level] += n_nodes[parent]
        means: np.ndarray = sums[self.hypothesis_node] / n_nodes[self.hypothesis_node, None]
        return means

    def path_edges(self, hypothesis: int) -> np.ndarray:
        """Edges of one hypothesis from its first word to ``</s>``, (n_words + 1,)."""
        node = int(self.hypothesis_node[hypothesis])
        edges = [self.n_nodes - self.n_roots + int(np.searchsorted(self.end_nodes, node))]
        while node >= self.n_roots:
            edges.append(node - self.n_roots)
            node = int(self.parent[node])
        return np.array(edges[::-1])

    def list_paths(self) -> list[np.ndarray]:
        """The ``path_edges`` of every hypothesis."""
        nodes, lengths = self._walk_up(self.hypothesis_node)
        first_end = self.n_nodes - self.n_roots
        edges = np.insert(nodes - self.n_roots, np.cumsum(lengths) - lengths, first_end + self._end_index)
        return [path[::-1] for path in np.split(edges, np.cumsum(lengths + 1)[:-1])]

    def _walk_up(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The nodes from each of some nodes, (n,), up to its root, which is left out: one path after the
        other, and the length of each, (n,).
        """
        lengths = np.searchsorted(self.level_bounds, nodes, side="right") - 1
        first = np.cumsum(lengths) - lengths
        above = np.empty(lengths.sum(), dtype=np.int64)
        order, n_reaching = sort_by_length(lengths)
        node = nodes[order]
        for depth, n in enumerate(n_reaching):
            above[first[order[:n]] + depth] = node[:n]
            node[:n] = self.parent[node[:n]]
        return above, lengths


def build_trie(
    hypotheses: Sequence[Words],
    contexts: Sequence[Words] | None = None,
    confidences: Sequence[tuple[float, ...]] | None = None,
    flatness: Sequence[float] | None = None,
) -> HypothesisTrie:
    """Build the trie of a batch, one vectorised step per level.

    Args:
        hypotheses: canonical words of each hypothesis; hypotheses may be empty and may repeat.
        contexts: words that each hypothesis continues, with ``SENTENCE_END`` after each previous utterance.
        confidences: for each hypothesis, that of each previous utterance, or nothing if all are certain;
            hypotheses with other confidences have another root.
        flatness: for each hypothesis, the θ of its neural cache, likewise; 0: none.
    """
    contexts = [()] * len(hypotheses) if contexts is None else contexts
    confidences = [()] * len(hypotheses) if confidences is None else confidences
    flatness = [0.0] * len(hypotheses) if flatness is None else flatness
    root_of: dict[tuple[Words, tuple[float, ...], float], int] = defaultdict(count().__next__)
    roots = np.array(_number_roots(root_of, contexts, confidences, flatness), dtype=np.int64)
    index: dict[str, int] = defaultdict(count().__next__)
    context_words = [
        _to_array(-1 if word == SENTENCE_END else index[word] for word in context) for context, *_ in root_of
    ]
    flat_words = _to_array(map(index.__getitem__, chain.from_iterable(hypotheses)))
    lengths = _to_array(map(len, hypotheses))
    ended = tuple(np.where(words < 0, len(index), words) for words in context_words)
    trie = grow_trie(tuple(index), ended, roots, flat_words, lengths)
    _, sure, flat = zip(*root_of, strict=True) if root_of else ((), (), ())
    return replace(trie, confidences=sure, flatness=flat)


def _number_roots(
    root_of: dict[tuple[Words, tuple[float, ...], float], int],
    contexts: Sequence[Words],
    confidences: Sequence[tuple[float, ...]],
    flatness: Sequence[float],
) -> list[int]:
    """The root of each hypothesis.

    The hypotheses of a list share one context, which may be long: it is hashed once, not for each of them.
    """
    known: dict[tuple[int, int, float], int] = {}
    roots = []
    for context, sure, flat in zip(contexts, confidences, flatness, strict=True):
        key = id(context), id(sure), flat
        if key not in known:
            known[key] = root_of[context, sure, flat]
        roots.append(known[key])
    return roots


def _to_array(numbers: Iterable[int]) -> np.ndarray:
    """Collect integers, (n,) int64."""
    return np.fromiter(numbers, dtype=np.int64)


def grow_trie(
    words: Words,
    contexts: tuple[np.ndarray, ...],
    roots: np.ndarray,
    flat_words: np.ndarray,
    lengths: np.ndarray,
) -> HypothesisTrie:
    """Build a trie from indices of words: those of all hypotheses, one after the other, whose lengths and
    roots are (H,), and those of the context of each root.
    """
    order, n_reaching = sort_by_length(lengths)
    first = (np.cumsum(lengths) - lengths)[order]
    node = roots[order]  # reached so far
    parents = [np.arange(len(contexts))]
    node_words = [np.zeros(len(contexts), dtype=np.int64)]
    bounds = [0, len(contexts)]
    for depth, n in enumerate(n_reaching):
        # A (parent, word) pair packed into one integer sorts faster than rows of two.
        keys = node[:n] * len(words) + flat_words[first[:n] + depth]
        distinct, position = np.unique(keys, return_inverse=True)
        parents.append(distinct // len(words))
        node_words.append(distinct % len(words))
        node[:n] = bounds[-1] + position
        bounds.append(bounds[-1] + len(distinct))
    hypothesis_node = np.empty_like(node)
    hypothesis_node[order] = node
    return HypothesisTrie(
        words=words,
        contexts=contexts,
        parent=np.concatenate(parents),
        node_word=np.concatenate(node_words),
        level_bounds=tuple(bounds),
        hypothesis_node=hypothesis_node,
        end_nodes=np.unique(hypothesis_node),
        confidences=((),) * len(contexts),
        flatness=(0.0,) * len(contexts),
    )


def sort_by_length(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort hypotheses, the longest first, so that those that reach a depth are always the first rows; also
    return the number of hypotheses that have a word at each depth.
    """
    order = np.argsort(-lengths, kind="stable")
    depths = np.arange(1, lengths.max(initial=0) + 1)
    return order, np.searchsorted(-lengths[order], -depths, side="right")


@dataclass(frozen=True, slots=True)
class EdgeScores:
    """One model's scores for every edge of the trie that it read, in its direction."""

    log_probs: np.ndarray
    """(E,) float64, ln P(word | path from the root)."""
    unknown: np.ndarray
    """(E,) bool, True if the word of the edge is not in the model's vocabulary."""
    encodings: Mapping[str, np.ndarray] = field(default_factory=dict)
    """(H, K) float64, encodings of the words of each hypothesis, by the name of the projection; see
    ``models.language_model.VectorModel``."""
    backward: bool = False
    """Whether the edges are those of the reversed trie."""
    cached: np.ndarray | None = None
    """(E,) float64, P(word) in the neural cache of this model; None if it was not computed."""

    def sum_paths(self, trie: HypothesisTrie, partial: np.ndarray | None = None) -> np.ndarray:
        """ln P of each hypothesis, (H,) float64.

        Args:
            trie: the trie of the hypotheses, in reading order.
            partial: (H,) bool, hypotheses whose end is not scored; None: no hypothesis is partial. A backward
                model predicts no end, and takes the last word of a partial hypothesis for that of a sentence.
        """
        return trie.in_direction(self.backward).sum_paths(self.log_probs, None if self.backward else partial)

    def count_unknown(self, trie: HypothesisTrie) -> np.ndarray:
        """Number of unknown words of each hypothesis, (H,) float64; every model knows ``</s>``."""
        return trie.in_direction(self.backward).sum_paths(self.unknown)

    def path_edges(self, trie: HypothesisTrie, hypothesis: int) -> np.ndarray:
        """The edge of each word of a hypothesis in reading order, then that of ``</s>``: (n_words + 1,).

        The ``</s>`` of a backward model is the start of the sentence, predicted after its first word.
        """
        edges = trie.in_direction(self.backward).path_edges(hypothesis)
        return np.append(edges[-2::-1], edges[-1:]) if self.backward else edges


MAX_ENCODING_SIZE = 32  # largest K of a reranker
MAX_VECTOR_SIZE = 16_384  # longest context vector, as in the configuration of networks
ENCODING = "encoding:"
"""Prefix of the name of an encoding in explanations; that of the language model follows."""


@dataclass(frozen=True, slots=True)
class WordEncoder:
    """A language model of the bundle, and the projection of its context vectors.

    Raises:
        ConfigError: the projection has another shape, or a value that is not finite.
    """

    model: str  # name of the model, which must be a network
    projection: np.ndarray  # (D, K) float64, from context vectors of length D

    def __post_init__(self) -> None:
        shape, place = self.projection.shape, f"the projection of the context vectors of {quote(self.model)}"
        if len(shape) != 2 or not 0 < shape[0] <= MAX_VECTOR_SIZE or not shape[1]:
            raise ConfigError(
                f"{place} has the shape {shape}; expected 1 to {MAX_VECTOR_SIZE:,} rows, and columns"
            )
        if not np.isfinite(self.projection).all():
            raise ConfigError(f"{place} has a value that is not finite")
