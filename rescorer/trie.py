"""A batch of hypotheses as a prefix trie, in flat arrays ordered by depth, and the scores of its edges.

Hypotheses that begin alike share nodes, so that a model scores their common words once. The trie consists of
canonical words and knows no word ids of any model.

    nodes   first the roots, one for each distinct context; then every distinct prefix, shallow before deep
    edges   first the edge into each node that is not a root, in the order of the nodes; then one ``</s>``
            edge out of each node where a hypothesis ends, which is predicted from that node and leads to none

Backward models read ``HypothesisTrie.reversed``. In this trie, every hypothesis is reversed, so that
hypotheses that end alike share nodes.

A model returns ``EdgeScores``: a log-probability for each edge. A network can also encode the words of each
hypothesis for rerankers. It predicts each word and ``</s>`` from a context vector; an encoding is the mean of
these vectors, times the projection of a ``WordEncoder``. The process that runs the network also projects, so
that only K numbers per hypothesis leave it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain, count, islice, pairwise
from typing import overload

import numpy as np

from rescorer.errors import ConfigError, quote
from rescorer.types import SENTENCE_END as SENTENCE_END
from rescorer.types import Words as Words


@dataclass(frozen=True)
class HypothesisTrie:
    """The distinct prefixes of a batch of hypotheses.

    Attributes:
        words: distinct words of the batch. Edges refer to them by index; the index ``len(words)`` is
            ``</s>``.
        contexts: for each root, an array with the indices of the words spoken before it; the index
            ``len(words)`` follows each previous utterance.
        parent: (N,) int64 node above each node; a root is its own parent.
        node_word: (N,) int64 word on the edge into each node; meaningless for roots.
        level_bounds: level d consists of the nodes ``level_bounds[d]`` … ``level_bounds[d+1]-1``; level 0 is
            the roots.
        hypothesis_node: (H,) int64 node where each hypothesis ends; equal hypotheses share a node.
        end_nodes: (M,) int64 distinct nodes where hypotheses end, in ascending order.
        confidences: for each root, the confidence of each previous utterance; empty if all are certain.
        flatness: for each root, the parameter θ of its neural cache, see ``models.contexts``; 0 for no neural
            cache.
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
        """This trie without previous utterances, for the many models that ignore them."""
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
        """(E,) the node from whose state the word of each edge is predicted."""
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
        """(H,) int64 index in ``end_nodes`` of the node where each hypothesis ends."""
        return np.searchsorted(self.end_nodes, self.hypothesis_node)

    def in_direction(self, backward: bool) -> HypothesisTrie:
        """The trie that a model reads: the reversed one for a backward model, this one for any other."""
        return self.reversed if backward else self

    @cached_property
    def reversed(self) -> HypothesisTrie:
        """The trie of the same hypotheses, in the same order, each read from its last word to its first.

        This trie has one root for all contexts: a backward model would come to the context only after the
        sentence.
        """
        nodes, lengths = self._walk_up(self.end_nodes)  # which reads hypotheses backwards
        flat_words = self.node_word[nodes]
        no_context = (np.zeros(0, dtype=np.int64),)
        trie = _grow_trie(self.words, no_context, np.zeros_like(lengths), flat_words, lengths)
        return replace(trie, hypothesis_node=trie.hypothesis_node[self._end_index])

    def levels(self) -> list[slice]:
        """The nodes of each level below the roots, as slices."""
        return [slice(*bounds) for bounds in pairwise(self.level_bounds[1:])]

    @property
    def parent_in_level(self) -> np.ndarray:
        """(N,) index of each node's parent among the nodes of the level above."""
        parent = self.parent.copy()
        for above, level in zip(self.level_bounds, self.levels(), strict=False):
            parent[level] -= above
        return parent

    def sum_paths(self, edge_values: np.ndarray, partial: np.ndarray | None = None) -> np.ndarray:
        """Sum ``edge_values``, (E,), along the path of each hypothesis from its first word to ``</s>``.

        Returns:
            (H,) float64.

        Args:
            partial: (H,) bool, the hypotheses whose ``</s>`` is left out; None: no hypothesis is partial.
        """
        if not edge_values.any():  # such as those of unknown words
            return np.zeros(len(self.hypothesis_node))
        n_inner = self.n_nodes - self.n_roots
        sums = np.zeros(self.n_nodes)
        sums[self.n_roots :] = edge_values[:n_inner]
        for level in self.levels():
            of_level = sums[level]  # a view
            of_level += sums.take(self.parent[level])
        end_values = edge_values[n_inner:][self._end_index]
        if partial is not None:
            end_values = np.where(partial, 0.0, end_values)
        return sums[self.hypothesis_node] + end_values

    def mean_paths(self, node_values: np.ndarray) -> np.ndarray:
        """Average node values, (N, K), along the path of each hypothesis from its root on: (H, K) float64."""
        sums = node_values.astype(np.float64)
        n_nodes = np.ones(self.n_nodes)
        for level in self.levels():
            parent = self.parent[level]
            sums[level] += sums[parent]
            n_nodes[level] += n_nodes[parent]
        means: np.ndarray = sums[self.hypothesis_node] / n_nodes[self.hypothesis_node, None]
        return means

    @cached_property
    def paths(self) -> list[np.ndarray]:
        """For each hypothesis, its edges from its first word to ``</s>``, (n_words + 1,)."""
        nodes, lengths = self._walk_up(self.hypothesis_node)
        first_end = self.n_nodes - self.n_roots
        edges = np.insert(nodes - self.n_roots, np.cumsum(lengths) - lengths, first_end + self._end_index)
        return [path[::-1] for path in np.split(edges, np.cumsum(lengths + 1)[:-1])]

    def path_edges(self, hypothesis: int) -> np.ndarray:
        """The edges of one hypothesis; see ``paths``."""
        return self.paths[hypothesis]

    def _walk_up(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """List the nodes on the path from each of n given nodes up to its root; the root itself is left out.

        Returns:
            The paths, one after the other, and the length of each path, (n,).
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


class NumberedTexts(Sequence[Words]):
    """The canonical words of several texts as numbers in one array: a sequence of tuples of words.

    The tuples are made when one is asked for; equal texts share one. A trie is built without them.

    Attributes:
        numbers: (T,) int64, the words of all texts, one after the other.
        lengths: (N,) int64, number of words of each text.
        words: the word of each number.
    """

    def __init__(self, numbers: np.ndarray, lengths: np.ndarray, words: Mapping[int, str]) -> None:
        self.numbers, self.lengths, self.words = numbers, lengths, words

    @classmethod
    def join(cls, parts: Sequence[NumberedTexts]) -> NumberedTexts:
        """Join the texts of at least one part; all parts have the same numbers of words."""
        if len(parts) == 1:
            return parts[0]
        numbers, lengths = ([getattr(part, name) for part in parts] for name in ("numbers", "lengths"))
        return cls(np.concatenate(numbers), np.concatenate(lengths), parts[0].words)

    def divide(self, counts: Sequence[int]) -> list[NumberedTexts]:
        """Divide the texts among lists that have so many texts each; the arrays are views of these."""
        texts = [0, *accumulate(counts)]
        ends = np.append(0, np.cumsum(self.lengths)).take(texts).tolist()
        return [
            NumberedTexts(self.numbers[begin:end], self.lengths[first:last], self.words)
            for (first, last), (begin, end) in zip(pairwise(texts), pairwise(ends), strict=True)
        ]

    @cached_property
    def _texts(self) -> tuple[Words, ...]:
        words = map(self.words.__getitem__, self.numbers.tolist())
        texts = [tuple(islice(words, length)) for length in self.lengths.tolist()]
        shared: dict[Words, Words] = {}
        return tuple(shared.setdefault(text, text) for text in texts)

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[Words]:
        return iter(self._texts)

    @overload
    def __getitem__(self, index: int) -> Words: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Words]: ...
    def __getitem__(self, index: int | slice) -> Words | Sequence[Words]:
        return self._texts[index]


def text_lengths(texts: Sequence[Words]) -> np.ndarray:
    """Return the number of words of each text, (N,) int64."""
    return texts.lengths if isinstance(texts, NumberedTexts) else _to_array(map(len, texts))


def join_texts(parts: Sequence[Sequence[Words]]) -> Sequence[Words]:
    """Join sequences of texts; the result has numbers if all of them have the same numbers of words."""
    numbered = [part for part in parts if isinstance(part, NumberedTexts)]
    if len(numbered) < len(parts) or any(part.words is not numbered[0].words for part in numbered[1:]):
        return [*chain.from_iterable(parts)]
    return NumberedTexts.join(numbered) if numbered else ()


def build_trie(
    hypotheses: Sequence[Words],
    contexts: Sequence[Words] | None = None,
    confidences: Sequence[tuple[float, ...]] | None = None,
    flatness: Sequence[float] | None = None,
    counts: Sequence[int] | None = None,
) -> HypothesisTrie:
    """Build the trie of a batch, with one vectorised operation per level.

    Args:
        hypotheses: canonical words of each hypothesis; hypotheses may be empty and may repeat.
        contexts: for each hypothesis, the words spoken before it, with ``SENTENCE_END`` after each previous
            utterance; None: no hypothesis has a context.
        confidences: for each hypothesis, the confidence of each previous utterance, or () if all are certain.
            Hypotheses with different confidences have different roots.
        flatness: for each hypothesis, the parameter θ of its neural cache, or 0 for none. Hypotheses with
            different values have different roots.
        counts: number of hypotheses, one after the other, for which each item of ``contexts``,
            ``confidences`` and ``flatness`` stands; None: one.
    """
    n_contexts = len(hypotheses if counts is None else counts)
    contexts = [()] * n_contexts if contexts is None else contexts
    confidences = [()] * n_contexts if confidences is None else confidences
    flatness = [0.0] * n_contexts if flatness is None else flatness
    root_of: dict[tuple[Words, tuple[float, ...], float], int] = defaultdict(count().__next__)
    known: dict[tuple[int, int, float], int] = {}
    numbers = []
    for context, sure, flat in zip(contexts, confidences, flatness, strict=True):
        # The hypotheses of a list share one context, which may be long: it is hashed once.
        key = id(context), id(sure), flat
        if key not in known:
            known[key] = root_of[context, sure, flat]
        numbers.append(known[key])
    roots = np.array(numbers, dtype=np.int64)
    roots = roots if counts is None else np.repeat(roots, counts)
    index: defaultdict[str, int] = defaultdict(count().__next__)
    context_words = [
        _to_array(-1 if word == SENTENCE_END else index[word] for word in context) for context, *_ in root_of
    ]
    flat_words, lengths = _index_words(hypotheses, index), text_lengths(hypotheses)
    ended = tuple(np.where(words < 0, len(index), words) for words in context_words)
    trie = _grow_trie(tuple(index), ended, roots, flat_words, lengths)
    _, sures, flats = zip(*root_of, strict=True) if root_of else ((), (), ())
    return replace(trie, confidences=sures, flatness=flats)


def _index_words(hypotheses: Sequence[Words], index: defaultdict[str, int]) -> np.ndarray:
    """Return the index of each word of all hypotheses, (T,) int64; new words get the next indices."""
    if not isinstance(hypotheses, NumberedTexts) or not len(hypotheses.numbers):
        return _to_array(map(index.__getitem__, chain.from_iterable(hypotheses)))
    numbers = hypotheses.numbers
    places = np.arange(len(numbers))
    first = np.empty(numbers.max() + 1, dtype=np.int64)
    first[numbers[::-1]] = places[::-1]  # of equal numbers, the last one written stays
    distinct = numbers[first[numbers] == places]  # in the order in which they come
    index_of = first  # its places are not needed any more
    index_of[distinct] = _to_array(index[hypotheses.words[number]] for number in distinct.tolist())
    found: np.ndarray = index_of[numbers]
    return found


def _to_array(numbers: Iterable[int]) -> np.ndarray:
    """Collect integers, (n,) int64."""
    return np.fromiter(numbers, dtype=np.int64)


def _grow_trie(
    words: Words,
    contexts: tuple[np.ndarray, ...],
    roots: np.ndarray,
    flat_words: np.ndarray,
    lengths: np.ndarray,
) -> HypothesisTrie:
    """Build a trie from the words of hypotheses, given by their indices in ``words``.

    Args:
        contexts: words of the context of each root.
        roots: (H,) root of each hypothesis.
        flat_words: words of all hypotheses, one after the other.
        lengths: (H,) number of words of each hypothesis.
    """
    hypothesis_node = np.empty_like(roots)
    order = roots.argsort(kind="stable")  # of the hypotheses that go on; sorted by their nodes
    node, length, first = (values[order] for values in (roots, lengths, np.cumsum(lengths) - lengths))
    parents = [np.arange(len(contexts))]
    node_words = [np.zeros(len(contexts), dtype=np.int64)]
    bounds = [0, len(contexts)]
    for depth in count():
        goes_on = length > depth
        if not goes_on.all():
            hypothesis_node[order[~goes_on]] = node[~goes_on]
            order, node, length, first = (values[goes_on] for values in (order, node, length, first))
        if not len(order):
            break
        word = flat_words.take(first + depth)
        # A (parent, word) pair packed into one integer sorts faster than rows of two, and most are in order.
        by_key = (node * len(words) + word).argsort(kind="stable")
        order, parent, length, first, word = (
            values.take(by_key) for values in (order, node, length, first, word)
        )
        is_new = np.ones(len(order), dtype=bool)
        is_new[1:] = (parent[1:] != parent[:-1]) | (word[1:] != word[:-1])
        parents.append(parent[is_new])
        node_words.append(word[is_new])
        node = np.cumsum(is_new) + (bounds[-1] - 1)
        bounds.append(bounds[-1] + len(parents[-1]))
    is_end = np.zeros(bounds[-1], dtype=bool)
    is_end[hypothesis_node] = True
    return HypothesisTrie(
        words=words,
        contexts=contexts,
        parent=np.concatenate(parents),
        node_word=np.concatenate(node_words),
        level_bounds=tuple(bounds),
        hypothesis_node=hypothesis_node,
        end_nodes=np.flatnonzero(is_end),
        confidences=((),) * len(contexts),
        flatness=(0.0,) * len(contexts),
    )


def sort_by_length(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort hypotheses, the longest first. The hypotheses that have a word at some depth are then the first
    rows.

    Returns:
        The order (indices of hypotheses), and for each depth the number of hypotheses that have a word there.
    """
    order = np.argsort(-lengths, kind="stable")
    depths = np.arange(1, lengths.max(initial=0) + 1)
    return order, np.searchsorted(-lengths[order], -depths, side="right")


@dataclass(frozen=True, slots=True)
class EdgeScores:
    """The scores of one model for the edges of a trie; for a backward model, of the reversed trie."""

    log_probs: np.ndarray
    """(E,) float64, ln P of the word on each edge, given the words on the path to it. Of a model in pieces of
    words, ln P of the pieces, which do not say that the word ends."""
    unknown: np.ndarray
    """(E,) bool, whether the word on each edge is missing from the model's vocabulary."""
    encodings: Mapping[str, np.ndarray] = field(default_factory=dict)
    """(H, K) float64 encodings of each hypothesis, by the name of the projection; empty if no encoding was
    requested. See ``models.language_model.VectorModel``."""
    backward: bool = False
    """Whether the model is a backward one."""
    cached: np.ndarray | None = None
    """(E,) float64, P of the word on each edge in the model's neural cache; None without a neural cache."""
    word_log_probs: np.ndarray | None = None
    """(E,) float64, ln P of the word on each edge as mixtures need it, if ``log_probs`` are those of pieces
    of words and this was asked for; otherwise None."""

    @property
    def of_words(self) -> np.ndarray:
        """(E,) float64, ln P of the word on each edge. Over all words and ``</s>``, P sums to at most 1."""
        return self.log_probs if self.word_log_probs is None else self.word_log_probs

    def sum_paths(self, trie: HypothesisTrie, partial: np.ndarray | None = None) -> np.ndarray:
        """ln P of each hypothesis, (H,) float64.

        Args:
            trie: the trie of the hypotheses, in reading order.
            partial: (H,) bool, the hypotheses whose ``</s>`` is not scored; None: no hypothesis is partial. A
                backward model ignores this: it predicts no end of the sentence, and reads the last word of a
                partial hypothesis as the last word of a sentence.
        """
        return trie.in_direction(self.backward).sum_paths(self.log_probs, None if self.backward else partial)

    def count_unknown(self, trie: HypothesisTrie) -> np.ndarray:
        """Number of unknown words of each hypothesis, (H,) float64. Every model knows ``</s>``."""
        return trie.in_direction(self.backward).sum_paths(self.unknown)

    def path_edges(self, trie: HypothesisTrie, hypothesis: int) -> np.ndarray:
        """The edge of each word of a hypothesis in reading order, then the edge of ``</s>``: (n_words + 1,).

        A backward model predicts the start of the sentence, after the first word. This is its last edge,
        ``</s>``.
        """
        edges = trie.in_direction(self.backward).path_edges(hypothesis)
        return np.append(edges[-2::-1], edges[-1:]) if self.backward else edges


MAX_PROJECTED = 1e100  # largest value of a projection, by which no context vector overflows
MAX_ENCODING_SIZE = 32  # largest K of a reranker
MAX_VECTOR_SIZE = 16_384  # longest context vector, as in the configuration of networks
ENCODING = "encoding:"
"""Prefix of an encoding's name in explanations; what follows is the name of the network that encodes."""


@dataclass(frozen=True, slots=True)
class WordEncoder:
    """The name of a network of the bundle, and a projection of its context vectors; see ``rescorer.trie``.

    Raises:
        ConfigError: the projection has another shape, or a value that is not finite or too large.
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
        if np.abs(self.projection).max() > MAX_PROJECTED:
            raise ConfigError(f"{place} has a value beyond ±{MAX_PROJECTED:g}")
