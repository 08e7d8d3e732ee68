"""Compute the context vectors of all nodes of a prefix tree, with cached keys and values of contexts."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from rescorer.lm.contexts import context_stats
from rescorer.lm.contexts.context_cache import RowCache
from rescorer.lm.device import to_device
from rescorer.lm.networks.attention import attend, rotate
from rescorer.lm.networks.transformer import TransformerNetwork
from rescorer.lm.tree_attention.blocks import BLOCK_NODES, Chunk, Ranges, plan_chunks
from rescorer.lm.tree_attention.prefix_tree import PrefixTree, needed_context_nodes

CHUNK_NODES = {"cpu": 1024, "cuda": 32_768}
"""Nodes that are computed together: on a CPU their vectors stay in its cache, on a GPU they keep it busy."""


def tree_vectors(network: TransformerNetwork, tree: PrefixTree, cache: RowCache) -> tuple[Tensor, np.ndarray]:
    """Compute the vectors of a trie.

    Nodes of contexts whose vector, keys and values are cached are not computed again.

    Returns:
        Context vectors, (U, D), and for each node of the trie the row of its vector.
    """
    return _TreeRun(network, tree, cache).run()


class _TreeRun:
    """The computation over one tree, chunk by chunk."""

    def __init__(self, network: TransformerNetwork, tree: PrefixTree, cache: RowCache) -> None:
        self.network, self.tree, self.cache = network, tree, cache
        self.device = network.norm.device
        self.names = _name_contexts(tree) if cache.max_bytes else []
        is_cached, self.cached_rows = cache.recall_rows(self.names)  # (n_contexts,), (cached, D + 2·L·H)
        self.cached_row = np.full(len(tree.parent), -1)
        """(N,) row of each node in ``cached_rows``; -1 if it must be computed."""
        self.cached_row[: len(is_cached)][is_cached] = np.arange(is_cached.sum())
        distinct_words, self.input_row = np.unique(tree.word, return_inverse=True)
        self.inputs = network.inputs(self._to_device(distinct_words))
        self.rotations = network.rotations(int(tree.position.max()) + 1).unsqueeze(1)  # (positions, 1, d / 2)
        self.ranges = Ranges(*map(self._to_device, (tree.first, tree.last, tree.position)))
        self.keys_and_values: list[Tensor] = []
        """Keys, values, keys, … of the layers for the last chunk, (P + n, heads, d)."""
        self.key_rows = np.zeros(0, dtype=np.int64)
        """Row in these tensors of each key of the last chunk."""
        self.vectors: list[Tensor] = []
        self.n_vectors = 0
        self.row_of_node = np.zeros(len(tree.parent), dtype=np.int64)
        self.stored = np.zeros(0, dtype=np.int64)
        """Nodes of contexts that the cache should have."""
        self.new_names: list[bytes] = []
        self.new_rows: list[Tensor] = []

    def run(self) -> tuple[Tensor, np.ndarray]:
        """See ``tree_vectors``."""
        tree, n_contexts, window = self.tree, self.tree.n_contexts, self.network.window
        is_cached = self.cached_row[:n_contexts] >= 0
        kept = np.ones(len(tree.parent), dtype=bool)
        kept[:n_contexts] = needed_context_nodes(tree, window, is_cached)
        n_read = int((kept[1:n_contexts] & ~is_cached[1:]).sum())
        context_stats.count(n_contexts - 1, n_contexts - 1 - n_read)
        # Later requests need no other words of these contexts, even if they continue them.
        is_useful = needed_context_nodes(tree, window, np.ones(n_contexts, dtype=bool))
        if self.names:
            self.stored = np.flatnonzero(is_useful[1:] & ~is_cached[1:]) + 1
        for chunk in plan_chunks(tree, kept, window, CHUNK_NODES[self.device.type]):
            self._compute(chunk)
        if self.new_names:
            self.cache.store_rows(self.new_names, torch.cat(self.new_rows))
        return torch.cat(self.vectors), self.row_of_node[tree.trie_nodes]

    def _compute(self, chunk: Chunk) -> None:
        """Compute the vectors of a chunk, and keep its keys and values."""
        is_new = self.cached_row[chunk.nodes] < 0
        new, known = chunk.nodes[is_new], chunk.nodes[~is_new]
        known_rows = self._known_rows(known)
        path_rows = self._to_device(self.key_rows[chunk.path_keys])
        # Rows of keys: those of the path, of new nodes, of known ones.
        row_of_node = np.where(is_new, np.cumsum(is_new) - 1, len(new) + np.cumsum(~is_new) - 1)
        self.key_rows = np.concatenate([np.arange(len(chunk.path)), len(chunk.path) + row_of_node])
        block_keys = self._to_device(self.key_rows[chunk.block_keys])
        mask = self.ranges.mask(
            self._to_device(chunk.query_nodes), self._to_device(chunk.key_nodes), self.network.window
        )
        queried = np.zeros(chunk.query_nodes.size, dtype=np.int64)  # known nodes have no queries
        queried[: len(is_new)][is_new] = np.arange(len(new))
        query_rows, places = self._to_device(queried), self._to_device(np.flatnonzero(is_new))

        x = self.inputs.index_select(0, self._to_device(self.input_row[new]))
        rotations = self.rotations.index_select(0, self._to_device(self.tree.position[new]))
        before, after = self.keys_and_values, list[Tensor]()
        for number, layer in enumerate(self.network.blocks):
            queries, keys, values = layer.project(x)  # (n, heads, d)
            for part, tensor in enumerate((rotate(keys, rotations), values), start=2 * number):
                path = [before[part].index_select(0, path_rows)] if before else []
                after.append(torch.cat([*path, tensor, known_rows[part + 1].view(-1, *tensor.shape[1:])]))
            if not len(new):
                continue
            blocks = rotate(queries, rotations).index_select(0, query_rows).unflatten(0, (-1, BLOCK_NODES))
            keys, values = (
                part.index_select(0, block_keys.flatten()).unflatten(0, block_keys.shape)
                for part in after[-2:]
            )
            attended = attend(blocks, keys, values, mask).flatten(0, 1).index_select(0, places)
            x = x + layer.merge_heads(attended)
            x = x + layer.feed_forward(x)
        self.keys_and_values = after
        self._keep(new, known, self.network.vectors(x), known_rows[0])

    def _known_rows(self, nodes: np.ndarray) -> list[Tensor]:
        """Vectors, keys, values, keys, … of nodes that are cached, (n, D), (n, H), …"""
        sizes = [self.network.output_size] + [self.network.hidden_size] * 2 * len(self.network.layers)
        if not len(nodes):
            return list(self.inputs.new_empty(0, sum(sizes)).split(sizes, dim=1))
        rows = self.cached_rows.index_select(0, self._to_device(self.cached_row[nodes]))
        return list(rows.split(sizes, dim=1))

    def _keep(self, new: np.ndarray, known: np.ndarray, vectors: Tensor, known_vectors: Tensor) -> None:
        """Keep the vectors of a chunk, and what the cache should have of its contexts."""
        self.row_of_node[new] = self.n_vectors + np.arange(len(new))
        self.row_of_node[known] = self.n_vectors + len(new) + np.arange(len(known))
        self.n_vectors += len(new) + len(known)
        self.vectors += [vectors, known_vectors]
        stored = np.flatnonzero(np.isin(new, self.stored))
        if len(stored):
            self.new_names += [self.names[node] for node in new[stored]]
            rows = self._to_device(stored)
            n_path = len(self.keys_and_values[0]) - len(new) - len(known)
            parts = [part.index_select(0, rows + n_path).flatten(1) for part in self.keys_and_values]
            self.new_rows.append(torch.cat([vectors.index_select(0, rows), *parts], dim=1))

    def _to_device(self, array: np.ndarray) -> Tensor:
        return to_device(array, self.device)


def _name_contexts(tree: PrefixTree) -> list[bytes]:
    """A digest of the words that lead to each node of a context, so that the cache keeps no texts."""
    names = [b""]
    for node in range(1, tree.n_contexts):
        word = int(tree.word[node]).to_bytes(8, "little")
        names.append(blake2b(names[tree.parent[node]] + word, digest_size=16).digest())
    return names
