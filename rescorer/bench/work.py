"""Owns the count of what there is to do: words, distinct prefixes and the products of the networks, taken
from the very tries that the pipeline builds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rescorer.bench.products import GATES, Product
from rescorer.lm.base import EdgeScores
from rescorer.lm.networks import NetworkConfig
from rescorer.lm.neural import NeuralLanguageModel
from rescorer.lm.ngram_contexts import distinct_rows, node_windows
from rescorer.pipeline import Rescorer
from rescorer.trie import HypothesisTrie
from rescorer.types import NBestList, Weights

NAME = "counter"


@dataclass(slots=True)
class Work:
    """What the lists come to in the pipeline's batches."""

    lists: int = 0
    hypotheses: int = 0
    words: int = 0
    """Canonical words of all hypotheses, and an ``</s>`` each."""
    prefixes: int = 0
    """Distinct ones in a batch: edges of the trie, ``</s>`` among them."""
    network: list[Product] = field(default_factory=list)
    """Of the context networks, the input projection of the first recurrent layer left out: it belongs to the
    word and could be a table."""
    output: list[Product] = field(default_factory=list)


def count_work(lists: Sequence[NBestList], rescorer: Rescorer) -> Work:
    """Sends the lists down the path with a model that counts in the place of the models."""
    counter = WorkCounter(
        [model for model in rescorer.models.values() if isinstance(model, NeuralLanguageModel)]
    )
    weights = {"default": Weights(mixture={NAME: 1.0})}
    bundle = replace(rescorer.bundle, model_kinds={NAME: "neural"}, weights=weights)
    counting = Rescorer(bundle, {NAME: counter}, rescorer.max_batch_words)
    counting.rescore(lists)
    counter.work.lists = len(lists)
    return counter.work


class WorkCounter:
    """A language model to which every word is certain."""

    name = NAME

    def __init__(self, networks: Sequence[NeuralLanguageModel]) -> None:
        self.work = Work()
        self._networks = networks

    def vocabulary(self) -> frozenset[str]:
        return frozenset()

    def share_unknown(self, log_shares: Mapping[str, float], default: float) -> None:
        pass

    def log_share(self, word: str) -> float:
        return 0.0

    def score(self, trie: HypothesisTrie) -> EdgeScores:
        ones = trie.sum_paths(np.ones(trie.n_edges))
        self.work.hypotheses += len(ones)
        self.work.words += int(ones.sum())
        self.work.prefixes += trie.n_edges
        for network in self._networks:
            config = network.model.config
            if config.window:
                windows = node_windows(trie, config.window, start_word=len(trie.words))
                distinct, row_of_node = distinct_rows(windows, len(trie.words) + 1)
                self.work.network += windowed_products(config, len(trie.words) + 1, len(distinct))
            else:
                row_of_node = np.arange(trie.n_nodes)
                self.work.network += recurrent_products(config, np.diff(trie.level_bounds).tolist())
            words = np.append(network.words.encode(trie.words), network.words.end)[trie.edge_word]
            self.work.output += output_products(config, row_of_node[trie.edge_parent], words)
        return EdgeScores(np.zeros(trie.n_edges), np.zeros(trie.n_edges, dtype=bool))


def recurrent_products(config: NetworkConfig, levels: Iterable[int]) -> list[Product]:
    """Those of the states of each level's nodes."""
    hidden, gates = config.hidden_size, GATES[config.kind] * config.hidden_size
    products: list[Product] = []
    for n in levels:
        products += [(n, hidden, gates)] * (2 * config.layers - 1)
        products += projection(config, n)
    return products


def windowed_products(config: NetworkConfig, n_words: int, n_contexts: int) -> list[Product]:
    """Those of each distinct word at each place, and of the distinct contexts above."""
    hidden = config.hidden_size
    first = (n_words, config.embedding_size, config.window * hidden)
    deeper = [(n_contexts, hidden, hidden)] * (config.layers - 1)
    return [first, *deeper, *projection(config, n_contexts)]


def projection(config: NetworkConfig, n: int) -> list[Product]:
    """From hidden states to the size of embeddings, where they differ."""
    same = config.hidden_size == config.embedding_size
    return [] if same else [(n, config.hidden_size, config.embedding_size)]


def output_products(config: NetworkConfig, rows: np.ndarray, words: np.ndarray) -> list[Product]:
    """Those of the vectors in ``rows``, (E,), scored for ``words``, (E,)."""
    size, n_vectors = config.embedding_size, len(np.unique(rows))
    if config.output == "full":
        return [(n_vectors, size, config.n_words)]
    if config.output == "tree":
        return [(len(words), size, int(np.ceil(np.log2(config.n_words))))]
    sizes = np.array(config.class_sizes)
    classes = np.repeat(np.arange(len(sizes)), sizes)[words]
    of_pairs = np.unique(rows * len(sizes) + classes) % len(sizes)  # class of each distinct (vector, class)
    counts = np.bincount(of_pairs, minlength=len(sizes))
    within = [(int(n), size, int(width)) for n, width in zip(counts, sizes, strict=True) if n and width > 1]
    return [(n_vectors, size, len(sizes)), *within]
