"""Hierarchical softmax: find a word by decisions at the nodes of a Huffman tree (Mikolov et al. 2013)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rescorer.lm.output.tree_paths import leaf_paths
from rescorer_training.classes.softmax_trees import build_huffman_tree
from rescorer_training.vectors.word2vec.chunks import Chunks, add_rows

N_TOP_NODES = 32
"""Number of most frequent nodes whose scores are computed for every query of a block. They are nearly half of
all nodes on the words' paths, so that one product with all of them is faster than looking them up."""
MAX_NODE_STEPS = 128.0
"""Largest number of steps that a frequent node takes per block. The root is in every path: the sum of its
thousands of steps per block would overshoot and diverge."""


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
        top = nodes < self.n_top
        self.top_paths = torch.zeros(n_words + 1, 2, self.n_top)
        """(V + 1, 2, n_top): whether a node is on the word's path, and whether it then turns to the first
        child; zero for padding."""
        self.top_paths[words[top], 0, nodes[top]] = 1
        self.top_paths[words[top], 1, nodes[top]] = torch.from_numpy(1 - sides[top]).float()
        self.deep_paths = _pad_paths(words[~top], nodes[~top] * 2 + (1 - sides[~top]), n_words)
        """(V + 1, longest): 2·node + (1 if it turns to the first child) of the other nodes; -1 pads."""

    def train(
        self, queries: Tensor, chunks: Chunks, pairs: Tensor, centres: Tensor, rate: float,
        random: torch.Generator,
    ) -> Tensor:  # fmt: skip
        """Take one gradient step; return the step of the queries. See ``NegativeSampling.train``."""
        steps = self._train_deep_nodes(queries, chunks, pairs, centres, rate)
        return steps.add_(self._train_top_nodes(queries, chunks, pairs, centres, rate))

    def _train_top_nodes(
        self, queries: Tensor, chunks: Chunks, pairs: Tensor, centres: Tensor, rate: float
    ) -> Tensor:
        n, stride = centres.shape
        paths = self.top_paths.index_select(0, centres.view(-1)).view(n, stride, -1)
        weights, turns = chunks.fold(torch.bmm(pairs, paths)).split(self.n_top, dim=1)  # (n_rows, n_top) each
        top = self.vectors[: self.n_top]
        errors = (queries @ top.T).sigmoid_().mul_(weights).neg_().add_(turns).mul_(rate)
        query_steps = errors @ top
        scale = (MAX_NODE_STEPS / weights.sum(0)).clamp_(max=1.0)
        top += (errors * scale).T @ queries
        return query_steps

    def _train_deep_nodes(
        self, queries: Tensor, chunks: Chunks, pairs: Tensor, centres: Tensor, rate: float
    ) -> Tensor:
        n, width, _ = pairs.shape
        nodes, turns, owners = self._collect_deep_nodes(centres)
        weights = torch.nn.functional.pad(pairs, (0, 1)).gather(2, owners[:, None].expand(n, width, -1))
        vectors = self.vectors.index_select(0, nodes.view(-1)).view(*nodes.shape, -1)
        unfolded = chunks.unfold(queries)
        errors = torch.bmm(unfolded, vectors.transpose(1, 2)).sigmoid_()
        errors = torch.sub(turns[:, None], errors, out=errors).mul_(weights).mul_(rate)
        query_steps = chunks.fold(torch.bmm(errors, vectors))
        steps = torch.bmm(errors.transpose(1, 2), unfolded)
        add_rows(self.vectors, nodes.view(-1), steps.view(nodes.numel(), -1))
        return query_steps

    def _collect_deep_nodes(self, centres: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the deep nodes on the paths of each chunk's words, moved together.

        Returns:
            (n, longest) int64 nodes, padded with V; float32 1 if the path turns to the first child, else 0;
            and int64 the word's place in the chunk, padded with ``stride``.
        """
        n, stride = centres.shape
        padding = len(self.deep_paths) - 1
        codes = self.deep_paths.index_select(0, centres.view(-1)).view(n, -1)
        is_node = codes >= 0
        place = is_node.cumsum(1)
        longest = max(1, int(place[:, -1].max()))
        place += torch.arange(n)[:, None] * longest - 1
        source = is_node.view(-1).nonzero().view(-1)
        target = place.view(-1).index_select(0, source)
        codes = codes.view(-1).index_select(0, source)
        owner = source.div(self.deep_paths.shape[1], rounding_mode="floor").remainder_(stride)
        nodes, turns = torch.full((n * longest,), padding), torch.zeros(n * longest)
        owners = torch.full((n * longest,), stride)
        nodes[target], turns[target], owners[target] = codes >> 1, (codes & 1).float(), owner
        return nodes.view(n, longest), turns.view(n, longest), owners.view(n, longest)


def _pad_paths(words: np.ndarray, codes: np.ndarray, n_words: int) -> Tensor:
    """Arrange codes, sorted by word, as one row per word: (n_words + 1, longest), padded with -1."""
    lengths = np.bincount(words, minlength=n_words)
    columns = np.arange(len(words)) - np.repeat(lengths.cumsum() - lengths, lengths)
    table = np.full((n_words + 1, max(1, lengths.max())), -1, dtype=np.int64)
    table[words, columns] = codes
    return torch.from_numpy(table)
