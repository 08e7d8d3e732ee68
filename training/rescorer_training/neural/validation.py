"""Owns the perplexity of a neural model on encoded text, sentence starts treated as its training did."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from rescorer.lm.networks import NeuralModel, State
from rescorer_training.data.sentence_batches import Sentences, cut_into_batches
from rescorer_training.data.stream_batches import StreamBatches

PIECE = 64
"""Columns computed at once, the state carried between them; a very long sentence needs no more memory."""
STREAMS, WARM_UP = 16, 256
"""Places at which text with carried state is read in parallel, and the words read unscored before each, after
which the state is what the whole text before would have left."""
STREAM_WORDS = 2048
"""A shorter text has fewer streams, so that warming up stays cheap."""
LARGEST_MEAN = 700.0
"""Nats; a perplexity beyond it is infinite."""


@torch.no_grad()
def perplexity(model: NeuralModel, text: Sentences, batch_words: int = 8192, streams: int = STREAMS) -> float:
    """exp of the mean −ln P a word, ``</s>`` counted, exactly normalised whatever the training objective.

    (Scoring of lists in a bundle knows no text before: there a sentence of a model whose state is carried
    starts from the start state and ``</s>`` alone, unless the request has context, so that its perplexity is
    another figure.)
    """
    total, n = 0.0, 0
    for hidden, words in contexts(model, text, batch_words, streams):
        total += float(model.output.loss(hidden, words))
        n += len(words)
    mean = total / n
    return math.inf if mean > LARGEST_MEAN else math.exp(mean)


@torch.no_grad()
def contexts(
    model: NeuralModel, text: Sentences, batch_words: int = 8192, streams: int = STREAMS
) -> Iterator[tuple[Tensor, Tensor]]:
    """Vectors before every word of a text, (N, D), and the words, (N,), piece by piece, without dropout.

    A model whose state is reset starts every sentence from the start state. One whose state is carried reads
    the text in order and starts it from the start state and ``</s>``; ``streams`` 1 reads it in one piece.
    """
    was_training = model.training
    model.eval()
    try:
        if model.config.carried:
            yield from _carried(model, text.ids, max(1, min(streams, len(text.ids) // STREAM_WORDS)))
        else:
            order = np.argsort(text.lengths, kind="stable")
            for chosen in cut_into_batches(order, text.lengths, batch_words):
                yield from _rows(model, *text.pad_rows(chosen), None)
    finally:
        model.train(was_training)


def unigram_entropy(ids: np.ndarray) -> float:
    """Mean −ln P a word under the text's own word frequencies."""
    counts = np.bincount(ids)
    shares = counts[counts > 0] / len(ids)
    return float(-(shares * np.log(shares)).sum())


def _carried(model: NeuralModel, ids: np.ndarray, streams: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The whole text, read at several places at once."""
    state = model.network.initial_state(1)
    text = StreamBatches(ids, streams, -(-len(ids) // streams))
    if streams > 1:
        behind = np.arange(1, streams)[:, None] * text.stream_length + np.arange(
            -WARM_UP, 0
        )  # (streams - 1, W)
        warm = torch.from_numpy(ids[behind - 1].astype(np.int64)).to(_device(model))
        _, warmed = model.context_vectors(warm)
        state = tuple(torch.cat(pair) for pair in zip(state, warmed, strict=True))
    yield from _rows(model, *text.make_rows(0), state)


def _rows(
    model: NeuralModel, inputs: np.ndarray, targets: np.ndarray, state: State | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """(B, T) inputs and targets, column by column."""
    for piece_inputs, piece_targets in _pieces(inputs, targets, _device(model)):
        hidden, state = model.context_vectors(piece_inputs, state)
        real = piece_targets >= 0
        yield hidden[real], piece_targets[real]


def _pieces(inputs: np.ndarray, targets: np.ndarray, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    for begin in range(0, inputs.shape[1], PIECE):
        piece = slice(begin, begin + PIECE)
        yield torch.from_numpy(inputs[:, piece]).to(device), torch.from_numpy(targets[:, piece]).to(device)


def _device(model: NeuralModel) -> torch.device:
    return next(model.parameters()).device
