"""Train transformers over the hypotheses of a list, in PyTorch.

The network is that of ``rescorer.reranking.transformer``, with the same names of parameters. It starts as the
fitted linear network, because its output weights v start from 0. What is minimised is an objective plus
``strength`` times the squared distance of the linear weights from the prior, and ``NETWORK_STRENGTH`` times
the squares of all other parameters. Adam (Kingma and Ba 2015) descends in small batches of lists, with
dropout, in float32 and in one thread, so that results follow from the seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rescorer.reranking.transformer import (
    LAYER_PARAMETERS,
    VARIANCE_FLOOR,
    TransformerEnsemble,
    TransformerSizes,
)
from rescorer_training.reranker.arrays import TrainingArrays
from rescorer_training.reranker.objectives import Loss, ObjectiveName, make_loss

WIDTH, HEADS, UNITS = 10, 2, 32
NETWORK_STRENGTH, DROPOUT = 0.3, 0.1
N_EPOCHS, BATCH_LISTS, LEARNING_RATE, N_WARM_UP_STEPS = 10, 128, 3e-3, 20
BETAS = (0.9, 0.98)
MAX_BATCH_CELLS = 1 << 21
"""Largest number of attention weights per batch, layer and head."""

Parameters = Mapping[str, Tensor]
"""Parameters of one transformer, by the names of ``TransformerSizes.parameter_shapes``, without its first
axis."""


@dataclass(frozen=True, slots=True)
class Batch:
    """B lists, each padded to the longest, of H hypotheses."""

    inputs: Tensor
    """(B, H, I), 0 where a list has ended."""
    is_present: Tensor
    """(B, H) bool."""
    loss: Loss
    """Loss of the scores of the hypotheses that are present, list by list."""


def fit_transformer(
    arrays: TrainingArrays,
    objective: ObjectiveName,
    strength: float,
    prior: np.ndarray,
    start: np.ndarray,
    n_layers: int,
    seed: int,
) -> dict[str, np.ndarray]:
    """Train one transformer; the same seed gives the same parameters.

    Args:
        strength: loss that a move of one linear weight by 1 must save, above 0.
        prior: (F,) weights that the linear part keeps close to.
        start: (F,) weights that it starts from.

    Returns:
        Parameters in float64, by name, of the shapes of one member of a ``TransformerEnsemble``.
    """
    sizes = TransformerSizes(arrays.x.shape[1], 0, n_layers, WIDTH, HEADS, UNITS)
    random = np.random.default_rng(seed)
    with _seeded(seed):
        parameters = draw_transformer(sizes, start, random)
        batches = make_batches(arrays, objective, random)
        penalty = _Penalty(parameters, torch.from_numpy(prior).float(), strength, arrays.n_lists)
        optimizer = torch.optim.Adam(parameters.values(), lr=LEARNING_RATE, betas=BETAS)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _make_rate(N_EPOCHS * len(batches)))
        for _ in range(N_EPOCHS):
            for index in random.permutation(len(batches)):
                optimizer.zero_grad()
                penalty.backward()
                _descend(parameters, batches[index])
                optimizer.step()
                schedule.step()
    return {name: values.detach().double().numpy() for name, values in parameters.items()}


def make_transformer_ensemble(members: list[dict[str, np.ndarray]]) -> TransformerEnsemble:
    """Stack transformers of the same sizes that ``fit_transformer`` has returned."""
    stacked = {name: np.stack([member[name] for member in members]) for name in members[0]}
    n_inputs, n_layers = stacked["linear"].shape[1], stacked["attention"].shape[1]
    sizes = TransformerSizes(n_inputs, 0, n_layers, WIDTH, HEADS, UNITS)
    return TransformerEnsemble(sizes, stacked)


def draw_transformer(
    sizes: TransformerSizes, linear: np.ndarray, random: np.random.Generator
) -> dict[str, Tensor]:
    """A transformer that scores as the linear network with these weights, with layers drawn at random."""
    drawn = {}
    for name, (_, *shape) in sizes.parameter_shapes(1).items():
        if name == "linear":
            values = linear
        elif name == "output" or name.endswith("_bias"):
            values = np.zeros(shape)
        else:
            values = random.normal(size=shape) / math.sqrt(shape[-2])
        drawn[name] = torch.from_numpy(values).float().requires_grad_()
    return drawn


def score_batch(
    parameters: Parameters, inputs: Tensor, is_present: Tensor, heads: int, dropout: float = 0.0
) -> Tensor:
    """Score the hypotheses of padded lists, (B, H); scores where a list has ended mean nothing.

    Args:
        inputs: (B, H, I) features and encodings.
        is_present: (B, H) bool.
        dropout: probability of setting an input or the output of a sublayer to 0.
    """
    z = functional.dropout(inputs, dropout) @ parameters["input"] + parameters["input_bias"]
    for layer in range(len(parameters["attention"])):
        one = {name: parameters[name][layer] for name in LAYER_PARAMETERS}
        projected = _normalise(z) @ one["attention"] + one["attention_bias"]
        mixed = _attend(projected, is_present, heads) @ one["attention_output"]
        z = z + functional.dropout(mixed + one["attention_output_bias"], dropout)
        hidden = _normalise(z) @ one["hidden"] + one["hidden_bias"]
        hidden = functional.gelu(hidden, approximate="tanh") @ one["hidden_output"]
        z = z + functional.dropout(hidden + one["hidden_output_bias"], dropout)
    return inputs @ parameters["linear"] + _normalise(z) @ parameters["output"]


def _attend(projected: Tensor, is_present: Tensor, heads: int) -> Tensor:
    """Attention of all hypotheses of a list to those that are present, (B, H, W)."""
    n_lists, n, width = projected.shape[0], projected.shape[1], projected.shape[2] // 3
    parts = projected.view(n_lists, n, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    queries, keys, values = parts.unbind()  # (B, heads, H, W / heads) each
    logits = queries @ keys.transpose(-1, -2) / math.sqrt(width // heads)
    weights = logits.masked_fill(~is_present[:, None, None, :], -torch.inf).softmax(dim=-1)
    return (weights @ values).transpose(1, 2).reshape(n_lists, n, width)


def _normalise(z: Tensor) -> Tensor:
    return functional.layer_norm(z, z.shape[-1:], eps=VARIANCE_FLOOR)


def make_batches(
    arrays: TrainingArrays, objective: ObjectiveName, random: np.random.Generator
) -> list[Batch]:
    """Divide lists at random into batches of about equal numbers."""
    longest = int(np.diff(arrays.offsets).max())
    n_lists = max(1, min(BATCH_LISTS, MAX_BATCH_CELLS // longest**2))
    parts = np.array_split(random.permutation(arrays.n_lists), math.ceil(arrays.n_lists / n_lists))
    return [_make_batch(arrays.select(part), objective) for part in parts]


def _make_batch(arrays: TrainingArrays, objective: ObjectiveName) -> Batch:
    lengths = np.diff(arrays.offsets)
    is_present = np.arange(lengths.max()) < lengths[:, None]
    inputs = np.zeros((*is_present.shape, arrays.x.shape[1]), dtype=np.float32)
    inputs[is_present] = arrays.x
    return Batch(torch.from_numpy(inputs), torch.from_numpy(is_present), make_loss(objective, arrays))


def _descend(parameters: Parameters, batch: Batch) -> None:
    """Add the gradient of the mean loss of a batch to that of the parameters."""
    scores = score_batch(parameters, batch.inputs, batch.is_present, HEADS, DROPOUT)[batch.is_present]
    _, by_score = batch.loss(scores.detach().double().numpy())
    scores.backward(torch.from_numpy(by_score / len(batch.inputs)).float())  # type: ignore[no-untyped-call]


class _Penalty:
    """The penalty per list."""

    def __init__(self, parameters: Parameters, prior: Tensor, strength: float, n_lists: int) -> None:
        self.linear, self.prior = parameters["linear"], prior
        self.others = [values for name, values in parameters.items() if name != "linear"]
        self.strength, self.n_lists = strength, n_lists

    def backward(self) -> None:
        """Add the gradient of the penalty to that of the parameters."""
        value = self.strength * ((self.linear - self.prior) ** 2).sum()
        value = value + NETWORK_STRENGTH * sum((values**2).sum() for values in self.others)
        (value / self.n_lists).backward()


def _make_rate(n_steps: int) -> Callable[[int], float]:
    """Share of the learning rate at each step: a linear warm-up, and a cosine down to 0."""
    return lambda step: (
        min(1.0, (step + 1) / N_WARM_UP_STEPS) * 0.5 * (1.0 + math.cos(math.pi * step / n_steps))
    )


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Draw dropout by a seed, in one thread; restore generator and threads afterwards."""
    n_threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(n_threads)
