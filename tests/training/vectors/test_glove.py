"""GloVe: the step against the original program's, shuffling, and runs that stop and continue."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import BundleError, ConfigError, ScoringError
from rescorer.text import Normaliser, NormaliserSettings
from rescorer_training.vectors.cooccurrences.cells import CELL
from rescorer_training.vectors.glove import training
from rescorer_training.vectors.glove.model import MAX_GRADIENT, GloveParameters, train_block
from rescorer_training.vectors.glove.options import GloveOptions
from rescorer_training.vectors.glove.run import run, start_run
from rescorer_training.vectors.glove.shuffle import ENTRY, shuffle_entries

N_WORDS, DIMENSIONS, RATE = 6, 3, 0.05
Entry = tuple[int, int, float, float]
ENTRIES = st.tuples(
    st.integers(0, N_WORDS - 1),
    st.integers(N_WORDS, 2 * N_WORDS - 1),
    st.floats(-1e4, 1e4),
    st.floats(0, 1),
)
"""Rows of a word and a context word, target, weight; some errors are beyond the limit of gradients."""


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
        np.testing.assert_allclose(tensor.numpy(), plain[name], rtol=1e-6, atol=1e-9)


@given(st.lists(ENTRIES, max_size=30))
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


def test_shuffles_both_halves_of_the_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rescorer_training.vectors.glove.shuffle.BYTES_PER_ENTRY", 1 << 19)  # many parts
    cells = np.array([(i * 20 + j, 1 + i + j) for i in range(20) for j in range(i, 20)], dtype=CELL)
    cells.tofile(tmp_path / "cells")
    n = shuffle_entries(tmp_path / "cells", tmp_path / "entries", n_words=20, memory_mb=16, seed=1)
    entries = np.fromfile(tmp_path / "entries", ENTRY)
    expected = [(i, j, (1 + i + j) * (2 if i == j else 1)) for i in range(20) for j in range(20)]
    assert n == 400
    assert entries.tolist() != expected
    assert sorted(entries.tolist()) == expected


@pytest.fixture
def text(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    path = tmp_path / "text"
    path.write_text("".join(" ".join(random.choice(list("abcdefgh"), 8)) + "\n" for _ in range(50)))
    return path


def start(text: Path, folder: Path, options: GloveOptions) -> None:
    start_run([text], Normaliser(NormaliserSettings.raw()), folder, options, memory_mb=16)


def test_a_run_that_was_interrupted_ends_with_the_same_vectors(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "PART_ENTRIES", 10)
    monkeypatch.setattr(training, "PARTS_PER_ROUND", 2)
    monkeypatch.setattr(training, "SECONDS_BETWEEN_SAVES", 0.0)
    options = GloveOptions(4, 3, 1, epochs=3, block_cells=4)
    start(text, tmp_path / "whole", options)
    whole, state = run(tmp_path / "whole", options, threads=1)
    assert state.losses[-1] < state.losses[0]

    start(text, tmp_path / "parts", options)
    original, calls = training.save_state, []

    def kill_after_three(*arguments: object) -> None:
        original(*arguments)  # type: ignore[arg-type]
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training, "save_state", kill_after_three)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "parts", options, threads=1)
    resumed, resumed_state = run(tmp_path / "parts", options, threads=1)
    np.testing.assert_array_equal(resumed.matrix, whole.matrix)
    assert resumed_state.losses == pytest.approx(state.losses)


def test_blocks_of_a_small_vocabulary_repeat_each_word_a_few_times(text: Path, tmp_path: Path) -> None:
    options = GloveOptions(4, 3, 1, epochs=50, block_cells=1024)
    start(text, tmp_path / "run", options)
    trainer = training.GloveTrainer(
        tmp_path / "run",
        tmp_path / "run" / "entries",
        options,
        training.load_state(tmp_path / "run", 8, options),
    )
    assert trainer.block_cells == 32
    _, state = run(tmp_path / "run", options, threads=1)
    assert state.losses[-1] < state.losses[0] / 20


def test_several_threads_reach_a_similar_loss(text: Path, tmp_path: Path) -> None:
    options = GloveOptions(4, 3, 1, epochs=5, block_cells=8)
    start(text, tmp_path / "run", options)
    _, state = run(tmp_path / "run", options, threads=2)
    assert state.losses[-1] < state.losses[0]


def test_rejects_another_option_when_resuming(text: Path, tmp_path: Path) -> None:
    start(text, tmp_path / "run", GloveOptions(4, 3, 1))
    with pytest.raises(ConfigError, match=r"x_max was 10\.0, is 20"):
        run(tmp_path / "run", GloveOptions(4, 3, 1, x_max=20), threads=1)
    with pytest.raises(ConfigError, match="has a run already"):
        start(text, tmp_path / "run", GloveOptions(4, 3, 1))


def test_rejects_a_damaged_state(text: Path, tmp_path: Path) -> None:
    start(text, tmp_path / "run", GloveOptions(4, 3, 1))
    state = tmp_path / "run" / training.STATE_FILE
    state.write_bytes(state.read_bytes()[:50])
    with pytest.raises(BundleError, match="damaged"):
        run(tmp_path / "run", GloveOptions(4, 3, 1), threads=1)


def test_rejects_more_dimensions_than_words(text: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="more than the 8 words"):
        start(text, tmp_path / "run", GloveOptions(9, 3, 1))


def test_says_that_training_diverged(text: Path, tmp_path: Path) -> None:
    options = GloveOptions(4, 3, 1, epochs=20, learning_rate=1e30)
    start(text, tmp_path / "run", options)
    with pytest.raises(ScoringError, match="--learning-rate"):
        run(tmp_path / "run", options, threads=1)


@pytest.mark.parametrize(
    "values", [{"dimensions": 0}, {"epochs": 0}, {"x_max": 0.0}, {"learning_rate": math.nan}, {"seed": -1}]
)
def test_rejects_options_out_of_range(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values)).replace("_", "-")):
        GloveOptions(**values)  # type: ignore[arg-type]
