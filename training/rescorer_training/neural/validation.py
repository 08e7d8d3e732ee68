"""Compute the perplexity of a network on encoded text, resetting or carrying its state as in training."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from rescorer.lm.networks import SequenceModel, State
from rescorer_training.data.sentence_batches import Sentences, cut_into_batches
from rescorer_training.data.stream_batches import StreamBatches
from rescorer_training.neural.progress import MAX_LOG_PERPLEXITY

MAX_COLUMNS = 64
"""Maximum number of columns to compute in one pass, which limits the memory for long sentences."""
N_STREAMS = 16
"""Number of text positions that a network with carried state reads in parallel."""
WARM_UP_WORDS = 256
"""Number of words read before each stream without scoring them; enough to approximate the state that results
from reading all the preceding text."""
MIN_STREAM_WORDS = 2048
"""Minimum number of words per stream; short texts use fewer streams, so that the warm-up stays cheap."""


@torch.no_grad()
def perplexity(
    model: SequenceModel, text: Sentences, batch_words: int = 8192, streams: int = N_STREAMS
) -> float:
    """Return exp of the mean −ln P per word, including ``</s>``; always exactly normalised.

    In n-best rescoring, a network with carried state has a different perplexity, because each sentence starts
    from the start state and ``</s>`` unless the request has context.
    """
    total, n = 0.0, 0
    for hidden, words in iterate_contexts(model, text, batch_words, streams):
        total += float(model.output.loss(hidden, words))
        n += len(words)
    mean = total / n
    return math.inf if mean > MAX_LOG_PERPLEXITY else math.exp(mean)


@torch.no_grad()
def iterate_contexts(
    model: SequenceModel, text: Sentences, batch_words: int = 8192, streams: int = N_STREAMS
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield context vectors, (N, D), and the words to predict from them, (N,), for all words of a text.

    Dropout is off. A network that resets its state starts every sentence from the start state. A network that
    carries its state reads the text in order, starting from the start state and ``</s>``; ``streams`` is the
    number of positions read in parallel.
    """
    was_training = model.training
    model.eval()
    try:
        if model.config.carried:
            n_streams = max(1, min(streams, len(text.ids) // MIN_STREAM_WORDS))
            yield from _iterate_streams(model, text, n_streams)
        else:
            order = np.argsort(text.lengths, kind="stable")
            for chosen in cut_into_batches(order, text.lengths, batch_words):
                yield from _iterate_rows(model, *text.pad_rows(chosen), text.topics_of(chosen), None)
    finally:
        model.train(was_training)


def _iterate_streams(
    model: SequenceModel, text: Sentences, n_streams: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Read the whole text at several positions in parallel, each after a warm-up."""
    state = model.network.initial_state(1)
    ids = text.ids
    streams = StreamBatches(ids, n_streams, -(-len(ids) // n_streams), sentences=text)
    if n_streams > 1:
        starts = np.arange(1, n_streams)[:, None] * streams.stream_length
        positions = starts + np.arange(-WARM_UP_WORDS, 0)  # (n_streams - 1, W)
        warm_up = torch.from_numpy(ids[positions - 1].astype(np.int64)).to(_device(model))
        before = model.network.initial_state(n_streams - 1)
        _, warm_state = model.context_vectors(warm_up, before, _to_device(model, text.topics_at(positions)))
        state = tuple(torch.cat(pair) for pair in zip(state, warm_state, strict=True))
    yield from _iterate_rows(model, *streams.make_rows(0), streams.make_topics(0), state)


def _iterate_rows(
    model: SequenceModel,
    inputs: np.ndarray,
    targets: np.ndarray,
    topics: np.ndarray | None,
    state: State | None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Process (B, T) inputs and targets, and (B, T or 1, K) topics, in chunks of columns if the
    model is causal."""
    device = _device(model)
    width = MAX_COLUMNS if model.is_causal else inputs.shape[1]
    for begin in range(0, inputs.shape[1], width):
        chunk = slice(begin, begin + width)
        chunk_inputs = torch.from_numpy(inputs[:, chunk]).to(device)
        chunk_targets = torch.from_numpy(targets[:, chunk]).to(device)
        is_constant = topics is None or topics.shape[1] == 1
        chunk_topics = _to_device(model, topics if is_constant or topics is None else topics[:, chunk])
        hidden, state = model.context_vectors(chunk_inputs, state, chunk_topics)
        is_word = chunk_targets >= 0  # padding has the target -1
        yield hidden[is_word], chunk_targets[is_word]


def _to_device(model: SequenceModel, topics: np.ndarray | None) -> Tensor | None:
    return None if topics is None else torch.from_numpy(topics).to(_device(model))


def _device(model: SequenceModel) -> torch.device:
    return next(model.parameters()).device
