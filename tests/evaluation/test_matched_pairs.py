"""The matched pairs test against the state machine of NIST's sc_stats, word by word."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.evaluation.statistics import matched_pairs, place_errors, segment_errors

Kinds = list[str]
WORDS = st.sampled_from(["correct", "correct", "correct", "correct", "substitution", "deletion"])
GAPS = st.sampled_from([0, 0, 0, 0, 0, 1, 2])


@st.composite
def alignments(draw) -> tuple[Kinds, Kinds]:
    """Alignments of two systems with the same reference."""
    n_words = draw(st.integers(0, 12))
    both = []
    for _ in range(2):
        gaps = draw(st.lists(GAPS, min_size=n_words + 1, max_size=n_words + 1))
        words = draw(st.lists(WORDS, min_size=n_words, max_size=n_words))
        kinds: Kinds = ["insertion"] * gaps[0]
        for word, gap in zip(words, gaps[1:], strict=True):
            kinds += [word, *["insertion"] * gap]
        both.append(kinds)
    return both[0], both[1]


def slow_segments(first: Kinds, second: Kinds) -> list[tuple[int, int]]:
    """Segments as in ``test_comp_sents`` of sc_stats: states b (no error yet), e (error) and g (good)."""
    segments = []
    begins, positions = [0, 0], [0, 0]
    state, n_good = "b", 0
    paths = (first, second)

    def errors(path: Kinds, begin: int, end: int) -> int:
        return sum(kind != "correct" for kind in path[begin:end])

    while positions[0] < len(first) or positions[1] < len(second):
        for system, path in enumerate(paths):
            while positions[system] < len(path) and path[positions[system]] == "insertion":
                positions[system] += 1
                state = "e"
        if positions[0] < len(first):
            if all(path[at] == "correct" for path, at in zip(paths, positions, strict=True)):
                if state != "b":
                    n_good = 1 if state == "e" else n_good + 1
                    state = "g"
                    if n_good == 2:
                        ends = [at + 1 for at in positions]
                        segments.append(tuple(map(errors, paths, begins, ends)))
                        begins, state = ends, "b"
            else:
                state = "e"
            positions = [at + 1 for at in positions]
    if state != "b":
        segments.append(tuple(map(errors, paths, begins, map(len, paths))))
    return segments


@given(st.lists(alignments(), min_size=1, max_size=6))
def test_equals_the_state_machine(pairs):
    places = [[place_errors(pair[system]) for pair in pairs] for system in (0, 1)]
    expected = [segment for pair in pairs for segment in slow_segments(*pair)]
    assert list(zip(*segment_errors(*places).tolist(), strict=True)) == expected
    result = matched_pairs(*places)
    differences = [first - second for first, second in expected]
    assert result.segments == len(expected)
    if len(set(differences)) > 1:
        error = statistics.stdev(differences) / math.sqrt(len(differences))
        assert result.z == pytest.approx(statistics.mean(differences) / error)
        assert result.p_value == pytest.approx(2 * statistics.NormalDist().cdf(-abs(result.z)), abs=1e-12)
    else:
        assert (result.z, result.p_value) == (0, 1)


def kinds(letters: str) -> Kinds:
    names = {"c": "correct", "s": "substitution", "d": "deletion", "i": "insertion"}
    return [names[letter] for letter in letters]


@pytest.mark.parametrize(
    ("first", "second", "segments"),
    [
        ("ccccc", "ccccc", []),
        ("sccs", "cccc", [(1, 0), (1, 0)]),
        ("scs", "ccc", [(2, 0)]),
        ("sccc", "cccs", [(1, 0), (0, 1)]),
        ("scics", "cccc", [(3, 0)]),
        ("i", "", [(1, 0)]),
        ("cci", "ccii", [(1, 2)]),
    ],
)
def test_two_right_words_separate_segments(first, second, segments):
    found = segment_errors([place_errors(kinds(first))], [place_errors(kinds(second))])
    assert list(zip(*found.tolist(), strict=True)) == segments


def test_lists_are_separate_segments_and_need_no_places():
    first = [np.array([2]), place_errors(kinds("cs")), np.array([0])]
    second = [np.array([1]), place_errors(kinds("cc")), np.array([0])]
    assert segment_errors(first, second).tolist() == [[2, 1], [1, 0]]


def test_no_lists():
    assert matched_pairs([], []).p_value == 1


def test_rejects_different_references():
    with pytest.raises(ValueError, match="different"):
        matched_pairs([place_errors(kinds("cc"))], [place_errors(kinds("ccc"))])
