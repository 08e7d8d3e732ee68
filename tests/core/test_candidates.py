"""Generated hypotheses in totals and answers, on every way in; without them, answers do not change at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rescorer import ConfigError, Hypothesis, InvalidList, NBestList, Phrase, Rescorer, Weights
from rescorer.score_combination import parse_weights, weights_to_dict
from tests.support.small_dictionary import write_dictionary
from tests.support.tiny_models import write_bundle

TEXTS = ("the cat sat", "the cats at", "")
WEIGHTS = Weights(
    "w", {"acoustic": 1.0}, {"mixture": 0.5, "ngram": 0.5}, mixture={"ngram": 0.5, "neural": 0.5}
)
WORDS = [
    {"word": "the", "start_s": 0.0, "duration_s": 0.5},
    {"word": "cat", "start_s": 0.5, "duration_s": 0.5},
    {"word": "sat", "start_s": 1.0, "duration_s": 0.5},
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return write_bundle(tmp_path_factory.mktemp("bundle"), replace(WEIGHTS, name="default"))


@pytest.fixture(scope="module")
def dictionary(tmp_path_factory):
    return write_dictionary(tmp_path_factory.mktemp("dictionary"))


@pytest.fixture(scope="module")
def rescorer(bundle, dictionary):
    rescorer = Rescorer.load(bundle)
    rescorer.ranker.dictionary = dictionary
    return rescorer


def make_list(*phrases: str, id: str = "u") -> NBestList:
    hypotheses = tuple(Hypothesis(text, {"words": WORDS} if i == 0 else {}) for i, text in enumerate(TEXTS))
    return NBestList(id, hypotheses, {"acoustic": (-1.0, -2.0, -4.0)}, phrases=tuple(map(Phrase, phrases)))


def by_text(answer):
    return {hypothesis.text: hypothesis for hypothesis in answer.hypotheses}


def test_generated_hypotheses_have_the_scores_of_their_source_and_are_marked(rescorer):
    (answer,) = rescorer.rescore([make_list("Mat")], generate=True)
    found = by_text(answer)
    new = found["the Mat sat"]
    made = new.generated
    assert (made.source, made.heard, made.phrase, made.phones) == (0, "cat", "Mat", 3)
    assert new.original_rank >= 3
    assert new.components["acoustic"] == -1.0
    assert new.components["generated"] == 1.0
    assert new.components["sound_match"] == made.phones - 5 * made.distance
    assert new.fields["words"] == [WORDS[0], {**WORDS[1], "word": "Mat"}, WORDS[2]]
    for text in TEXTS:
        assert found[text].generated is None
        assert found[text].components["generated"] == found[text].components["sound_match"] == 0.0


def test_models_score_the_new_text(rescorer):
    (answer,) = rescorer.rescore([make_list("Mat")], generate=True)
    (expected,) = rescorer.rescore([NBestList("u", (Hypothesis("the Mat sat"),), {"acoustic": (-1.0,)})])
    new = by_text(answer)["the Mat sat"]
    for name in ("mixture", "ngram", "neural", "oov", "words"):
        assert new.components[name] == pytest.approx(expected.best.components[name], abs=1e-5)


def test_weights_say_what_a_generated_hypothesis_is_worth(rescorer):
    weights = replace(WEIGHTS, generated=-7.0, sound_match=2.0, phrases=0.0)
    (answer,) = rescorer.rescore([make_list("Mat")], weights, generate=True)
    new = by_text(answer)["the Mat sat"]
    parts = new.components
    expected = -1.0 + 0.5 * parts["mixture"] + 0.5 * parts["ngram"] - 7.0 + 2.0 * parts["sound_match"]
    assert new.total == pytest.approx(expected)
    (by_default,) = rescorer.rescore([make_list("Mat")], replace(weights, generated=None), generate=True)
    difference = by_text(by_default)["the Mat sat"].total - new.total
    assert difference == pytest.approx(-3.0 + 7.0)
    assert parse_weights(weights_to_dict(weights)) == weights
    assert not {"generated", "sound_match"} & weights_to_dict(WEIGHTS).keys()


@pytest.mark.parametrize(
    ("name", "value"), [("generated", float("nan")), ("sound_match", -1), ("generated", "x")]
)
def test_wrong_weights_are_named(name, value):
    with pytest.raises(ConfigError, match=rf"weights\.{name}"):
        parse_weights({name: value})


def test_lists_for_which_nothing_is_made_are_answered_as_before(rescorer):
    lists = [make_list(), make_list("canoe"), make_list("cat sat")]
    assert rescorer.rescore(lists, generate=True) == rescorer.rescore(lists)
    assert rescorer.rescore([make_list("Mat")]) != rescorer.rescore([make_list("Mat")], generate=True)
    for answer in rescorer.rescore([make_list("Mat")]):
        assert not {"generated", "sound_match"} & answer.best.components.keys()


def test_generated_hypotheses_merge_and_take_part_in_rules(rescorer):
    (answer,) = rescorer.rescore([make_list("Mat")], generate=True, merge=True, drop_empty=True)
    ranks = {rank for hypothesis in answer.hypotheses for rank in hypothesis.merged_ranks}
    assert ranks | set(answer.dropped_ranks) == set(
        range(len(TEXTS) + len([1 for h in answer.hypotheses if h.generated]))
    )


def test_names_of_the_components_are_reserved(rescorer):
    for name in ("generated", "sound_match"):
        nbest = replace(make_list(), streams={name: (0.0,) * 3})
        with pytest.raises(InvalidList, match="reserved"):
            rescorer.rescore([nbest], Weights("w", {}, {"mixture": 1.0}))
