"""Attention over the prefixes of a batch, each computed once, for networks of causal attention.

All prefixes of a batch form one tree. Its root is the start word. Below the root are the distinct prefixes of
the contexts, and below each context the trie of its hypotheses. So words that contexts share at their
beginning are read once.

The tree is divided into blocks of nodes that are adjacent in preorder. An ancestor of a node of a block is in
the block too, or on the path from the root to the block's first node. So the nodes of a block attend to one
set of keys, those of the block and of this path, and a mask excludes the keys that are not a node's own
ancestors. That makes the matrix products dense.

Blocks are computed in chunks. Between chunks, only the keys and values on the paths to later blocks are kept.
This bounds the memory, whatever the size of the tree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rescorer.models.contexts import RowCache
from rescorer.models.kernels import to_device
from rescorer.runtime import count_context_words, pause
from rescorer.trie import SENTENCE_END, HypothesisTrie, Words, build_trie


class TreeLayer(Protocol):
    """A layer of attention whose inputs and outputs are rows of nodes."""

    def attention_inputs(self, x: Tensor, rotations: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (n, heads, d), keys and values (n, key heads, d) of nodes, turned by their positions.

        Args:
            x: (n, H) input of the layer.
            rotations: (n, pairs) complex, see ``TreeNetwork.rotations``; None if there are none.
        """

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Output of the layer, (n, H), from its input and the result of attention, (n, heads · d)."""


class TreeNetwork(Protocol):
    """A network of causal attention that can read trees."""

    output_size: int  # D, length of a context vector

    @property
    def device(self) -> torch.device: ...

    @property
    def key_size(self) -> int:
        """Length of the keys, and of the values, of a node in a layer: key heads · d."""

    @property
    def windows(self) -> Sequence[int]:
        """Number of nodes to which a node attends in each layer, itself included; 0: all of its path."""

    @property
    def n_positions(self) -> int:
        """Number of nodes of a path that the network can read; those below are not computed."""

    @property
    def query_scale(self) -> float | None:
        """Factor of products of queries and keys; None: 1 / √d."""

    @property
    def blocks(self) -> Iterator[TreeLayer]:
        """The layers."""

    def inputs(self, words: Tensor) -> Tensor:
        """Input of the first layer for words, (W,) → (W, H), without what positions add."""

    def add_positions(self, inputs: Tensor, positions: Tensor) -> Tensor:
        """Add what the positions of nodes, (n,), add to their inputs, (n, H)."""

    def rotations(self, n_positions: int) -> Tensor | None:
        """Rotations of the first positions, (n, pairs) complex; None if the network does not turn heads."""

    def vectors(self, x: Tensor) -> Tensor:
        """Context vectors from the output of the last layer, (n, H) → (n, D)."""


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float | None = None
) -> Tensor:
    """Scaled dot-product attention (Vaswani et al. 2017), (B, Q, heads, d), (B, K, key heads, d) → (B, Q, H).

    Each head of keys serves ``heads / key heads`` heads of queries (Ainslie et al. 2023).

    Args:
        mask: (B or 1, 1, Q, K) bool, True where a query sees a key; where heads share keys, the result of
            ``prepare_mask`` instead. None: each query sees the keys up to its own position; no head shares.
        scale: factor of the products; None: 1 / √d.
    """
    n_queries, n_heads, n_key_heads = queries.shape[1], queries.shape[2], keys.shape[2]
    queries, keys, values = (part.transpose(1, 2) for part in (queries, keys, values))
    shared = n_heads // n_key_heads
    if shared > 1:  # heads that share keys are further queries of these
        queries = queries.unflatten(1, (n_key_heads, shared)).flatten(2, 3)
    attended = functional.scaled_dot_product_attention(
        queries, keys, values, mask, is_causal=mask is None, scale=scale
    )
    if shared > 1:
        attended = attended.unflatten(2, (shared, n_queries)).permute(0, 3, 1, 2, 4)
        return attended.flatten(2)
    return attended.transpose(1, 2).flatten(2)


MASK_ALIGNMENT = 16
"""The distance of a mask's rows, in numbers, that a GPU's attention needs is a multiple of this."""


def prepare_mask(mask: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """Convert a mask to one that serves all layers: repeat it for heads that share keys.

    On a GPU, the result has 0 for True and -∞ for False, and rows that are as far apart as its kernels need.

    Args:
        mask: (B, 1, Q, K) bool, True where a query sees a key.
    """
    shared = queries.shape[-2] // keys.shape[-2]
    if not mask.is_cuda:
        return mask.repeat(1, 1, shared, 1)
    blocks, _, n_queries, n_keys = mask.shape
    padded = -(-n_keys // MASK_ALIGNMENT) * MASK_ALIGNMENT
    added = torch.zeros(blocks, 1, shared, n_queries, padded, dtype=queries.dtype, device=mask.device)
    added[..., :n_keys].masked_fill_(~mask.unsqueeze(2), -math.inf)
    return added.flatten(2, 3)[..., :n_keys]


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """The tree of all prefixes of a batch: parents before children, and the nodes of contexts first."""

    parent: np.ndarray  # (N,) parent of each node; the root, node 0, is its own parent
    word: np.ndarray  # (N,) the model's id of the word on the edge into each node
    position: np.ndarray  # (N,) number of words before that word
    first: np.ndarray  # (N,) number of each node in preorder
    last: np.ndarray  # (N,) number in preorder of the last node of its subtree
    context_levels: Sequence[slice]  # nodes of contexts below the root, one slice per number of words
    trie_nodes: np.ndarray  # for each node of the trie, the node of this tree

    @property
    def n_contexts(self) -> int:
        """Number of nodes of contexts, including the root."""
        return self.context_levels[-1].stop if self.context_levels else 1


def build_prefix_tree(
    trie: HypothesisTrie, ids: np.ndarray, encode: Callable[[Words], np.ndarray], start_word: int
) -> PrefixTree:
    """Build the tree of a batch.

    Args:
        ids: the model's ids of the trie's words.
        encode: returns the model's ids of words, and the id of ``</s>`` for ``SENTENCE_END``.
    """
    words = (*trie.words, SENTENCE_END)
    contexts = build_trie([tuple(words[i] for i in context) for context in trie.contexts])
    shift = contexts.n_nodes - trie.n_roots
    trie_nodes = np.concatenate([contexts.hypothesis_node, np.arange(trie.n_roots, trie.n_nodes) + shift])
    parent = np.concatenate([contexts.parent, trie_nodes[trie.parent[trie.n_roots :]]])
    word = np.concatenate(
        [
            [start_word],
            np.append(encode(contexts.words), 0)[contexts.node_word[1:]],
            ids[trie.node_word[trie.n_roots :]],
        ]
    )
    trie_levels = [slice(level.start + shift, level.stop + shift) for level in trie.levels()]
    levels = [*contexts.levels(), *trie_levels]
    position = np.zeros(len(parent), dtype=np.int64)
    for level in levels:
        position[level] = position[parent[level]] + 1
    first, last = number_in_preorder(parent, levels)
    return PrefixTree(parent, word, position, first, last, contexts.levels(), trie_nodes)


def number_in_preorder(parent: np.ndarray, levels: Sequence[slice]) -> tuple[np.ndarray, np.ndarray]:
    """Number nodes in preorder; return the number of each, and of the last node of its subtree, (N,) each.

    Args:
        levels: the nodes below the root; the children of a node are in later levels.
    """
    sizes = np.ones(len(parent), dtype=np.int64)
    for level in reversed(levels):
        np.add.at(sizes, parent[level], sizes[level])
    first = np.zeros(len(parent), dtype=np.int64)
    free = first + 1  # number of the next child of each node
    for level in levels:
        # Siblings side by side: those below equal contexts, which only differ in earlier sentences, are not.
        nodes = level.start + np.argsort(parent[level], kind="stable")
        above, size = parent[nodes], sizes[nodes]
        before = np.cumsum(size) - size
        is_eldest = np.diff(above, prepend=-1) != 0
        before -= before[is_eldest][np.cumsum(is_eldest) - 1]
        first[nodes] = free[above] + before
        free[nodes] = first[nodes] + 1
        np.add.at(free, above, size)
    return first, first + sizes - 1


def needed_context_nodes(tree: PrefixTree, window: int, cached: np.ndarray) -> np.ndarray:
    """Whether each node of a context, (n_contexts,), is needed to compute the vectors of the trie.

    Needed are the roots of the trie, and the ``window`` - 1 nodes above each node that has to be computed.

    Args:
        cached: (n_contexts,) bool, the nodes that need not be computed.
    """
    reach = np.zeros(tree.n_contexts, dtype=np.int64)  # number of nodes that are needed from here upwards
    roots = tree.trie_nodes[tree.trie_nodes < tree.n_contexts]
    reach[roots] = max(1, window - 1)
    for level in reversed(tree.context_levels):
        above = np.where(cached[level], reach[level] - 1, np.where(reach[level] > 0, window - 1, 0))
        np.maximum.at(reach, tree.parent[level], above)
    return reach > 0


BLOCK_NODES = 64
"""Number of nodes per block. In larger blocks, the mask of each node excludes more keys; for smaller blocks,
the keys of paths are copied more often."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Blocks of nodes that are computed together. A chunk's keys are those of ``path``, then of ``nodes``."""

    nodes: np.ndarray  # (n,) nodes in preorder
    path: np.ndarray  # (P,) nodes of earlier chunks whose keys are used, now or later, in preorder
    path_keys: np.ndarray  # (P,) index of the key of each node of ``path`` in the chunk before
    block_keys: np.ndarray  # (blocks, K) keys of each block, as indices into the chunk's keys
    query_nodes: np.ndarray  # (blocks, BLOCK_NODES) nodes of each block; the last block repeats its last node
    key_nodes: np.ndarray  # (blocks, K) node of each of ``block_keys``, -1 where there is none


def plan_chunks(tree: PrefixTree, kept: np.ndarray, window: int, chunk_nodes: int) -> Iterator[Chunk]:
    """Divide the ``kept`` nodes of a tree, (N,) bool, into chunks.

    Args:
        window: number of nodes to which a node attends: itself and its nearest ancestors.
        chunk_nodes: largest number of nodes of a chunk, a multiple of ``BLOCK_NODES``.
    """
    nodes = np.flatnonzero(kept)
    nodes = nodes[np.argsort(tree.first[nodes])]
    number = np.full(len(tree.parent), -1)  # of each node among those that are kept
    number[nodes] = np.arange(len(nodes))
    paths = _block_paths(tree, nodes, number, window)  # (blocks, P)
    starts = range(0, len(nodes), chunk_nodes)
    blocks_per_chunk = chunk_nodes // BLOCK_NODES
    used = [paths[i * blocks_per_chunk : (i + 1) * blocks_per_chunk] for i in range(len(starts))]
    later = np.zeros(0, dtype=np.int64)
    kept_paths: list[np.ndarray] = []
    for start, path in zip(reversed(starts), reversed(used), strict=True):
        later = np.unique(np.concatenate([later, path.ravel()]))
        later = later[(later >= 0) & (later < start)]
        kept_paths.append(later)
    before = np.zeros(0, dtype=np.int64)  # numbers whose keys the chunk before has
    for start, path, block_paths in zip(starts, reversed(kept_paths), used, strict=True):
        numbers = np.arange(start, min(start + chunk_nodes, len(nodes)))
        keys = np.concatenate([path, numbers])
        queries, key_numbers = _lay_out_blocks(numbers, block_paths)
        key_nodes = np.where(key_numbers >= 0, nodes[key_numbers], -1)
        block_keys = np.searchsorted(keys, np.maximum(key_numbers, keys[0]))
        yield Chunk(
            nodes[numbers], nodes[path], np.searchsorted(before, path), block_keys, nodes[queries], key_nodes
        )
        before = keys


def _block_paths(tree: PrefixTree, nodes: np.ndarray, number: np.ndarray, window: int) -> np.ndarray:
    """For each block, ancestors of its first node to which its nodes may attend: (blocks, P), -1 for none.

    Args:
        nodes: the nodes that are kept, in preorder.
        number: index of each node of the tree in ``nodes``; the result consists of such indices.
    """
    first = np.arange(0, len(nodes), BLOCK_NODES)
    lowest = np.minimum.reduceat(tree.position[nodes], first) - window + 1
    node, columns = nodes[first], list[np.ndarray]()
    while (has_more := tree.position[node] > np.maximum(lowest, 0)).any():
        node = np.where(has_more, tree.parent[node], node)
        columns.append(np.where(has_more, number[node], -1))
    return np.stack(columns, axis=1) if columns else np.zeros((len(first), 0), dtype=np.int64)


def _lay_out_blocks(numbers: np.ndarray, paths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lay out the blocks of a chunk: queries, (blocks, BLOCK_NODES), and keys, (blocks, K), -1 for none.

    Args:
        numbers: the nodes of the chunk, in preorder.
        paths: (blocks, P) result of ``_block_paths``.
    """
    paths = paths[:, (paths >= 0).any(axis=0)]
    filled = np.arange(numbers[0], numbers[0] + BLOCK_NODES * len(paths)).reshape(len(paths), BLOCK_NODES)
    queries = np.minimum(filled, numbers[-1])
    # A node that fills up the last block would be a key twice.
    return queries, np.concatenate([paths, np.where(filled == queries, filled, -1)], axis=1)


UNLIMITED = 1 << 40  # window of a layer that attends to all nodes of a path
CHUNK_NODES = {"cpu": 1024, "cuda": 32_768}
"""Number of nodes per chunk: on a CPU, few enough for the cache; on a GPU, enough to keep it busy."""


def tree_vectors(
    network: TreeNetwork, tree: PrefixTree, cache: RowCache, *, leaves: bool = True, root: bool = True
) -> tuple[Tensor, np.ndarray]:
    """Compute the context vectors of a tree, (U, D), and the row of each node's vector, (N,).

    Nodes of contexts are not computed again if their vectors, keys and values are cached. Those on which no
    node of the trie depends, and those beyond the network's positions, have no vector; their rows have no
    meaning.

    Args:
        leaves: whether nodes of the trie without children need vectors; their rows have no meaning otherwise.
        root: whether the network reads the root. If not, no node attends to it, and the row of the root has
            no meaning.
    """
    return _TreeRun(network, tree, cache).run(leaves, root)


class _TreeRun:
    """The computation of one tree, chunk by chunk."""

    def __init__(self, network: TreeNetwork, tree: PrefixTree, cache: RowCache) -> None:
        self.network, self.tree, self.cache = network, tree, cache
        self.device = network.device
        self.windows = [window or UNLIMITED for window in network.windows]
        self.window = max(self.windows)
        self.names = _name_contexts(tree) if cache.max_bytes else []
        is_cached, self.cached_rows = cache.recall_rows(self.names)  # (n_contexts,), (cached, D + 2·L·H)
        self.cached_row = np.full(len(tree.parent), -1)
        """(N,) row of each node in ``cached_rows``; -1 for nodes that have to be computed."""
        self.cached_row[: len(is_cached)][is_cached] = np.arange(is_cached.sum())
        distinct_words, self.input_row = np.unique(tree.word, return_inverse=True)
        self.inputs = network.inputs(self._to_device(distinct_words))
        n_positions = min(int(tree.position.max()) + 1, network.n_positions)
        self.rotations = network.rotations(n_positions)  # (positions, pairs)
        self.ranges = [*map(self._to_device, (tree.first, tree.last, tree.position))]
        self.keys_and_values: list[Tensor] = []
        """Keys, values, keys, values, … of the last chunk, layer by layer, (P + n, heads, d) each."""
        self.key_rows = np.zeros(0, dtype=np.int64)
        """Row in ``keys_and_values`` of each key of the last chunk."""
        self.vectors: list[Tensor] = []
        self.n_vectors = 0
        self.row_of_node = np.zeros(len(tree.parent), dtype=np.int64)
        self.stored = np.zeros(0, dtype=np.int64)
        """Nodes of contexts that are to be cached."""
        self.new_names: list[bytes] = []
        self.new_rows: list[Tensor] = []

    def run(self, leaves: bool, root: bool) -> tuple[Tensor, np.ndarray]:
        """See ``tree_vectors``."""
        tree, n_contexts, window = self.tree, self.tree.n_contexts, self.window
        is_cached = self.cached_row[:n_contexts] >= 0
        kept = tree.last > tree.first if not leaves else np.ones(len(tree.parent), dtype=bool)
        kept[:n_contexts] = needed_context_nodes(tree, window, is_cached)
        kept &= tree.position < self.network.n_positions
        kept[0] = (kept[0] and root) or not kept[1:].any()  # there is always a row of a vector
        n_read = int((kept[1:n_contexts] & ~is_cached[1:]).sum())
        count_context_words(n_contexts - 1, n_contexts - 1 - n_read)
        # Later requests need no other words of these contexts, even if they continue them.
        is_useful = needed_context_nodes(tree, window, np.ones(n_contexts, dtype=bool))
        if self.names:
            self.stored = np.flatnonzero(is_useful[1:] & ~is_cached[1:]) + 1
        for chunk in plan_chunks(tree, kept, window, CHUNK_NODES[self.device.type]):
            self._compute(chunk)
        if self.new_names:
            self.cache.store_rows(self.new_names, torch.cat(self.new_rows))
        return torch.cat(self.vectors), self.row_of_node

    def _compute(self, chunk: Chunk) -> None:
        """Compute the vectors of a chunk, and keep its keys and values."""
        is_new = self.cached_row[chunk.nodes] < 0
        new, known = chunk.nodes[is_new], chunk.nodes[~is_new]
        known_rows = self._known_rows(known)
        path_rows = self._to_device(self.key_rows[chunk.path_keys])
        # Rows of keys: those of the path, of new nodes, of known ones.
        row_of_node = np.where(is_new, np.cumsum(is_new) - 1, len(new) + np.cumsum(~is_new) - 1)
        self.key_rows = np.concatenate([np.arange(len(chunk.path)), len(chunk.path) + row_of_node])
        by_block = np.full(chunk.query_nodes.shape, -1)  # known nodes have no queries
        by_block.flat[: len(is_new)] = np.where(is_new, np.cumsum(is_new) - 1, -1)
        busy = (by_block >= 0).any(axis=1)  # long contexts that are known fill many blocks
        queried = by_block[busy].ravel()
        block_keys = self._to_device(self.key_rows[chunk.block_keys[busy]])
        masks = self._masks(*map(self._to_device, (chunk.query_nodes[busy], chunk.key_nodes[busy])))
        query_rows = self._to_device(np.maximum(queried, 0))
        places = self._to_device(np.flatnonzero(queried >= 0))

        positions = self._to_device(self.tree.position[new])
        x = self.inputs.index_select(0, self._to_device(self.input_row[new]))
        x = self.network.add_positions(x, positions)
        rotations = None if self.rotations is None else self.rotations.index_select(0, positions)
        before, after = self.keys_and_values, list[Tensor]()
        prepared: dict[int, Tensor] = {}  # masks by window
        for number, layer in enumerate(self.network.blocks):
            pause()
            queries, keys, values = layer.attention_inputs(x, rotations)  # (n, heads, d)
            for part, tensor in enumerate((keys, values), start=2 * number):
                path = [before[part].index_select(0, path_rows)] if before else []
                known_part = known_rows[part + 1].view(-1, *tensor.shape[1:]).to(tensor.dtype)
                after.append(torch.cat([*path, tensor, known_part]))
            if not len(new):
                continue
            blocks = queries.index_select(0, query_rows).unflatten(0, (-1, BLOCK_NODES))
            keys, values = (
                part.index_select(0, block_keys.flatten()).unflatten(0, block_keys.shape)
                for part in after[-2:]
            )
            window = self.windows[number]
            if window not in prepared:
                prepared[window] = prepare_mask(masks[window], queries, keys)
            attended = attend(blocks, keys, values, prepared[window], self.network.query_scale)
            x = layer.finish(x, attended.flatten(0, 1).index_select(0, places))
        self.keys_and_values = after
        self._keep(new, known, self.network.vectors(x), known_rows[0])

    def _masks(self, query_nodes: Tensor, key_nodes: Tensor) -> dict[int, Tensor]:
        """Whether the nodes of each block attend to each of its keys, (blocks, 1, BLOCK_NODES, K) bool.

        The masks are by the windows of the layers; see ``Chunk``.
        """
        queries, keys, (first, last, position) = query_nodes.unsqueeze(2), key_nodes.unsqueeze(1), self.ranges
        order = first[queries]
        is_above = (first[keys] <= order) & (order <= last[keys]) & (keys >= 0)
        distance = position[queries] - position[keys]
        return {window: (is_above & (distance < window)).unsqueeze(1) for window in set(self.windows)}

    def _known_rows(self, nodes: np.ndarray) -> list[Tensor]:
        """Return the cached vectors of nodes, (n, D), then keys and values of each layer, (n, H) each."""
        sizes = [self.network.output_size] + [self.network.key_size] * 2 * len(self.windows)
        if not len(nodes):
            return list(self.inputs.new_empty(0, sum(sizes)).split(sizes, dim=1))
        rows = self.cached_rows.index_select(0, self._to_device(self.cached_row[nodes]))
        return list(rows.split(sizes, dim=1))

    def _keep(self, new: np.ndarray, known: np.ndarray, vectors: Tensor, known_vectors: Tensor) -> None:
        """Keep the vectors of a chunk for the result, and the rows of its new nodes that will be cached."""
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
    """Name each node of a context by a digest of the words up to it, so that the cache has no texts."""
    names = [b""]
    for node in range(1, tree.n_contexts):
        word = int(tree.word[node]).to_bytes(8, "little")
        names.append(blake2b(names[tree.parent[node]] + word, digest_size=16).digest())
    return names
