"""Products of vectors and the nodes of tree paths, without a copy of a node's vector per path.

A path is a run of nodes. Paths are flat arrays: that of vector i has the nodes starts[i] … starts[i+1]-1.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

with warnings.catch_warnings():  # torch warns once per process that sparse CSR tensors are in beta
    warnings.simplefilter("ignore")
    torch.sparse_csr_tensor([0, 0], [], [], (1, 1))


class NodeSums(NamedTuple):
    """Sums over the paths through each node."""

    nodes: Tensor
    """(U,) distinct nodes, ascending."""
    counts: Tensor
    """(U,) number of paths through each."""
    sums: Tensor
    """(U, D)."""


def concatenate_runs(starts: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
    """Concatenate the runs starts[i] … starts[i+1]-1 of ``items``; also return where each of them begins,
    (len(items) + 1,)."""
    lengths = starts.diff().index_select(0, items)
    begins = functional.pad(lengths.cumsum(0), (1, 0))
    shift = torch.repeat_interleave(starts.index_select(0, items) - begins[:-1], lengths)
    return torch.arange(len(shift), device=items.device) + shift, begins


def score_nodes(vectors: Tensor, node_vectors: Tensor, starts: Tensor, nodes: Tensor, bias: Tensor) -> Tensor:
    """Return the product of each vector and the vector of each node on its path, plus ``bias``, (M,).

    Args:
        vectors: (N, D), one row per path.
        nodes: (M,) nodes of the paths; a path has each node once at most.
        bias: (M,).
    """
    pattern = torch.sparse_csr_tensor(
        starts, nodes, bias, (len(vectors), len(node_vectors)), check_invariants=False
    )
    return torch.sparse.sampled_addmm(pattern, vectors, node_vectors.t()).values()


def sum_rows(table: Tensor, rows: Tensor, starts: Tensor, weights: Tensor | None = None) -> Tensor:
    """Σ weights[m]·table[rows[m]] over each run of m, (N, D).

    Args:
        starts: (N + 1,).
        weights: (M,); 1 if None.
    """
    return functional.embedding_bag(rows, table, starts[:-1], mode="sum", per_sample_weights=weights)


def sum_by_node(vectors: Tensor, starts: Tensor, nodes: Tensor, weights: Tensor) -> NodeSums:
    """Sum the vectors whose paths lead through a node, weighted by ``weights`` (M,)."""
    nodes, by_node = torch.sort(nodes)
    distinct, counts = torch.unique_consecutive(nodes, return_counts=True)
    rows = torch.repeat_interleave(starts.diff()).index_select(0, by_node)
    begins = functional.pad(counts.cumsum(0), (1, 0))
    return NodeSums(distinct, counts, sum_rows(vectors, rows, begins, weights.index_select(0, by_node)))
