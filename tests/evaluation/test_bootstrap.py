"""Bootstrap intervals equal those of a slow twin that copies the lists of every draw."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rescorer.evaluation import statistics as statistics_module
from rescorer.evaluation.statistics import Interval, bootstrap, draw_counts, sum_by_group

DRAWS = 60


def draw_lists(n_lists: int, draws: int, seed: int = 0) -> list[list[int]]:
    """The lists of each draw, repeated as often as they were drawn."""
    counts = np.concatenate(list(draw_counts(n_lists, draws, seed)))
    return [[index for index, count in enumerate(row) for _ in range(int(count))] for row in counts]


def slow_rate(errors: list[int], words: list[int]) -> tuple[float, float]:
    """Error rate of a draw and its standard error."""
    rate = sum(errors) / sum(words)
    residuals = [error - rate * count for error, count in zip(errors, words, strict=True)]
    n = len(errors)
    return rate, math.sqrt(sum(residual**2 for residual in residuals) * n / (n - 1)) / sum(words)


def slow_interval(errors: list[int], words: list[int], level: float) -> tuple[float, float]:
    rate, error = slow_rate(errors, words)
    if len(errors) < 6 or error < 1e-9:
        return 0.0, math.inf
    ratios = []
    for lists in draw_lists(len(errors), DRAWS):
        drawn, drawn_error = slow_rate([errors[i] for i in lists], [words[i] for i in lists])
        is_flat = drawn_error < 1e-9
        ratios.append(
            (drawn - rate) / drawn_error if not is_flat else math.copysign(math.inf, drawn - rate)
            if abs(drawn - rate) > 1e-12 else 0.0
        )  # fmt: skip
    ratios.sort()
    tail = (1 - level) / 2
    rank = max(int(tail * (DRAWS + 1)), 1)
    student = stats.t.isf(tail, len(errors) - 1)
    low, high = (max(min(ratio, 1e9), -1e9) for ratio in (ratios[rank - 1], ratios[-rank]))
    low, high = (math.copysign(student, r) if abs(r) == 1e9 else r for r in (low, high))
    return max(rate - error * high, 0.0), rate - error * low


def slow_gain(
    baseline: list[int], system: list[int], words: list[int], level: float
) -> tuple[float, float, float]:
    def difference(lists):
        return sum(baseline[i] - system[i] for i in lists) / sum(words[i] for i in lists)

    n = len(words)
    changed = sum(a != b for a, b in zip(baseline, system, strict=True))
    drawn = [difference(lists) for lists in draw_lists(n, DRAWS)]
    error = statistics.stdev(drawn) * math.sqrt(n / (n - 1))
    gain = difference(range(n))
    if changed < 6 or error < 1e-9:
        return -math.inf, math.inf, 1.0
    reach = stats.t.isf((1 - level) / 2, changed - 1) * error
    return gain - reach, gain + reach, 2 * stats.t.sf(abs(gain) / error, changed - 1)


lists_strategy = st.lists(
    st.tuples(st.integers(1, 30), st.integers(0, 9), st.integers(0, 9)), min_size=5, max_size=25
)


@settings(deadline=None)
@given(lists=lists_strategy, level=st.sampled_from([0.8, 0.9, 0.95]))
def test_equals_the_slow_twin(lists, level):
    words, first, second = map(list, zip(*lists, strict=True))
    result = bootstrap([first, second], words, draws=DRAWS)
    for system, errors in enumerate((first, second)):
        interval = result.interval(system, level)
        assert (interval.low, interval.high) == pytest.approx(slow_interval(errors, words, level), abs=1e-9)
    if first != second:
        gain = result.gain(0, 1, level)
        low, high, p_value = slow_gain(first, second, words, level)
        assert (gain.interval.low, gain.interval.high) == pytest.approx((low, high), abs=1e-9)
        assert gain.p_value == pytest.approx(p_value, abs=1e-9)


@pytest.mark.parametrize("n_changed", [1, 5, 6])
def test_no_interval_if_a_sign_test_could_not_find_the_gain(n_changed):
    first = [1] * n_changed + [0] * (40 - n_changed)
    gain = bootstrap([first, [0] * 40], [10] * 40).gain(0, 1)
    assert (gain.interval.is_finite, gain.p_value < 1) == (n_changed == 6, n_changed == 6)


def test_no_interval_of_two_groups_or_of_equal_rates():
    two = bootstrap([[1, 2, 3, 4], [0, 0, 0, 0]], [10] * 4, groups=["a", "a", "b", "b"])
    assert not two.interval(0).is_finite
    assert not two.gain(0, 1).interval.is_finite
    assert two.warning == "2 groups are too few for intervals and tests, which need at least 6"
    equal = bootstrap([[0] * 20, [2] * 20], [10] * 20)
    assert not equal.interval(0).is_finite
    assert not equal.gain(0, 1).interval.is_finite
    assert not equal.gain(1, 0).interval.is_finite


def test_no_gain_without_reference_words():
    gain = bootstrap([[0, 0], [1, 0]], [0, 0]).gain(0, 1)
    assert math.isnan(gain.gain)
    assert not gain.interval.is_finite


def example(n_lists: int = 100, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    words = generator.integers(3, 30, n_lists)
    first = generator.poisson(0.2 * words)
    second = np.maximum(first - generator.binomial(1, 0.2, n_lists), 0)
    return np.stack([first, second]), words


def test_draws_as_many_units_as_there_are_whatever_the_chunks(monkeypatch):
    counts = np.concatenate(list(draw_counts(17, 50, seed=3)))
    assert counts.shape == (50, 17)
    assert (counts.sum(axis=1) == 17).all()
    monkeypatch.setattr(statistics_module, "MAX_COUNTS_PER_CHUNK", 40)
    chunks = list(draw_counts(17, 50, seed=3))
    assert len(chunks) == 25
    assert (np.concatenate(chunks) == counts).all()


def test_draws_every_unit_equally_often():
    mean = np.concatenate(list(draw_counts(5, 20_000, seed=0))).mean(axis=0)
    assert mean == pytest.approx(np.ones(5), abs=0.03)


def test_lists_of_a_group_are_drawn_together():
    errors, words = example()
    groups = [f"speaker {number % 40}" for number in range(100)]
    by_group = bootstrap(errors, words, groups, draws=200)
    summed = bootstrap(sum_by_group(errors, groups), sum_by_group(words[None], groups)[0], draws=200)
    assert (by_group.n_units, by_group.unit) == (40, "group")
    assert by_group.interval(0) == summed.interval(0)
    assert by_group.gain(0, 1) == summed.gain(0, 1)


def test_words_may_differ_between_systems():
    errors, words = example()
    same = bootstrap(errors, words, draws=200)
    assert bootstrap(errors, np.stack([words, words]), draws=200).gain(0, 1) == same.gain(0, 1)
    longer = bootstrap(errors, np.stack([words, 2 * words]), draws=200)
    assert longer.rates[1] == pytest.approx(same.rates[1] / 2)


def test_p_value_agrees_with_the_interval():
    errors, words = example()
    result = bootstrap(errors, words, draws=500)
    p_value = result.gain(0, 1).p_value
    at_p = result.gain(0, 1, level=1 - p_value)
    assert at_p.lower_bound == pytest.approx(0, abs=1e-12)
    reverse = result.gain(1, 0)
    assert reverse.gain == -result.gain(0, 1).gain
    assert reverse.p_value == p_value


def test_share_of_better_draws_counts_ties_by_half():
    errors, words = example()
    result = bootstrap(np.stack([errors[0], errors[0], errors[1]]), words, draws=200)
    assert result.share_of_better_draws(0, 1) == 0.5
    assert result.share_of_better_draws(0, 2) > 0.99
    assert result.share_of_better_draws(2, 0) < 0.01


def test_few_changed_lists_prove_nothing():
    words = np.full(1000, 10)
    baseline = np.zeros(1000, dtype=int)
    baseline[:3] = 1
    result = bootstrap([baseline, np.zeros(1000, dtype=int), np.eye(1, 1000, dtype=int)[0]], words, draws=500)
    assert result.gain(0, 0).interval == Interval(0.0, 0.0)
    three = result.gain(0, 1)
    assert three.units_changed == 3
    assert three.p_value > 0.05
    assert three.lower_bound < 0 < three.interval.high
    one = result.gain(2, 1)
    assert (one.p_value, one.interval) == (1.0, Interval(-math.inf, math.inf))


def test_a_single_list_has_no_interval():
    result = bootstrap([[1], [2]], [10], draws=10)
    assert result.interval(0) == Interval(0.0, math.inf)
    assert result.gain(0, 1).p_value == 1.0


def test_no_errors_or_no_words():
    assert bootstrap([[0, 0]], [10, 5], draws=10).interval(0) == Interval(0.0, math.inf)
    assert bootstrap([[0, 1]], [0, 0], draws=10).interval(0) == Interval(0.0, math.inf)
    some = bootstrap([[1, 2, 0] * 3, [1, 1, 1] * 3], [0, 10, 5] * 3, draws=50)
    assert math.isfinite(some.interval(0).high)
    assert math.isfinite(some.gain(0, 1).interval.high)


def test_warns_of_few_units():
    errors, words = example()
    assert bootstrap(errors, words, draws=10).warning == ""
    groups = [number % 7 for number in range(100)]
    assert "7 groups" in bootstrap(errors, words, groups, draws=10).warning


@pytest.mark.parametrize(
    ("errors", "words", "groups", "message"),
    [
        ([1, 2], [1, 2], None, "systems, lists"),
        ([[1, 2]], [1, 2, 3], None, "words of shape"),
        ([[1, 2]], [1, 2], ["a"], "one group per list"),
        ([[]], [], None, "systems, lists"),
    ],
)
def test_rejects_wrong_shapes(errors, words, groups, message):
    with pytest.raises(ValueError, match=message):
        bootstrap(errors, words, groups, draws=10)


def test_rejects_a_single_draw():
    with pytest.raises(ValueError, match="at least 2 draws"):
        bootstrap([[1, 2]], [1, 2], draws=1)
