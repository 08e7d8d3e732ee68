"""Hierarchical softmax: find a word by decisions at the nodes of a Huffman tree (Mikolov et al. 2013)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rescorer.lm.output.path_products import concatenate_runs, score_nodes, sum_by_node, sum_rows
from rescorer.lm.output.tree_paths import leaf_paths
from rescorer_training.classes.softmax_trees import build_huffman_tree
from rescorer_training.vectors.word2vec.chunks import Chunks

N_TOP_NODES = 16
"""Number of most frequent nodes whose scores are computed for every query of a block. They are over a third
of the nodes on the words' paths, so that one product with all of them is faster than looking them up."""
MAX_NODE_STEPS = 128.0
"""Largest number of steps that a node takes per block. The root is in every path: the sum of its thousands of
steps per block would overshoot and diverge."""


class HierarchicalSoftmax:
    """Output layer that maximises Σ log σ(±q·v) over the nodes on a word's path, + for the first child.

    Args:
        vectors: (V + 1, D) vectors of the tree's V - 1 nodes, changed in place; the others are for padding.
        counts: (V,) occurrences of each word.
    """

    def __init__(self, vectors: Tensor, counts: np.ndarray) -> None:
        self.vectors = vectors
        n_words = len(counts)
        starts, nodes, sides = leaf_paths(build_huffman_tree(counts), n_words)
        words = np.repeat(np.arange(n_words), np.diff(starts))
        self.n_top = min(N_TOP_NODES, n_words - 1)
        top, turns = nodes < self.n_top, (1 - sides).astype(np.float32)
        self.top_paths = torch.zeros(n_words, 2 * self.n_top)
        """(V, 2·n_top): whether each node is on the word's path, then whether it turns to the first child."""
        self.top_paths[words[top], nodes[top]] = 1
        self.top_paths[words[top], self.n_top + nodes[top]] = torch.from_numpy(turns[top])
        self.starts = torch.from_numpy(np.searchsorted(words[~top], np.arange(n_words + 1)))
        """(V + 1,) where the other nodes on a word's path begin in the next two."""
        self.nodes, self.turns = torch.from_numpy(nodes[~top]), torch.from_numpy(turns[~top])

    def train(
        self, queries: Tensor, chunks: Chunks, pairs: Tensor, centres: Tensor, rate: float,
        random: torch.Generator,
    ) -> Tensor:  # fmt: skip
        """Take one gradient step; return the step of the queries. See ``NegativeSampling.train``."""
        n, width, stride = pairs.shape
        rows, places = pairs.reshape(n * width, stride).nonzero().unbind(1)
        words = centres.reshape(-1).index_select(0, rows // width * stride + places)
        starts = torch.searchsorted(rows, torch.arange(n * width + 1))
        queries = chunks.unfold(queries).reshape(n * width, -1)
        steps = self._train_top_nodes(queries, words, starts, rate)
        steps += self._train_deep_nodes(queries, rows, words, starts, rate)
        return chunks.fold(steps.view(n, width, -1))

    def _train_top_nodes(self, queries: Tensor, words: Tensor, starts: Tensor, rate: float) -> Tensor:
        """Train all queries with the most frequent nodes.

        Args:
            words: words that the queries predict, those of the first query first.
            starts: (n_queries + 1,) where the words of each query begin.
        """
        weights, turns = sum_rows(self.top_paths, words, starts).split(self.n_top, dim=1)
        top = self.vectors[: self.n_top]
        errors = (queries @ top.T).sigmoid_().mul_(weights).neg_().add_(turns).mul_(rate)
        query_steps = errors @ top
        top += (errors * _limit_steps(weights.sum(0))).T @ queries
        return query_steps

    def _train_deep_nodes(
        self, queries: Tensor, rows: Tensor, words: Tensor, starts: Tensor, rate: float
    ) -> Tensor:
        """Train queries with the other nodes on the paths of their words; ``rows`` are the words' queries."""
        indices, begins = concatenate_runs(self.starts, words)
        nodes = self.nodes.index_select(0, indices)
        of_words = queries.index_select(0, rows)
        scores = score_nodes(of_words, self.vectors, begins, nodes, torch.zeros(len(nodes)))
        starts = begins.index_select(0, starts)
        errors = torch.sub(self.turns.index_select(0, indices), scores.sigmoid_()).mul_(rate)
        query_steps = sum_rows(self.vectors, nodes, starts, errors)
        found = sum_by_node(queries, starts, nodes, errors)
        self.vectors.index_add_(0, found.nodes, found.sums * _limit_steps(found.counts)[:, None])
        return query_steps


def _limit_steps(counts: Tensor) -> Tensor:
    """Factors of the sums of nodes' steps, so that no node takes more than ``MAX_NODE_STEPS``."""
    return (MAX_NODE_STEPS / counts).clamp_(max=1.0)
