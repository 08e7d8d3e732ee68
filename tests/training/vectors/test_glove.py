"""GloVe: the step against the original program's, shuffling, and runs that stop and continue."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from rescorer.errors import BundleError, ConfigError, ScoringError
from rescorer.text import Normaliser, NormaliserSettings
from rescorer_training.vectors.cooccurrences.cells import CELL
from rescorer_training.vectors.glove import training
from rescorer_training.vectors.glove.model import GloveParameters, train_block
from rescorer_training.vectors.glove.options import GloveOptions
from rescorer_training.vectors.glove.run import run, start_run
from rescorer_training.vectors.glove.shuffle import ENTRY, shuffle_entries

N_WORDS, DIMENSIONS, RATE = 6, 3, 0.05


def step_plainly(
    parameters: dict[str, np.ndarray], row: int, column: int, target: float, weight: float
) -> float:
    """One step of the original program, in Python floats: the slow twin."""
    w, b = parameters["vectors"], parameters["biases"]
    difference = sum(w[row, k] * w[column, k] for k in range(DIMENSIONS)) + b[row] + b[column] - target
    error = weight * difference
    for k in range(DIMENSIONS):
        steps = RATE * error * w[column, k], RATE * error * w[row, k]
        for place, step in zip((row, column), steps, strict=True):
            w[place, k] -= step / math.sqrt(parameters["vector_squares"][place, k])
            parameters["vector_squares"][place, k] += step**2
    for place in (row, column):
        b[place] -= RATE * error / math.sqrt(parameters["bias_squares"][place])
        parameters["bias_squares"][place] += (RATE * error) ** 2
    return error * difference / 2


def test_blocks_of_one_entry_equal_the_original_program() -> None:
    random = np.random.default_rng(0)
    parameters = GloveParameters.initialise(N_WORDS, DIMENSIONS, seed=1)
    plain = {name: tensor.double().numpy().copy() for name, tensor in parameters.tensors().items()}
    for _ in range(50):
        row, column = int(random.integers(N_WORDS)), int(random.integers(N_WORDS)) + N_WORDS
        target, weight = random.normal(), random.random()
        block = torch.tensor([row]), torch.tensor([column]), torch.tensor([target]), torch.tensor([weight])
        loss = train_block(parameters, *(b if b.dtype == torch.int64 else b.float() for b in block), RATE)
        assert loss == pytest.approx(step_plainly(plain, row, column, target, weight), rel=1e-4, abs=1e-6)
    for name, tensor in parameters.tensors().items():
        np.testing.assert_allclose(tensor.numpy(), plain[name], rtol=1e-4, atol=1e-6)


def test_steps_of_a_row_that_occurs_twice_are_added() -> None:
    start = GloveParameters.initialise(N_WORDS, DIMENSIONS, seed=1)

    def change(*numbers: int) -> torch.Tensor:
        copy = GloveParameters(**{name: tensor.clone() for name, tensor in start.tensors().items()})
        columns = torch.tensor(numbers) + N_WORDS
        train_block(
            copy, torch.zeros_like(columns), columns, torch.ones(len(numbers)), torch.ones(len(numbers)), RATE
        )
        return copy.vectors[0] - start.vectors[0]

    torch.testing.assert_close(change(1, 2), change(1) + change(2))


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
    start_run(
        [text], Normaliser(NormaliserSettings.raw()), folder, options, min_count=1, window=3, memory_mb=16
    )


def test_a_run_that_was_interrupted_ends_with_the_same_vectors(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "PART_ENTRIES", 10)
    monkeypatch.setattr(training, "PARTS_PER_ROUND", 2)
    monkeypatch.setattr(training, "SECONDS_BETWEEN_SAVES", 0.0)
    options = GloveOptions(4, epochs=3, block_cells=4)
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


def test_several_threads_reach_a_similar_loss(text: Path, tmp_path: Path) -> None:
    options = GloveOptions(4, epochs=5, block_cells=8)
    start(text, tmp_path / "run", options)
    _, state = run(tmp_path / "run", options, threads=2)
    assert state.losses[-1] < state.losses[0]


def test_rejects_another_option_when_resuming(text: Path, tmp_path: Path) -> None:
    start(text, tmp_path / "run", GloveOptions(4))
    with pytest.raises(ConfigError, match=r"x_max was 100\.0, is 10"):
        run(tmp_path / "run", GloveOptions(4, x_max=10), threads=1)
    with pytest.raises(ConfigError, match="has a run already"):
        start(text, tmp_path / "run", GloveOptions(4))


def test_rejects_a_damaged_state(text: Path, tmp_path: Path) -> None:
    start(text, tmp_path / "run", GloveOptions(4))
    state = tmp_path / "run" / training.STATE_FILE
    state.write_bytes(state.read_bytes()[:50])
    with pytest.raises(BundleError, match="damaged"):
        run(tmp_path / "run", GloveOptions(4), threads=1)


def test_rejects_more_dimensions_than_words(text: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="more than the 8 words"):
        start(text, tmp_path / "run", GloveOptions(9))


def test_says_that_training_diverged(text: Path, tmp_path: Path) -> None:
    options = GloveOptions(4, epochs=20, learning_rate=1e30)
    start(text, tmp_path / "run", options)
    with pytest.raises(ScoringError, match="--learning-rate"):
        run(tmp_path / "run", options, threads=1)


@pytest.mark.parametrize(
    "values", [{"dimensions": 0}, {"epochs": 0}, {"x_max": 0.0}, {"learning_rate": math.nan}, {"seed": -1}]
)
def test_rejects_options_out_of_range(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values)).replace("_", "-")):
        GloveOptions(**values)  # type: ignore[arg-type]
