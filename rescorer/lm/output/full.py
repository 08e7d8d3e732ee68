"""Owns the full softmax: every word scored against every context vector, a block of rows at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from rescorer.lm.linear import linear
from rescorer.lm.output.cross_entropy import cross_entropy
from rescorer.lm.output.edges import row_blocks

SCORES_A_BLOCK = {"cpu": 1 << 22, "cuda": 1 << 28}
"""Word scores held at once: 16 MB stay in a processor's cache, 1 GB keeps a GPU busy."""
FEWEST_ROWS = 256
"""Of a block: a block reads and updates the whole gradient of the words, which must be worth it."""


class FullSoftmax(nn.Module):
    """P(w|h) = exp(w·h + b_w) / Σ_v exp(v·h + b_v)  (Bengio et al. 2003).

    Args:
        size: D, of the context vectors.
        n_words: words that can be predicted.
        word_weight: use the first rows of this (≥ n_words, D) matrix, such as the input embedding; None
            makes an own one.
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
        """Sets the biases so that zero weights would predict the unigram distribution; counts: (V,)."""
        counts = counts.to(self.word_bias).clamp(min=0.5)
        with torch.no_grad():
            self.word_bias.copy_(torch.log(counts / counts.sum()))

    def loss(self, hidden: Tensor, words: Tensor) -> Tensor:
        """Σ −ln P(word | hidden) over the batch, for training; hidden: (N, D), words: (N,)."""
        return _Loss.apply(hidden, self.word_weight, self.word_bias, words, torch.is_grad_enabled())

    @torch.no_grad()
    def log_probs(self, hidden: Tensor, rows: Tensor, words: Tensor) -> Tensor:
        """ln P(words[e] | hidden[rows[e]]) for every edge e, each row scored once.

        Args:
            hidden: (N, D) context vectors.
            rows, words: (E,) int64; several edges may share a row.

        Returns:
            (E,) in the dtype of ``hidden``.
        """
        out = torch.empty(len(words), dtype=hidden.dtype, device=hidden.device)
        for block, edges, places in row_blocks(rows, len(hidden), rows_a_block(hidden, self.n_words)):
            scores = self._scores(hidden[block])  # (n, V)
            out[edges] = scores[places, words[edges]] - torch.logsumexp(scores, dim=1)[places]
        return out

    @torch.no_grad()
    def distribution(self, hidden: Tensor) -> Tensor:
        """ln P(w | hidden) of every word, (N, V): the plain twin of ``log_probs``."""
        return functional.log_softmax(self._scores(hidden), dim=1)

    def _scores(self, hidden: Tensor) -> Tensor:
        return linear(hidden, self.word_weight[: self.n_words], self.word_bias)


def rows_a_block(hidden: Tensor, n_words: int) -> int:
    """How many rows of ``n_words`` scores are held at once on the device of ``hidden``."""
    return max(FEWEST_ROWS, SCORES_A_BLOCK[hidden.device.type] // n_words)


class _Loss(torch.autograd.Function):
    """Σ −ln P(word | hidden), its gradient taken in the same pass, so that no more than one block of the
    (N, V) scores is ever held."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, words, with_gradient):  # type: ignore[no-untyped-def]
        n_words = len(bias)
        w = weight[:n_words]
        grads = [torch.zeros_like(each) for each in (hidden, weight, bias)] if with_gradient else []
        loss = hidden.new_zeros((), dtype=torch.float64)
        step = rows_a_block(hidden, n_words)
        for begin in range(0, len(hidden), step):
            rows = slice(begin, begin + step)
            h = hidden[rows]
            of_block, delta = cross_entropy(torch.addmm(bias, h, w.t()), words[rows])  # (n, V)
            loss += of_block
            if with_gradient:
                hidden_grad, weight_grad, bias_grad = grads
                torch.mm(delta, w, out=hidden_grad[rows])
                weight_grad[:n_words].addmm_(delta.t(), h)
                bias_grad += delta.sum(dim=0)
        ctx.save_for_backward(*grads)
        return loss.to(hidden.dtype)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return *(each * grad for each in ctx.saved_tensors), None, None
