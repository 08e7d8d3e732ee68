"""The weights of generated hypotheses: within the bound on false alarms, and at that bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer import ConfigError
from rescorer.evaluation.false_alarms import (
    OFF,
    SOUND_WEIGHTS,
    Outcome,
    choose,
    contains,
    judge_threshold,
    permitted_false_alarms,
    tally,
)
from rescorer.evaluation.folds import make_folds


def make(totals, generated, match, right, errors, n_words=4) -> Outcome:
    return Outcome(
        np.array(totals, dtype=float),
        np.array(generated, dtype=float),
        np.array(match, dtype=float),
        np.array(right, dtype=bool),
        np.array(errors),
        n_words,
    )


numbers = st.integers(-20, 20).map(float)


@st.composite
def outcomes(draw, *, right: bool):
    n_own, n_new = draw(st.integers(1, 3)), draw(st.integers(0, 3))
    n = n_own + n_new
    made = [0] * n_own + [draw(st.integers(1, 3)) for _ in range(n_new)]
    return make(
        draw(st.lists(numbers, min_size=n, max_size=n)),
        made,
        [draw(numbers) if new else 0.0 for new in made],
        [bool(new) and right and draw(st.booleans()) for new in made],
        draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)),
    )


several = st.lists(outcomes(right=True), min_size=1, max_size=6)
decoys = st.lists(outcomes(right=False), min_size=1, max_size=8)


@given(several, decoys, st.sampled_from([0.96, 0.99]))
def test_false_alarms_stay_within_the_bound(own, wrong, max_rate):
    choice = choose(own, wrong, max_rate, 2.0)
    permitted = permitted_false_alarms(len(wrong), max_rate)
    assert tally(wrong, choice.generated, choice.sound_match).false_alarms <= permitted
    assert choice.errors == tally(own, choice.generated, choice.sound_match).errors
    assert choice.sound_match in [2.0 * factor for factor in SOUND_WEIGHTS]


@given(several, decoys)
def test_the_bound_is_reached(own, wrong):
    """With a weight a little larger, there would be one false alarm too many, if so many can win."""
    choice = choose(own, wrong, 0.96, 1.0)
    permitted = permitted_false_alarms(len(wrong), 0.96)
    if sum(np.isfinite(outcome.margin(choice.sound_match)) for outcome in wrong) > permitted:
        assert tally(wrong, choice.generated + 0.01, choice.sound_match).false_alarms > permitted


def test_without_generated_hypotheses_the_recogniser_wins():
    outcome = make([0, -1, 9], [0, 0, 1], [0, 0, 9], [0, 0, 1], [2, 1, 0])
    assert tally([outcome], OFF, 0.0).errors == 2
    assert tally([outcome], 0.0, 0.0) == tally([outcome], -5.0, 1.0)
    assert tally([outcome], 0.0, 0.0).right == 1


def test_lists_are_judged_by_weights_that_they_did_not_choose():
    good = [make([0, -2], [0, 1], [0, 4], [0, 1], [1, 0]) for _ in range(6)]
    wrong = [make([0, -9], [0, 1], [0, 1], [0, 0], [1, 2]) for _ in range(6)]
    folds = make_folds([str(i) for i in range(6)], list("aabbcc"), list("uvwxyz"))
    found = judge_threshold(good, [[one, one] for one in wrong], folds, 0.4, 1.0)
    assert (found.before.errors, found.after.errors, found.after.right) == (6, 0, 6)
    assert (found.decoys.false_alarms, found.decoys.lists, found.after.words) == (0, 12, 24)
    assert found.errors.tolist() == [[1] * 6, [0] * 6]


def test_false_alarms_need_lists_to_count_them_on():
    with pytest.raises(ConfigError, match="0 lists with phrases that were not said cannot show"):
        choose([make([0], [0], [0], [0], [0])], [], 0.1, 1.0)
    assert [permitted_false_alarms(n, 0.01) for n in (299, 572, 1000)] == [0, 1, 4]
    with pytest.raises(ConfigError, match="298 lists"):
        permitted_false_alarms(298, 0.01)


def test_parts_of_texts_are_found_word_by_word():
    assert contains(("new", "york", "city"), ("york", "city"))
    assert not contains(("new", "york"), ("york", "new"))
    assert not contains((), ("a",))
