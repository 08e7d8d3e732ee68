"""A component that the project does not have: all it needs is a class, and its place among the others."""

from __future__ import annotations

import numpy as np
import pytest

from rescorer import ConfigError, Hypothesis, InvalidList, NBestList, RescoreOptions, Weights
from rescorer.extensions import COMPONENTS
from rescorer.models.bundle import read_bundle
from rescorer.pipeline import Rescorer
from rescorer.scoring.components import (
    Columns,
    Component,
    Growth,
    Outline,
    ScoredList,
    weighted_columns,
)
from rescorer.scoring.ranker import ListRanker


class LongestWord(Component):
    """The number of letters of the longest word of each hypothesis."""

    name = "toy_longest_word"
    columns = ("toy_longest_word",)

    def add_columns(self, columns: Columns, scored: ScoredList) -> None:
        columns["toy_longest_word"] = np.array(
            [float(max(map(len, words), default=0)) for words in scored.prepared.words]
        )


NBEST = NBestList(
    "u1", (Hypothesis("the cat sat"), Hypothesis("the catamaran sat")), {"acoustic": (-1.0, -1.0)}
)
WITHOUT_MODELS = Weights("w", {"acoustic": 1.0}, {"mixture": 0.0})


@pytest.fixture
def rescorer(ngram_bundle):
    rescorer = Rescorer.load(ngram_bundle)
    rescorer.ranker = ListRanker(rescorer.bundle, (*COMPONENTS, LongestWord))
    return rescorer


def test_a_component_adds_a_column_that_weights_name(rescorer):
    weights = Weights("w", {"acoustic": 1.0}, {"mixture": 0.0}, components={"toy_longest_word": 0.5})
    (answer,) = rescorer.rescore(NBEST, weights)
    assert answer.best.text == "the catamaran sat"
    assert [h.components["toy_longest_word"] for h in answer.hypotheses] == [9.0, 3.0]
    assert [h.total for h in answer.hypotheses] == pytest.approx([3.5, 0.5])


def test_a_component_without_weight_is_not_computed(rescorer):
    (answer,) = rescorer.rescore(NBEST, WITHOUT_MODELS)
    assert "toy_longest_word" not in answer.best.components
    names = [component.name for component in rescorer.ranker.bind(WITHOUT_MODELS).components]
    assert "toy_longest_word" not in names


def test_weights_of_unknown_components_are_refused(rescorer):
    weights = Weights("w", components={"toy_longest_wrod": 1.0})
    with pytest.raises(ConfigError, match="did you mean 'toy_longest_word'"):
        rescorer.rescore(NBEST, weights)


def test_streams_may_not_have_the_name_of_a_column(rescorer):
    for name in ("toy_longest_word", "words", "mixture", "generated", "cache", "ngram"):
        nbest = NBestList("u1", NBEST.hypotheses, {"acoustic": (0.0, 0.0), name: (0.0, 0.0)})
        with pytest.raises(InvalidList, match=f"'{name}' is reserved"):
            rescorer.rescore(nbest, WITHOUT_MODELS)


def test_only_components_that_do_not_decide_by_themselves_are_weighted_by_name():
    added = set(weighted_columns((*COMPONENTS, LongestWord))) - set(weighted_columns(COMPONENTS))
    assert added == {"toy_longest_word"}
    assert not {"words", "mixture", "phrases", "cache", "generated"} & set(weighted_columns(COMPONENTS))


def test_names_of_columns_are_unique(ngram_bundle):
    ranker = ListRanker(read_bundle(ngram_bundle), (*COMPONENTS, LongestWord))
    names = [name for component in ranker.components for name in component.columns]
    assert len(names) == len(set(names))
    assert len({component.name for component in ranker.components}) == len(ranker.components)


OPTIONS = [
    RescoreOptions(),
    RescoreOptions(Weights("w", {"acoustic": 1.0}, cache=0.1)),
    RescoreOptions(phrases=("the cat",)),
    RescoreOptions(Weights("w", {"acoustic": 1.0}, components={"toy_longest_word": 1.0})),
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("previous", [(), ("the dog",)])
def test_bounds_name_every_column_of_an_answer(rescorer, options, previous):
    from dataclasses import replace

    from rescorer import Utterance

    nbest = replace(NBEST, previous=tuple(map(Utterance, previous)))
    bound = rescorer.ranker.bind(options)
    (ranking,) = rescorer.rank_each([nbest], bound)
    outline = Outline(nbest, bound.weights, options)
    named = {name for component in rescorer.ranker.components for name in component.column_names(outline)}
    assert ranking.components.keys() <= named


def test_a_component_may_add_hypotheses_and_says_how_many(rescorer):
    assert not any(
        component.growth(Outline(NBEST, Weights(), RescoreOptions()))
        for component in rescorer.ranker.components
    )
    assert Growth(3, 100, "text").n_hypotheses == 3


class Rate(Component):
    """The log-probability of the mixture per word."""

    name = "rate"
    columns = ("rate",)
    needs_scores = True

    def add_columns(self, columns: Columns, scored: ScoredList) -> None:
        columns["rate"] = columns["mixture"] / (columns["words"] + 1)


def test_lists_that_were_not_scored_do_without_components_that_need_scores(rescorer):
    ranker = ListRanker(rescorer.bundle, (*COMPONENTS, LongestWord, Rate))
    weights = Weights("w", {"acoustic": 1.0}, components={"toy_longest_word": 1.0, "rate": 2.0})
    options = ranker.bind(weights)
    ranked = ranker.rank(ranker.prepare(NBEST, options), (), ranker.first_pass(options))
    assert list(ranked.components) == ["acoustic", "words", "toy_longest_word"]
    assert ranked.totals == pytest.approx([2.0, 8.0])
