"""Inspection of score streams: base, sign, scale and order."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rescorer.evaluation.inspection import inspect_lists
from rescorer.evaluation.list_statistics import correlate
from rescorer.text import Normaliser
from rescorer.types import Weights
from tests.support.inspection_cases import SOUND, TOTAL, finding_codes, with_scores

LOG_10 = math.log(10.0)


def test_densities_above_one_are_not_costs_if_order_or_errors_contradict():
    positive = [
        replace(
            nbest,
            streams={
                "acoustic": tuple(
                    score + 200.0 * len(hypothesis.text.split())
                    for score, hypothesis in zip(nbest.streams["score"], nbest.hypotheses, strict=True)
                )
            },
        )
        for nbest in TOTAL
    ]
    assert min(min(nbest.streams["acoustic"]) for nbest in positive) > 0
    assert finding_codes(positive) == set()
    assert finding_codes([replace(nbest, reference=None) for nbest in positive]) == set()


def test_detects_a_wrong_base_by_the_order_of_the_first_pass():
    wrong = with_scores(SOUND, "acoustic", lambda s: 0.1 * s)
    (finding,) = inspect_lists(
        wrong, Normaliser(), first_pass=Weights(streams={"acoustic": 1.0, "lm": 1.0})
    ).findings
    assert (finding.code, finding.stream) == ("unsorted", "first pass")
    assert "base and sign" in finding.advice


def test_warnings_show_the_scores_in_other_units():
    found = inspect_lists(with_scores(SOUND, "lm", lambda s: s / LOG_10), Normaliser())
    (finding,) = found.findings
    lm = next(stream for stream in found.streams if stream.name == "lm")
    assert finding.stream == "lm"
    assert f"{lm.per_word_as('10'):.3g}" in finding.message
    sound = next(stream for stream in inspect_lists(SOUND, Normaliser()).streams if stream.name == "lm")
    assert lm.per_word_as("10") == pytest.approx(sound.per_word)
    assert "10" in finding.advice


@example([(1.5252708675362328e-279, 0.0)] * 2 + [(1.5252708675362328e-279, 1.0)])
@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), min_size=2, max_size=9))
def test_correlation_matches_numpy(pairs):
    x, y = np.array(pairs).T
    r = correlate(x, y)
    assert r is None or -1.0 <= r <= 1.0
    if np.ptp(x) > 1e-3 and np.ptp(y) > 1e-3:
        assert r == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-6)
    if np.ptp(x) == 0:
        assert r is None
