"""From compared systems to the data of a report."""

from __future__ import annotations

import json
from functools import partial

import pytest

from rescorer.errors import ConfigError
from rescorer.evaluation.report.build import ReportedFile, ReportSettings, build_report_data
from rescorer.evaluation.report.pages import render_html, render_markdown
from rescorer.evaluation.run import judge_file
from rescorer.evaluation.systems import compare_file, compare_rules, compare_systems
from rescorer.types import Weights
from tests.support.scored_lists import make_scored_lists

WEIGHTS = Weights("w", {"acoustic": 1.0}, {"mixture": 1.0}, word=-0.2)
SYSTEMS = {"ngram": Weights("ngram", {"acoustic": 1.0}, {"ngram": 1.0}), "mixture": WEIGHTS}


def normalise(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def describe(n_lists: int = 12, n_groups: int = 3, **settings):
    compare = partial(compare_systems, systems=SYSTEMS, with_tuning=False)
    results = judge_file("folder/a.jsonl", compare, make_scored_lists(n_lists, n_groups=n_groups))
    file = ReportedFile(results, "a.jsonl", WEIGHTS, "mixture", SYSTEMS)
    return results.comparison, build_report_data([file], normalise, ReportSettings("Title", **settings))


def test_rows_are_those_of_the_comparison():
    comparison, data = describe()
    assert [row.name for row in data.systems] == [row.name for row in comparison.rows]
    for shown, row in zip(data.systems, comparison.rows, strict=True):
        assert shown.errors == row.report.total.system.errors
        assert shown.wer == pytest.approx(100 * row.report.total.system.rate)
        assert (shown.gain is None) == (shown.role != "system")
    assert (data.baseline, data.system) == ("first pass", "mixture")
    assert {row.role for row in data.systems} == {"baseline", "system", "oracle"}


def test_marks_need_significance_after_correction():
    _, data = describe(200, n_groups=0)
    marked = [row for row in data.systems if row.mark]
    assert marked
    for row in marked:
        assert row.p_value <= row.p_corrected < 0.05
        assert row.gain_interval[0] * row.gain_interval[1] > 0


def test_utterances_come_with_the_most_changed_first():
    comparison, data = describe(30, max_utterances=10)
    utterances = data.utterances
    assert (len(utterances.rows), utterances.total) == (10, 30)
    changes = [abs(item.baseline_errors - item.system_errors) for item in utterances.rows]
    assert changes == sorted(changes, reverse=True)
    by_id = {item.evaluated.id: item for item in comparison.scored}
    for item in utterances.rows:
        scored = by_id[item.id]
        names = [name for reading in item.readings for name in reading.systems]
        assert sorted(names) == sorted(row.name for row in comparison.rows)
        for reading in item.readings:
            assert sum(word.kind != "correct" for word in reading.words) == reading.errors
            reference = tuple(word.reference for word in reading.words if word.reference)
            assert reference == normalise(scored.reference)
        (table,) = item.tables
        assert {row.rank for row in table.rows if row.chosen_by}
        totals = [row.total for row in table.rows]
        assert totals == sorted(totals, reverse=True)


def test_sums_agree_between_sections():
    _, data = describe(25)
    row = data.row(data.system)
    (file,) = data.files
    assert sum(group.system_errors for group in data.groups.rows) == row.errors
    assert sum(item.system_errors for item in data.utterances.rows) == row.errors
    assert file.depth.oracle_errors[-1] == data.row("oracle").errors
    assert file.depth.system_errors == row.errors
    for curve in file.curves:
        assert row.errors in curve.errors


def test_each_model_has_its_weights_and_the_words_that_it_helps_and_hurts():
    _, data = describe(25)
    assert [model.system for model in data.models] == ["ngram", "mixture"]
    assert data.models[1].weights == {"acoustic": 1.0, "lm:mixture": 1.0, "word": -0.2}
    main = data.models[1]
    assert (main.fixed, main.broken) == (data.changes.fixed, data.changes.broken)
    changes = [item.baseline_errors - item.system_errors for item in data.utterances.rows]
    assert (main.better, main.worse) == (sum(n > 0 for n in changes), sum(n < 0 for n in changes))
    net = [word.fixed - word.broken for word in main.words]
    assert net == sorted(net, reverse=True)
    assert 0 not in net


def test_tuned_rows_have_the_weights_that_were_tuned():
    compare = partial(compare_systems, systems=SYSTEMS, with_tuning=True)
    results = judge_file("a", compare, make_scored_lists(30))
    file = ReportedFile(results, "a", WEIGHTS, "mixture", SYSTEMS)
    tuned = results.comparison.tunings["mixture"].tuned[0][1]
    assert file.weights_of("mixture, tuned") == tuned
    assert file.weights_of("first pass") is None


def test_confidences_are_judged_if_there_are_enough_lists():
    _, few = describe(10)
    assert few.files[0].calibrations == ()
    comparison, data = describe(60)
    before, held_out = data.files[0].calibrations
    (row,) = (row for row in comparison.rows if row.name == "mixture")
    right = sum(not counts.errors for counts in _winners(comparison, row))
    assert sum(part.count for part in before.bins) == 60
    assert sum(part.count * part.correct for part in before.bins) == pytest.approx(right)
    assert 0 <= held_out.expected_calibration_error <= 1


def _winners(comparison, row):
    pairs = zip(comparison.scored, row.winners.tolist(), strict=True)
    return [item.evaluated.hypotheses[winner] for item, winner in pairs]


def test_lists_without_groups_have_no_section_of_groups():
    _, data = describe(n_groups=0)
    assert data.groups is None
    assert data.n_groups == 0


def test_several_files_are_named_apart():
    files = []
    for name in ("a.jsonl", "b.jsonl"):
        path = f"folder/{name}"
        results = judge_file(path, partial(compare_file, name=path), make_scored_lists())
        files.append(ReportedFile(results, name))
    data = build_report_data(files, normalise, ReportSettings("Title"))
    assert [row.name for row in data.systems] == [
        "a.jsonl: first pass", "a.jsonl", "b.jsonl: first pass", "b.jsonl",
    ]  # fmt: skip
    assert (data.baseline, data.system) == ("b.jsonl: first pass", "b.jsonl")
    assert "a.jsonl" in render_html(data)


def test_a_file_without_scores_is_its_own_baseline():
    path = "folder/a.jsonl"
    file = ReportedFile(judge_file(path, partial(compare_rules, name=path), make_scored_lists()), "a.jsonl")
    data = build_report_data([file], normalise, ReportSettings("Title"))
    assert all(not item.tables for item in data.utterances.rows)
    assert render_html(data)
    assert render_markdown(data)


def test_unknown_system_is_an_error_with_a_hint():
    with pytest.raises(ConfigError, match=r"mixtur.*did you mean.*mixture"):
        describe(system="mixtur")


def test_data_is_json():
    _, data = describe()
    assert 'id="weights"' in render_html(data)
    assert json.loads(json.dumps(data.to_dict(), allow_nan=False))["title"] == "Title"


def test_one_list_is_enough():
    results = judge_file("a", partial(compare_rules, name="a"), make_scored_lists(3)[:1])
    file = ReportedFile(results, "a")
    data = build_report_data([file], normalise, ReportSettings("One list"))
    assert render_html(data)
    json.dumps(data.to_dict(), allow_nan=False)
