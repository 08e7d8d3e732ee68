"""Decision vectors tied to the embedding: the difference of the mean word vectors of a decision's sides."""

from __future__ import annotations

import numpy as np
import torch


def list_levels(children: np.ndarray) -> list[np.ndarray]:
    """List the decisions of each depth, the deepest first, so that children come before their parents.

    Args:
        children: (L-1, 2), see ``tree_paths``.
    """
    levels: list[np.ndarray] = []
    level = np.arange(min(1, len(children)))
    while len(level):
        levels.insert(0, level)
        below = children[level].ravel().astype(np.int64)
        level = below[below < len(children)]
    return levels


class SideDifferences(torch.autograd.Function):
    """For each decision, the mean vector of the words on its second side minus that of the first side.

    A mean is weighted with the probabilities that the tree's biases alone, with a zero context vector, give
    the words. So the difference is the gradient, at that context vector, of the decision that a softmax over
    these words would make. The weights get no gradient.
    """

    @staticmethod
    def forward(ctx, word_vectors, bias, tree, leaf_words, levels):  # type: ignore[no-untyped-def]
        """Compute the differences, (L-1, D).

        Args:
            word_vectors: (≥ V, D).
            bias: (L-1,) biases of the decisions.
            tree: (L-1, 2) children of each decision.
            leaf_words: (L,) word of each leaf.
            levels: decisions of each depth, the deepest first.
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
