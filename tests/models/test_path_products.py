"""Products over paths against loops over their nodes."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.models.tree_softmax import concatenate_runs, score_nodes, sum_by_node, sum_rows

N_NODES, DIMENSIONS = 5, 3
PATHS = st.lists(st.lists(st.integers(0, N_NODES - 1), max_size=4, unique=True), min_size=1, max_size=6)


def flatten(paths: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Starts of paths, and their nodes."""
    starts = np.cumsum([0, *map(len, paths)])
    return torch.from_numpy(starts), torch.tensor([node for path in paths for node in path], dtype=torch.long)


@given(paths=PATHS, seed=st.integers(0, 10**6))
@settings(deadline=None)
def test_scores_and_sums_are_those_of_single_nodes(paths: list[list[int]], seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    starts, nodes = flatten(paths)
    vectors = torch.randn(len(paths), DIMENSIONS, generator=random)
    node_vectors = torch.randn(N_NODES, DIMENSIONS, generator=random)
    bias, weights = torch.randn(2, len(nodes), generator=random)
    scores: list[float] = []
    by_path, by_node = torch.zeros_like(vectors), torch.zeros_like(node_vectors)
    passes = [0] * N_NODES
    for number, path in enumerate(paths):
        for node in path:
            at = len(scores)
            scores.append(float(vectors[number] @ node_vectors[node] + bias[at]))
            by_path[number] += weights[at] * node_vectors[node]
            by_node[node] += weights[at] * vectors[number]
            passes[node] += 1
    found = sum_by_node(vectors, starts, nodes, weights)
    torch.testing.assert_close(score_nodes(vectors, node_vectors, starts, nodes, bias), torch.tensor(scores))
    torch.testing.assert_close(sum_rows(node_vectors, nodes, starts, weights), by_path)
    assert found.nodes.tolist() == [node for node, n in enumerate(passes) if n]
    assert found.counts.tolist() == [n for n in passes if n]
    torch.testing.assert_close(found.sums, by_node[found.nodes])


@given(paths=PATHS, data=st.data())
def test_runs_are_concatenated_in_the_order_of_the_items(paths: list[list[int]], data: st.DataObject) -> None:
    items = data.draw(st.lists(st.integers(0, len(paths) - 1), max_size=6))
    starts, nodes = flatten(paths)
    indices, begins = concatenate_runs(starts, torch.tensor(items, dtype=torch.long))
    assert nodes[indices].tolist() == [node for item in items for node in paths[item]]
    assert begins.tolist() == np.cumsum([0, *(len(paths[item]) for item in items)]).tolist()
