"""Dynamic evaluation: a network goes on learning from the text that it has just predicted.

Krause et al. (2018), "Dynamic Evaluation of Neural Sequence Models". The network reads the text that it
predicts, so its perplexities are reported apart from those of models that do not.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rescorer.errors import ConfigError
from rescorer.lm.networks import NeuralModel
from rescorer.lm.neural import NeuralLanguageModel
from rescorer.trie import Words
from rescorer_training.evaluation.carried_state import TextReading, encode_stream
from rescorer_training.evaluation.text_before import infer_token_topics, part_of
from rescorer_training.progress import track

STATISTICS_TOKENS = 100_000
"""Number of tokens from which the mean squares of the gradients are estimated."""
SEGMENT_WORDS = 5
FIT_TOKENS = 20_000
"""Number of validation tokens on which settings are compared."""
RATES = (3e-5, 1e-4, 3e-4, 1e-3)
DECAYS = (0.002, 0.02)


@dataclass(frozen=True, slots=True)
class DynamicSettings:
    """Settings of dynamic evaluation."""

    rate: float
    """η: length of a step, relative to the root mean square of each parameter's gradient."""
    decay: float = 0.0
    """Share of the way back to the trained parameters at each step, scaled as the gradients are."""
    segment_words: int = SEGMENT_WORDS
    """Number of tokens that are scored before the next step."""


def measure_gradients(
    model: NeuralLanguageModel, sentences: Sequence[Words], segment_words: int = SEGMENT_WORDS
) -> list[Tensor]:
    """Root mean square of the gradient of each parameter over the segments of a text.

    Args:
        sentences: text that the network was trained on, or one like it.
    """
    network = _copy(model)
    squares = [torch.zeros_like(parameter) for parameter in network.parameters()]
    n_segments = 0
    inputs, targets = (part[:STATISTICS_TOKENS] for part in encode_stream(model, sentences))
    topics = infer_token_topics(model, sentences[:STATISTICS_TOKENS])  # at least as many tokens
    description = "dynamic evaluation, measuring gradients"
    for _, _, loss in _segments(network, inputs, targets, topics, segment_words, description):
        for total, gradient in zip(squares, _gradients(network, loss), strict=True):
            total.addcmul_(gradient, gradient)
        n_segments += 1
    return [(total / n_segments).sqrt() for total in squares]


def fit_dynamic(
    model: NeuralLanguageModel, sentences: Sequence[Words], root_mean_squares: Sequence[Tensor]
) -> DynamicSettings:
    """Find the rate, then the decay, with the lowest perplexity at the beginning of a validation text.

    Raises:
        ConfigError: the network diverges with all rates.
    """
    text, n_tokens = [], 0
    for words in sentences:
        if n_tokens < FIT_TOKENS:
            text.append(words)
            n_tokens += len(words) + 1

    def measure(settings: DynamicSettings) -> float:
        trial = f"dynamic evaluation, trying rate {settings.rate:g} and decay {settings.decay:g}"
        total = read_dynamically(model, text, settings, root_mean_squares, trial).log_probs.sum()
        return float(total) if np.isfinite(total) else -math.inf  # a high rate may diverge

    totals = {(rate, DECAYS[0]): measure(DynamicSettings(rate, DECAYS[0])) for rate in RATES}
    if max(totals.values()) == -math.inf:
        raise ConfigError(
            "dynamic evaluation diverges with every learning rate; give a longer --validation text, "
            "from which the sizes of its steps are estimated"
        )
    rate, _ = max(totals, key=totals.__getitem__)
    totals |= {(rate, decay): measure(DynamicSettings(rate, decay)) for decay in DECAYS[1:]}
    return DynamicSettings(*max(totals, key=totals.__getitem__))


def read_dynamically(
    model: NeuralLanguageModel,
    sentences: Sequence[Words],
    settings: DynamicSettings,
    root_mean_squares: Sequence[Tensor],
    description: str = "",
) -> TextReading:
    """Read a text with a copy of the network that goes on learning; the model itself does not change.

    After each segment, each parameter p moves by −η g / (RMS + ε), and back towards its trained value by the
    decay, less where the RMS is small. ε is the mean RMS of all parameters: with a much smaller one, words
    that the text of the statistics lacks, whose RMS is nearly 0, would move without bounds.

    Args:
        root_mean_squares: result of ``measure_gradients``.
        description: what the progress bar says; none is shown if it is empty.
    """
    network = _copy(model)
    trained = [parameter.detach().clone() for parameter in network.parameters()]
    mean = float(torch.cat([rms.flatten() for rms in root_mean_squares]).mean(dtype=torch.float64))
    mean = max(mean, torch.finfo(torch.float32).tiny)  # statistics of no words at all
    returns = [(settings.decay * rms / mean).clamp_(max=1.0) for rms in root_mean_squares]
    steps = [settings.rate / (rms + mean) for rms in root_mean_squares]
    inputs, targets = encode_stream(model, sentences)
    topics = infer_token_topics(model, sentences)
    vectors, log_probs = [], []
    segments = _segments(network, inputs, targets, topics, settings.segment_words, description)
    for hidden, values, loss in segments:
        vectors.append(hidden)
        log_probs.append(values.double().cpu().numpy())
        gradients = _gradients(network, loss)
        with torch.no_grad():
            for parameter, start, gradient, step, back in zip(
                network.parameters(), trained, gradients, steps, returns, strict=True
            ):
                parameter.addcmul_(gradient, step, value=-1.0).lerp_(start, back)
    return TextReading(torch.cat(vectors), targets, np.concatenate(log_probs))


def _copy(model: NeuralLanguageModel) -> NeuralModel:
    """A copy whose parameters can be trained; without dropout."""
    return copy.deepcopy(model.model).eval().requires_grad_(True)


def _gradients(network: NeuralModel, loss: Tensor) -> list[Tensor]:
    """Gradient of the loss by each parameter."""
    parameters = list(network.parameters())
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return list(gradients)


def _segments(
    network: NeuralModel,
    inputs: Tensor,
    targets: Tensor,
    topics: Tensor | None,
    segment_words: int,
    description: str,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Read a text segment by segment; yield context vectors (n, D), ln P of its tokens, mean loss.

    The network may change between two segments; the state is carried on.
    """
    state = None
    with track(description, "words", len(targets)) as progress:
        for begin in range(0, len(targets), segment_words):
            segment = slice(begin, begin + segment_words)
            hidden, state = network.context_vectors(inputs[None, segment], state, part_of(topics, segment))
            rows = torch.arange(len(targets[segment]), device=targets.device)
            with torch.no_grad():
                values = network.output.log_probs(hidden[0].detach(), rows, targets[segment])
            yield hidden[0].detach(), values, network.output.loss(hidden[0], targets[segment]) / len(rows)
            state = tuple(part.detach() for part in state)
            progress.advance(len(rows))
