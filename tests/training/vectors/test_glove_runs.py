"""Runs of GloVe that stop and continue, with damaged files and changed options."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rescorer.errors import BundleError, ConfigError, ScoringError
from rescorer.text import Normaliser, NormaliserSettings
from rescorer_training.vectors import glove, runs
from rescorer_training.vectors.glove import (
    ENTRIES_FILE,
    ENTRY,
    GloveOptions,
    load_state,
    open_entries,
    run,
    start_run,
)
from rescorer_training.vectors.runs import VECTORS_STATE_FILE


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
    monkeypatch.setattr(glove, "PART_ENTRIES", 10)
    monkeypatch.setattr(glove.GloveTrainer, "parts_per_round", 2)
    monkeypatch.setattr(runs, "SECONDS_BETWEEN_SAVES", 0.0)
    options = GloveOptions(4, 3, 1, epochs=3, block_cells=4)
    start(text, tmp_path / "whole", options)
    whole, state = run(tmp_path / "whole", options, threads=1)
    assert state.losses[-1] < state.losses[0]

    start(text, tmp_path / "parts", options)
    original, calls = glove.save_state, []

    def kill_after_three(*arguments: object) -> None:
        original(*arguments)  # type: ignore[arg-type]
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(glove, "save_state", kill_after_three)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "parts", options, threads=1)
    resumed, resumed_state = run(tmp_path / "parts", options, threads=1)
    np.testing.assert_array_equal(resumed.matrix, whole.matrix)
    assert resumed_state.losses == pytest.approx(state.losses)


def test_blocks_of_a_small_vocabulary_repeat_each_word_a_few_times(text: Path, tmp_path: Path) -> None:
    options = GloveOptions(4, 3, 1, epochs=50, block_cells=1024)
    start(text, tmp_path / "run", options)
    trainer = glove.GloveTrainer(
        open_entries(tmp_path / "run" / ENTRIES_FILE, 8, 64),
        options,
        load_state(tmp_path / "run", 8, options),
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


@pytest.mark.parametrize("changed", [{"window": 4}, {"min_count": 2}, {"seed": 2}])
def test_names_the_option_that_has_changed(text: Path, tmp_path: Path, changed: dict[str, int]) -> None:
    options = GloveOptions(4, 3, 1)
    start(text, tmp_path / "run", options)
    ((name, value),) = changed.items()
    with pytest.raises(ConfigError, match=f"other options: {name} was {getattr(options, name)}, is {value}"):
        run(tmp_path / "run", replace(options, **changed), threads=1)


def test_checks_the_memory_before_reading_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="memory-mb: expected at least 16"):
        start_run([tmp_path / "absent"], Normaliser(), tmp_path / "run", GloveOptions(), memory_mb=1)
    assert not (tmp_path / "run").exists()


def damage_entry(path: Path, field: str, value: float) -> None:
    entries = np.fromfile(path, ENTRY)
    entries[field][40] = value
    entries.tofile(path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("row", 8, "words 8 and"),
        ("row", -1, "words -1 and"),
        ("column", 8, "and 8 with"),
        ("weight", np.nan, "co-occurrence nan"),
        ("weight", np.inf, "co-occurrence inf"),
        ("weight", 0, "co-occurrence 0; expected words 0 to 7 and a positive number"),
    ],
)
def test_rejects_damaged_co_occurrences(
    text: Path, tmp_path: Path, field: str, value: float, message: str
) -> None:
    start(text, tmp_path / "run", GloveOptions(4, 3, 1))
    damage_entry(tmp_path / "run" / ENTRIES_FILE, field, value)
    with pytest.raises(BundleError, match=f"damaged: pair 41 is .*{message}"):
        run(tmp_path / "run", GloveOptions(4, 3, 1), threads=1)


@pytest.mark.parametrize("n_bytes", [0, 12 * 63, 12 * 64 - 1])
def test_rejects_incomplete_co_occurrences(text: Path, tmp_path: Path, n_bytes: int) -> None:
    start(text, tmp_path / "run", GloveOptions(4, 3, 1))
    entries = tmp_path / "run" / ENTRIES_FILE
    entries.write_bytes(entries.read_bytes()[:n_bytes])
    with pytest.raises(BundleError, match=f"has {n_bytes} bytes, expected 64 pairs of 12 bytes"):
        run(tmp_path / "run", GloveOptions(4, 3, 1), threads=1)
    entries.unlink()
    with pytest.raises(BundleError, match="No such file or directory"):
        run(tmp_path / "run", GloveOptions(4, 3, 1), threads=1)


def test_rejects_a_state_of_another_vocabulary(text: Path, tmp_path: Path) -> None:
    start(text, tmp_path / "run", GloveOptions(4, 3, 1))
    with pytest.raises(
        BundleError, match=r"vectors of shape \(16, 4\) and torch.float32; expected \(18, 4\)"
    ):
        load_state(tmp_path / "run", 9, GloveOptions(4, 3, 1))


def test_rejects_a_damaged_state(text: Path, tmp_path: Path) -> None:
    start(text, tmp_path / "run", GloveOptions(4, 3, 1))
    state = tmp_path / "run" / VECTORS_STATE_FILE
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
