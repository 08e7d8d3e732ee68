"""Output layers: from a context vector to the log-probability of a word, by a full or class-factored softmax.

In training, target words are sorted by class, and the scores within classes are laid out in tables: classes
of similar size are padded to the same width and share a table. Most of the work is then a few operations per
table instead of a few per class.

Scoring on a GPU must not launch one product per class. The vectors that are scored against a class are laid
out in chunks of ``CHUNK_ROWS``, and every chunk is multiplied with a copy of its class's weights, (B, R, D) ×
(B, D, W). Copying them takes less time than launching hundreds of kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rescorer.models.kernels import COARSE_STEPS, MIN_SLICE_ROWS, linear, padded_row_count
from rescorer.runtime import pause


class OutputLayer(Protocol):
    """An ``nn.Module`` that gives probabilities, which sum to 1, to the words with the ids 0 … n_words-1."""

    word_weight: nn.Parameter | Tensor
    """(≥ n_words, D), one row per word, possibly the input embedding; in a tree, (n_words - 1, D), one row
    per decision."""

    @property
    def n_words(self) -> int: ...

    def start_from_unigrams(self, counts: Tensor) -> None:
        """Set the biases so that, with zero weights, the layer predicts the unigram distribution.

        Args:
            counts: (n_words,) number of occurrences of each word.
        """

    def loss(self, hidden: Tensor, words: Tensor) -> Tensor:
        """Σ −ln P(word | hidden) over the batch, for training; hidden: (N, D), words: (N,)."""

    def log_probs(self, hidden: Tensor, rows: Tensor, words: Tensor) -> Tensor:
        """Compute ln P(words[e] | hidden[rows[e]]) for every edge e.

        Args:
            hidden: (N, D) context vectors.
            rows, words: (E,) int64; several edges may share a row.

        Returns:
            (E,) in the dtype of ``hidden``.
        """

    def distribution(self, hidden: Tensor) -> Tensor:
        """ln P(w | hidden) of every word, (N, D) → (N, n_words).

        A slow but simple reference for ``log_probs``.
        """


def row_blocks(rows: Tensor, n_rows: int, size: int) -> Iterator[tuple[slice, Tensor | slice, Tensor]]:
    """Split ``n_rows`` rows into blocks of ``size``, and find the edges whose rows are in each block.

    Args:
        rows: (E,) row of each edge.

    Yields:
        A block as a slice of the rows, an index of its edges, and the place of each edge's row in the block.
        If there are several blocks, those without edges are skipped.
    """
    if n_rows <= size:
        yield slice(0, n_rows), slice(None), rows
        return
    by_row = torch.argsort(rows)
    starts = torch.arange(0, n_rows + size, size, device=rows.device)
    bounds = torch.searchsorted(rows[by_row], starts).tolist()
    for number, (first, last) in enumerate(pairwise(bounds)):
        if first < last:
            pause()
            begin, edges = number * size, by_row[first:last]
            yield slice(begin, begin + size), edges, rows[edges] - begin


def cross_entropies_and_gradients(scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """−ln softmax(scores)[target] of each row, (N,), and its gradient with respect to the scores, (N, K).

    Scores of −∞ are padding; target: (N,) int64.
    """
    log_p = torch.log_softmax(scores, dim=1)
    column = target.unsqueeze(1)
    losses = -log_p.gather(1, column).squeeze(1)
    return losses, log_p.exp_().scatter_add_(1, column, log_p.new_full(column.shape, -1.0))


BLOCK_SCORES = {"cpu": 1 << 22, "cuda": 1 << 28}
"""Number of word scores held at once: 16 MB, which fit into a CPU's cache; 1 GB, which keep a GPU busy."""
MIN_BLOCK_ROWS = 256
"""Smallest number of rows per block. Each block reads and updates the gradient of all words, so that many
small blocks would take too long."""


class FullSoftmax(nn.Module):
    """P(w|h) = exp(w·h + b_w) / Σ_v exp(v·h + b_v)  (Bengio et al. 2003).

    Args:
        size: D, length of a context vector.
        n_words: V, number of words that can be predicted.
        word_weight: (≥ V, D) matrix, such as the input embedding, whose first rows are the word weights;
            None: the layer has its own weights.
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
        counts = counts.to(self.word_bias).clamp(min=0.5)
        with torch.no_grad():
            self.word_bias.copy_(torch.log(counts / counts.sum()))

    def loss(self, hidden: Tensor, words: Tensor) -> Tensor:
        """See ``OutputLayer``. Products have the dtype of ``hidden``; all else is float32."""
        return _Loss.apply(hidden, self.word_weight, self.word_bias, words, torch.is_grad_enabled())

    @torch.no_grad()
    def log_probs(self, hidden: Tensor, rows: Tensor, words: Tensor) -> Tensor:
        """See ``OutputLayer``. A row that several edges share is scored once."""
        out = torch.empty(len(words), dtype=hidden.dtype, device=hidden.device)
        for block, edges, positions in row_blocks(rows, len(hidden), rows_per_block(hidden, self.n_words)):
            scores = self._scores(hidden[block])  # (n, V)
            out[edges] = scores[positions, words[edges]] - torch.logsumexp(scores, dim=1)[positions]
        return out

    @torch.no_grad()
    def distribution(self, hidden: Tensor) -> Tensor:
        return functional.log_softmax(self._scores(hidden), dim=1)

    def _scores(self, hidden: Tensor) -> Tensor:
        return linear(hidden, self.word_weight[: self.n_words], self.word_bias)


def rows_per_block(hidden: Tensor, n_words: int) -> int:
    """Number of rows, of ``n_words`` scores each, to hold at once on the device of ``hidden``."""
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
                words_grad = weight_grad[:n_words]
                if delta.dtype == words_grad.dtype:
                    words_grad.addmm_(delta.t(), h)
                else:
                    words_grad.add_(delta.t() @ h)
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


MAX_SIZE_RATIO = 1.5
FREE_PADDING = 16
"""With ``MAX_SIZE_RATIO``, the limit of padding: the largest class of a table has at most that many times the
words of the smallest, plus ``FREE_PADDING``."""


@dataclass(frozen=True, slots=True)
class Table:
    """The classes of one table that occur in a batch."""

    rows: slice  # rows of the batch, sorted by class, that belong to this table
    width: int  # number of words in the largest class
    words: list[slice]  # word ids of each class
    counts: list[int]  # number of rows of each class


class TableLayout:
    """Assignment of classes to tables. A class of only one word needs no scores, so it is in no table.

    Attributes:
        by_size: classes ordered by size. This is called the layout order.
        words: the word ids of each class, a range, in layout order.
        groups: for each table, the range of its classes in layout order, and the number of words in its
            largest class.
    """

    def __init__(self, class_sizes: Sequence[int]) -> None:
        self.by_size = sorted(range(len(class_sizes)), key=lambda c: class_sizes[c])
        words = [slice(first, last) for first, last in pairwise((0, *accumulate(class_sizes)))]
        self.words = [words[c] for c in self.by_size]
        self.groups: list[tuple[range, int]] = []
        sizes = [class_sizes[c] for c in self.by_size]
        begin = sizes.count(1)
        for end in range(begin + 1, len(sizes) + 1):
            if end == len(sizes) or sizes[end] > MAX_SIZE_RATIO * sizes[begin] + FREE_PADDING:
                self.groups.append((range(begin, end), sizes[end - 1]))
                begin = end

    def tables(self, counts: Sequence[int]) -> list[Table]:
        """The tables of a batch, given its number of rows of each class in layout order."""
        tables = []
        begin = sum(counts[: self.groups[0][0].start]) if self.groups else 0
        for positions, width in self.groups:
            used = [position for position in positions if counts[position]]
            end = begin + sum(counts[position] for position in used)
            if used:
                words = [self.words[position] for position in used]
                tables.append(Table(slice(begin, end), width, words, [counts[position] for position in used]))
            begin = end
        return tables


def uncovered_ranges(ranges: Sequence[slice], n: int) -> Iterator[slice]:
    """Yield the parts of 0 … n-1 that the given disjoint ranges do not cover."""
    begin = 0
    for covered in sorted(ranges, key=lambda covered: covered.start):
        if begin < covered.start:
            yield slice(begin, covered.start)
        begin = covered.stop
    if begin < n:
        yield slice(begin, n)


CHUNK_ROWS = 64
"""Number of vectors that share one copy of a class's weights; the last chunk of a class is padded."""
MAX_COPIED_WEIGHTS = 1 << 27  # largest number of copied weights held at once: 256 MB in bfloat16


@dataclass(frozen=True, slots=True)
class Chunks:
    """The distinct pairs of a vector and a class, divided into chunks of one class, in layout order."""

    vectors: Tensor  # (B·R, D), padded with zeros where a chunk is not full
    positions: Tensor  # (B,) position of each chunk's class in the layout
    bounds: list[int]  # number of chunks before each class in layout order, followed by the total
    edge_rows: Tensor  # (E,) row of each edge in ``vectors``


def build_chunks(hidden: Tensor, rows: Tensor, positions: Tensor, n_classes: int) -> Chunks:
    """Make the chunks for edges e with the vector ``hidden[rows[e]]`` and the class at ``positions[e]``."""
    pairs, pair_of_edge = torch.unique(positions * len(hidden) + rows, return_inverse=True)  # (P,) by class
    class_of_pair = pairs // len(hidden)
    pair_counts = torch.bincount(class_of_pair, minlength=n_classes)  # (C,)
    chunk_counts = (pair_counts + CHUNK_ROWS - 1) // CHUNK_ROWS
    chunks_before, pairs_before = (counts.cumsum(0) - counts for counts in (chunk_counts, pair_counts))
    rank_in_class = torch.arange(len(pairs), device=pairs.device) - pairs_before[class_of_pair]
    row_of_pair = chunks_before[class_of_pair] * CHUNK_ROWS + rank_in_class  # (P,)
    bounds = [0, *chunk_counts.cumsum(0).tolist()]
    vectors = hidden.new_zeros(bounds[-1] * CHUNK_ROWS, hidden.shape[1])
    vectors[row_of_pair] = hidden[pairs % len(hidden)]
    class_of_chunk = torch.repeat_interleave(chunk_counts, output_size=bounds[-1])
    return Chunks(vectors, class_of_chunk, bounds, row_of_pair[pair_of_edge])


def split_products(layout: TableLayout, bounds: list[int], size: int) -> Iterator[tuple[int, int, int]]:
    """Split chunks into products that copy at most ``MAX_COPIED_WEIGHTS``.

    Args:
        bounds: see ``Chunks.bounds``.
        size: length of the vectors.

    Yields:
        First chunk, end of the chunks, and number of words in the largest class.
    """
    for positions, width in layout.groups:
        step = max(1, MAX_COPIED_WEIGHTS // (width * size))
        for begin in range(bounds[positions.start], bounds[positions.stop], step):
            yield begin, min(begin + step, bounds[positions.stop]), width


def within_class_log_probs(
    chunks: Chunks, targets: Tensor, layout: TableLayout, ranges: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    """ln P(word | its class, vector) of every edge, (E,) in the dtype of ``bias``.

    Args:
        chunks: the vectors of the edges by class, in the dtype of ``weight``.
        targets: (E,) int64 index of the word within its class.
        ranges: (C, 2) int64 first word and number of words of each class in ``layout``.
        weight, bias: (≥ V, D), (V,) of the words.
    """
    first_words, n_words = ranges[chunks.positions].unbind(1)  # (B,)
    products = list(split_products(layout, chunks.bounds, weight.shape[1]))
    by_row = torch.argsort(chunks.edge_rows)
    rows, targets = chunks.edge_rows[by_row], targets[by_row]
    device = weight.device
    row_ranges = torch.tensor([[begin, end] for begin, end, _ in products], device=device) * CHUNK_ROWS
    edge_ranges = torch.searchsorted(rows, row_ranges).tolist()
    sorted_out = bias.new_zeros(len(targets))  # stays 0 for words that are alone in their class
    for (begin, end, width), (first, last) in zip(products, edge_ranges, strict=True):
        pause()
        columns = torch.arange(width, device=device)
        ids = (first_words[begin:end, None] + columns).clamp_(max=len(bias) - 1)  # (B, W)
        vectors = chunks.vectors[begin * CHUNK_ROWS : end * CHUNK_ROWS].view(end - begin, CHUNK_ROWS, -1)
        scores = torch.bmm(vectors, weight[ids].transpose(1, 2)).to(bias.dtype)  # (B, R, W)
        scores += bias[ids].unsqueeze(1)
        scores.masked_fill_((columns >= n_words[begin:end, None]).unsqueeze(1), -torch.inf)
        log_probs = functional.log_softmax(scores, dim=2).flatten(0, 1)
        sorted_out[first:last] = log_probs[rows[first:last] - begin * CHUNK_ROWS, targets[first:last]]
    return torch.empty_like(sorted_out).index_copy_(0, by_row, sorted_out)


MAX_STEP_SCORES = 1 << 17
"""Number of scores of one class that are computed at once on a CPU: half a megabyte, which fits into the
cache of a core."""


@dataclass(frozen=True, slots=True)
class ClassProducts:
    """The products within classes on a CPU: one or several per class, each with distinct rows."""

    edges: np.ndarray
    """(E,) int64 edges by class, then by row."""
    first_scores: np.ndarray
    """(E,) int64 place of each edge's row in the scores of its product, which are flat."""
    rows: np.ndarray
    """(≥ P,) int64 row of each pair of a class and a row, followed by any rows, which pad the last
    product."""
    steps: list[tuple[int, int, int, slice]]
    """For each product: class, first pair, number of pairs including padding, and the slice of ``edges``."""


def plan_products(classes: np.ndarray, rows: np.ndarray, n_rows: int, sizes: np.ndarray) -> ClassProducts:
    """Plan the products of the pairs of the class and the row of each edge.

    Args:
        classes, rows: (E,) int64.
        sizes: (C,) number of words in each class.
    """
    n_edges = len(rows)
    keys = np.sort((classes * n_rows + rows) * n_edges + np.arange(n_edges))  # many times as fast as argsort
    pair_keys = keys // max(1, n_edges)
    edges = keys - pair_keys * n_edges
    is_first = np.diff(pair_keys, prepend=-1) != 0  # edge of its pair
    pair_of_edge = np.cumsum(is_first) - 1
    first_edges = np.flatnonzero(is_first)
    class_of_pair = pair_keys[first_edges] // max(1, n_rows)
    row_of_pair = pair_keys[first_edges] - class_of_pair * n_rows
    begins = np.flatnonzero(np.diff(class_of_pair, prepend=-1))  # first pair of each class
    present = class_of_pair[begins]
    limits = np.maximum(MIN_BLOCK_ROWS, MAX_STEP_SCORES // sizes[present])
    counts = np.diff(begins, append=len(row_of_pair))
    in_class = np.arange(len(row_of_pair)) - np.repeat(begins, counts)
    first_scores = (in_class % np.repeat(limits, counts) * sizes[class_of_pair])[pair_of_edge]
    bounds = [*first_edges.tolist(), n_edges]
    steps, padding = [], 0
    for c, size, begin, count, limit in zip(
        *(values.tolist() for values in (present, sizes[present], begins, counts, limits)), strict=True
    ):
        for first in range(begin, begin + count if size > 1 else begin, limit):
            n = min(limit, begin + count - first)
            padded = padded_row_count(n, COARSE_STEPS) if n >= MIN_SLICE_ROWS else n
            steps.append((c, first, padded, slice(bounds[first], bounds[first + n])))
            padding = max(padding, first + padded - len(row_of_pair))
    return ClassProducts(edges, first_scores, np.append(row_of_pair, np.zeros(padding, np.int64)), steps)


BLOCK_ROWS = {"cpu": 8192, "cuda": 262_144}
"""Number of rows whose class scores are held at once: with 256 classes, 8 MB on a CPU and 256 MB on a GPU."""


class ClassFactoredSoftmax(nn.Module):
    """P(w|h) = P(class of w | h) · P(w | class of w, h)  (Goodman 2001, Mikolov et al. 2011).

    A class is a range of word ids, so that its weights are one slice: the vocabulary must be ordered by
    class.

    Args:
        size, word_weight: as for ``FullSoftmax``.
        class_sizes: number of words in each class; they sum to the number of words that can be predicted.
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
        counts = counts.to(torch.float32).clamp(min=0.5)
        mass = torch.zeros(len(self.class_bounds) - 1).index_add_(0, self.class_of, counts)
        with torch.no_grad():
            self.word_bias.copy_(torch.log(counts / mass[self.class_of]))
            self.class_layer.bias.copy_(torch.log(mass / mass.sum()))

    def loss(self, hidden: Tensor, words: Tensor) -> Tensor:
        return self.losses(hidden, words).sum(dtype=torch.float64).to(hidden.dtype)

    def losses(self, hidden: Tensor, words: Tensor) -> Tensor:
        """−ln P(word | hidden) of each row, (N,); hidden: (N, D), words: (N,)."""
        layer = self.class_layer
        return _Losses.apply(hidden, layer.weight, layer.bias, self.word_weight, self.word_bias, words, self)

    @torch.no_grad()
    def log_probs(self, hidden: Tensor, rows: Tensor, words: Tensor) -> Tensor:
        """See ``OutputLayer``. Edges with the same row and class share one product."""
        classes = self.class_of[words]
        out = torch.empty(len(words), dtype=hidden.dtype, device=hidden.device)
        hidden = hidden.to(self.word_weight.dtype)  # once, instead of in each product
        weight, bias = self.class_layer.weight, self.class_layer.bias
        for block, edges, positions in row_blocks(rows, len(hidden), BLOCK_ROWS[hidden.device.type]):
            scores = functional.log_softmax(linear(hidden[block], weight, bias), dim=1)  # (n, C)
            out[edges] = scores[positions, classes[edges]]
        out += self._within_class_log_probs(hidden, rows, words, classes)
        return out

    @torch.no_grad()
    def _within_class_log_probs(self, hidden: Tensor, rows: Tensor, words: Tensor, classes: Tensor) -> Tensor:
        """ln P(words[e] | its class, hidden[rows[e]]), (E,). On CPUs, each class is one product."""
        if hidden.device.type != "cpu":
            targets, positions = words - self.first_word[classes], self.position[classes]
            chunks = build_chunks(hidden, rows, positions, len(self.layout.words))
            return within_class_log_probs(
                chunks, targets, self.layout, self.ranges, self.word_weight, self.word_bias
            )
        sizes = self.ranges[:, 1][self.position]
        products = plan_products(classes.numpy(), rows.numpy(), len(hidden), sizes.numpy())
        by_pair = torch.from_numpy(products.edges)
        targets = (words - self.first_word[classes]).index_select(0, by_pair)
        places = torch.from_numpy(products.first_scores).add_(targets)
        row_of_pair = torch.from_numpy(products.rows)
        sorted_out = self.word_bias.new_zeros(len(words))  # stays 0 for words that are alone in their class
        for c, pairs, n_rows, edges in products.steps:
            pause()
            first, last = self.class_bounds[c], self.class_bounds[c + 1]
            vectors = hidden.index_select(0, row_of_pair[pairs : pairs + n_rows])
            logits = linear(vectors, self.word_weight[first:last], self.word_bias[first:last])
            torch.take(functional.log_softmax(logits, dim=1), places[edges], out=sorted_out[edges])
        return torch.empty_like(sorted_out).index_copy_(0, by_pair, sorted_out)

    @torch.no_grad()
    def distribution(self, hidden: Tensor) -> Tensor:
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

    There is one small matrix product per class of the batch, and everything else is a few operations per
    table of classes. Autograd would spend most of its time on bookkeeping for slices, and on full-size
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


class MixtureOfSoftmaxes(ClassFactoredSoftmax):
    """P(w|h) = Σ_k π_k(h) P(w | tanh(W_k h)) with K = ``n_softmaxes`` components (Yang et al. 2018).

    A softmax of context vectors of D values cannot represent every table of probabilities, because it has a
    limited rank; a mixture can. All components share the words' weights, and π is another softmax.
    """

    def __init__(
        self, size: int, class_sizes: Sequence[int], n_softmaxes: int, word_weight: Tensor | None = None
    ) -> None:
        super().__init__(size, class_sizes, word_weight)
        self.n_softmaxes = n_softmaxes
        self.share_layer = nn.Linear(size, n_softmaxes)
        self.component_layer = nn.Linear(size, n_softmaxes * size, bias=False)

    def losses(self, hidden: Tensor, words: Tensor) -> Tensor:
        log_shares, vectors = self._components(hidden)
        losses = super().losses(vectors, words.repeat_interleave(self.n_softmaxes))
        return -torch.logsumexp(log_shares - losses.view_as(log_shares), dim=1)

    @torch.no_grad()
    def log_probs(self, hidden: Tensor, rows: Tensor, words: Tensor) -> Tensor:
        log_shares, vectors = self._components(hidden)
        n_softmaxes = self.n_softmaxes
        component_rows = (
            rows.unsqueeze(1) * n_softmaxes + torch.arange(n_softmaxes, device=rows.device)
        ).flatten()
        log_probs = super().log_probs(vectors, component_rows, words.repeat_interleave(n_softmaxes))  # (E·K,)
        return torch.logsumexp(log_shares[rows] + log_probs.view(-1, n_softmaxes), dim=1)

    def log_distribution(self, hidden: Tensor) -> Tensor:
        log_shares, vectors = self._components(hidden)
        by_component = super().log_distribution(vectors).view(*log_shares.shape, -1)  # (N, K, V)
        return torch.logsumexp(log_shares.unsqueeze(2) + by_component, dim=1)

    def _components(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """ln π, (N, K), and the context vectors of all components, (N·K, D), one row after the other."""
        size, dtype = hidden.shape[1], self.share_layer.weight.dtype
        given = hidden.to(dtype)
        shares = functional.log_softmax(
            linear(given, self.share_layer.weight, self.share_layer.bias).to(hidden.dtype), dim=1
        )
        vectors = torch.tanh(linear(given, self.component_layer.weight).to(hidden.dtype))
        return shares, vectors.view(-1, size)
