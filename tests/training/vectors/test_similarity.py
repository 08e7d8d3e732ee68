"""Rank correlations with similarities that people gave."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rescorer.errors import ConfigError, FormatError
from rescorer_training.vectors.judgement import (
    SimilaritySet,
    accuracy_interval,
    draw_spearman,
    measure_similarity,
    read_similarities,
    spearman,
)
from tests.support.random_vectors import random_vectors

VALUES = st.lists(st.integers(0, 5), min_size=4, max_size=12)


def make_set(name: str, size: int = 10, start: int = 0) -> SimilaritySet:
    pairs = tuple((f"W{start + number}", f"w{start + number + 1}") for number in range(size))
    return SimilaritySet(name, pairs, np.random.default_rng(start).random(size))


@given(first=VALUES, data=st.data())
def test_correlation_is_that_of_scipy(first, data):
    second = data.draw(st.lists(st.integers(0, 5), min_size=len(first), max_size=len(first)))
    found = spearman(np.array(first), np.array(second))
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert np.isnan(found)
    else:
        assert found == pytest.approx(stats.spearmanr(first, second).statistic, abs=1e-9)


def test_draws_spread_as_the_correlation_does():
    first = np.arange(200)
    second = first + np.random.default_rng(0).normal(0, 60, 200)
    drawn = draw_spearman(first, second, seed=1)
    assert drawn.shape == (1000,)
    assert drawn.mean() == pytest.approx(spearman(first, second), abs=0.02)
    fisher = (1 - spearman(first, second) ** 2) / np.sqrt(197)  # standard error of a correlation
    assert drawn.std() == pytest.approx(fisher, rel=0.35)
    np.testing.assert_array_equal(drawn, draw_spearman(first, second, seed=1))


@pytest.mark.parametrize(("n_right", "n_questions"), [(3, 10), (53, 100), (0, 5), (7, 7)])
def test_interval_of_an_accuracy_is_that_of_many_draws(n_right, n_questions):
    answers = np.arange(n_questions) < n_right
    places = np.random.default_rng(0).integers(0, n_questions, (20_000, n_questions))
    drawn = np.quantile(answers[places].mean(axis=1), [0.025, 0.975])
    assert accuracy_interval(n_right, n_questions) == pytest.approx(tuple(drawn), abs=0.011)


def test_a_set_within_another_is_not_counted_twice():
    sets = [make_set("all", 12), make_set("half", 6), make_set("other", 9, start=30)]
    result = measure_similarity(random_vectors(60), sets)
    assert [row.part_of for row in result.sets] == ["", "all", ""]
    assert result.mean == pytest.approx((result.sets[0].spearman + result.sets[2].spearman) / 2)
    assert result.interval[0] < result.mean < result.interval[1]
    assert measure_similarity(random_vectors(60), sets[1:2]).mean == result.sets[1].spearman


def test_counts_pairs_without_vectors():
    sets = [make_set("some", 10, start=2), make_set("few", 10, start=6)]
    some, few = measure_similarity(random_vectors(10), sets).sets
    assert (some.n_covered, few.n_covered, few.spearman, few.interval) == (7, 3, None, None)
    with pytest.raises(ConfigError, match="no set has 6 pairs with vectors"):
        measure_similarity(random_vectors(10), sets[1:])


def test_agrees_with_gensim(tmp_path):
    models = pytest.importorskip("gensim.models", reason="gensim is not installed")
    vectors = random_vectors(40, 4)
    keyed = models.KeyedVectors(4)
    keyed.add_vectors(list(vectors.words), vectors.matrix)
    asked = make_set("s", 50)
    lines = (f"{a}\t{b}\t{score:.2f}\n" for (a, b), score in zip(asked.pairs, asked.scores, strict=True))
    (tmp_path / "EN-s.txt").write_text("".join(lines))
    _, expected, missing = keyed.evaluate_word_pairs(str(tmp_path / "EN-s.txt"))
    (found,) = measure_similarity(vectors, [read_similarities(tmp_path / "EN-s.txt")]).sets
    assert found.name == "s"
    assert found.spearman == pytest.approx(expected.statistic, abs=1e-9)
    assert 100 * (1 - found.n_covered / found.n_pairs) == pytest.approx(missing)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a b 1\na b\n", "s.txt:2: expected two words and a number, got 'a b'"),
        ("a b x\n", "s.txt:1: expected two words and a number"),
        ("a b nan\n", "s.txt:1: expected two words and a number"),
        ("# only a comment\n", "s.txt: no pairs"),
    ],
)
def test_refuses_what_is_not_a_pair(tmp_path, content, message):
    (tmp_path / "s.txt").write_text(content)
    with pytest.raises(FormatError, match=message):
        read_similarities(tmp_path / "s.txt")
