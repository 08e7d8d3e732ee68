"""Class-factored softmax: predict the class of a word, then the word within its class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from rescorer.lm.kernels.linear import linear
from rescorer.lm.output.batched import build_chunks, within_class_log_probs
from rescorer.lm.output.cross_entropy import cross_entropies_and_gradients
from rescorer.lm.output.edges import equal_runs, row_blocks
from rescorer.lm.output.tables import TableLayout, uncovered_ranges

BLOCK_ROWS = {"cpu": 8192, "cuda": 262_144}
"""Number of rows whose class scores are held at once: with 256 classes 8 MB on a CPU, and 256 MB on a GPU."""


class ClassFactoredSoftmax(nn.Module):
    """P(w|h) = P(class of w | h) · P(w | class of w, h)  (Goodman 2001, Mikolov et al. 2011).

    Normalised by construction. A class is a range of word ids, so that its weights are one slice: the
    vocabulary must be ordered by class.

    Args:
        size: D, length of a context vector.
        class_sizes: number of words in each class; they sum to the number of words that can be predicted.
        word_weight: (≥ V, D) matrix whose first rows are the word weights, such as the input embedding; None
            creates new weights.
    """

    def __init__(self, size: int, class_sizes: Sequence[int], word_weight: Tensor | None = None) -> None:
        super().__init__()
        self.layout = TableLayout(class_sizes)
        self.class_bounds = (0, *accumulate(class_sizes))  # class c holds words bounds[c] … bounds[c+1]-1
        n_words = self.class_bounds[-1]
        sizes = torch.tensor(class_sizes)
        self.class_of: Tensor  # (V,) class of each word
        self.register_buffer("class_of", torch.arange(len(sizes)).repeat_interleave(sizes), persistent=False)
        self.first_word: Tensor  # (C,) first word of each class
        self.register_buffer("first_word", torch.tensor(self.class_bounds[:-1]), persistent=False)
        self.position: Tensor  # (C,) position of each class in the layout
        self.register_buffer("position", torch.argsort(torch.tensor(self.layout.by_size)), persistent=False)
        ranges = [(words.start, words.stop - words.start) for words in self.layout.words]
        self.ranges: Tensor  # (C, 2) first word and number of words of each class, in layout order
        self.register_buffer("ranges", torch.tensor(ranges), persistent=False)
        self.class_layer = nn.Linear(size, len(class_sizes))
        self.word_weight = nn.Parameter(torch.empty(n_words, size)) if word_weight is None else word_weight
        self.word_bias = nn.Parameter(torch.zeros(n_words))
        if word_weight is None:
            nn.init.normal_(self.word_weight, std=size**-0.5)

    @property
    def n_words(self) -> int:
        return self.class_bounds[-1]

    def start_from_unigrams(self, counts: Tensor) -> None:
        """See ``OutputLayer``."""
        counts = counts.to(torch.float32).clamp(min=0.5)
        mass = torch.zeros(len(self.class_bounds) - 1).index_add_(0, self.class_of, counts)
        with torch.no_grad():
            self.word_bias.copy_(torch.log(counts / mass[self.class_of]))
            self.class_layer.bias.copy_(torch.log(mass / mass.sum()))

    def loss(self, hidden: Tensor, words: Tensor) -> Tensor:
        """See ``OutputLayer``."""
        return self.losses(hidden, words).sum(dtype=torch.float64).to(hidden.dtype)

    def losses(self, hidden: Tensor, words: Tensor) -> Tensor:
        """−ln P(word | hidden) of each row, (N,); hidden: (N, D), words: (N,)."""
        layer = self.class_layer
        return _Losses.apply(hidden, layer.weight, layer.bias, self.word_weight, self.word_bias, words, self)

    @torch.no_grad()
    def log_probs(self, hidden: Tensor, rows: Tensor, words: Tensor) -> Tensor:
        """See ``OutputLayer``; each distinct (row, class) is scored once."""
        classes = self.class_of[words]
        out = torch.empty(len(words), dtype=hidden.dtype, device=hidden.device)
        hidden = hidden.to(self.word_weight.dtype)  # once, instead of in each product
        weight, bias = self.class_layer.weight, self.class_layer.bias
        for block, edges, positions in row_blocks(rows, len(hidden), BLOCK_ROWS[hidden.device.type]):
            scores = functional.log_softmax(linear(hidden[block], weight, bias), dim=1)  # (n, C)
            out[edges] = scores[positions, classes[edges]]
        out += self._within_class_log_probs(hidden, rows, words, classes)
        return out

    def _within_class_log_probs(self, hidden: Tensor, rows: Tensor, words: Tensor, classes: Tensor) -> Tensor:
        """ln P(words[e] | its class, hidden[rows[e]]), (E,); CPUs compute one product per class."""
        if hidden.device.type != "cpu":
            targets, positions = words - self.first_word[classes], self.position[classes]
            chunks = build_chunks(hidden, rows, positions, len(self.layout.words))
            return within_class_log_probs(
                chunks, targets, self.layout, self.ranges, self.word_weight, self.word_bias
            )
        by_pair = torch.argsort(classes * len(hidden) + rows)  # edges by class, then row
        classes, rows = classes[by_pair], rows[by_pair]
        targets = words[by_pair] - self.first_word[classes]
        sorted_out = self.word_bias.new_zeros(len(words))  # stays 0 for words that are alone in their class
        for c, begin, end in equal_runs(classes):
            first, last = self.class_bounds[c], self.class_bounds[c + 1]
            if last - first > 1:
                distinct, positions = torch.unique_consecutive(rows[begin:end], return_inverse=True)
                vectors = hidden.index_select(0, distinct)
                logits = linear(vectors, self.word_weight[first:last], self.word_bias[first:last])
                log_probs = functional.log_softmax(logits, dim=1)
                sorted_out[begin:end] = log_probs[positions, targets[begin:end]]
        return torch.empty_like(sorted_out).index_copy_(0, by_pair, sorted_out)

    @torch.no_grad()
    def distribution(self, hidden: Tensor) -> Tensor:
        """See ``OutputLayer``."""
        return self.log_distribution(hidden)

    def log_distribution(self, hidden: Tensor) -> Tensor:
        """Like ``distribution``, with gradients."""
        class_log_probs = functional.log_softmax(self.class_layer(hidden), dim=1)
        columns = []
        for c, (first, last) in enumerate(pairwise(self.class_bounds)):
            logits = functional.linear(hidden, self.word_weight[first:last], self.word_bias[first:last])
            columns.append(class_log_probs[:, c : c + 1] + functional.log_softmax(logits, dim=1))
        return torch.cat(columns, dim=1)


class _Losses(torch.autograd.Function):
    """−ln P(class | hidden) − ln P(word | class, hidden) of each row.

    Computes one small matrix product per class of the batch, and everything else in a few operations per
    table of classes. Autograd would spend most of its time on bookkeeping for the slices and on full-size
    gradients that are mostly zero.
    """

    @staticmethod
    def forward(ctx, hidden, class_weight, class_bias, weight, bias, words, layer):  # type: ignore[no-untyped-def]
        positions = layer.position[layer.class_of[words]]
        tables = layer.layout.tables(torch.bincount(positions, minlength=len(class_bias)).tolist())
        order = torch.argsort(positions)
        h, words = hidden.index_select(0, order), words[order]
        classes = layer.class_of[words]
        target = words - layer.first_word[classes]
        scores = torch.addmm(class_bias, h, class_weight.t())  # (N, C)
        losses, class_delta = cross_entropies_and_gradients(scores, classes)
        deltas = []
        for table in tables:
            scores = h.new_full((sum(table.counts), table.width), -math.inf)
            split = (tensor.split(table.counts) for tensor in (h[table.rows], scores))
            for class_words, vectors, logits in zip(table.words, *split, strict=True):
                w = weight[class_words]  # (v, D)
                torch.addmm(bias[class_words], vectors, w.t(), out=logits[:, : len(w)])  # (n, v)
            table_losses, delta = cross_entropies_and_gradients(scores, target[table.rows])
            losses[table.rows] += table_losses
            deltas.append(delta)
        ctx.tables, ctx.n_words = tables, len(bias)
        ctx.save_for_backward(h, order, class_weight, weight, class_delta, *deltas)
        return torch.empty_like(losses).index_copy_(0, order, losses)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        h, order, class_weight, weight, class_delta, *deltas = ctx.saved_tensors
        grad = grad.index_select(0, order).unsqueeze(1)  # (N, 1)
        delta = class_delta * grad
        h_grad = torch.mm(delta, class_weight)
        class_grads = torch.mm(delta.t(), h), delta.sum(dim=0)
        weight_grad, bias_grad = torch.empty_like(weight), weight.new_zeros(ctx.n_words)
        covered = [class_words for table in ctx.tables for class_words in table.words]
        for unused in uncovered_ranges(covered, len(weight)):
            weight_grad[unused] = 0.0
        for table, delta in zip(ctx.tables, deltas, strict=True):
            tensors = (h[table.rows], h_grad[table.rows], delta * grad[table.rows])
            split = (tensor.split(table.counts) for tensor in tensors)
            for class_words, vectors, vectors_grad, d in zip(table.words, *split, strict=True):
                w = weight[class_words]
                d = d[:, : len(w)]
                vectors_grad.addmm_(d, w)
                torch.mm(d.t(), vectors, out=weight_grad[class_words])
                torch.sum(d, dim=0, out=bias_grad[class_words])
        hidden_grad = h_grad.index_select(0, torch.argsort(order))
        return hidden_grad, *class_grads, weight_grad, bias_grad, None, None
