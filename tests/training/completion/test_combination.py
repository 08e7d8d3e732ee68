"""Learned weights beside SciPy's minimiser, and folds that never see their own questions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from rescorer.errors import ConfigError
from rescorer_training.completion import OUTER_FOLDS, STRENGTHS, cross_validate, fit, log_probs

SIZES = st.tuples(st.integers(0, 1000), st.integers(1, 12), st.integers(1, 3))


def draw(seed: int, n_questions: int, n_models: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.normal(size=(n_questions, 5, n_models)), generator.integers(0, 5, n_questions)


def loss_one_by_one(scores: np.ndarray, answers: np.ndarray, weights: np.ndarray, strength: float) -> float:
    """Penalised loss over standardised scores, question by question."""
    deviations = [
        np.sqrt(np.mean([(row[:, m] - row[:, m].mean()) ** 2 for row in scores])) or 1.0
        for m in range(scores.shape[2])
    ]
    total = 0.0
    for row, answer in zip(scores, answers, strict=True):
        values = [sum(w * s / d for w, s, d in zip(weights, own, deviations, strict=True)) for own in row]
        total -= values[answer] - np.log(sum(np.exp(values)))
    return total / len(scores) + strength / 2 * sum(w * w for w in weights)


@settings(deadline=None, max_examples=40)
@given(SIZES, st.sampled_from(STRENGTHS))
def test_weights_minimise_the_loss(sizes, strength):
    scores, answers = draw(*sizes)
    fitted = fit(scores, answers, strength)
    found = loss_one_by_one(scores, answers, fitted.weights, strength)
    slow = minimize(lambda w: loss_one_by_one(scores, answers, w, strength), np.zeros(scores.shape[2]))
    assert found <= slow.fun + 1e-7


def test_scores_of_any_scale_and_offset_give_the_same_answers():
    scores, answers = draw(3, 30, 2)
    moved = scores * [1e-3, 1e5] + np.random.default_rng(1).normal(size=(30, 1, 2))
    first, second = (log_probs(fit(s, answers, 0.01).score(s)) for s in (scores, moved))
    np.testing.assert_allclose(first, second, atol=1e-6)


def test_a_model_that_says_nothing_has_no_weight():
    scores, answers = draw(3, 30, 2)
    scores[:, :, 1] = 7.0
    fitted = fit(scores, answers, 0.01)
    assert fitted.weights[1] == 0
    assert np.isfinite(fitted.score(scores)).all()


def test_no_question_helps_to_score_itself():
    scores, answers = draw(5, 40, 2)
    before = cross_validate(scores, answers, seed=2)
    answers[7] = (answers[7] + 1) % 5
    after = cross_validate(scores, answers, seed=2)
    np.testing.assert_array_equal(before.values[7], after.values[7])
    assert before.weights.shape == (OUTER_FOLDS, 2)
    assert set(before.strengths) <= set(STRENGTHS)


def test_random_scores_answer_like_guesses_and_good_ones_do_not():
    scores, answers = draw(8, 1000, 2)
    guessed = cross_validate(scores, answers).values.argmax(axis=1) == answers
    assert 0.15 < guessed.mean() < 0.25
    scores[np.arange(1000), answers, 1] += 2
    assert (cross_validate(scores, answers).values.argmax(axis=1) == answers).mean() > 0.7


def test_refuses_fewer_questions_than_folds():
    with pytest.raises(
        ConfigError, match="9 questions are too few to learn a combination; expected at least 10"
    ):
        cross_validate(*draw(1, 9, 2))
