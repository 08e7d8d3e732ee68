"""Fitting confidences and judging them: measures, maps, cross-validation, and what is kept."""

from __future__ import annotations

import math
import re
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from rescorer.evaluation.calibration import (
    CONSTANT,
    KINDS,
    TEMPERATURES,
    Outcomes,
    choose_kind,
    collect_outcomes,
    expected_calibration_error,
    fit_isotonic,
    fit_temperature,
    judge_calibration,
    judge_utterance,
    judge_words,
    normalised_cross_entropy,
    predict_held_out,
    reliability,
)
from rescorer.evaluation.folds import Folds
from tests.evaluation.test_sclite import SCLITE, installed
from tests.support.folds import divide

CLAIMS = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60)


def as_arrays(claims):
    confidences, correct = zip(*claims, strict=True)
    return np.array(confidences), np.array(correct)


@given(CLAIMS)
def test_measures_agree_with_plain_ones(claims):
    bins: dict[int, list[tuple[float, bool]]] = {}
    for confidence, right in claims:
        bins.setdefault(min(int(confidence * 10), 9), []).append((confidence, right))
    error = sum(abs(sum(c for c, _ in part) - sum(r for _, r in part)) for part in bins.values())
    confidences, correct = as_arrays(claims)
    assert expected_calibration_error(confidences, correct) == pytest.approx(error / len(claims))
    found = reliability(confidences, correct)
    assert [part.claims for part in found] == [len(bins.get(number, ())) for number in range(10)]
    share = sum(right for _, right in claims) / len(claims)
    entropy = normalised_cross_entropy(confidences, correct)
    if share in (0, 1):
        assert math.isnan(entropy)
        return
    bounded = [(min(max(c, 1e-7), 1 - 1e-7), right) for c, right in claims]
    given_bits = -sum(math.log2(c if right else 1 - c) for c, right in bounded)
    right = share * len(claims)
    largest = -right * math.log2(share) - (len(claims) - right) * math.log2(1 - share)
    assert entropy == pytest.approx((largest - given_bits) / largest)


@installed
def test_normalised_cross_entropy_is_that_of_sclite(tmp_path):
    rng = np.random.default_rng(1)
    stm, ctm = [], []
    for utterance in range(40):
        reference = rng.choice(list("abcdefg"), 8)
        heard = np.where(rng.random(8) < 0.8, reference, rng.choice(list("abcdefg"), 8))
        stm.append(f"f{utterance} 1 s 0.0 10.0 {' '.join(reference)}\n")
        confidences = np.where(rng.random(8) < 0.9, rng.uniform(0.05, 0.95, 8), rng.integers(0, 2, 8))
        for second, (word, confidence) in enumerate(zip(heard, confidences, strict=True)):
            ctm.append(f"f{utterance} 1 {second}.0 0.9 {word} {confidence:.3f}\n")
    (tmp_path / "r.stm").write_text("".join(stm))
    (tmp_path / "h.ctm").write_text("".join(ctm))

    def sclite(report: str) -> str:
        command = [*SCLITE, "-r", "r.stm", "stm", "-h", "h.ctm", "ctm", "-o", report, "stdout"]
        # in the folder itself, because the path of the file changes the layout of the table
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    expected = re.search(r"Sum/Avg.*\|\s*(-?\d+\.\d+) \|", sclite("sum"))
    words = re.findall(r"\b([CSI]),[^:\n]*?,(\d\.\d+)(?=[:\n])", sclite("sgml"))
    assert len(words) == len(ctm)
    correct = np.array([kind == "C" for kind, _ in words])
    confidences = np.array([float(confidence) for _, confidence in words])
    assert normalised_cross_entropy(confidences, correct) == pytest.approx(float(expected[1]), abs=6e-4)


def simulate(n: int, temperature: float, seed: int = 0, truth: float = 1.0) -> Outcomes:
    """Claims about one list each, whose posteriors are true at a temperature, with probability ``truth``."""
    rng = np.random.default_rng(seed)
    margins = rng.normal(20, 30, n)  # of the total over that of the only other hypothesis
    posteriors = expit(margins / TEMPERATURES[:, None])
    right = rng.random(n) < truth * expit(margins / temperature)
    return Outcomes(posteriors, right, np.arange(n))


def make_folds(n: int) -> Folds:
    return divide([f"reference {i}" for i in range(n)], 10)


def test_finds_the_temperature_that_made_the_data():
    assert fit_temperature(simulate(4000, 20.0)).temperature == pytest.approx(20.0, rel=0.25)


def test_isotonic_regression_finds_what_a_temperature_cannot_say():
    outcomes = simulate(4000, 20.0, truth=0.5)
    fitted = fit_isotonic(outcomes)
    assert fitted.confidences[-1] == pytest.approx(0.5, abs=0.06)
    assert choose_kind(outcomes, make_folds(4000)) == "isotonic"


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.3, 0.31, 0.9, 1.0]), st.booleans()), min_size=1, max_size=90)
)
def test_every_map_is_monotone_and_never_certain(claims):
    posteriors, correct = as_arrays(claims)
    outcomes = Outcomes(np.tile(posteriors, (len(TEMPERATURES), 1)), correct, np.arange(len(correct)))
    for fit in KINDS.values():
        fitted = fit(outcomes)  # the type checks that it is monotone, and above 0 and below 1
        assert 0 < fitted.confidences[0] <= fitted.confidences[-1] < 1


def test_a_handful_of_lists_does_not_make_a_confidence_certain():
    right = Outcomes(np.full((len(TEMPERATURES), 5), 0.999), np.ones(5, dtype=bool), np.arange(5))
    for fit in KINDS.values():
        assert fit(right).confidences[-1] < 0.99


def test_no_claim_is_judged_by_a_map_that_it_helped_to_fit():
    outcomes, folds = simulate(200, 20.0), make_folds(200)
    before = predict_held_out(outcomes, folds, fit_isotonic)
    changed = outcomes.correct.copy()
    changed[7::10] = ~changed[7::10]  # the whole fold "7"
    after = predict_held_out(Outcomes(outcomes.posteriors, changed, outcomes.list_index), folds, fit_isotonic)
    assert (before[7::10] == after[7::10]).all()
    assert (before != after).any()


def test_no_claim_is_judged_by_a_map_that_its_reference_helped_to_fit():
    outcomes = simulate(60, 20.0)
    same = divide(["yes"] * 60, 3)
    assert np.isnan(predict_held_out(outcomes, same, fit_temperature)).all()
    assert judge_calibration(outcomes, same, [""] * 60) is None


def test_keeps_a_map_that_helps():
    judgement = judge_calibration(simulate(300, 20.0), make_folds(300), [""] * 300)
    assert judgement.helps
    assert judgement.held_out.normalised_cross_entropy > 0.1 > judgement.before.normalised_cross_entropy
    assert judgement.held_out.expected_calibration_error < judgement.before.expected_calibration_error


def test_leaves_out_maps_of_noise():
    """Posteriors that say nothing help in at most a few draws, as the bound of 97.5 % promises."""
    helps = 0
    for seed in range(40):
        outcomes = simulate(100, 20.0, seed)
        shuffled = np.random.default_rng(seed).permutation(outcomes.correct)
        noise = Outcomes(outcomes.posteriors, shuffled, outcomes.list_index)
        helps += judge_calibration(noise, make_folds(100), [""] * 100).helps
    assert helps <= 3


def test_a_constant_is_never_kept():
    outcomes = simulate(100, 20.0)
    all_right = Outcomes(outcomes.posteriors, np.ones(100, dtype=bool), outcomes.list_index)
    judgement = judge_calibration(all_right, make_folds(100), [""] * 100)
    assert judgement.kind in (CONSTANT, "temperature", "isotonic")
    assert math.isnan(judgement.held_out.normalised_cross_entropy)


def test_judges_the_best_hypothesis_and_its_words():
    words = [("the", "cat", "sat"), ("the", "mat", "sat"), ("the", "cat", "sat")]
    totals = np.array([0.0, 0.0, 0.0])
    readings = [("the", "bat", "sat"), ("a", "dog")]
    posteriors, correct = judge_words(words, totals, 0, readings)
    assert correct.tolist() == [True, False, True]
    assert posteriors[0].tolist() == pytest.approx([1, 2 / 3, 1])
    whole, right = judge_utterance(words, totals, 0, [*readings, ("the", "cat", "sat")])
    assert (whole[0].tolist(), right.tolist()) == (pytest.approx([2 / 3]), [True])
    outcomes = collect_outcomes(
        [(posteriors, correct), judge_words([()], np.zeros(1), 0, [("a",)]), (whole, right)]
    )
    assert outcomes.list_index.tolist() == [0, 0, 0, 2]
    assert len(outcomes.select(np.array([False, False, True]))) == 1
