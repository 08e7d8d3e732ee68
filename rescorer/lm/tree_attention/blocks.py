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
    mask: np.ndarray
    """(blocks, 1, BLOCK_NODES, K) bool, True where a node attends to a key."""


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
        block_keys, mask = _mask_blocks(tree, nodes, keys, numbers, block_paths, window)
        yield Chunk(nodes[numbers], nodes[path], np.searchsorted(before, path), block_keys, mask)
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


def _mask_blocks(
    tree: PrefixTree,
    nodes: np.ndarray,
    keys: np.ndarray,
    numbers: np.ndarray,
    paths: np.ndarray,
    window: int,
) -> tuple[np.ndarray, np.ndarray]:
    """``block_keys`` and ``mask`` of a chunk.

    Args:
        nodes: all nodes in preorder; keys, numbers and paths are indices into them.
    """
    paths = paths[:, (paths >= 0).any(axis=0)]
    filled = np.arange(numbers[0], numbers[0] + BLOCK_NODES * len(paths)).reshape(len(paths), BLOCK_NODES)
    queries = np.minimum(filled, numbers[-1])  # the last block repeats its last node
    keys_of_block = np.concatenate([np.maximum(paths, 0), queries], axis=1)  # (blocks, K)
    exists = np.concatenate([paths >= 0, np.ones_like(queries, dtype=bool)], axis=1)
    query_nodes, key_nodes = nodes[queries][:, :, None], nodes[keys_of_block][:, None, :]
    order = tree.first[query_nodes]
    mask = (tree.first[key_nodes] <= order) & (order <= tree.last[key_nodes]) & exists[:, None, :]
    mask &= tree.position[query_nodes] - tree.position[key_nodes] < window
    # A node that fills up the last block would be a key twice.
    mask[:, :, paths.shape[1] :] &= (queries == filled)[:, None, :]
    return np.searchsorted(keys, keys_of_block), mask[:, None]
