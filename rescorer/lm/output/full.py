"""Full softmax: score every word against every context vector, one block of rows at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from rescorer.lm.kernels.linear import linear
from rescorer.lm.output.cross_entropy import cross_entropies_and_gradients
from rescorer.lm.output.edges import row_blocks

BLOCK_SCORES = {"cpu": 1 << 22, "cuda": 1 << 28}
"""Number of word scores held at once: 16 MB on a CPU, to fit into its cache, and 1 GB on a GPU, to keep it
busy."""
MIN_BLOCK_ROWS = 256
"""Smallest number of rows per block. Each block reads and updates the gradient of all words, which takes too
long if there are fewer rows."""


class FullSoftmax(nn.Module):
    """P(w|h) = exp(w·h + b_w) / Σ_v exp(v·h + b_v)  (Bengio et al. 2003).

    Args:
        size: D, length of a context vector.
        n_words: V, number of words that can be predicted.
        word_weight: (≥ V, D) matrix whose first rows are the word weights, such as the input embedding; None
            creates new weights.
    """

    def __init__(self, size: int, n_words: int, word_weight: Tensor | None = None) -> None:
        super().__init__()
        self.word_weight = nn.Parameter(torch.empty(n_words, size)) if word_weight is None else word_weight
        self.word_bias = nn.Parameter(torch.zeros(n_words))
        if word_weight is None:
            nn.init.normal_(self.word_weight, std=size**-0.5)

    @property
    def n_words(self) -> int:
        return len(self.word_bias)

    def start_from_unigrams(self, counts: Tensor) -> None:
        """See ``OutputLayer``."""
        counts = counts.to(self.word_bias).clamp(min=0.5)
        with torch.no_grad():
            self.word_bias.copy_(torch.log(counts / counts.sum()))

    def loss(self, hidden: Tensor, words: Tensor) -> Tensor:
        """See ``OutputLayer``; products have the dtype of ``hidden``, everything else is float32."""
        return _Loss.apply(hidden, self.word_weight, self.word_bias, words, torch.is_grad_enabled())

    @torch.no_grad()
    def log_probs(self, hidden: Tensor, rows: Tensor, words: Tensor) -> Tensor:
        """See ``OutputLayer``; each row is scored once."""
        out = torch.empty(len(words), dtype=hidden.dtype, device=hidden.device)
        for block, edges, positions in row_blocks(rows, len(hidden), rows_per_block(hidden, self.n_words)):
            scores = self._scores(hidden[block])  # (n, V)
            out[edges] = scores[positions, words[edges]] - torch.logsumexp(scores, dim=1)[positions]
        return out

    @torch.no_grad()
    def distribution(self, hidden: Tensor) -> Tensor:
        """See ``OutputLayer``."""
        return functional.log_softmax(self._scores(hidden), dim=1)

    def _scores(self, hidden: Tensor) -> Tensor:
        return linear(hidden, self.word_weight[: self.n_words], self.word_bias)


def rows_per_block(hidden: Tensor, n_words: int) -> int:
    """Number of rows of ``n_words`` scores that are held at once on the device of ``hidden``."""
    return max(MIN_BLOCK_ROWS, BLOCK_SCORES[hidden.device.type] // n_words)


class _Loss(torch.autograd.Function):
    """Σ −ln P(word | hidden).

    The forward pass also computes the gradient, so that only one block of the (N, V) scores is held at once.
    """

    @staticmethod
    def forward(ctx, hidden, weight, bias, words, with_gradient):  # type: ignore[no-untyped-def]
        n_words = len(bias)
        w = weight[:n_words].to(hidden.dtype)
        grads = [torch.zeros_like(tensor) for tensor in (hidden, weight, bias)] if with_gradient else []
        loss = weight.new_zeros((), dtype=torch.float64)
        step = rows_per_block(hidden, n_words)
        for begin in range(0, len(hidden), step):
            rows = slice(begin, begin + step)
            h = hidden[rows]
            # No variable holds the scores: they must be freed before the next block is computed.
            losses, delta = cross_entropies_and_gradients(_scores(h, w, bias), words[rows])  # (n, V)
            loss += losses.sum(dtype=torch.float64)
            if with_gradient:
                hidden_grad, weight_grad, bias_grad = grads
                bias_grad += delta.sum(dim=0)
                delta = delta.to(h.dtype)
                torch.mm(delta, w, out=hidden_grad[rows])
                _add_product(weight_grad[:n_words], delta.t(), h)
        ctx.save_for_backward(*grads)
        return loss.to(weight.dtype)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return *(saved * grad for saved in ctx.saved_tensors), None, None


def _scores(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """H·Wᵀ + b in the dtype of the bias, (n, V)."""
    if hidden.dtype == bias.dtype:
        return torch.addmm(bias, hidden, weight.t())
    return torch.mm(hidden, weight.t()).to(bias.dtype).add_(bias)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add A·B, which may be of another dtype, to ``total``."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    else:
        total.add_(a @ b)
