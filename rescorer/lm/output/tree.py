"""Owns the tree softmax: a word is a path of two-way decisions, its probability the product of theirs."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rescorer.errors import BundleError

LONGEST_PATH = 128
"""Decisions before a word. Huffman's tree of 10^18 counted words is below 90; a chain would fill memory."""
EDGES_A_BLOCK = 16_384
"""Paths whose decisions are held at once."""

with warnings.catch_warnings():  # torch says once a process that sparse rows are a young feature
    warnings.simplefilter("ignore")
    torch.sparse_csr_tensor([0, 0], [], [], (1, 1))


@dataclass(frozen=True, slots=True)
class Decisions:
    """The decisions on the way to some words, flat: those of word i are starts[i] … starts[i+1]-1."""

    starts: Tensor
    """(N + 1,) int64."""
    nodes: Tensor
    """(M,) int64, from the root down."""
    signs: Tensor
    """(M,) +1 towards the second child, -1 towards the first."""


class TreeSoftmax(nn.Module):
    """P(w|h) = Π σ(± (q_i·h + b_i)) over the decisions i on the way to w (Morin & Bengio 2005).

    A word costs as many scores as its path is long, in training as in scoring. Normalised by construction,
    whatever the tree. Decision vectors are no word vectors, so they are never tied to the embedding.

    Args:
        size: D, of the context vectors.
        n_words: V, words that can be predicted.
    """

    def __init__(self, size: int, n_words: int) -> None:
        super().__init__()
        self.word_weight: Tensor = nn.Parameter(torch.zeros(n_words - 1, size))  # q, a row a decision
        self.word_bias = nn.Parameter(torch.zeros(n_words - 1))
        self.tree: Tensor  # children of each decision
        self.register_buffer("tree", torch.empty(n_words - 1, 2, dtype=torch.int32))
        self.starts: Tensor  # the paths of all words, as ``Decisions``
        self.nodes: Tensor
        self.signs: Tensor
        for name in ("starts", "nodes", "signs"):
            self.register_buffer(name, torch.empty(0), persistent=False)
        self.set_tree(balanced_tree(n_words))

    @property
    def n_words(self) -> int:
        return len(self.starts) - 1

    def set_tree(self, children: np.ndarray) -> None:
        """Hangs the words into another tree.

        Args:
            children: (V-1, 2), the two children of each decision: a decision 0 … V-2, of higher number than
                its parent, 0 being the root; or V-1+w for the word w.

        Raises:
            BundleError: that is no such tree.
        """
        starts, nodes, sides = paths(np.asarray(children), len(self.tree) + 1)
        self.tree.copy_(torch.from_numpy(np.asarray(children)))
        device = self.tree.device
        self.starts, self.nodes = torch.from_numpy(starts).to(device), torch.from_numpy(nodes).to(device)
        self.signs = torch.from_numpy(sides).to(self.word_bias) * 2 - 1

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        try:
            self.set_tree(self.tree.cpu().numpy())
        except BundleError as fault:
            rest[-1].append(str(fault))  # what load_state_dict reports

    def start_from_unigrams(self, counts: Tensor) -> None:
        """Sets the biases so that zero weights would predict the unigram distribution; counts: (V,)."""
        counts = counts.to(torch.float64).clamp(min=0.5)
        of_path = torch.repeat_interleave(counts.to(self.starts.device), self.starts.diff())
        first, second = (
            of_path.new_zeros(len(self.word_bias)).index_add_(0, self.nodes[on], of_path[on])
            for on in (self.signs < 0, self.signs > 0)
        )
        with torch.no_grad():
            self.word_bias.copy_(torch.log(second / first))

    def decisions(self, words: Tensor) -> Decisions:
        """On the way to each of ``words``, (N,)."""
        lengths = self.starts.diff()[words]
        starts = functional.pad(lengths.cumsum(0), (1, 0))
        shift = torch.repeat_interleave(self.starts[words] - starts[:-1], lengths)
        places = torch.arange(len(shift), device=words.device) + shift
        return Decisions(starts, self.nodes[places], self.signs[places])

    def loss(self, hidden: Tensor, words: Tensor) -> Tensor:
        """Σ −ln P(word | hidden) over the batch, for training; hidden: (N, D), words: (N,)."""
        return _Loss.apply(hidden, self.word_weight, self.word_bias, self.decisions(words))

    @torch.no_grad()
    def log_probs(self, hidden: Tensor, rows: Tensor, words: Tensor) -> Tensor:
        """ln P(words[e] | hidden[rows[e]]) for every edge e.

        Edges that share a row score the top of the tree once each: to find the shared decisions takes longer
        than to score them.

        Args:
            hidden: (N, D) context vectors.
            rows, words: (E,) int64; several edges may share a row.

        Returns:
            (E,) in the dtype of ``hidden``.
        """
        out = torch.zeros(len(words), dtype=hidden.dtype, device=hidden.device)
        for begin in range(0, len(words), EDGES_A_BLOCK):
            block = slice(begin, begin + EDGES_A_BLOCK)
            path = self.decisions(words[block])
            scores = _scores(hidden[rows[block]], self.word_weight, self.word_bias, path)
            edges = torch.repeat_interleave(path.starts.diff())
            out[block].index_add_(0, edges, functional.logsigmoid(path.signs * scores))
        return out

    @torch.no_grad()
    def distribution(self, hidden: Tensor) -> Tensor:
        """ln P(w | hidden) of every word, (N, V): the plain twin of ``log_probs``."""
        scores = functional.linear(hidden, self.word_weight, self.word_bias)  # (N, V-1)
        log_p = hidden.new_zeros(len(hidden), 2 * self.n_words - 1)  # of reaching a decision or a word
        for node, (first, second) in enumerate(self.tree.tolist()):
            log_p[:, first] = log_p[:, node] + functional.logsigmoid(-scores[:, node])
            log_p[:, second] = log_p[:, node] + functional.logsigmoid(scores[:, node])
        return log_p[:, self.n_words - 1 :]


def balanced_tree(n_words: int) -> np.ndarray:
    """Children of each decision in the tree whose paths differ by at most one: (V-1, 2), as ``set_tree``."""
    return np.arange(1, 2 * n_words - 1).reshape(n_words - 1, 2)


def paths(children: np.ndarray, n_words: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The way from the root to every word.

    Args:
        children: (V-1, 2), as ``set_tree``.

    Returns:
        (V + 1,) where each word's path starts; its decisions, root first, and at each the child taken, flat.

    Raises:
        BundleError: not a tree of all words, or a path is too long.
    """
    parent, side = _parents(children, n_words)
    words, at = np.arange(n_words), np.arange(n_words - 1, len(parent))
    steps: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # from the words up
    while len(words := words[parent[at] >= 0]):
        if len(steps) == LONGEST_PATH:
            raise BundleError(f"the tree has a path of more than {LONGEST_PATH} decisions")
        at = at[parent[at] >= 0]
        steps.append((words, parent[at], side[at]))
        at = parent[at]
    lengths = np.zeros(n_words, dtype=np.int64)
    for words, _, _ in steps:
        lengths[words] += 1
    starts = np.concatenate([[0], lengths.cumsum()])
    nodes, sides = np.empty(starts[-1], dtype=np.int64), np.empty(starts[-1], dtype=np.int8)
    for number, (words, above, taken) in enumerate(steps):
        places = starts[words + 1] - 1 - number
        nodes[places], sides[places] = above, taken
    return starts, nodes, sides


def _parents(children: np.ndarray, n_words: int) -> tuple[np.ndarray, np.ndarray]:
    """Of every decision and word: its parent, -1 for the root, and which child of it it is, (2V-1,) both."""
    n_inner = n_words - 1
    if children.shape != (n_inner, 2):
        raise BundleError(
            f"the tree's shape is {children.shape}; expected {(n_inner, 2)} for {n_words} words"
        )
    own, flat = np.repeat(np.arange(n_inner), 2), children.ravel().astype(np.int64)
    once = np.array_equal(np.sort(flat), np.arange(1, n_inner + n_words))
    if not once or ((flat < n_inner) & (flat <= own)).any():
        raise BundleError("the tree does not reach every decision and every word once from its root")
    parent, side = np.full(n_inner + n_words, -1), np.zeros(n_inner + n_words, dtype=np.int8)
    parent[flat], side[flat] = own, np.tile([0, 1], n_inner)
    return parent, side


def _scores(hidden: Tensor, weight: Tensor, bias: Tensor, path: Decisions) -> Tensor:
    """q_i·h + b_i of every decision: hidden (N, D), a row a path → (M,); nothing of size (M, D) is made."""
    pattern = torch.sparse_csr_tensor(
        path.starts, path.nodes, bias[path.nodes], (len(hidden), len(weight)), check_invariants=False
    )
    return torch.sparse.sampled_addmm(pattern, hidden, weight.t()).values()


class _Loss(torch.autograd.Function):
    """Σ softplus(∓score) over the decisions; its gradients are sums of weighted rows, by path and by node."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, path):  # type: ignore[no-untyped-def]
        scores = path.signs * _scores(hidden, weight, bias, path)
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
