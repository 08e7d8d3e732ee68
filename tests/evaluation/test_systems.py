"""Systems of a bundle: each model once, and the mixture only where it has several models."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rescorer.evaluation.systems import compare_systems, weights_by_system
from rescorer.types import Weights
from tests.support.scored_lists import make_scored_lists

BOTH = {"ngram": 0.5, "neural": 0.5}
ONE = {"ngram": 1.0, "neural": 0.0}
OTHER = {"ngram": 0.0, "neural": 1.0}


@pytest.mark.parametrize(
    ("shares", "with_tuning", "names"),
    [
        (BOTH, False, ["ngram", "neural", "mixture"]),
        (ONE, False, ["neural", "ngram"]),
        (OTHER, False, ["ngram", "neural"]),
        ({"ngram": 1.0}, False, ["neural", "ngram"]),
        ({"ngram": 1.0}, True, ["neural", "ngram"]),
        (ONE, True, ["ngram", "neural", "mixture"]),
    ],
)
def test_no_two_systems_have_the_same_scores(library, shares, with_tuning, names):
    """Tuning may raise a λ of 0, so that its mixture has more models than it starts from."""
    weights = replace(library.bundle.weights["default"], lm={"mixture": 2.0}, mixture=shares)
    systems = weights_by_system(library, weights, with_tuning)
    assert list(systems) == names
    assert [system.lm for system in systems.values()] == [{name: 2.0} for name in names]


def test_notes_say_that_a_mixture_starts_from_one_model():
    weights = Weights("w", {"acoustic": 1.0}, {"mixture": 1.0}, mixture=ONE)
    notes = compare_systems(make_scored_lists(), {"mixture": weights}, False).notes
    assert notes[-1] == "the same choices as 'ngram': 'mixture', whose other λ are 0 before tuning"
    weights = replace(weights, mixture=BOTH)
    assert notes[:-1] == compare_systems(make_scored_lists(), {"mixture": weights}, False).notes
