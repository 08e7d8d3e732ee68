"""Posteriors of the best hypothesis and its words, the map to confidences, and what answers say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein

from rescorer import Calibration, ConfidenceMap, ConfigError, Hypothesis, NBestList, Weights, WordConfidence
from rescorer.decision import agreement_posteriors, align_words, apply_map, estimate_confidence, find_equal
from rescorer.weights import parse_weights, weights_to_dict
from tests.scoring.test_distances import LISTS
from tests.support.decision_twins import plain_posteriors

MAP = ConfidenceMap(2.0, (0.2, 0.6), (0.1, 0.9))
BOTH = Calibration(MAP, MAP)


def plain_word_posteriors(words, totals, best, temperature):
    """Ask of each word and each hypothesis, one by one, whether the alignment pairs equal words."""
    shares = plain_posteriors(totals, temperature)
    found = []
    for position in range(len(words[best])):
        total = 0.0
        for hypothesis, share in zip(words, shares, strict=True):
            changed = set()
            for operation in Levenshtein.editops(words[best], hypothesis):
                if operation.tag != "insert":
                    changed.add(operation.src_pos)
            total += share if position not in changed else 0.0
        found.append(total)
    return found


@given(LISTS.flatmap(lambda words: st.tuples(
    st.just(words), st.tuples(*[st.floats(-100, 100)] * len(words)), st.integers(0, len(words) - 1)
)), st.floats(0.1, 100))  # fmt: skip
def test_agrees_with_plain_word_posteriors(drawn, temperature):
    words, totals, best = drawn
    found = agreement_posteriors(align_words(words, best), np.array(totals), temperature)
    assert found == pytest.approx(plain_word_posteriors(words, totals, best, temperature), abs=1e-8)
    assert ((found >= 0) & (found <= 1)).all()
    whole = agreement_posteriors(find_equal(words, best)[None], np.array(totals), temperature)[0]
    assert whole <= found.min(initial=1.0) + 1e-8


def test_a_word_that_all_hypotheses_share_has_the_posterior_one():
    words = [("the", "cat"), ("the", "mat"), ("cat",)] + [("the", "cat", str(i)) for i in range(97)]
    totals = np.random.default_rng(0).normal(0, 3, 100)
    found = agreement_posteriors(align_words(words[:2], 0), totals[:2], 1.0)
    assert found[0] == 1.0
    assert agreement_posteriors(align_words(words, 0), totals, 1.0)[0] < 1.0


def test_the_map_is_linear_between_its_points_and_constant_outside():
    found = apply_map(MAP, np.array([0.0, 0.2, 0.4, 0.6, 1.0]))
    assert found == pytest.approx([0.1, 0.1, 0.5, 0.9, 0.9])


def test_estimates_what_the_calibration_gives():
    words, totals = [("a", "b"), ("a", "c")], np.array([0.0, 0.0])
    confidence = estimate_confidence(BOTH, words, totals, 0)
    assert confidence.utterance == pytest.approx(0.7)
    assert confidence.words == pytest.approx([0.9, 0.7])
    assert estimate_confidence(Calibration(word=MAP), words, totals, 0).utterance is None
    assert estimate_confidence(Calibration(utterance=MAP), words, totals, 0).words is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0.0}, "temperature is 0.0; expected a finite number above 0"),
        ({"temperature": None}, r"weights.calibration.word.temperature is None; expected a finite number"),
        ({"posteriors": [0.2, 0.2]}, "expected each to be larger than the one before"),
        ({"posteriors": [0.2, 1.2]}, "expected numbers from 0 to 1"),
        ({"posteriors": [0.2]}, "1 posteriors for 2 confidences; expected as many of either"),
        ({"posteriors": []}, "posteriors has 0 values; expected 1 to 100"),
        ({"posteriors": [0.5] * 100_000}, "posteriors has 100000 values; expected 1 to 100"),
        ({"temperature": 10**400}, r"word.temperature is 1000.*…; expected a finite number"),
        ({"posteriors": [0.2, 10**400]}, r"word.posteriors is 1000.*…; expected a finite number"),
        ({"posteriors": 0.5}, "weights.calibration.word.posteriors is '0.5'; expected a list of numbers"),
        ({"posteriors": [0.2, float("nan")]}, r"weights.calibration.word.posteriors is nan"),
        ({"confidences": [0.9, 0.1]}, "expected none smaller than the one before"),
        ({"confidences": [0.1, 1.0]}, "expected numbers above 0 and below 1"),
        ({"knots": []}, r"unknown settings of weights.calibration.word \['knots'\]"),
    ],
)
def test_rejects_invalid_maps(changes, message):
    content = {"temperature": 1.0, "posteriors": [0.2, 0.6], "confidences": [0.1, 0.9], **changes}
    with pytest.raises(ConfigError, match=message):
        parse_weights({"calibration": {"word": content}})


@pytest.mark.parametrize(
    ("calibration", "message"),
    [
        ([], "settings of weights.calibration are '\\[\\]'; expected an object with keys utterance, word"),
        ({"words": None}, "unknown settings of weights.calibration .*did you mean 'word'"),
        ({"word": {"temperature": 1.0, "posteriors": [1]}}, "weights.calibration.word has no 'confidences'"),
    ],
)
def test_rejects_invalid_calibrations(calibration, message):
    with pytest.raises(ConfigError, match=message):
        parse_weights({"calibration": calibration})


@pytest.mark.parametrize("calibration", [BOTH, Calibration(word=MAP), Calibration(), None])
def test_calibrated_weights_survive_a_round_trip(calibration):
    weights = Weights("sure", calibration=calibration)
    assert parse_weights(weights_to_dict(weights)) == weights


NBEST = NBestList(
    "u1",
    (Hypothesis("<sil> The_cat sat!"), Hypothesis("the cat sat on"), Hypothesis("the mat")),
    {"acoustic": (-1.0, -9.0, -12.0)},
)


def test_the_library_gives_confidences_of_written_words(library):
    weights = Weights("sure", {"acoustic": 1.0}, {}, calibration=BOTH)
    plain, *others = library.rescore([NBEST], weights)[0].hypotheses
    assert plain.text == NBEST.hypotheses[0].text
    assert [word.word for word in plain.word_confidences] == ["<sil>", "The_cat", "sat!"]
    assert plain.word_confidences[0].confidence is None
    assert 0.1 <= plain.confidence <= plain.word_confidences[1].confidence <= 0.9
    assert {(other.confidence, other.word_confidences) for other in others} == {(None, ())}


def test_confidences_do_not_depend_on_merging_or_dropping(library):
    weights = Weights("sure", {"acoustic": 1.0}, {}, calibration=BOTH)
    nbest = NBestList(
        "u1", (*NBEST.hypotheses, Hypothesis("the cat, sat"), Hypothesis("")),
        {"acoustic": (-1.0, -9.0, -12.0, -2.0, -3.0)},
    )  # fmt: skip
    plain = library.rescore([nbest], weights)[0].best
    merged = library.rescore([nbest], weights, merge=True, drop_empty=True)[0].best
    assert (plain.confidence, plain.word_confidences) == (merged.confidence, merged.word_confidences)


def test_without_a_calibration_there_is_no_confidence(library):
    best = library.rescore([NBEST])[0].best
    assert (best.confidence, best.word_confidences) == (None, ())


def test_an_empty_hypothesis_has_a_confidence_and_no_words(library):
    weights = Weights("sure", {}, {}, calibration=BOTH)
    best = library.rescore([NBestList("u1", (Hypothesis(""), Hypothesis("the")))], weights)[0].best
    assert (best.confidence, best.word_confidences) == (pytest.approx(0.7), ())
    assert WordConfidence("a", None).confidence is None
