"""Tree softmax: a word is a path of binary decisions, and its probability the product of theirs.

A tree with L leaves is an array with the two children of each of its L-1 decisions, (L-1, 2). A child is
either a decision, 0 … L-2, or the leaf l as the number L-1+l. The root is decision 0, and children have
higher numbers than their parents. A word has one or several leaves: the leaves of word 0 come first, then
those of word 1, and so on.

Paths are flat arrays: path i consists of the nodes starts[i] … starts[i+1]-1. Vectors are multiplied with the
nodes on their paths without a copy of a node's vector for each path.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rescorer.errors import BundleError
from rescorer.models.network_files import MAX_PLACES

MAX_PATH_DECISIONS = 128
"""Largest number of decisions on a path. A Huffman tree from 10^18 words of text needs fewer than 90. Without
a limit, a tree that is one long chain would exhaust memory."""


def balanced_tree(n_leaves: int) -> np.ndarray:
    """A tree whose paths differ in length by at most one decision, (L-1, 2)."""
    return np.arange(1, 2 * n_leaves - 1).reshape(n_leaves - 1, 2)


def check_places(places: np.ndarray, n_words: int, n_leaves: int) -> None:
    """Raise BundleError unless ``places``, the number of leaves of each word, fits a tree of ``n_leaves``."""
    if places.shape != (n_words,):
        raise BundleError(f"the tree's places have the shape {places.shape}; expected {(n_words,)}")
    if not ((places >= 1) & (places <= MAX_PLACES)).all():
        word = int(np.flatnonzero((places < 1) | (places > MAX_PLACES))[0])
        raise BundleError(f"word {word} has {places[word]} places in the tree; expected 1 to {MAX_PLACES}")
    if (total := int(places.sum(dtype=np.int64))) != n_leaves:
        raise BundleError(f"the words have {total:,} places in the tree; expected its {n_leaves:,} leaves")


def leaf_paths(children: np.ndarray, n_leaves: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the path from the root to every leaf of a tree, (L-1, 2).

    Returns:
        (L + 1,) start of each leaf's path, and two flat arrays: the decisions on the paths, the root first,
        and the child, 0 or 1, taken at each.

    Raises:
        BundleError: ``children`` is not a tree over all leaves, or a path is too long.
    """
    parent, side = _parents(children, n_leaves)
    leaves, at = np.arange(n_leaves), np.arange(n_leaves - 1, len(parent))
    steps: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # from the leaves up
    while len(leaves := leaves[parent[at] >= 0]):
        if len(steps) == MAX_PATH_DECISIONS:
            raise BundleError(f"the tree has a path of more than {MAX_PATH_DECISIONS} decisions")
        at = at[parent[at] >= 0]
        steps.append((leaves, parent[at], side[at]))
        at = parent[at]
    lengths = np.zeros(n_leaves, dtype=np.int64)
    for leaves, _, _ in steps:
        lengths[leaves] += 1
    starts = np.concatenate([[0], lengths.cumsum()])
    nodes, sides = np.empty(starts[-1], dtype=np.int64), np.empty(starts[-1], dtype=np.int8)
    for distance, (leaves, decisions, taken) in enumerate(steps):
        indices = starts[leaves + 1] - 1 - distance
        nodes[indices], sides[indices] = decisions, taken
    return starts, nodes, sides


def _parents(children: np.ndarray, n_leaves: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the parent of each decision and leaf, -1 for the root, and which child it is (0, 1): (2L-1,)."""
    n_inner = n_leaves - 1
    if children.shape != (n_inner, 2):
        raise BundleError(
            f"the tree's shape is {children.shape}; expected {(n_inner, 2)} for {n_leaves} leaves"
        )
    own, flat = np.repeat(np.arange(n_inner), 2), children.ravel().astype(np.int64)
    once = np.array_equal(np.sort(flat), np.arange(1, n_inner + n_leaves))
    if not once or ((flat < n_inner) & (flat <= own)).any():
        raise BundleError("the tree does not reach every decision and every leaf exactly once from its root")
    parent, side = np.full(n_inner + n_leaves, -1), np.zeros(n_inner + n_leaves, dtype=np.int8)
    parent[flat], side[flat] = own, np.tile([0, 1], n_inner)
    return parent, side


with warnings.catch_warnings():  # torch warns once per process that sparse CSR tensors are in beta
    warnings.simplefilter("ignore")
    torch.sparse_csr_tensor([0, 0], [], [], (1, 1))


class NodeSums(NamedTuple):
    """For each node, a sum over the paths through it."""

    nodes: Tensor  # (U,) distinct nodes, ascending
    counts: Tensor  # (U,) number of paths through each
    sums: Tensor  # (U, D)


def concatenate_runs(starts: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
    """Concatenate the runs of consecutive indices starts[i] … starts[i+1]-1, for each i of ``items``.

    Also return where each run begins in the result, and its end: (len(items) + 1,).
    """
    lengths = starts.diff().index_select(0, items)
    begins = functional.pad(lengths.cumsum(0), (1, 0))
    shift = torch.repeat_interleave(starts.index_select(0, items) - begins[:-1], lengths)
    return torch.arange(len(shift), device=items.device) + shift, begins


def score_nodes(vectors: Tensor, node_vectors: Tensor, starts: Tensor, nodes: Tensor, bias: Tensor) -> Tensor:
    """The product of each vector, (N, D), with the vector of each node on its path, plus ``bias``: (M,).

    Args:
        starts: (N + 1,) where the path of each vector begins in ``nodes``.
        nodes: (M,) nodes of all paths; a path has a node at most once.
        bias: (M,) a number to add to each product.
    """
    pattern = torch.sparse_csr_tensor(
        starts, nodes, bias, (len(vectors), len(node_vectors)), check_invariants=False
    )
    return torch.sparse.sampled_addmm(pattern, vectors, node_vectors.t()).values()


def sum_rows(table: Tensor, rows: Tensor, starts: Tensor, weights: Tensor | None = None) -> Tensor:
    """Σ weights[m]·table[rows[m]] over each run of m, (N, D).

    Args:
        starts: (N + 1,) where each run begins.
        weights: (M,) weights; None: all are 1.
    """
    return functional.embedding_bag(rows, table, starts[:-1], mode="sum", per_sample_weights=weights)


def sum_by_node(vectors: Tensor, starts: Tensor, nodes: Tensor, weights: Tensor) -> NodeSums:
    """For each node, sum the vectors whose paths lead through it, weighted by ``weights``, (M,)."""
    nodes, by_node = torch.sort(nodes)
    distinct, counts = torch.unique_consecutive(nodes, return_counts=True)
    rows = torch.repeat_interleave(starts.diff()).index_select(0, by_node)
    begins = functional.pad(counts.cumsum(0), (1, 0))
    return NodeSums(distinct, counts, sum_rows(vectors, rows, begins, weights.index_select(0, by_node)))


def list_levels(children: np.ndarray) -> list[np.ndarray]:
    """List the decisions of each depth. The deepest come first, so that children precede their parents."""
    levels: list[np.ndarray] = []
    level = np.arange(min(1, len(children)))
    while len(level):
        levels.insert(0, level)
        below = children[level].ravel().astype(np.int64)
        level = below[below < len(children)]
    return levels


class SideDifferences(torch.autograd.Function):
    """For each decision, the mean vector of the words on its second side minus that of the words on its first
    side.

    Words are weighted by the probabilities that the tree gives them for a zero context vector, that is, by
    its biases alone. The difference is then the gradient, at that context vector, of the decision that a
    softmax over these words would make. In training, the probabilities count as constants.
    """

    @staticmethod
    def forward(ctx, word_vectors, bias, tree, leaf_words, levels):  # type: ignore[no-untyped-def]
        """Compute the differences, (L-1, D).

        Args:
            word_vectors: (≥ V, D).
            bias: (L-1,) of each decision.
            tree: (L-1, 2) children of each decision.
            leaf_words: (L,) word of each leaf.
            levels: result of ``list_levels``.
        """
        n_decisions, size = len(bias), word_vectors.shape[1]
        second_share = torch.sigmoid(bias).unsqueeze(1)
        means = bias.new_empty(2 * n_decisions + 1, size)  # of the words below each decision or leaf
        means[n_decisions:] = word_vectors.index_select(0, leaf_words)
        differences = bias.new_empty(n_decisions, size)
        for decisions in levels:
            first, second = tree[decisions].long().unbind(1)
            mean = means.index_select(0, first)
            difference = means.index_select(0, second).sub_(mean)
            differences.index_copy_(0, decisions, difference)
            means.index_copy_(0, decisions, mean.addcmul_(difference, second_share[decisions]))
        ctx.levels, ctx.n_vectors = levels, len(word_vectors)
        ctx.save_for_backward(second_share, tree, leaf_words)
        return differences

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        second_share, tree, leaf_words = ctx.saved_tensors
        n_decisions, size = grad.shape
        mean_grad = grad.new_zeros(2 * n_decisions + 1, size)
        for decisions in reversed(ctx.levels):
            first, second = tree[decisions].long().unbind(1)
            whole = mean_grad.index_select(0, decisions)
            to_second = torch.addcmul(grad.index_select(0, decisions), whole, second_share[decisions])
            mean_grad.index_copy_(0, first, whole.sub_(to_second))
            mean_grad.index_copy_(0, second, to_second)
        word_grad = grad.new_zeros(ctx.n_vectors, size).index_add_(0, leaf_words, mean_grad[n_decisions:])
        return word_grad, None, None, None, None


BLOCK_EDGES = 16_384  # number of edges whose decisions are held at once


@dataclass(frozen=True, slots=True)
class Decisions:
    """The decisions on the paths to some leaves: the path of leaf i is starts[i] … starts[i+1]-1."""

    starts: Tensor  # (N + 1,) int64
    nodes: Tensor  # (M,) int64 decisions, from the root down
    signs: Tensor  # (M,) +1 for the second child, -1 for the first


class TreeSoftmax(nn.Module):
    """P(w|h) = Σ_l Π σ(± (q_i·h + b_i)) over the leaves l of w and the decisions i on the path to l.

    Trees were proposed by Morin & Bengio (2005). Mnih & Hinton (2009) learn the tree from the data, and let a
    word have several leaves. The cost of a leaf is one score per decision on its path, in training and in
    scoring.

    Decision vectors q_i are not word vectors. If they are tied to the embedding, q_i is a vector of its own
    plus the difference of the mean embeddings of the words on the two sides of the decision (see
    ``SideDifferences``).

    Args:
        size: D, length of a context vector.
        n_words: V, number of words that can be predicted.
        n_leaves: L, number of leaves; 0 if every word has one leaf, with the number of the word.
        word_vectors: (≥ V, D) embedding to which decision vectors are tied; None: they are not tied.
    """

    def __init__(
        self, size: int, n_words: int, n_leaves: int = 0, word_vectors: Tensor | None = None
    ) -> None:
        super().__init__()
        n_decisions = (n_leaves or n_words) - 1
        self.word_weight: Tensor = nn.Parameter(torch.zeros(n_decisions, size))  # one row per decision
        self.word_bias = nn.Parameter(torch.zeros(n_decisions))
        self.word_vectors = word_vectors
        self.tree: Tensor  # children of each decision
        self.places: Tensor  # number of leaves of each word
        self.register_buffer("tree", torch.empty(n_decisions, 2, dtype=torch.int32))
        self.register_buffer("places", torch.ones(n_words, dtype=torch.int32), persistent=n_leaves > 0)
        self.starts: Tensor  # paths of all leaves, as in ``Decisions``
        self.nodes: Tensor
        self.signs: Tensor
        self.first_leaf: Tensor  # (V + 1,) first leaf of each word
        self.by_level: Tensor  # decisions, the deepest first
        for name in ("starts", "nodes", "signs", "first_leaf", "by_level"):
            self.register_buffer(name, torch.empty(0), persistent=False)
        self.set_tree(balanced_tree(n_decisions + 1), np.bincount(np.arange(n_decisions + 1) % n_words))

    @property
    def n_words(self) -> int:
        return len(self.places)

    @property
    def n_leaves(self) -> int:
        return len(self.tree) + 1

    def set_tree(self, children: np.ndarray, places: np.ndarray | None = None) -> None:
        """Replace the tree.

        Args:
            children: (L-1, 2) children of each decision.
            places: (V,) number of leaves of each word; None: each has one.

        Raises:
            BundleError: ``children`` is not such a tree, a path is too long, or ``places`` does not fit.
        """
        places = np.ones(self.n_words, dtype=np.int32) if places is None else np.asarray(places)
        check_places(places, self.n_words, self.n_leaves)
        starts, nodes, sides = leaf_paths(np.asarray(children), self.n_leaves)
        device = self.tree.device
        self.tree.copy_(torch.from_numpy(np.asarray(children)))
        self.places.copy_(torch.from_numpy(places))
        self.starts, self.nodes = torch.from_numpy(starts).to(device), torch.from_numpy(nodes).to(device)
        self.signs = torch.from_numpy(sides).to(self.word_bias) * 2 - 1
        self.first_leaf = functional.pad(self.places.long().cumsum(0), (1, 0))
        levels = list_levels(np.asarray(children))
        self.level_sizes = [len(level) for level in levels]
        self.by_level = torch.from_numpy(np.concatenate([np.arange(0), *levels])).to(device)
        self._known_weight: tuple[object, Tensor] | None = None

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        try:
            self.set_tree(self.tree.cpu().numpy(), self.places.cpu().numpy())
        except BundleError as error:
            rest[-1].append(str(error))  # the list of errors that load_state_dict reports

    def train(self, mode: bool = True) -> TreeSoftmax:
        """Set the mode, and forget the stored decision vectors: fused optimisers change them unnoticed."""
        self._known_weight = None
        return super().train(mode)

    def start_from_unigrams(self, counts: Tensor) -> None:
        """See ``OutputLayer``. The leaves of a word share its count evenly."""
        counts = counts.to(self.places.device, torch.float64).clamp(min=0.5) / self.places
        count_of_leaf = counts.repeat_interleave(self.places)
        count_of_step = torch.repeat_interleave(count_of_leaf, self.starts.diff())
        first, second = (
            count_of_step.new_zeros(len(self.word_bias)).index_add_(0, self.nodes[on], count_of_step[on])
            for on in (self.signs < 0, self.signs > 0)
        )
        with torch.no_grad():
            self.word_bias.copy_(torch.log(second / first))

    def decisions(self, leaves: Tensor) -> Decisions:
        """The decisions on the paths to some leaves, (N,)."""
        indices, starts = concatenate_runs(self.starts, leaves)
        return Decisions(starts, self.nodes[indices], self.signs[indices])

    def decision_weight(self) -> Tensor:
        """The vectors q of all decisions, (L-1, D). In evaluation without gradients, they are stored."""
        if self.word_vectors is None:
            return self.word_weight
        sources = self.word_weight, self.word_bias, self.word_vectors
        state = [(source._version, source.device, source.dtype) for source in sources]
        is_fixed = not (self.training or torch.is_grad_enabled())
        if is_fixed and self._known_weight and self._known_weight[0] == state:
            return self._known_weight[1]
        differences: Tensor = SideDifferences.apply(
            self.word_vectors, self.word_bias.detach(), self.tree, torch.repeat_interleave(self.places),
            self.by_level.split(self.level_sizes),
        )  # fmt: skip
        weight = self.word_weight + differences
        if is_fixed:
            self._known_weight = state, weight
        return weight

    def loss(self, hidden: Tensor, words: Tensor) -> Tensor:
        leaves, owners = self._leaves(words)
        if owners is not None:
            hidden = hidden.index_select(0, owners)
        return _Loss.apply(hidden, self.decision_weight(), self.word_bias, self.decisions(leaves), owners)

    @torch.no_grad()
    def log_probs(self, hidden: Tensor, rows: Tensor, words: Tensor) -> Tensor:
        """See ``OutputLayer``.

        Edges with the same row have the top decisions of the tree in common. These are scored for each edge
        again, because finding them would take longer.
        """
        weight = self.decision_weight()
        out = torch.empty(len(words), dtype=hidden.dtype, device=hidden.device)
        for begin in range(0, len(words), BLOCK_EDGES):
            block = slice(begin, begin + BLOCK_EDGES)
            leaves, owners = self._leaves(words[block])
            path = self.decisions(leaves)
            leaf_rows = rows[block] if owners is None else rows[block][owners]
            scores = path.signs * _decision_scores(hidden[leaf_rows], weight, self.word_bias, path)
            out[block] = _word_log_probs(_leaf_log_probs(path, scores), owners)
        return out

    def _leaves(self, words: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the leaves of words, and the index of each leaf's word, or None if all have one leaf."""
        if self.n_leaves == self.n_words:
            return words, None
        leaves, starts = concatenate_runs(self.first_leaf, words)
        return leaves, torch.repeat_interleave(starts.diff())

    @torch.no_grad()
    def distribution(self, hidden: Tensor) -> Tensor:
        scores = functional.linear(hidden, self.decision_weight(), self.word_bias)  # (N, L-1)
        log_p = hidden.new_zeros(len(hidden), 2 * self.n_leaves - 1)  # ln P of reaching each decision or leaf
        for node, (first, second) in enumerate(self.tree.tolist()):
            log_p[:, first] = log_p[:, node] + functional.logsigmoid(-scores[:, node])
            log_p[:, second] = log_p[:, node] + functional.logsigmoid(scores[:, node])
        by_word = log_p[:, self.n_leaves - 1 :].split(self.places.tolist(), dim=1)
        return torch.stack([torch.logsumexp(leaves, dim=1) for leaves in by_word], dim=1)


def _decision_scores(hidden: Tensor, weight: Tensor, bias: Tensor, path: Decisions) -> Tensor:
    """The logit q_i·h + b_i of every decision, (M,), where h is the row of the decision's path."""
    return score_nodes(hidden, weight, path.starts, path.nodes, bias[path.nodes])


def _leaf_log_probs(path: Decisions, scores: Tensor) -> Tensor:
    """Σ ln σ(score) over the decisions of each path, (N,). Scores are already multiplied by the signs."""
    steps = torch.repeat_interleave(path.starts.diff())
    return scores.new_zeros(len(path.starts) - 1).index_add_(0, steps, functional.logsigmoid(scores))


def _word_log_probs(leaf_log_probs: Tensor, owners: Tensor | None) -> Tensor:
    """ln Σ P(leaf) over the leaves of each word.

    Args:
        owners: index of each leaf's word, see ``TreeSoftmax._leaves``.
    """
    if owners is None or not len(owners):
        return leaf_log_probs
    maxima = leaf_log_probs.new_full((int(owners[-1]) + 1,), -torch.inf)
    maxima.scatter_reduce_(0, owners, leaf_log_probs, "amax")
    sums = torch.zeros_like(maxima).index_add_(0, owners, torch.exp(leaf_log_probs - maxima[owners]))
    return maxima + torch.log(sums)


class _Loss(torch.autograd.Function):
    """-Σ ln Σ Π σ(±score) over words, their leaves, and the decisions on the leaves' paths.

    Gradients are sums of weighted rows, per path and per node. ``hidden`` has one row per leaf.
    ``TreeSoftmax._leaves`` explains ``owners``.
    """

    @staticmethod
    def forward(ctx, hidden, weight, bias, path, owners):  # type: ignore[no-untyped-def]
        scores = path.signs * _decision_scores(hidden, weight, bias, path)
        ctx.path = path
        delta = -path.signs * torch.sigmoid(-scores)
        if owners is None:
            loss = functional.softplus(-scores).sum(dtype=torch.float64)
        else:
            leaf_log_probs = _leaf_log_probs(path, scores)
            word_log_probs = _word_log_probs(leaf_log_probs, owners)
            loss = -word_log_probs.sum(dtype=torch.float64)
            shares = torch.exp(leaf_log_probs - word_log_probs[owners])  # of each leaf in its word
            delta *= torch.repeat_interleave(shares, path.starts.diff())
        ctx.save_for_backward(hidden, weight, delta)
        return loss.to(hidden.dtype)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        hidden, weight, delta = ctx.saved_tensors
        path, delta = ctx.path, delta * grad  # (M,)
        hidden_grad = sum_rows(weight, path.nodes, path.starts, delta)
        by_node = sum_by_node(hidden, path.starts, path.nodes, delta)
        weight_grad = torch.zeros_like(weight).index_copy_(0, by_node.nodes, by_node.sums)
        bias_grad = weight.new_zeros(len(weight)).index_add_(0, path.nodes, delta)
        return hidden_grad, weight_grad, bias_grad, None, None
