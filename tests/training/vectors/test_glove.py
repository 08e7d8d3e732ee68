"""GloVe: the step against the original program's, shuffling, and options."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.errors import ConfigError
from rescorer_training.vectors.counts import CELL
from rescorer_training.vectors.glove import (
    ENTRY,
    MAX_GRADIENT,
    GloveOptions,
    GloveParameters,
    GloveState,
    GloveTrainer,
    shuffle_entries,
    train_block,
)

N_WORDS, DIMENSIONS, RATE = 6, 3, 0.05
Entry = tuple[int, int, float, float]
WORDS = st.integers(0, N_WORDS - 1)
ENTRIES = st.tuples(
    WORDS,
    st.integers(N_WORDS, 2 * N_WORDS - 1),
    st.floats(-1e3, 1e3),
    st.floats(0, 1),
)
"""Rows of a word and a context word, target, weight; some errors are beyond the limit of gradients. With much
larger ones, which no counts have, the squares of other steps are lost beside the own one."""


def step_plainly(
    parameters: dict[str, np.ndarray], row: int, column: int, target: float, weight: float
) -> float:
    """One step of the original program, in Python floats: the slow twin."""
    w, b = parameters["vectors"], parameters["biases"]
    difference = sum(w[row, k] * w[column, k] for k in range(DIMENSIONS)) + b[row] + b[column] - target
    error = weight * difference
    for k in range(DIMENSIONS):
        gradients = error * w[column, k], error * w[row, k]
        for place, gradient in zip((row, column), gradients, strict=True):
            step = RATE * min(max(gradient, -MAX_GRADIENT), MAX_GRADIENT)
            w[place, k] -= step / math.sqrt(parameters["vector_squares"][place, k])
            parameters["vector_squares"][place, k] += step**2
    for place in (row, column):
        b[place] -= error / math.sqrt(parameters["bias_squares"][place])
        parameters["bias_squares"][place] += error**2
    return error * difference / 2


def step_block_plainly(parameters: dict[str, np.ndarray], entries: list[Entry]) -> None:
    """One step with a block: a gradient is divided by the root of all squares but its own."""
    w, b = parameters["vectors"], parameters["biases"]
    steps: list[tuple[int, np.ndarray, float]] = []
    for row, column, target, weight in entries:
        error = weight * (w[row] @ w[column] + b[row] + b[column] - target)
        for place, other in ((row, column), (column, row)):
            steps.append((place, RATE * np.clip(error * w[other], -MAX_GRADIENT, MAX_GRADIENT), error))
    before = {name: array.copy() for name, array in parameters.items()}
    for number, (place, step, error) in enumerate(steps):
        others = [other for i, other in enumerate(steps) if other[0] == place and i != number]
        vector_squares = before["vector_squares"][place] + sum(other[1] ** 2 for other in others)
        bias_squares = before["bias_squares"][place] + sum(other[2] ** 2 for other in others)
        w[place] -= step / np.sqrt(vector_squares)
        b[place] -= error / np.sqrt(bias_squares)
        parameters["vector_squares"][place] += step**2
        parameters["bias_squares"][place] += error**2


def make_parameters() -> tuple[GloveParameters, dict[str, np.ndarray]]:
    """The same parameters for the fast step and for the plain ones, in float64."""
    start = GloveParameters.initialise(N_WORDS, DIMENSIONS, seed=1)
    parameters = GloveParameters(**{name: tensor.double() for name, tensor in start.tensors().items()})
    return parameters, {name: tensor.numpy().copy() for name, tensor in parameters.tensors().items()}


def make_block(entries: list[Entry]) -> tuple[torch.Tensor, ...]:
    rows, columns, targets, weights = zip(*entries, strict=True)
    values = torch.tensor([targets, weights], dtype=torch.float64)
    return torch.tensor(rows), torch.tensor(columns), values[0], values[1]


def assert_same(parameters: GloveParameters, plain: dict[str, np.ndarray]) -> None:
    for name, tensor in parameters.tensors().items():
        rounding = 1e-7 * max(1.0, float(np.abs(plain[name]).max()))  # large steps may cancel each other
        np.testing.assert_allclose(tensor.numpy(), plain[name], rtol=1e-6, atol=rounding)


@given(st.lists(ENTRIES, max_size=10))
def test_blocks_of_one_entry_equal_the_original_program(entries: list[Entry]) -> None:
    parameters, plain = make_parameters()
    for entry in entries:
        loss = train_block(parameters, *make_block([entry]), RATE)
        assert loss == pytest.approx(step_plainly(plain, *entry), rel=1e-6, abs=1e-9)
    assert_same(parameters, plain)


@given(st.lists(st.lists(ENTRIES, min_size=1, max_size=9), max_size=4))
def test_blocks_equal_plain_ones(blocks: list[list[Entry]]) -> None:
    parameters, plain = make_parameters()
    for entries in blocks:
        train_block(parameters, *make_block(entries), RATE)
        step_block_plainly(plain, entries)
    assert_same(parameters, plain)


@settings(max_examples=30)
@given(
    counts=st.lists(st.tuples(WORDS, WORDS, st.floats(0.0625, 1000, width=32)), min_size=1, max_size=12),
    x_max=st.sampled_from([1.0, 10.0, 100.0]),
    alpha=st.sampled_from([0.5, 0.75, 1.0]),
)
def test_counts_become_logarithms_and_weights(
    counts: list[tuple[int, int, float]], x_max: float, alpha: float
) -> None:
    """Training takes the original program's steps, with targets ln x and weights min(1, (x / x_max)^α)."""
    state = GloveState(GloveParameters.initialise(N_WORDS, DIMENSIONS, seed=1), len(counts))
    plain = {name: tensor.double().numpy().copy() for name, tensor in state.parameters.tensors().items()}
    options = GloveOptions(DIMENSIONS, epochs=1, learning_rate=RATE, x_max=x_max, alpha=alpha, block_cells=1)
    GloveTrainer(np.array(counts, ENTRY), options, state).train(threads=1, save=lambda: None)
    loss = 0.0
    for row, column, x in counts:
        weight = 1.0 if x >= x_max else (x / x_max) ** alpha
        loss += step_plainly(plain, row, N_WORDS + column, math.log(x), weight)
    assert state.losses == [pytest.approx(loss / len(counts), rel=1e-4, abs=1e-6)]
    for name, tensor in state.parameters.tensors().items():
        np.testing.assert_allclose(tensor.numpy(), plain[name], rtol=1e-4, atol=1e-5)


def test_shuffles_both_halves_of_the_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rescorer_training.vectors.glove.BYTES_PER_ENTRY", 1 << 19)  # many parts
    cells = np.array([(i * 20 + j, 1 + i + j) for i in range(20) for j in range(i, 20)], dtype=CELL)
    cells.tofile(tmp_path / "cells")
    n = shuffle_entries(tmp_path / "cells", tmp_path / "entries", n_words=20, memory_mb=16, seed=1)
    entries = np.fromfile(tmp_path / "entries", ENTRY)
    expected = [(i, j, (1 + i + j) * (2 if i == j else 1)) for i in range(20) for j in range(20)]
    assert n == 400
    assert entries.tolist() != expected
    assert sorted(entries.tolist()) == expected


def test_shuffles_within_the_memory_limit(tmp_path: Path) -> None:
    n_words = 2000
    keys = np.arange(0, n_words * n_words, 3)
    cells = np.empty(len(keys), dtype=CELL)
    cells["key"], cells["weight"] = keys, 1 + keys % 7
    cells = cells[keys // n_words <= keys % n_words]
    cells.tofile(tmp_path / "cells")
    tracemalloc.start()
    shuffle_entries(tmp_path / "cells", tmp_path / "small", n_words=n_words, memory_mb=16, seed=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    shuffle_entries(tmp_path / "cells", tmp_path / "large", n_words=n_words, memory_mb=1024, seed=1)
    small, large = (np.sort(np.fromfile(tmp_path / name, ENTRY)) for name in ("small", "large"))
    np.testing.assert_array_equal(small, large)
    assert peak < 16 << 20 < small.nbytes * 3


@pytest.mark.parametrize(
    "values", [{"dimensions": 0}, {"epochs": 0}, {"x_max": 0.0}, {"learning_rate": math.nan}, {"seed": -1}]
)
def test_rejects_options_out_of_range(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values)).replace("_", "-")):
        GloveOptions(**values)  # type: ignore[arg-type]
