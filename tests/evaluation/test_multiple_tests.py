"""Holm's correction against its definition by rejections."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.evaluation.statistics import correct_holm


def reject(p_values: list[float], level: float) -> list[bool]:
    """Reject hypotheses in order of their p-values until one exceeds the level divided by what is left."""
    rejected = [False] * len(p_values)
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[index] > level / (len(p_values) - rank):
            break
        rejected[index] = True
    return rejected


@given(st.lists(st.integers(1, 1000).map(lambda n: n / 1000), max_size=8), st.integers(1, 500))
def test_rejects_what_holms_procedure_rejects(p_values, n):
    level = (n + 0.5) / 1000 + 1e-5  # not equal to any multiple of a p-value
    assert (correct_holm(p_values) <= level).tolist() == reject(p_values, level)


def test_corrects_in_input_order():
    assert correct_holm([0.5, 0.001, 0.9]).tolist() == [1.0, 0.003, 1.0]
    assert correct_holm([0.2]).tolist() == [0.2]
    assert np.array_equal(correct_holm([]), [])
    assert correct_holm([0.01, 0.011]).tolist() == pytest.approx([0.02, 0.02])
