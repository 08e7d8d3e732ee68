"""Names of weights, their places in a problem, choices of λ, and the temperature of minimum Bayes risk."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.decision import expected_errors, fewest_errors_first
from rescorer.errors import ConfigError
from rescorer.evaluation.folds import (
    CACHE_SHARES,
    DEFAULT_FREE,
    MixtureChoice,
    Parameters,
    TuningList,
    build_problem,
    scale_shares,
)
from rescorer.evaluation.tuning import TEMPERATURES, BayesRiskErrors, describe_weights
from rescorer.evaluation.weight_search import MAX_UNITS, Solution
from rescorer.ranking import posteriors
from rescorer.types import Weights
from rescorer.weights import totals

START = Weights(
    "start", {"acoustic": 0.5, "graph": 0.0}, {"mixture": 2.0}, 0.3, mixture={"ngram": 0.25, "neural": 0.75}
)
NAMES = ["acoustic", "graph", "mixture", "neural", "ngram", "words", "oov"]


def make_list(seed: int, n: int = 4) -> TuningList:
    random = np.random.default_rng(seed)
    components = dict(zip(NAMES, random.normal(size=(len(NAMES), n)), strict=True))
    components["words"] = np.array([0.0, 1.0, 2.0, 3.0][:n])
    return TuningList(components, random.integers(0, 5, size=n))


@given(
    st.sets(
        st.sampled_from(["acoustic", "graph", "lm:neural", "lm:mixture", "word", "oov", "empty", "phrases"]),
        min_size=1,
    ),
    st.booleans(),
    st.booleans(),
)
def test_totals_of_a_problem_are_those_of_its_weights(free, has_phrases, has_generated):
    occasional = [*["phrases"] * has_phrases, *["generated", "sound_match"] * has_generated]
    parameters = Parameters.choose(START, sorted(free), occasional=occasional)
    lists = [make_list(0), make_list(1, 2)]
    for number, name in enumerate(occasional):
        values = np.array([0.0, 2.0, 0.0, 1.0]) + number
        lists[0] = replace(lists[0], components={**lists[0].components, name: values})
    problem = build_problem(lists, parameters)
    changed = problem.start + np.where(problem.bounds[:, 0] < problem.bounds[:, 1], 0.7, 0.0)
    weights = parameters.apply(Solution(changed))
    expected = np.concatenate([totals(item.components, weights) for item in lists])
    assert problem.totals(changed) == pytest.approx(expected)
    assert parameters.scale == "acoustic"
    assert weights.streams["acoustic"] == 0.5
    assert (weights.word != START.word) == ("word" in free)
    assert (weights.empty != 0.0) == ("empty" in free)
    assert (weights.phrases not in (None, 2.0)) == (has_phrases and "phrases" in free)
    kept = parameters.apply(Solution(problem.start))
    phrases = 2.0 if has_phrases else None
    made = {"generated": -7.0, "sound_match": 4.0} if has_generated else {}
    assert kept == replace(START, lm=kept.lm, phrases=phrases, **made)
    assert (weights.generated, weights.sound_match) == (kept.generated, kept.sound_match)


def test_chooses_by_name_and_by_kind():
    assert Parameters.choose(START, DEFAULT_FREE).free == {"lm:mixture", "word", "oov", "empty", "mix"}
    everything = Parameters.choose(START, ["all"], ["acoustic", "other"], ["phrases", "generated"]).free
    assert everything == {"graph", "other", "lm:mixture", "word", "oov", "empty", "mix", "phrases"}
    assert Parameters.choose(replace(START, streams={}), ["lm", "word"]).free == {"word"}  # one is the scale
    with pytest.raises(ConfigError, match=r"no weight 'wrod' to tune.*did you mean 'word'"):
        Parameters.choose(START, ["wrod"])


def test_mixtures_begin_with_the_start_and_sum_to_one():
    choices = Parameters.choose(START).choose_mixtures()
    assert choices[0] == MixtureChoice((0.25, 0.75))
    assert {(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)} < {choice.shares for choice in choices}
    three = replace(START, mixture={"a": 1.0, "b": 0.0, "c": 0.0}, cache=0.4)
    caches = Parameters.choose(three, occasional=["cache"]).choose_mixtures()
    for choice in [*choices, *Parameters.choose(three, ["mix"]).choose_mixtures(), *caches]:
        assert sum(choice.shares) == pytest.approx(sum(choice.distribution)) == pytest.approx(1.0)
        assert min(choice.distribution) >= 0
    assert not Parameters.choose(replace(START, lm={"neural": 1.0})).tunes_mixture


def test_each_cache_is_tried_with_all_mixtures():
    start = replace(START, cache=0.4)
    parameters = Parameters.choose(start, occasional=["cache"])
    choices = parameters.choose_mixtures()
    shares = Parameters.choose(start).choose_mixtures()
    assert choices[0] == shares[0] == MixtureChoice((0.25, 0.75), 0.4)
    assert len(choices) == len(set(choices)) == len(shares) * (1 + len(CACHE_SHARES))
    assert {choice.cache for choice in shares} == {0.4}
    index = choices.index(MixtureChoice((0.5, 0.5), 0.1))
    tuned = parameters.apply(Solution(parameters.values(start), mixture=index), choices)
    assert (tuned.cache, tuned.mixture) == (0.1, {"ngram": 0.5, "neural": 0.5})
    (alone,) = {
        choice.shares for choice in Parameters.choose(start, ["cache"], (), ["cache"]).choose_mixtures()
    }
    assert alone == (0.25, 0.75)
    for fixed in (replace(start, lm={"neural": 1.0}), replace(start, rerankers={"r": 1.0})):
        assert not Parameters.choose(fixed, occasional=["cache"]).tunes_cache
    assert not Parameters.choose(start, ["mix"], (), ["cache"]).tunes_cache


def test_a_language_model_keeps_its_sign_unless_it_is_chosen_without_a_weight():
    shares = {"ngram": 0.25, "neural": 0.75, "lodr": 0.0}
    start = replace(START, lm={"mixture": 2.0, "lodr": -0.3}, mixture=shares)

    def bounds_of(start: Weights, free: list[str], name: str = "lm:lodr") -> tuple[float, float]:
        parameters = Parameters.choose(start, free)
        return parameters.bounds()[parameters.names.index(name)]

    assert bounds_of(start, ["lm"]) == bounds_of(start, ["lm:lodr"]) == (-np.inf, 0.0)
    assert bounds_of(start, ["lm"], "lm:mixture") == (0.0, np.inf)
    for without in (replace(start, lm={"mixture": 2.0}), replace(start, lm={"mixture": 2.0, "lodr": 0.0})):
        assert bounds_of(without, ["lm", "lm:lodr"]) == (-np.inf, np.inf)
    zero = replace(start, lm={"mixture": 0.0, "lodr": 0.0})
    assert bounds_of(zero, ["lm"]) == bounds_of(zero, ["lm:mixture"], "lm:mixture") == (0.0, np.inf)


@pytest.mark.parametrize(
    ("weights", "free"), [({"mixture": 2.0, "lodr": -0.3}, []), ({"mixture": 2.0}, ["lm:lodr"])]
)
def test_a_model_of_its_own_stays_out_of_the_mixture(weights, free):
    start = replace(START, lm=weights, mixture={"ngram": 0.25, "lodr": 0.0, "neural": 0.75})
    parameters = Parameters.choose(start, [*DEFAULT_FREE, *free])
    assert parameters.models == ("ngram", "neural")
    choices = parameters.choose_mixtures()
    index = choices.index(MixtureChoice((0.9, 0.1)))
    tuned = parameters.apply(Solution(parameters.values(start), mixture=index), choices)
    assert tuned.mixture == {"ngram": 0.9, "lodr": 0.0, "neural": 0.1}
    assert Parameters.choose(replace(start, lm={"mixture": 2.0})).models == ("ngram", "lodr", "neural")


def test_names_what_a_list_lacks():
    item = make_list(0)
    short = replace(item, components={k: v for k, v in item.components.items() if k not in ("graph", "oov")})
    with pytest.raises(ConfigError, match="a list has no 'graph'"):
        build_problem([short], Parameters.choose(START, ["graph"]))
    assert build_problem([short], Parameters.choose(START)).totals(np.zeros(6)).tolist() == [0.0] * 4


@given(st.integers(0, 99))
def test_bayes_risk_is_counted_as_it_decides(seed):
    random = np.random.default_rng(seed)
    words = [tuple(random.choice(list("abc"), size=random.integers(0, 4))) for _ in range(6)]
    scores, errors = random.normal(size=6) * 3, random.integers(0, 9, size=6)
    counts = BayesRiskErrors([words], [errors]).count(0, scores)
    for count, temperature in zip(counts, TEMPERATURES, strict=True):
        risks = expected_errors(words, posteriors(scores, temperature))
        assert count == errors[fewest_errors_first(risks, scores)[0]]


def test_a_weight_at_its_search_bound_is_marked():
    """Weights at 0 and at the end of the search are worth a second look; those between are not."""
    parameters = Parameters.choose(START, ["graph", "lm:mixture", "word", "oov"])
    values = dict(zip(parameters.names, parameters.values(START), strict=True))
    tuned = replace(START, streams={"acoustic": 0.5, "graph": 7.0}, lm={"mixture": 0.0}, word=1.3)
    bounds = np.array(
        [{"graph": (-7.0, 7.0), "acoustic": (0.5, 0.5)}.get(name, (-10.0, 10.0)) for name in values]
    )
    notes = {row.name: row.note for row in describe_weights(parameters, tuned, [tuned], bounds)}
    assert notes == {
        "acoustic": "fixed: the scale",
        "graph": "on an edge: at its search bound",
        "lm:mixture": "on an edge: at 0",
        "word": "",
        "oov": "at 0",
    }


def test_no_weight_is_tried_far_from_the_start():
    """A weight along which errors fall for ever ends at the bound of the search."""
    lists = [make_list(seed) for seed in range(4)]
    problem = build_problem(lists, Parameters.choose(START, ["word"]))
    k = problem.names.index("word")
    assert problem.bounds[k].tolist() == pytest.approx(
        [START.word - MAX_UNITS * problem.units[k], START.word + MAX_UNITS * problem.units[k]]
    )


def test_columns_of_further_components_count_whether_they_are_free_or_not():
    start = Weights("w", {"acoustic": 1.0}, {"mixture": 2.0}, word=0.5, components={"syllables": -3.0})
    lists = [make_list(seed) for seed in range(3)]
    lists = [
        replace(item, components={**item.components, "syllables": np.arange(len(item.errors), dtype=float)})
        for item in lists
    ]
    expected = np.concatenate([totals(item.components, start) for item in lists])
    for free in (DEFAULT_FREE, ("syllables",), ("all",)):
        parameters = Parameters.choose(start, free, ["acoustic"])
        problem = build_problem(lists, parameters)
        np.testing.assert_allclose(problem.totals(problem.start), expected)
        moved = np.where(np.array(parameters.names) == "syllables", 7.0, problem.start)
        tuned = parameters.apply(Solution(moved))
        assert tuned.components == {"syllables": -3.0 if free == DEFAULT_FREE else 7.0}
        assert "syllables" not in tuned.streams


@given(st.lists(st.floats(0, 1), min_size=2, max_size=4).filter(sum), st.integers(0, 3), st.floats(0, 1))
def test_scaled_shares_sum_to_1_however_small_a_share_is(shares, index, share):
    scaled = scale_shares([one / sum(shares) for one in shares], index % len(shares), share)
    assert all(0 <= one <= 1 for one in scaled)
    assert sum(scaled) == pytest.approx(1, abs=1e-9)
