"""Penalties on context vectors: their formulas, and their effect on a trained network."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import ConfigError
from rescorer_training.neural.optimisation import penalise_activations
from rescorer_training.neural.options import TrainingOptions
from tests.support.toy_training import make_text, make_trainer

OPTIONS = {"epochs": 2, "batch_words": 64, "warmup_steps": 5, "learning_rate": 0.01}
PENALTIES = {"none": {}, "ar": {"activation_penalty": 5.0}, "tar": {"change_penalty": 5.0}}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return make_text(tmp_path_factory.mktemp("text"))


def sum_penalties(hidden, is_word, alpha, beta):
    """The slow twin: word after word."""
    total = 0.0
    for row, words in zip(hidden.tolist(), is_word.tolist(), strict=True):
        for t, vector in enumerate(row):
            if words[t]:
                total += alpha * sum(value**2 for value in vector) / len(vector)
            if t and words[t] and words[t - 1]:
                changes = [a - b for a, b in zip(vector, row[t - 1], strict=True)]
                total += beta * sum(value**2 for value in changes) / len(changes)
    return total


@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3)),
    alpha=st.floats(0, 3),
    beta=st.floats(0, 3),
    seed=st.integers(0, 1000),
)
def test_penalties_equal_a_sum_over_words(shape, alpha, beta, seed):
    random = torch.Generator().manual_seed(seed)
    hidden = torch.randn(shape, generator=random, dtype=torch.float64)
    is_word = torch.rand(shape[:2], generator=random) < 0.8
    options = TrainingOptions(activation_penalty=alpha, change_penalty=beta)
    penalty = penalise_activations(hidden, is_word, options)
    if penalty is None:
        assert alpha == beta == 0
    else:
        assert float(penalty) == pytest.approx(sum_penalties(hidden, is_word, alpha, beta))


def mean_squares(model, text):
    """Mean squares of the context vectors and of their changes, on the first words of a text."""
    words = torch.from_numpy(text.ids[:30].astype("int64")).unsqueeze(0)
    with torch.no_grad():
        hidden, _ = model.eval().network(words)
    return float(hidden.square().mean()), float(hidden.diff(dim=1).square().mean())


def test_penalised_networks_have_smaller_and_slower_activations(tmp_path, text):
    found = {}
    for name, penalties in PENALTIES.items():
        trainer = make_trainer(tmp_path / name, text, TrainingOptions(**OPTIONS, **penalties), dropout=0.0)
        progress = trainer.train(text.train, text.validation)
        found[name] = mean_squares(trainer.model, text.validation)
        losses = [report["training_perplexity"] for report in progress.reports]
        assert losses[-1] < losses[0]
    assert found["ar"][0] < 0.5 * found["none"][0]
    assert found["tar"][1] < 0.5 * found["none"][1]


def test_change_penalty_needs_locked_dropout(tmp_path, text):
    options = TrainingOptions(change_penalty=1.0)
    with pytest.raises(ConfigError, match="--change-penalty needs --locked-dropout"):
        make_trainer(tmp_path / "run", text, options, dropout=0.5)
    make_trainer(tmp_path / "run", text, options, dropout=0.5, locked_dropout=True)


@pytest.mark.parametrize("name", ["activation_penalty", "change_penalty"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_rejects_penalties_that_are_not_numbers(name, value):
    with pytest.raises(ConfigError, match=f"{name} is"):
        TrainingOptions(**{name: value})
