"""Tree softmax: a word is a path of binary decisions, its probability the product of theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rescorer.errors import BundleError
from rescorer.lm.output.path_products import concatenate_runs, score_nodes, sum_by_node, sum_rows
from rescorer.lm.output.tree_paths import balanced_tree, check_places, leaf_paths
from rescorer.lm.output.tree_vectors import SideDifferences, list_levels

BLOCK_EDGES = 16_384
"""Number of edges whose decisions are held at once."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """The decisions on the paths to some leaves, as flat arrays: leaf i has the range starts[i] …
    starts[i+1]-1."""

    starts: Tensor
    """(N + 1,) int64."""
    nodes: Tensor
    """(M,) int64 decisions, from the root down."""
    signs: Tensor
    """(M,) +1 for the second child, -1 for the first."""


class TreeSoftmax(nn.Module):
    """P(w|h) = Σ_l Π σ(± (q_i·h + b_i)) over the leaves l of w and the decisions i on the path to l.

    Morin & Bengio (2005); Mnih & Hinton (2009) learn the tree from the data, and let a word have several
    leaves. A leaf costs as many scores as its path has decisions, in training and in scoring. Normalised by
    construction, for any tree.

    Decision vectors are not word vectors. Tied to the embedding, q_i is a vector of the decision's own plus
    the difference of the mean embeddings of the words on its two sides (see ``SideDifferences``).

    Args:
        size: D, length of a context vector.
        n_words: V, number of words that can be predicted.
        n_leaves: L, number of leaves; 0 if every word has one leaf, whose number is that of the word.
        word_vectors: (≥ V, D) embedding to which decision vectors are tied; None for untied ones.
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
        """Replace the tree, see ``tree_paths``.

        Args:
            children: (L-1, 2), the two children of each decision.
            places: (V,) number of leaves of each word; None for one each.

        Raises:
            BundleError: If ``children`` is not such a tree, a path is too long, or ``places`` does not fit.
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
        """Also forget the decision vectors: fused optimisers change parameters without counting versions."""
        self._known_weight = None
        return super().train(mode)

    def start_from_unigrams(self, counts: Tensor) -> None:
        """See ``OutputLayer``; the leaves of a word share its count evenly."""
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
        """The decisions on the paths to ``leaves``, (N,)."""
        indices, starts = concatenate_runs(self.starts, leaves)
        return Decisions(starts, self.nodes[indices], self.signs[indices])

    def decision_weight(self) -> Tensor:
        """The vectors q of all decisions, (L-1, D); in evaluation without gradients, computed once."""
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
        """See ``OutputLayer``."""
        leaves, owners = self._leaves(words)
        if owners is not None:
            hidden = hidden.index_select(0, owners)
        return _Loss.apply(hidden, self.decision_weight(), self.word_bias, self.decisions(leaves), owners)

    @torch.no_grad()
    def log_probs(self, hidden: Tensor, rows: Tensor, words: Tensor) -> Tensor:
        """See ``OutputLayer``.

        Edges that share a row each score the top of the tree themselves: finding the decisions that they
        share takes longer than scoring them.
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
        """The leaves of ``words``, (N,), and the index of each leaf's word, or None if leaves are words."""
        if self.n_leaves == self.n_words:
            return words, None
        leaves, starts = concatenate_runs(self.first_leaf, words)
        return leaves, torch.repeat_interleave(starts.diff())

    @torch.no_grad()
    def distribution(self, hidden: Tensor) -> Tensor:
        """See ``OutputLayer``."""
        scores = functional.linear(hidden, self.decision_weight(), self.word_bias)  # (N, L-1)
        log_p = hidden.new_zeros(len(hidden), 2 * self.n_leaves - 1)  # ln P of reaching each decision or leaf
        for node, (first, second) in enumerate(self.tree.tolist()):
            log_p[:, first] = log_p[:, node] + functional.logsigmoid(-scores[:, node])
            log_p[:, second] = log_p[:, node] + functional.logsigmoid(scores[:, node])
        by_word = log_p[:, self.n_leaves - 1 :].split(self.places.tolist(), dim=1)
        return torch.stack([torch.logsumexp(leaves, dim=1) for leaves in by_word], dim=1)


def _decision_scores(hidden: Tensor, weight: Tensor, bias: Tensor, path: Decisions) -> Tensor:
    """Return the logit q_i·h + b_i of every decision, (M,), where h is the row of the decision's path.

    Args:
        hidden: (N, D), one row per path.
    """
    return score_nodes(hidden, weight, path.starts, path.nodes, bias[path.nodes])


def _leaf_log_probs(path: Decisions, scores: Tensor) -> Tensor:
    """Σ ln σ(score) over the decisions of each path, (N,); the scores have the path's signs."""
    steps = torch.repeat_interleave(path.starts.diff())
    return scores.new_zeros(len(path.starts) - 1).index_add_(0, steps, functional.logsigmoid(scores))


def _word_log_probs(leaf_log_probs: Tensor, owners: Tensor | None) -> Tensor:
    """ln Σ P(leaf) over the leaves of each word; see ``TreeSoftmax._leaves`` for the owners."""
    if owners is None or not len(owners):
        return leaf_log_probs
    maxima = leaf_log_probs.new_full((int(owners[-1]) + 1,), -torch.inf)
    maxima.scatter_reduce_(0, owners, leaf_log_probs, "amax")
    sums = torch.zeros_like(maxima).index_add_(0, owners, torch.exp(leaf_log_probs - maxima[owners]))
    return maxima + torch.log(sums)


class _Loss(torch.autograd.Function):
    """-Σ ln Σ Π σ(±score) over the words, their leaves and the decisions on the paths to these; gradients are
    sums of weighted rows, per path and per node.

    There is one row of ``hidden`` per leaf; see ``TreeSoftmax._leaves`` for the owners.
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
