"""Owns the class-factored softmax: a word is its class, then itself within the class."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from rescorer.lm.output.edges import row_blocks, runs

ROWS_A_BLOCK = 8192
"""Rows for which class scores are held at once: 8192 × 256 classes × 4 bytes = 8 MB."""


class ClassFactoredSoftmax(nn.Module):
    """P(w|h) = P(class of w | h) · P(w | class of w, h)  (Goodman 2001, Mikolov et al. 2011).

    Normalised by construction. A class is a range of word ids, so that its weights are one slice: order
    the vocabulary by class.

    Args:
        size: D, of the context vectors.
        class_sizes: words in each class; their sum is the number of words that can be predicted.
        word_weight: use (the first rows of) this (≥ V, D) matrix, such as the input embedding; None makes
            an own one.
    """

    def __init__(self, size: int, class_sizes: Sequence[int], word_weight: Tensor | None = None) -> None:
        super().__init__()
        sizes = torch.tensor(class_sizes, dtype=torch.int64)
        bounds = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
        self.class_bounds = tuple(
            bounds.tolist()
        )  # class c holds words class_bounds[c] … class_bounds[c+1]-1
        n_words = self.class_bounds[-1]
        self.class_of: Tensor
        self.register_buffer(
            "class_of", torch.repeat_interleave(torch.arange(len(sizes)), sizes), persistent=False
        )
        self.class_layer = nn.Linear(size, len(class_sizes))
        self.word_weight = nn.Parameter(torch.empty(n_words, size)) if word_weight is None else word_weight
        self.word_bias = nn.Parameter(torch.zeros(n_words))
        if word_weight is None:
            nn.init.normal_(self.word_weight, std=size**-0.5)

    @property
    def n_words(self) -> int:
        return self.class_bounds[-1]

    def start_from_unigrams(self, counts: Tensor) -> None:
        """Sets the biases so that zero weights would predict the unigram distribution; counts: (V,)."""
        counts = counts.to(torch.float32).clamp(min=0.5)
        mass = torch.zeros(len(self.class_bounds) - 1).index_add_(0, self.class_of, counts)
        with torch.no_grad():
            self.word_bias.copy_(torch.log(counts / mass[self.class_of]))
            self.class_layer.bias.copy_(torch.log(mass / mass.sum()))

    def loss(self, hidden: Tensor, words: Tensor) -> Tensor:
        """Σ −ln P(word | hidden) over the batch, for training; hidden: (N, D), words: (N,)."""
        classes = self.class_of[words]
        of_class = functional.cross_entropy(self.class_layer(hidden), classes, reduction="sum")
        order = torch.argsort(classes)
        of_word = _WithinClassLoss.apply(
            hidden[order], self.word_weight, self.word_bias, words[order], classes[order], self.class_bounds
        )
        return of_class + of_word

    @torch.no_grad()
    def log_probs(self, hidden: Tensor, rows: Tensor, words: Tensor) -> Tensor:
        """ln P(words[e] | hidden[rows[e]]) for every edge e, each distinct (row, class) scored once.

        Args:
            hidden: (N, D) context vectors.
            rows, words: (E,) int64; several edges may share a row.

        Returns:
            (E,) in the dtype of ``hidden``.
        """
        classes = self.class_of[words]
        out = torch.empty(len(words), dtype=hidden.dtype, device=hidden.device)
        for block, edges, places in row_blocks(rows, len(hidden), ROWS_A_BLOCK):
            scores = functional.log_softmax(self.class_layer(hidden[block]), dim=1)  # (n, C)
            out[edges] = scores[places, classes[edges]]
        by_class = torch.argsort(classes, stable=True)
        for c, begin, end in runs(classes[by_class]):
            edges = by_class[begin:end]
            first, last = self.class_bounds[c], self.class_bounds[c + 1]
            if last - first == 1:
                continue  # the only word of its class
            distinct, place = torch.unique(rows[edges], return_inverse=True)
            logits = functional.linear(
                hidden[distinct], self.word_weight[first:last], self.word_bias[first:last]
            )
            out[edges] += functional.log_softmax(logits, dim=1)[place, words[edges] - first]
        return out

    @torch.no_grad()
    def distribution(self, hidden: Tensor) -> Tensor:
        """ln P(w | hidden) of every word, (N, V): the plain twin of ``log_probs``."""
        of_class = functional.log_softmax(self.class_layer(hidden), dim=1)
        columns = []
        for c, (first, last) in enumerate(zip(self.class_bounds, self.class_bounds[1:], strict=False)):
            logits = functional.linear(hidden, self.word_weight[first:last], self.word_bias[first:last])
            columns.append(of_class[:, c : c + 1] + functional.log_softmax(logits, dim=1))
        return torch.cat(columns, dim=1)


class _WithinClassLoss(torch.autograd.Function):
    """Σ −ln P(word | class, hidden), its gradient taken in the same pass over the classes.

    One small GEMM a class that occurs in the batch; autograd over as many slices would spend its time on
    book-keeping and full-size zero gradients.
    """

    @staticmethod
    def forward(ctx, hidden, weight, bias, words, classes, class_bounds):  # type: ignore[no-untyped-def]
        hidden_grad = torch.zeros_like(hidden)
        weight_grad = torch.zeros_like(weight)
        bias_grad = torch.zeros_like(bias)
        loss = hidden.new_zeros((), dtype=torch.float64)
        for c, begin, end in runs(classes):
            first, last = class_bounds[c], class_bounds[c + 1]
            if last - first == 1:
                continue
            h, w = hidden[begin:end], weight[first:last]  # (n, D), (v, D)
            log_p = torch.log_softmax(torch.addmm(bias[first:last], h, w.t()), dim=1)  # (n, v)
            target = (words[begin:end] - first).unsqueeze(1)
            loss -= log_p.gather(1, target).sum(dtype=torch.float64)
            delta = log_p.exp_().scatter_add_(1, target, log_p.new_full(target.shape, -1.0))
            torch.mm(delta, w, out=hidden_grad[begin:end])
            torch.mm(delta.t(), h, out=weight_grad[first:last])
            torch.sum(delta, dim=0, out=bias_grad[first:last])
        ctx.save_for_backward(hidden_grad, weight_grad, bias_grad)
        return loss.to(hidden.dtype)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        hidden_grad, weight_grad, bias_grad = ctx.saved_tensors
        return hidden_grad.mul_(grad), weight_grad.mul_(grad), bias_grad.mul_(grad), None, None, None
