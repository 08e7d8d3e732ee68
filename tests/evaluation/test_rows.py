"""Rows of a comparison: what they choose, what they are credited with, and which are folded into notes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rescorer.errors import ConfigError
from rescorer.evaluation.list_errors import Selection
from rescorer.evaluation.scored_lists import MeasuredList, count_lists, rerank
from rescorer.evaluation.significance import (
    Significance,
    SystemVerdict,
    correct_verdicts,
    find_best_baseline,
    find_verdicts,
    judge_rows,
)
from rescorer.evaluation.statistics import Gain, Interval, correct_holm
from rescorer.evaluation.systems import (
    Tuning,
    build_baselines,
    choose_row,
    compare_file,
    compare_rules,
    compare_systems,
    drop_models,
    name_possible_rows,
)
from rescorer.text import Normaliser
from rescorer.types import Hypothesis, NBestList, Weights
from rescorer.weights import WORDS
from tests.support.scored_lists import MODELS, make_scored_lists

NORMALISE = Normaliser().normalise


def make_list(number: int, texts: dict[str, float], reference: str = "the cat sat", group: str = ""):
    hypotheses = tuple(map(Hypothesis, texts))
    streams = {"acoustic": tuple(texts.values())}
    return NBestList(f"u{number}", hypotheses, streams, reference=reference, group=group)


def score(lists, lm=None, selection: Selection | None = None) -> list[MeasuredList]:
    """Scored lists, with the language-model scores of ``lm`` by text."""
    scored, errors = count_lists(NORMALISE, lists, selection=selection or Selection())
    assert not errors
    for item, nbest in zip(scored, lists, strict=True):
        item.components[WORDS] = np.array([float(len(words)) for words in item.words])
        texts = [hypothesis.text for hypothesis in nbest.hypotheses]
        item.components["ngram"] = np.array([(lm or {}).get(text, 0.0) for text in texts])
    return scored


def errors_by_row(rows) -> dict[str, int]:
    return {row.name: row.report.total.system.errors for row in rows}


TRUNCATED = {"": -1.0, "the cat sat": -2.0, "The cat, sat": -2.1, "cat": -2.2}
WEIGHTS = Weights("test", streams={"acoustic": 1.0}, lm={"ngram": 1.0})


def test_a_gain_of_simple_rules_is_not_credited_to_the_model():
    """The model, the word weight, merging and dropping all find the right text: the model adds nothing."""
    scored = score([make_list(number, TRUNCATED) for number in range(8)], {"the cat sat": 5.0})
    weights = replace(WEIGHTS, word=1.0)
    comparison = compare_systems(scored, {"ngram": weights}, False, drop_models(weights))
    assert errors_by_row(comparison.rows) == {
        "first pass": 24, "empty left out": 0, "ngram": 0, "ngram, MBR": 0, "oracle": 0,
    }  # fmt: skip
    assert comparison.notes == [
        "the same choices as 'first pass': 'merged only'",
        "the same choices as 'empty left out': 'merged, empty left out', 'word weight only'",
    ]
    verdicts = find_verdicts(comparison, Significance(comparison, draws=200))
    assert [verdict.sentence() for verdict in verdicts] == [
        f"{name!r} makes the same errors as 'empty left out'" for name in ("ngram", "ngram, MBR")
    ]


def test_a_gain_that_only_the_model_has():
    texts = {"the mat sat": -1.0, "the cat sat": -1.5}
    scored = score([make_list(number, texts) for number in range(40)], {"the cat sat": 3.0})
    scored += score([make_list(number, texts) for number in range(40, 44)])
    comparison = compare_systems(scored, {"ngram": WEIGHTS}, False, drop_models(WEIGHTS))
    assert errors_by_row(comparison.rows) == {
        "first pass": 44, "ngram": 4, "ngram, MBR": 4, "oracle": 0,
    }  # fmt: skip
    significance = Significance(comparison, draws=200)
    first, model, *_ = judge_rows(comparison, significance)
    assert (first.gain, first.to_dict()["p_value"]) == (None, None)
    assert model.gain is not None
    assert model.gain.gain == pytest.approx(40 / (3 * 44))
    assert model.to_dict()["gain_interval"][0] > 0
    assert "gains +30.30 ±" in find_verdicts(comparison, significance)[0].sentence()


def test_each_rule_alone():
    """An empty hypothesis, and one whose probability is divided between two spellings."""
    scored = score(
        [
            make_list(1, {"": -1.0, "the cat sat": -2.0}),
            make_list(2, {"the mat": -1.0, "the cat sat": -1.1, "The cat sat": -1.1}),
        ]
    )
    rows, _ = build_baselines(scored)
    assert errors_by_row(rows) == {
        "first pass": 5, "empty left out": 2, "merged only": 3, "merged, empty left out": 0,
    }  # fmt: skip
    assert find_best_baseline(rows) is rows[-1]


def test_merging_needs_the_scores_of_the_first_pass():
    lists = [replace(make_list(1, TRUNCATED), streams={})]
    rows, notes = build_baselines(score(lists))
    assert [row.name for row in rows] == ["first pass", "empty left out"]
    assert "no row 'merged only': it needs the scores" in notes[0]


def test_lists_without_equal_hypotheses_need_no_scores_for_merging():
    lists = [replace(make_list(1, {"the cat sat": -1.0, "the mat": -2.0}), streams={})]
    rows, notes = build_baselines(score(lists))
    assert [row.name for row in rows] == ["first pass"]
    assert notes == [
        "the same choices as 'first pass': 'empty left out', 'merged only', 'merged, empty left out'"
    ]


def test_word_weight_only_keeps_the_score_of_the_recogniser():
    weights = replace(WEIGHTS, word=2.0, oov=-1.0)
    assert drop_models(weights) == Weights("word weight only", {"acoustic": 1.0}, {}, 2.0)
    first_pass = Weights("first pass", {"acoustic": 1.0, "lm": 9.5}, {}, -0.6)
    assert drop_models(weights, first_pass) == Weights("word weight only", first_pass.streams, {}, 2.0)
    assert drop_models(replace(weights, streams={"acoustic": 0.0})) is None


def test_tunes_the_word_weight_alone():
    """Deletions that a word weight mends; the weight for each list comes from other lists."""
    lists = [
        make_list(i, {"the cat": -1.0, "the cat sat": -2.0}, f"the cat sat {'x ' * i}") for i in range(12)
    ]
    scored = score(lists)
    alone = drop_models(WEIGHTS)
    assert alone is not None
    assert sum(rerank(*pair).system.errors for pair in Tuning(scored, alone).hold_out()) == sum(range(12))
    rows = errors_by_row(compare_systems(scored, {"ngram": WEIGHTS}, True, alone).rows)
    assert rows["word weight only, tuned"] == sum(range(12))


def test_verdicts_judge_held_out_rows_if_there_are_any():
    lists = [make_list(i, {"a": -1.0, "the cat sat": -2.0}, f"the cat sat {'x ' * i}") for i in range(12)]
    comparison = compare_systems(score(lists), {"ngram": WEIGHTS}, True)
    verdicts = find_verdicts(comparison, Significance(comparison, draws=50))
    assert [verdict.system for verdict in verdicts] == ["ngram, tuned", "ngram, tuned, MBR"]


def test_rows_of_a_file():
    scored = score([make_list(1, TRUNCATED), make_list(2, {"the cat": -1.0})])
    row, *others = compare_rules(scored, "lists.jsonl").rows
    assert (row.name, row.kind) == ("lists.jsonl", "first pass")
    assert [other.name for other in others] == ["empty left out", "oracle"]
    reordered = replace(scored[0], first_pass_order=[1, 0, 2, 3])
    rows = compare_rules([reordered], "out.jsonl").rows
    assert [(row.name, row.kind) for row in rows[:2]] == [("out.jsonl", "file"), ("first pass", "first pass")]
    assert len(compare_file(scored, "lists.jsonl").rows) == 1
    assert len(compare_rules(scored[1:], "one.trn").rows) == 1


def test_gains_are_drawn_by_group_if_there_are_groups():
    lists = [make_list(i, TRUNCATED, group=f"g{i % 3}") for i in range(9)]
    bootstrap = Significance(compare_file(score(lists), "a"), draws=50).bootstrap
    assert (bootstrap.unit, bootstrap.n_units) == ("group", 3)
    lists[0] = replace(lists[0], group="")
    assert Significance(compare_file(score(lists), "a"), draws=50).bootstrap.n_units == 4
    lists = [replace(nbest, group="only") for nbest in lists]
    assert Significance(compare_file(score(lists), "a"), draws=50).bootstrap.unit == "list"


def test_p_values_are_corrected_for_the_number_of_rows():
    scored = score([make_list(number, TRUNCATED) for number in range(8)], {"the cat sat": 5.0})
    comparison = compare_systems(scored, {"ngram": WEIGHTS}, False)
    judged = judge_rows(comparison, Significance(comparison, draws=200))
    tested = [result for result in judged if result.gain]
    expected = correct_holm([result.gain.p_value for result in tested if result.gain])
    assert [result.p_corrected for result in tested] == expected.tolist()
    assert judged[0].to_dict()["p_value_corrected"] is None


def test_verdict_says_if_a_system_is_worse_or_cannot_be_judged():
    worse = SystemVerdict("ngram", "first pass", Gain(-0.02, Interval(-0.03, -0.01), 0.001, 40))
    assert (
        worse.sentence() == "'ngram' is worse than 'first pass', which needs no language model: −2.00 ± 1.00"
    )
    assert worse.to_dict()["verdict"] == "worse"
    unknown = SystemVerdict("ngram", "first pass", Gain(0.01, Interval(-np.inf, np.inf), 1.0, 1))
    assert (unknown.is_better, unknown.is_worse) == (False, False)
    assert unknown.sentence() == (
        "nothing can be shown about 'ngram' against 'first pass' (+1.00 points): only 1 list differs, and an "
        "interval or a test needs at least 6"
    )
    assert unknown.to_dict()["p_value"] is None
    assert unknown.to_dict()["gain_interval"] is None


@pytest.mark.parametrize("with_tuning", [False, True])
def test_every_row_has_one_of_the_possible_names(with_tuning):
    systems = {name: Weights(name=name, streams={"acoustic": 1.0}, lm={name: 3.0}) for name in MODELS}
    scored = make_scored_lists()
    word_only = drop_models(systems["ngram"])
    comparison = compare_systems(scored, systems, with_tuning=with_tuning, word_only=word_only)
    names = {row.name for row in comparison.rows}
    folded = " ".join(comparison.notes)  # rows that choose the same as an earlier one
    for name in name_possible_rows(systems, with_tuning):
        assert name in names or repr(name) in folded
        names.discard(name)
    assert not names
    assert {row.name for row in compare_rules(scored, "file").rows} <= {
        "file",
        *name_possible_rows((), False),
    }


def test_chooses_the_row_to_analyse():
    scored = make_scored_lists()
    shown = [("first pass", "first pass"), ("merged", "baseline"), ("ngram", "model"), ("tuned", "model")]
    first = compare_rules(scored, "a").first_pass
    rows = [
        (f"a: {name}", replace(first, name=name, kind=kind, held_out=name == "tuned"))
        for name, kind in [*shown, ("oracle", "oracle")]
    ]
    assert choose_row(rows, None) == 3
    assert choose_row(rows[:3], None) == 2
    assert choose_row(rows[:2], None) == 0
    assert choose_row(rows, "tuned") == choose_row(rows, "a: tuned") == 3
    assert choose_row([*rows, *rows], "ngram") == 7
    with pytest.raises(ConfigError, match=r"--system 'tunde': the rows are 'a: first pass', .*did you mean"):
        choose_row(rows, "tunde")


def test_verdicts_of_a_run_are_corrected_for_their_number():
    """One gain in five that is significant alone is not so among five; a clear one still is."""
    clear = SystemVerdict("a", "first pass", Gain(0.02, Interval(0.01, 0.03), 0.001, 40))
    doubtful = SystemVerdict("b", "first pass", Gain(0.01, Interval(0.001, 0.019), 0.03, 40))
    none = SystemVerdict("c", "first pass", Gain(0.0, Interval(0.0, 0.0), 1.0, 0))
    assert (clear.is_better, doubtful.is_better) == (True, True)
    assert correct_verdicts([[doubtful], []]) == [[doubtful], []]
    first, second = correct_verdicts([[clear, doubtful], [none, none, none]])
    assert [verdict.p_corrected for verdict in first] == [0.005, 0.12]
    assert [verdict.is_better for verdict in (*first, *second)] == [True, False, False, False, False]
    assert first[1].to_dict()["verdict"] == "not beyond chance"
    assert first[1].sentence() == (
        "'b' adds nothing beyond chance to 'first pass': +1.00 ± 0.90 (p = 0.120, corrected for 5 verdicts)"
    )
    assert "(p = 0.005, corrected for 5 verdicts)" in first[0].sentence()
