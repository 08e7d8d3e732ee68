"""Generated hypotheses in comparisons: they compete under models, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.evaluation.error_analysis import explain_list, find_first_pass_rank, find_oracle_by_depth
from rescorer.evaluation.false_alarms import find_false_alarms
from rescorer.evaluation.report.data import describe_curves, make_problem
from rescorer.evaluation.scored_lists import MeasuredList, rerank, score_lists
from rescorer.evaluation.systems import (
    ORACLE,
    ORACLE_GENERATED,
    Tuning,
    compare_systems,
    drop_models,
    score_mixtures,
    weights_by_system,
)
from rescorer.extensions import Generation
from rescorer.pipeline import Rescorer
from rescorer.types import Hypothesis, NBestList, Phrase, Weights
from tests.support.small_dictionary import write_dictionary
from tests.support.tiny_models import write_bundle

WEIGHTS = Weights("start", {"acoustic": 1.0}, {"mixture": 0.5}, mixture={"ngram": 0.5, "neural": 0.5})
HEARD = ("the cat sat", "the rust sat", "a cat on the canoe", "please call the york", "the hail", "new yolk")
NAMES = ("mat", "rusk", "york", "knew york", "thornton", "cats")


@pytest.fixture(scope="module")
def rescorer(tmp_path_factory):
    weights = replace(WEIGHTS, name="default")
    rescorer = Rescorer.load(write_bundle(tmp_path_factory.mktemp("bundle"), weights))
    rescorer.ranker.component(Generation).dictionary = write_dictionary(tmp_path_factory.mktemp("dictionary"))
    return rescorer


def make_lists(seed: int, n_names: int = 2) -> list[NBestList]:
    draw = np.random.default_rng(seed)
    lists = []
    for number in range(8):
        heard, other = draw.choice(HEARD, 2, replace=False).tolist()
        said = " ".join(draw.choice(NAMES) if draw.random() < 0.3 else word for word in heard.split())
        names = draw.choice(NAMES, n_names, replace=False).tolist()
        lists.append(
            NBestList(
                f"u{number}",
                (Hypothesis(heard), Hypothesis(other)),
                {"acoustic": tuple(-draw.exponential(2.0, 2))},
                reference=said,
                phrases=tuple(map(Phrase, names)),
            )
        )
    return lists


def score(rescorer: Rescorer, lists: Sequence[NBestList], **options) -> list[MeasuredList]:
    scored, errors = score_lists(rescorer, lists, WEIGHTS, **options)
    assert not errors
    return scored


def test_lists_are_those_of_rescoring(rescorer):
    lists = make_lists(1)
    for item, nbest in zip(score(rescorer, lists, generate=True), lists, strict=True):
        (answer,) = rescorer.rescore([nbest], WEIGHTS, generate=True)
        assert len(answer.hypotheses) == len(item.words)
        for hypothesis in answer.hypotheses:
            position = hypothesis.original_rank
            assert item.nbest.hypotheses[position].text == hypothesis.text
            assert item.nbest.hypotheses[position].generated == hypothesis.generated
            found = {name: values[position] for name, values in item.components.items()}
            assert found == pytest.approx(dict(hypothesis.components), abs=1e-4)


@pytest.mark.parametrize("first_pass", [None, Weights("first", {"acoustic": 1.0}, word=-9.0)])
def test_without_generated_ones_a_list_is_as_before(rescorer, first_pass):
    lists = make_lists(2)
    plain = score(rescorer, lists, first_pass_weights=first_pass)
    extended = score(rescorer, lists, first_pass_weights=first_pass, generate=True)
    assert any(item.has_generated for item in extended)
    for before, after in zip(plain, extended, strict=True):
        own = after.recognised
        assert (own.nbest, own.words, own.evaluated) == (before.nbest, before.words, before.evaluated)
        assert list(own.first_pass_order) == list(before.first_pass_order)
        assert own.first_pass_totals == pytest.approx(before.first_pass_totals)
        for name, values in before.components.items():
            assert own.components[name] == pytest.approx(values, abs=1e-4)
        assert after.first_pass_index == before.first_pass_index
        assert before.recognised is before


@pytest.mark.parametrize("with_tuning", [False, True])
def test_only_models_choose_generated_hypotheses(rescorer, with_tuning):
    lists = [*make_lists(3), *(replace(item, id=f"{item.id}-") for item in make_lists(4))]
    weights = replace(WEIGHTS, generated=100.0)  # every one of them wins
    comparisons = []
    for generate in (False, True):
        scored = score(rescorer, lists, generate=generate)
        systems = weights_by_system(rescorer, weights, with_tuning)
        comparisons.append(compare_systems(scored, systems, with_tuning, drop_models(weights), rescorer))
    before, after = ({row.name: row for row in comparison.rows} for comparison in comparisons)
    n_generated = sum(item.has_generated for item in comparisons[1].scored)
    assert 0 < n_generated < len(lists)
    for name, row in after.items():
        if row.kind in ("model", "decision"):
            assert row.n_generated == n_generated or with_tuning
        elif name != ORACLE_GENERATED:
            assert row.n_generated == 0
            assert row.report == before[name].report
            assert row.winners.tolist() == before[name].winners.tolist()
    errors = [after[name].report.total.system.errors for name in (ORACLE_GENERATED, ORACLE)]
    assert errors[0] < errors[1]
    assert ORACLE_GENERATED not in before
    assert any(f"for {n_generated} of 16 lists" in note for note in comparisons[1].notes)
    depths = [find_oracle_by_depth(comparison.scored) for comparison in comparisons]
    assert depths[0] == depths[1]


def test_the_rank_of_a_generated_hypothesis_is_that_of_its_source(rescorer):
    nbest = NBestList(
        "u",
        (Hypothesis("the hail"), Hypothesis("the cat sat")),
        {"acoustic": (-1.0, -2.0)},
        reference="the mat sat",
        phrases=(Phrase("mat"),),
    )
    (item,) = score(rescorer, [nbest], generate=True)
    assert [find_first_pass_rank(item, i) for i in range(3)] == [1, 2, 2]
    found = explain_list(item, replace(WEIGHTS, generated=100.0))
    assert found.winner.generated in [hypothesis.generated for hypothesis in item.nbest.hypotheses[2:]]
    assert found.has_changed
    first, winner = found.first_pass.to_dict(), found.winner.to_dict()
    assert "generated" not in first
    assert winner["first_pass_rank"] is None
    assert winner["generated"]["phrase"] == "mat"
    assert winner["weighted"]["generated"] == 100.0 * len(found.winner.generated.parts)


def test_tuned_weights_state_what_generated_hypotheses_were_ranked_with(rescorer):
    lists = [*make_lists(5), *(replace(item, id=f"{item.id}-") for item in make_lists(6))]
    scored = score(rescorer, lists, generate=True)
    start = rescorer.ranker.effective_weights(WEIGHTS)
    tuning = Tuning(scored, start, ("lm", "word"), score_mixtures(rescorer, scored, start, ("lm", "word")))
    weights = tuning.tuned[0][1]
    assert (weights.generated, weights.sound_match) == (-3.5 * 0.5, 2.0 * 0.5)
    for item, own in tuning.hold_out():
        (answer,) = rescorer.rescore([item.recognised.nbest], own, generate=True)
        assert rerank(item, own).system == item.evaluated.hypotheses[answer.best.original_rank]


def test_curves_of_a_report_count_phrases_and_generated_hypotheses(rescorer):
    scored = score(rescorer, make_lists(7), generate=True)
    weights = replace(WEIGHTS, lm={"mixture": 2.0})
    errors = sum(rerank(item, weights).system.errors for item in scored)
    for curve in describe_curves(make_problem(scored, weights), []):
        assert curve.errors[sum(corner < curve.chosen for corner in curve.corners)] == errors


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 500), st.sampled_from([0.5, 5.0]), st.sampled_from([-2.0, 3.0]))
def test_false_alarms_are_those_of_phrases_that_were_not_said(rescorer, seed, weight, generated):
    weights = replace(WEIGHTS, phrases=weight, generated=generated)
    scored = score(rescorer, make_lists(seed), generate=True)
    n_worse = 0
    for item in scored:
        own = item.recognised.nbest
        unsaid = [p for p in own.phrases if f" {p.text} " not in f" {item.reference} "]
        (plain,) = rescorer.rescore([replace(own, phrases=())], weights)
        (biased,) = rescorer.rescore([replace(own, phrases=tuple(unsaid))], weights, generate=True)
        counts = zip(item.words, item.evaluated.hypotheses, strict=True)
        errors = {" ".join(words): count.errors for words, count in counts}
        n_worse += errors[biased.best.text] > errors[plain.best.text]
    assert find_false_alarms(rescorer, scored, weights).count(scored, weights) == n_worse
