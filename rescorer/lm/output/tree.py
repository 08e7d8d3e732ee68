"""Tree softmax: a word is a path of binary decisions, its probability the product of theirs."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rescorer.errors import BundleError

MAX_PATH_DECISIONS = 128
"""Longest path to a word. A Huffman tree over 10^18 counted words needs fewer than 90 decisions; a chain of
decisions would exhaust memory."""
BLOCK_EDGES = 16_384
"""Number of edges whose decisions are held at once."""

with warnings.catch_warnings():  # torch warns once per process that sparse CSR tensors are in beta
    warnings.simplefilter("ignore")
    torch.sparse_csr_tensor([0, 0], [], [], (1, 1))


@dataclass(frozen=True, slots=True)
class Decisions:
    """The decisions on the paths to some words, as flat arrays: word i has the range starts[i] …
    starts[i+1]-1."""

    starts: Tensor
    """(N + 1,) int64."""
    nodes: Tensor
    """(M,) int64 decisions, from the root down."""
    signs: Tensor
    """(M,) +1 for the second child, -1 for the first."""


class TreeSoftmax(nn.Module):
    """P(w|h) = Π σ(± (q_i·h + b_i)) over the decisions i on the path to w.

    Morin & Bengio (2005); Mnih & Hinton (2009) learn the tree from the data. A word costs as many scores as
    its path has decisions, in training and in scoring. Normalised by construction, for any tree. Decision
    vectors are not word vectors, so they are never tied to the embedding.

    Args:
        size: D, length of a context vector.
        n_words: V, number of words that can be predicted.
    """

    def __init__(self, size: int, n_words: int) -> None:
        super().__init__()
        self.word_weight: Tensor = nn.Parameter(torch.zeros(n_words - 1, size))  # q, one row per decision
        self.word_bias = nn.Parameter(torch.zeros(n_words - 1))
        self.tree: Tensor  # children of each decision
        self.register_buffer("tree", torch.empty(n_words - 1, 2, dtype=torch.int32))
        self.starts: Tensor  # paths of all words, as in ``Decisions``
        self.nodes: Tensor
        self.signs: Tensor
        for name in ("starts", "nodes", "signs"):
            self.register_buffer(name, torch.empty(0), persistent=False)
        self.set_tree(balanced_tree(n_words))

    @property
    def n_words(self) -> int:
        return len(self.starts) - 1

    def set_tree(self, children: np.ndarray) -> None:
        """Replace the tree.

        Args:
            children: (V-1, 2), the two children of each decision. A child is a decision 0 … V-2, with a
                higher number than its parent and 0 as the root, or V-1+w for the word w.

        Raises:
            BundleError: If ``children`` is not such a tree, or a path is longer than ``MAX_PATH_DECISIONS``.
        """
        starts, nodes, sides = word_paths(np.asarray(children), len(self.tree) + 1)
        self.tree.copy_(torch.from_numpy(np.asarray(children)))
        device = self.tree.device
        self.starts, self.nodes = torch.from_numpy(starts).to(device), torch.from_numpy(nodes).to(device)
        self.signs = torch.from_numpy(sides).to(self.word_bias) * 2 - 1

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        try:
            self.set_tree(self.tree.cpu().numpy())
        except BundleError as error:
            rest[-1].append(str(error))  # the list of errors that load_state_dict reports

    def start_from_unigrams(self, counts: Tensor) -> None:
        """See ``OutputLayer``."""
        counts = counts.to(torch.float64).clamp(min=0.5)
        count_of_step = torch.repeat_interleave(counts.to(self.starts.device), self.starts.diff())
        first, second = (
            count_of_step.new_zeros(len(self.word_bias)).index_add_(0, self.nodes[on], count_of_step[on])
            for on in (self.signs < 0, self.signs > 0)
        )
        with torch.no_grad():
            self.word_bias.copy_(torch.log(second / first))

    def decisions(self, words: Tensor) -> Decisions:
        """The decisions on the paths to ``words``, (N,)."""
        lengths = self.starts.diff()[words]
        starts = functional.pad(lengths.cumsum(0), (1, 0))
        shift = torch.repeat_interleave(self.starts[words] - starts[:-1], lengths)
        indices = torch.arange(len(shift), device=words.device) + shift
        return Decisions(starts, self.nodes[indices], self.signs[indices])

    def loss(self, hidden: Tensor, words: Tensor) -> Tensor:
        """See ``OutputLayer``."""
        return _Loss.apply(hidden, self.word_weight, self.word_bias, self.decisions(words))

    @torch.no_grad()
    def log_probs(self, hidden: Tensor, rows: Tensor, words: Tensor) -> Tensor:
        """See ``OutputLayer``.

        Edges that share a row each score the top of the tree themselves: finding the decisions that they
        share takes longer than scoring them.
        """
        out = torch.zeros(len(words), dtype=hidden.dtype, device=hidden.device)
        for begin in range(0, len(words), BLOCK_EDGES):
            block = slice(begin, begin + BLOCK_EDGES)
            path = self.decisions(words[block])
            scores = _decision_scores(hidden[rows[block]], self.word_weight, self.word_bias, path)
            edges = torch.repeat_interleave(path.starts.diff())
            out[block].index_add_(0, edges, functional.logsigmoid(path.signs * scores))
        return out

    @torch.no_grad()
    def distribution(self, hidden: Tensor) -> Tensor:
        """See ``OutputLayer``."""
        scores = functional.linear(hidden, self.word_weight, self.word_bias)  # (N, V-1)
        log_p = hidden.new_zeros(len(hidden), 2 * self.n_words - 1)  # ln P of reaching each decision or word
        for node, (first, second) in enumerate(self.tree.tolist()):
            log_p[:, first] = log_p[:, node] + functional.logsigmoid(-scores[:, node])
            log_p[:, second] = log_p[:, node] + functional.logsigmoid(scores[:, node])
        return log_p[:, self.n_words - 1 :]


def balanced_tree(n_words: int) -> np.ndarray:
    """Children of each decision in a tree whose path lengths differ by at most one, (V-1, 2).

    See ``TreeSoftmax.set_tree`` for their numbering.
    """
    return np.arange(1, 2 * n_words - 1).reshape(n_words - 1, 2)


def word_paths(children: np.ndarray, n_words: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the path from the root to every word.

    Args:
        children: (V-1, 2), see ``TreeSoftmax.set_tree``.

    Returns:
        (V + 1,) start of each word's path; and two flat arrays: the decisions on the paths, root first, and
        the child (0 or 1) taken at each decision.

    Raises:
        BundleError: If ``children`` is not a tree over all words, or a path is longer than
            ``MAX_PATH_DECISIONS``.
    """
    parent, side = _parents(children, n_words)
    words, at = np.arange(n_words), np.arange(n_words - 1, len(parent))
    steps: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # from the words up
    while len(words := words[parent[at] >= 0]):
        if len(steps) == MAX_PATH_DECISIONS:
            raise BundleError(f"the tree has a path of more than {MAX_PATH_DECISIONS} decisions")
        at = at[parent[at] >= 0]
        steps.append((words, parent[at], side[at]))
        at = parent[at]
    lengths = np.zeros(n_words, dtype=np.int64)
    for words, _, _ in steps:
        lengths[words] += 1
    starts = np.concatenate([[0], lengths.cumsum()])
    nodes, sides = np.empty(starts[-1], dtype=np.int64), np.empty(starts[-1], dtype=np.int8)
    for distance, (words, decisions, taken) in enumerate(steps):
        indices = starts[words + 1] - 1 - distance
        nodes[indices], sides[indices] = decisions, taken
    return starts, nodes, sides


def _parents(children: np.ndarray, n_words: int) -> tuple[np.ndarray, np.ndarray]:
    """Parent of each decision and word (-1 for the root), and which child of it each is (0 or 1): (2V-1,)."""
    n_inner = n_words - 1
    if children.shape != (n_inner, 2):
        raise BundleError(
            f"the tree's shape is {children.shape}; expected {(n_inner, 2)} for {n_words} words"
        )
    own, flat = np.repeat(np.arange(n_inner), 2), children.ravel().astype(np.int64)
    once = np.array_equal(np.sort(flat), np.arange(1, n_inner + n_words))
    if not once or ((flat < n_inner) & (flat <= own)).any():
        raise BundleError("the tree does not reach every decision and every word exactly once from its root")
    parent, side = np.full(n_inner + n_words, -1), np.zeros(n_inner + n_words, dtype=np.int8)
    parent[flat], side[flat] = own, np.tile([0, 1], n_inner)
    return parent, side


def _decision_scores(hidden: Tensor, weight: Tensor, bias: Tensor, path: Decisions) -> Tensor:
    """Return the logit q_i·h + b_i of every decision, (M,), where h is the row of the decision's path.

    A sampled matrix product, so that no (M, D) tensor is created.

    Args:
        hidden: (N, D), one row per path.
    """
    pattern = torch.sparse_csr_tensor(
        path.starts, path.nodes, bias[path.nodes], (len(hidden), len(weight)), check_invariants=False
    )
    return torch.sparse.sampled_addmm(pattern, hidden, weight.t()).values()


class _Loss(torch.autograd.Function):
    """Σ softplus(∓score) over the decisions; gradients are sums of weighted rows, per path and per node."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, path):  # type: ignore[no-untyped-def]
        scores = path.signs * _decision_scores(hidden, weight, bias, path)
        ctx.path = path
        ctx.save_for_backward(hidden, weight, -path.signs * torch.sigmoid(-scores))
        return functional.softplus(-scores).sum(dtype=torch.float64).to(hidden.dtype)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        hidden, weight, delta = ctx.saved_tensors
        path, delta = ctx.path, delta * grad  # (M,)
        hidden_grad = _weighted_sums(weight, path.nodes, path.starts[:-1], delta)
        nodes, by_node = torch.sort(path.nodes)
        distinct, counts = torch.unique_consecutive(nodes, return_counts=True)
        rows = torch.repeat_interleave(path.starts.diff())[by_node]
        sums = _weighted_sums(hidden, rows, counts.cumsum(0) - counts, delta[by_node])
        weight_grad = torch.zeros_like(weight).index_copy_(0, distinct, sums)
        bias_grad = weight.new_zeros(len(weight)).index_add_(0, path.nodes, delta)
        return hidden_grad, weight_grad, bias_grad, None


def _weighted_sums(table: Tensor, rows: Tensor, starts: Tensor, weights: Tensor) -> Tensor:
    """Σ weights[m]·table[rows[m]] over each run of m that begins at ``starts``: (len(starts), D)."""
    return functional.embedding_bag(rows, table, starts, mode="sum", per_sample_weights=weights)
