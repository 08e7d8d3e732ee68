"""Count the work in a benchmark's lists: words, distinct prefixes and the networks' matrix products.

The counts come from the same tries that the pipeline builds for scoring.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rescorer.bench.matrix_products import GATE_COUNTS, Product
from rescorer.lm.base import EdgeScores
from rescorer.lm.contexts.ngram_contexts import distinct_rows, node_windows
from rescorer.lm.files.network_config import WINDOWED_KINDS
from rescorer.lm.files.parameter_shapes import feedforward_size
from rescorer.lm.networks import NetworkConfig
from rescorer.lm.neural import NeuralLanguageModel
from rescorer.pipeline import Rescorer
from rescorer.trie import HypothesisTrie
from rescorer.types import NBestList, Weights

COUNTER_NAME = "counter"


@dataclass(slots=True)
class Workload:
    """The work in some lists, batched as the pipeline does."""

    lists: int = 0
    hypotheses: int = 0
    words: int = 0
    """Canonical words of all hypotheses, plus one ``</s>`` each."""
    prefixes: int = 0
    """Distinct prefixes per batch: edges of the tries, including ``</s>``."""
    network: list[Product] = field(default_factory=list)
    """Products of the context networks, without the input projection of the first recurrent layer: it depends
    only on the word and could be looked up in a table."""
    output: list[Product] = field(default_factory=list)
    """Products of the output layers."""


def count_work(lists: Sequence[NBestList], rescorer: Rescorer) -> Workload:
    """Rescore the lists with a model that counts work in place of the rescorer's models."""
    counter = WorkCounter(
        [model for model in rescorer.models.values() if isinstance(model, NeuralLanguageModel)]
    )
    weights = {"default": Weights(mixture={COUNTER_NAME: 1.0})}
    bundle = replace(rescorer.bundle, model_kinds={COUNTER_NAME: "neural"}, weights=weights)
    counting = Rescorer(bundle, {COUNTER_NAME: counter}, rescorer.max_batch_words)
    counting.rescore(lists)
    counter.workload.lists = len(lists)
    return counter.workload


class WorkCounter:
    """A ``LanguageModel`` that counts the work of networks and gives every word probability 1."""

    name, backward = COUNTER_NAME, False

    def __init__(self, networks: Sequence[NeuralLanguageModel]) -> None:
        self.workload = Workload()
        self._networks = networks

    def vocabulary(self) -> frozenset[str]:
        return frozenset()

    def share_unknown(self, log_shares: Mapping[str, float], default: float) -> None:
        pass

    def log_share(self, word: str) -> float:
        return 0.0

    def score(self, trie: HypothesisTrie) -> EdgeScores:
        whole = trie
        path_lengths = trie.sum_paths(np.ones(trie.n_edges))
        self.workload.hypotheses += len(path_lengths)
        self.workload.words += int(path_lengths.sum())
        self.workload.prefixes += trie.n_edges
        for network in self._networks:
            config = network.model.config
            trie = whole.in_direction(network.backward)
            if config.kind in WINDOWED_KINDS:
                windows = node_windows(trie, config.window, start_word=len(trie.words))
                distinct, row_of_node = distinct_rows(windows, len(trie.words) + 1)
                self.workload.network += windowed_products(config, len(trie.words) + 1, len(distinct))
            elif config.kind == "transformer":
                row_of_node = np.arange(trie.n_nodes)
                self.workload.network += transformer_products(config, trie.n_nodes)
            else:
                row_of_node = np.arange(trie.n_nodes)
                self.workload.network += recurrent_products(config, np.diff(trie.level_bounds).tolist())
            words = np.append(network.words.encode(trie.words), network.words.end)[trie.edge_word]
            self.workload.output += output_products(config, row_of_node[trie.edge_parent], words)
        return EdgeScores(np.zeros(whole.n_edges), np.zeros(whole.n_edges, dtype=bool))


def recurrent_products(config: NetworkConfig, level_sizes: Iterable[int]) -> list[Product]:
    """Products that advance the states of each level's nodes."""
    hidden, gates = config.hidden_size, GATE_COUNTS[config.kind] * config.hidden_size
    products: list[Product] = []
    for n in level_sizes:
        products += [(n, hidden, gates)] * (2 * config.layers - 1)
        products += projection_products(config, n)
    return products


def windowed_products(config: NetworkConfig, n_words: int, n_contexts: int) -> list[Product]:
    """Products of the first layer for each distinct word at each position, and of the other layers per
    context."""
    hidden = config.hidden_size
    first = (n_words, config.embedding_size, config.window * hidden)
    deeper = [(n_contexts, hidden, hidden)] * (config.layers - 1)
    return [first, *deeper, *projection_products(config, n_contexts)]


def transformer_products(config: NetworkConfig, n: int) -> list[Product]:
    """Products of n words with the matrices of a transformer.

    Products of queries, keys and values are left out: they depend on the lengths of the hypotheses, and are a
    few per cent of the others.
    """
    hidden, units = config.hidden_size, feedforward_size(config.hidden_size)
    layer = [(n, hidden, 3 * hidden), (n, hidden, hidden), (n, hidden, 2 * units), (n, units, hidden)]
    return layer * config.layers + projection_products(config, n)


def projection_products(config: NetworkConfig, n: int) -> list[Product]:
    """The projection of n hidden states to the embedding size, if the sizes differ."""
    same = config.hidden_size == config.embedding_size
    return [] if same else [(n, config.hidden_size, config.embedding_size)]


def output_products(config: NetworkConfig, rows: np.ndarray, words: np.ndarray) -> list[Product]:
    """Products of the output layer.

    Args:
        rows: (E,) row of the context vector of each edge.
        words: (E,) id of the word that each edge predicts.
    """
    size, n_vectors = config.embedding_size, len(np.unique(rows))
    if config.output == "full":
        return [(n_vectors, size, config.n_words)]
    if config.output == "tree":
        return [(len(words), size, int(np.ceil(np.log2(config.n_words))))]
    sizes = np.array(config.class_sizes)
    classes = np.repeat(np.arange(len(sizes)), sizes)[words]
    class_of_pair = np.unique(rows * len(sizes) + classes) % len(sizes)  # of distinct (vector, class) pairs
    counts = np.bincount(class_of_pair, minlength=len(sizes))
    within = [(int(n), size, int(width)) for n, width in zip(counts, sizes, strict=True) if n and width > 1]
    return [(n_vectors, size, len(sizes)), *within]
