"""Perplexities after previous utterances: which lines are read before which."""

from __future__ import annotations

import math

import pytest

from rescorer.list_checks import join_history
from tests.support.unit_models import unit_model
from tools.prompts import ELSEWHERE, STRETCH, WAYS, measure, pair_lines

LINES = [(f"w{number}",) for number in range(200)]


@pytest.mark.parametrize("way", WAYS)
def test_lines_are_read_after_those_before_them(way):
    pairs = list(pair_lines(LINES, 60, way))
    assert [words for words, _ in pairs] == LINES[60 : 60 + STRETCH]
    fewest, size = WAYS[way]
    for place, (_, history) in enumerate(pairs, start=60):
        n_read = len(history) // 2
        assert fewest <= n_read < fewest + size
        assert history == join_history(LINES[place - n_read : place], ())


def test_the_control_reads_lines_from_elsewhere():
    pairs = list(pair_lines(LINES, 60, ELSEWHERE))
    assert {history for _, history in pairs} == {join_history(LINES[160:180], ())}


def test_perplexities_without_a_prompt_are_those_of_single_lines():
    model, _ = unit_model(end=None)
    lines = [("a", "b"), ("on",)] * 60
    found = measure(model, lines, [40])
    assert set(found) == {*WAYS, ELSEWHERE}
    assert max(found.values()) == pytest.approx(min(found.values()))
    assert 1 < found["1"] < math.inf
