"""Joining, tuning and judging combinations of recognisers."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rescorer import ConfigError, Hypothesis, InvalidList, NBestList
from rescorer.consensus import RoverSettings, SystemList
from rescorer.evaluation.combination import (
    RoverTuner,
    Utterance,
    find_totals,
    join_systems,
    judge_settings,
    try_weights,
    tune_and_judge,
)
from rescorer.evaluation.error_rate import DEFAULT_COUNTING
from rescorer.evaluation.folds import Folds
from rescorer.text import Normaliser
from tests.support.folds import divide
from tests.support.list_lines import write

NORMALISE = Normaliser().normalise
WORDS = [f"w{i}" for i in range(50)]


def make_utterances(n: int, error_rates: tuple[float, ...], seed: int = 0) -> list[Utterance]:
    """Utterances of eight words, of which each system gets some wrong, independently of the others."""
    rng = np.random.default_rng(seed)
    utterances = []
    for i in range(n):
        spoken = tuple(rng.choice(WORDS, 8))
        systems = []
        for rate in error_rates:
            heard = tuple(str(rng.choice(WORDS)) if rng.random() < rate else word for word in spoken)
            systems.append(SystemList((heard,), np.zeros(1)))
        utterances.append(Utterance(f"u{i}", "", " ".join(spoken), tuple(systems)))
    return utterances


def make_tuner(utterances) -> RoverTuner:
    counters = [DEFAULT_COUNTING.counter_for(item.reference, NORMALISE) for item in utterances]
    return RoverTuner(utterances, counters, NORMALISE)


def folds_of(utterances, n: int = 5) -> Folds:
    return divide([item.reference for item in utterances], n)


def test_three_independent_systems_are_better_together():
    utterances = make_utterances(60, (0.25, 0.25, 0.25))
    report = tune_and_judge(utterances, ["a", "b", "c"], NORMALISE, DEFAULT_COUNTING, folds_of(utterances, 3))
    assert report.gain.lower_bound > 0.02
    assert report.rows["3 systems, held out"].rate < 0.2 < report.rows[report.best_system].rate
    assert report.rows["oracle"].rate < report.rows[report.best_system].rate
    assert report.tuned.temperatures == (1.0, 1.0, 1.0)


def test_a_system_of_noise_does_not_hurt():
    utterances = make_utterances(40, (0.95, 0.2))
    report = tune_and_judge(utterances, ["noise", "good"], NORMALISE, DEFAULT_COUNTING, folds_of(utterances))
    assert report.best_system == "good"
    assert report.tuned.weights[1] > 0.5
    assert report.gain.gain == pytest.approx(0.0)
    alone = report.rows["good, its own vote, held out"]
    assert alone.errors == report.rows["good"].errors


def test_given_settings_are_not_tuned():
    utterances = make_utterances(30, (0.2, 0.3))
    settings = RoverSettings((0.9, 0.1), (1.0, 1.0))
    report = judge_settings(utterances, ["a", "b"], NORMALISE, DEFAULT_COUNTING, settings)
    assert (list(report.rows), report.tuned) == (["a", "b", "2 systems", "oracle"], None)
    assert report.rows["2 systems"].errors == report.rows["a"].errors


def test_no_utterance_is_judged_by_settings_that_it_tuned():
    utterances = make_utterances(15, (0.3, 0.4))
    folds = folds_of(utterances)
    found = make_tuner(utterances).cross_validate(folds)
    for fold in range(5):
        chosen = make_tuner(utterances).tune(folds.training(fold))
        expected = make_tuner(utterances).count(chosen)
        assert found[fold::5] == expected[fold::5]


def test_one_reference_for_all_cannot_be_cross_validated():
    utterances = [Utterance(f"u{i}", "", "a", make_utterances(1, (0.1, 0.1))[0].systems) for i in range(4)]
    with pytest.raises(ConfigError, match="needs more utterances with different references"):
        tune_and_judge(utterances, ["a", "b"], NORMALISE, DEFAULT_COUNTING, folds_of(utterances, 2))


@pytest.mark.parametrize("n_systems", [1, 2, 3, 5])
def test_tries_weights_that_sum_to_one_and_equal_ones_first(n_systems):
    tried = list(try_weights(n_systems))
    assert tried[0] == pytest.approx((1 / n_systems,) * n_systems)
    assert all(sum(weights) == pytest.approx(1) and min(weights) > 0 for weights in tried)


def test_finds_totals_of_rescored_lists_single_streams_and_single_texts():
    fields = {"total": -2.0, "components": {}}
    rescored = NBestList(
        "u1", (Hypothesis("a", fields), Hypothesis("b", {**fields, "total": -3.0})),
        fields={"model": "m/1", "weights": {}},
    )  # fmt: skip
    assert find_totals(rescored).tolist() == [-2.0, -3.0]
    texts = (Hypothesis("a"), Hypothesis("b"))
    assert find_totals(NBestList("u1", texts, {"s": (1.0, 2.0)})).tolist() == [1.0, 2.0]
    assert find_totals(NBestList("u1", texts[:1])).tolist() == [0.0]
    with pytest.raises(InvalidList, match="0 score streams; expected one, or the output of"):
        find_totals(NBestList("u1", texts))
    broken = NBestList(
        "u1", (Hypothesis("a", {**fields, "total": "x"}),), fields={"model": "m/1", "weights": {}}
    )
    with pytest.raises(InvalidList, match="expected a finite number, got 'x'"):
        find_totals(broken)
    with pytest.raises(InvalidList, match=r"hypothesis 1: the score is -1e\+308; expected at most 1e\+300"):
        find_totals(NBestList("u1", texts, {"s": (0.0, -1e308)}))
    huge = NBestList("u1", (Hypothesis("a", {**fields, "total": 10**400}),), fields=rescored.fields)
    with pytest.raises(InvalidList, match="expected a finite number"):
        find_totals(huge)


def test_joins_lists_by_id_and_repetition():
    def lists(*ids: str) -> list[NBestList]:
        return [NBestList(list_id, (Hypothesis(f"{list_id} {i}"),)) for i, list_id in enumerate(ids)]

    utterances, errors, others = join_systems([lists("a", "b", "a"), lists("a", "a", "c", "d")], Normaliser())
    assert [item.id for item in utterances] == ["a", "a"]
    assert [item.systems[1].words[0] for item in utterances] == [("a", "0"), ("a", "1")]
    assert (errors, others) == ([], [1, 2])


def write_system(path, utterances, system, *, with_reference=True):
    lines = []
    for item in utterances:
        text = " ".join(item.systems[system].words[0])
        line = {"id": item.id, "hypotheses": [{"text": text}]}
        lines.append(json.dumps(line | ({"reference": item.reference} if with_reference else {})))
    return write(path, *lines)


@pytest.fixture
def three_files(tmp_path):
    utterances = make_utterances(30, (0.25, 0.25, 0.25))
    return [write_system(tmp_path / f"{i}.jsonl", utterances, i, with_reference=i == 1) for i in range(3)]


def test_command_tunes_writes_and_reports(run, three_files, tmp_path):
    code, out, err = run("combine", *three_files, "--tune", "-o", tmp_path / "out.jsonl")
    assert (code, err) == (0, "")
    assert "the combination is better than" in out
    assert "tuned on all 30 utterances: --system-weights " in out
    first = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])
    (hypothesis,) = first["hypotheses"]
    assert [word["word"] for word in hypothesis["word_posteriors"]] == hypothesis["text"].split()
    assert first["reference"]
    code, out, _ = run("evaluate", tmp_path / "out.jsonl", "--json")
    assert json.loads(out)["systems"][0]["wer"] < 20


def test_command_takes_settings_and_writes_trn(run, three_files, tmp_path):
    options = ("--system-weights", "1,0.1,0.1", "--temperatures", "1,1,1", "--to", "trn")
    code, out, _ = run("combine", *three_files, *options, "-o", tmp_path / "out.trn", "--json")
    report = json.loads(out)
    rates = {system["name"]: system["wer"] for system in report["systems"]}
    assert (code, report["tuned"], report["utterances"]) == (0, None, 30)
    assert rates["3 systems"] == rates[str(three_files[0])]
    assert (tmp_path / "out.trn").read_text().splitlines()[0].endswith("(u0)")


def test_command_explains_what_is_wrong(run, three_files, tmp_path):
    out = tmp_path / "out.jsonl"
    for arguments, expected_code, message in (
        (three_files[:1], 2, "at least two files"),
        ([*three_files, "--system-weights", "1,2"], 2, "'1,2': expected 3 numbers, one per file"),
        ([*three_files, "--temperatures", "a,b,c"], 2, "expected numbers separated by commas"),
        ([*three_files, "--null-weight", "0"], 2, "--null-weight '0.0'"),
        ([*three_files, "--tune", "--null-weight", "2"], 2, "--tune finds the settings"),
        ([three_files[0], three_files[2], "--tune"], 3, "--tune needs references"),
        ([three_files[0], write(tmp_path / "x.jsonl", '{"id": "x", "hypotheses": [{"text": ""}]}')], 3,
         "no usable list with the same id"),
    ):  # fmt: skip
        code, _, err = run("combine", *arguments, "-o", out)
        assert (code, message in err) == (expected_code, True), err
