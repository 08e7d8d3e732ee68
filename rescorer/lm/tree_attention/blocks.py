"""Plan attention over a tree: blocks of nodes that are adjacent in preorder share their keys.

The ancestors of a node are in its block, or on the path to the first node of the block. So each block attends
to its own nodes and to that path, with a mask, and its products are dense. Blocks are computed chunk by
chunk; between chunks only the keys and values of nodes on the paths of later blocks are kept, which bounds
the memory whatever the size of the tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from rescorer.lm.tree_attention.prefix_tree import PrefixTree

BLOCK_NODES = 64
"""Nodes per block. With more, each node attends to more keys that its mask excludes; with fewer, the keys of
paths are copied more often."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Blocks of nodes to compute together. Keys are those of ``path``, followed by those of ``nodes``."""

    nodes: np.ndarray
    """(n,) nodes in preorder."""
    path: np.ndarray
    """(P,) nodes of earlier chunks whose keys are used, now or later, in preorder."""
    path_keys: np.ndarray
    """(P,) index of the keys of ``path`` among those of the chunk before."""
    block_keys: np.ndarray
    """(blocks, K) keys of each block, as indices."""
    query_nodes: np.ndarray
    """(blocks, BLOCK_NODES) nodes of each block; the last block repeats its last node."""
    key_nodes: np.ndarray
    """(blocks, K) node of each of ``block_keys``, -1 where there is none."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """Where the nodes of a tree are, (N,) each on one device; see ``PrefixTree``."""

    first: Tensor
    last: Tensor
    position: Tensor

    def mask(self, query_nodes: Tensor, key_nodes: Tensor, window: int) -> Tensor:
        """Compute which keys the nodes of each block attend to.

        Args:
            query_nodes, key_nodes: as in ``Chunk``.
            window: as in ``plan_chunks``.

        Returns:
            (blocks, 1, BLOCK_NODES, K) bool.
        """
        queries, keys = query_nodes.unsqueeze(2), key_nodes.unsqueeze(1)
        order = self.first[queries]
        mask = (self.first[keys] <= order) & (order <= self.last[keys]) & (keys >= 0)
        return (mask & (self.position[queries] - self.position[keys] < window)).unsqueeze(1)


def plan_chunks(tree: PrefixTree, kept: np.ndarray, window: int, chunk_nodes: int) -> Iterator[Chunk]:
    """Divide the nodes of a tree into chunks.

    Args:
        kept: (N,) bool; the other nodes do not take part.
        window: number of nodes that a node attends to: itself and its nearest ancestors.
        chunk_nodes: maximum number of nodes per chunk, a multiple of ``BLOCK_NODES``.
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
    """Numbers of the nodes above the first node of each block to which one of its nodes may attend.

    Args:
        nodes: in preorder.
        number: (N,) number of each node of the tree among ``nodes``, -1 for the others.

    Returns:
        (blocks, P), -1 for none.
    """
    first = np.arange(0, len(nodes), BLOCK_NODES)
    lowest = np.minimum.reduceat(tree.position[nodes], first) - window + 1
    node, columns = nodes[first], list[np.ndarray]()
    while (goes_on := tree.position[node] > np.maximum(lowest, 0)).any():
        node = np.where(goes_on, tree.parent[node], node)
        columns.append(np.where(goes_on, number[node], -1))
    return np.stack(columns, axis=1) if columns else np.zeros((len(first), 0), dtype=np.int64)


def _lay_out_blocks(numbers: np.ndarray, paths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lay out the blocks of a chunk: numbers of its queries, and of its keys, -1 for none.

    Args:
        numbers: those of the nodes of the chunk, in preorder.
        paths: (blocks, P) those of the nodes above each block, -1 for none.

    Returns:
        (blocks, BLOCK_NODES) and (blocks, K).
    """
    paths = paths[:, (paths >= 0).any(axis=0)]
    filled = np.arange(numbers[0], numbers[0] + BLOCK_NODES * len(paths)).reshape(len(paths), BLOCK_NODES)
    queries = np.minimum(filled, numbers[-1])
    # A node that fills up the last block would be a key twice.
    return queries, np.concatenate([paths, np.where(filled == queries, filled, -1)], axis=1)
