"""Where tuning begins if nobody says: weights that explain the order of lists, and guesses for new models."""

from __future__ import annotations

import numpy as np
import pytest

from rescorer.evaluation.folds import Parameters
from rescorer.evaluation.scored_lists import score_lists
from rescorer.evaluation.systems import GUESSED_SHARE, guess_weights
from rescorer.evaluation.tuning import explain_order
from rescorer.pipeline import Rescorer
from rescorer.terminal.list_options import find_own_score
from rescorer.types import Hypothesis, NBestList, Weights


def draw_lists(scale, per_word, n_lists=60):
    """Lists in the order of acoustic + scale · lm + per_word · words."""
    random = np.random.default_rng(1)
    lists = []
    for number in range(n_lists):
        lengths = random.integers(1, 9, size=8)
        acoustic, lm = random.normal(size=(2, 8)) * [[20.0], [2.0]]
        order = np.argsort(-(acoustic + scale * lm + per_word * lengths))
        texts = [" ".join(["a"] * lengths[i]) for i in order]
        streams = {"acoustic": tuple(acoustic[order]), "lm": tuple(lm[order])}
        lists.append(NBestList(str(number), tuple(map(Hypothesis, texts)), streams))
    return lists


@pytest.mark.parametrize(("scale", "per_word"), [(9.5, -0.5), (5.0, 4.0), (0.0, 2.0)])
def test_explains_the_order_of_lists(scale, per_word):
    endless = NBestList("x", (Hypothesis("a"),), {"acoustic": (-np.inf,), "lm": (0.0,)})
    lists = [endless, *draw_lists(scale, per_word)]
    share = find_own_score(lists, ["acoustic", "lm"]).share
    found = explain_order(lists, "acoustic", lambda text: tuple(text.split()))
    assert share < 1.0
    assert found.streams["acoustic"] == 1.0
    assert found.streams["lm"] == pytest.approx(scale, abs=1.0)
    assert found.word == pytest.approx(per_word, abs=1.0)


def draw_first_best(n_lists: int, draw) -> list[NBestList]:
    """Lists of ten hypotheses with the stream ``s``, whose values a function draws for each list."""
    hypotheses = tuple(Hypothesis(f"a {i}") for i in range(10))
    return [NBestList(str(i), hypotheses, {"s": tuple(map(float, draw()))}) for i in range(n_lists)]


@pytest.mark.parametrize(
    ("draw", "explains"),
    [
        (lambda random: np.sort(random.normal(size=10))[::-1], True),
        (lambda random: np.sort(random.normal(size=10)), False),
        (lambda random: np.zeros(10), False),
        (lambda random: random.permutation(10), False),
        (lambda random: random.integers(0, 2, size=10), False),  # nearly half of the first are among the best
    ],
    ids=["ordered", "wrong sign", "constant", "random", "random, with ties"],
)
def test_a_score_explains_the_order_of_lists_only_beyond_chance(draw, explains):
    random = np.random.default_rng(1)
    lists = draw_first_best(100, lambda: draw(random))
    assert find_own_score(lists, ["s"]).explains_order is explains
    assert not find_own_score([], ["s"]).explains_order


def test_the_own_score_is_not_the_one_that_most_lists_have():
    random = np.random.default_rng(1)
    lists = [
        NBestList(
            one.id, one.hypotheses, {**one.streams, **({"own": (*range(9, -1, -1),)} if i < 20 else {})}
        )
        for i, one in enumerate(draw_first_best(200, lambda: random.integers(0, 2, size=10)))
    ]
    assert find_own_score(lists, ["s", "own"]).stream == "own"


def test_guesses_the_weight_of_a_model_that_has_none(ngram_bundle):
    rescorer = Rescorer.load(ngram_bundle)
    texts = ["the cat", "the mat", "on the cat", ""]
    hypotheses, streams = tuple(map(Hypothesis, texts)), {"acoustic": (4.0, 2.0, 0.0, 9.0)}
    lists = [NBestList(str(i), hypotheses, streams, reference="the cat") for i in range(3)]
    scored, _ = score_lists(rescorer, lists)
    start = Weights("w", {"acoustic": 2.0}, {"ngram": 0.0})
    found = guess_weights(scored, Parameters.choose(start, ("lm", "word")))
    log_probs = scored[0].components["ngram"][:3]
    assert found.lm["ngram"] == pytest.approx(GUESSED_SHARE * 2 * np.std([4.0, 2.0, 0.0]) / log_probs.std())
    assert found.streams == start.streams
    for weights, free in (
        (start, ("word",)),  # which is not tuned
        (start, ("lm:ngram",)),  # which may become negative
        (Weights("w", {"acoustic": 2.0}, {"ngram": 0.5}), ("lm",)),
        (Weights("w", {"acoustic": 2.0}, {"ngram": 0.0}, mixture={"ngram": 1.0}), ("lm",)),
        (Weights("w", {"acoustic": 0.0}, {"ngram": 0.0}), ("lm",)),
    ):
        assert guess_weights(scored, Parameters.choose(weights, free)) == weights
