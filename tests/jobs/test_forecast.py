"""Forecasts of what rescoring costs: the sample, the interval, and the option ``--plan`` for every format."""

from __future__ import annotations

import json
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from typer.testing import CliRunner

from rescorer import Hypothesis, InvalidList, NBestList, Rescorer
from rescorer.cli import app
from rescorer.cli.rescore import render_plan
from rescorer.errors import InputError
from rescorer.jobs.files import LocalRescorer, count_words
from rescorer.jobs.forecast import (
    N_PASSES,
    BatchCost,
    Estimate,
    Sample,
    count_edges,
    draw_sample,
    estimate_rate,
    forecast,
    measure_sample,
)
from rescorer.types import Weights
from tests.support.format_samples import CHOICES_WITH_OPTIONS, FILES, FOLDERS
from tests.support.list_lines import GOOD, record, write
from tests.support.tiny_models import write_bundle

NO_STREAMS = Weights("default", {}, {"mixture": 1.0}, mixture={"ngram": 1.0})


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """A bundle whose weights need no scores, so that lists of every format can be scored."""
    return write_bundle(tmp_path_factory.mktemp("bundle"), NO_STREAMS, neural=False)


def make_lists(count: int) -> list[NBestList]:
    return [
        NBestList(f"u{i}", tuple(Hypothesis(f"the cat {'sat ' * (i % 3 + j)}") for j in range(4)))
        for i in range(count)
    ]


def draw_whole(lists: list, size: int, seed: int) -> Sample:
    return draw_sample([(1, lists)], 1, size, seed)


@given(st.integers(1, 30), st.integers(1, 40), st.integers(0, 3))
def test_sample_counts_everything_and_keeps_distinct_lists(size, count, seed):
    lists = make_lists(count)
    sample = draw_whole([*lists, InvalidList("bad")], size, seed)
    assert (sample.n_lists, sample.unreadable) == (count, 1)
    assert sample.hypotheses == 4 * count
    assert sample.words.value == sample.words.high == sum(map(count_words, lists))
    ids = [nbest.id for nbest in sample.lists]
    assert len(set(ids)) == len(ids) == min(size, count)
    assert sample.lists == draw_whole(lists, size, seed).lists


def test_every_list_is_drawn_equally_often():
    lists, counts = make_lists(10), Counter[str]()
    for seed in range(2000):
        counts.update(nbest.id for nbest in draw_whole(lists, 3, seed).lists)
    assert stats.chisquare([counts[nbest.id] for nbest in lists]).pvalue > 1e-4


@pytest.mark.parametrize("lists", [[], [NBestList("empty", ())]])
def test_a_sample_of_nothing_is_an_error(lists):
    with pytest.raises(InputError, match=r"can be read and has hypotheses; found none$"):
        draw_whole(lists, 3, 0)
    with pytest.raises(InputError, match="found none; the first error: list '': bad"):
        draw_whole([*lists, InvalidList("bad"), InvalidList("worse")], 3, 0)


def test_parts_of_the_input_are_extrapolated_with_an_interval():
    parts = [(100, make_lists(10)), (200, [*make_lists(21), InvalidList("bad")])]
    sample = draw_sample(parts, 3000, 5, 0)
    assert sample.read_share == pytest.approx(0.1)
    assert (sample.n_lists, sample.hypotheses, sample.unreadable) == (310, 1240, 10)
    assert sample.words.value == pytest.approx(10 * sum(map(count_words, make_lists(10) + make_lists(21))))
    assert sample.words.low < sample.words.value < sample.words.high


def test_one_part_has_no_interval_and_json_has_no_infinity():
    estimate = estimate_rate([10], [2.0])
    assert (estimate.value, estimate.low, estimate.high) == (0.2, 0.0, math.inf)
    assert estimate.to_dict() == {"value": 0.2, "low": 0.0, "high": None}
    sample = Sample(make_lists(2), 2, 8, Estimate(40, 40, 40), 0, 1.0)
    result = forecast(sample, [BatchCost(40, 20, (4.0, 4.0), (8.0, 8.0))], 1, 2.0, on_gpu=True)
    assert result.core_s.value == 5.0
    assert result.gpu_s is not None
    assert result.gpu_s.value == 8.0
    assert "Infinity" not in json.dumps(result.to_dict())
    lines = list(render_plan(result, 7))
    assert lines[-1].startswith("95 % intervals, from the lists drawn and 3 passes over them")
    assert lines[1] == "2 lists scored, drawn with seed 7; 1 of them rejected"
    assert all(len(line) <= 80 for line in lines)


def test_counts_the_prefixes_that_are_scored(bundle):
    rescorer = LocalRescorer(Rescorer.load(bundle, max_batch_words=40))
    texts = ("the cat sat", "the cat", "the mat")
    nbest = NBestList("u1", tuple(map(Hypothesis, texts)))
    # the, cat, sat, mat, and an end after each hypothesis
    assert count_edges(rescorer, [nbest]) == 7
    assert count_edges(rescorer, [nbest, nbest]) == 7
    assert count_edges(rescorer, [NBestList("empty", ())]) == 0


def test_measures_batches_of_the_sample_as_a_run_makes_them(bundle):
    rescorer = LocalRescorer(Rescorer.load(bundle, max_batch_words=60))
    sample, written = draw_whole([*make_lists(20), NBestList("empty", ())], 21, 0), []
    costs, summary = measure_sample(rescorer, sample, written.append)
    assert (summary.lists, summary.rejected, len(written)) == (20, 1, 20 * N_PASSES)
    assert len(costs) > 3
    assert sum(cost.words for cost in costs) == sample.words.value
    assert all(0 < cost.edges < cost.words for cost in costs)
    assert all(len(cost.elapsed_s) == len(cost.processor_s) == N_PASSES for cost in costs)
    assert all(min(cost.elapsed_s) > 0 and min(cost.processor_s) > 0 for cost in costs)


def run_plan(bundle, source, *options):
    command = ["rescore", str(source), "--plan", "--bundle", str(bundle), *map(str, options)]
    return CliRunner().invoke(app, command)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_plans_files_of_every_format(bundle, tmp_path, name):
    (tmp_path / "u1").write_text(FILES[name])
    choice = ("--format", CHOICES_WITH_OPTIONS[name]) if name in CHOICES_WITH_OPTIONS else ()
    done = run_plan(bundle, tmp_path / "u1", "--json", *choice)
    assert done.exit_code == 0, done.output
    plan = json.loads(done.stdout)
    assert plan["lists"] == plan["sampled_lists"] >= 1
    assert plan["core_hours"]["value"] > 0
    assert plan["gpu_hours"] is None
    assert [path.name for path in tmp_path.iterdir()] == ["u1"]


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_plans_folders_of_every_format(bundle, tmp_path, name):
    for file, text in FOLDERS[name].items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    choice = ("--format", CHOICES_WITH_OPTIONS[name]) if name in CHOICES_WITH_OPTIONS else ()
    done = run_plan(bundle, tmp_path, *choice)
    assert done.exit_code == 0, done.output
    assert "core hours" in done.stdout


@pytest.mark.slow
def test_plan_reads_a_pipe_samples_and_writes_nothing(bundle, tmp_path):
    lines = [record(f"u{i}", "the cat", "the mat") for i in range(30)]
    command = ["rescore", "-", "--plan", "--bundle", str(bundle), "--plan-lists", "10", "--batch-words", "12"]
    command += ["-o", str(tmp_path / "out.jsonl.gz"), "--plan-seed", "5", "--json"]
    done = CliRunner().invoke(app, command, input="\n".join([*lines, "{broken"]))
    assert done.exit_code == 0, done.output
    plan = json.loads(done.stdout)
    names = ("lists", "hypotheses", "unreadable", "sampled_lists", "seed", "read_share")
    assert [plan[name] for name in names] == [30, 60, 1, 10, 5, 1.0]
    assert plan["words"] == {"value": 180, "low": 180, "high": 180}
    hours = plan["core_hours"]
    assert 0 < hours["low"] <= hours["value"] <= hours["high"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_plan_of_one_list_says_why_it_has_no_interval(bundle, tmp_path, run):
    source = write(tmp_path / "one.jsonl", record("u1", "the cat", "the mat"))
    code, out, _ = run("rescore", source, "--plan", "--bundle", bundle)
    assert code == 0
    assert "one batch: no interval" in out


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "\n", '{"id": "u1"}\n', "{broken\n"])
def test_plan_needs_a_list_that_can_be_read(bundle, tmp_path, run, text):
    source = tmp_path / "bad.jsonl"
    source.write_text(text)
    code, out, err = run("rescore", source, "--plan", "--bundle", bundle, "--format", "jsonl")
    assert (code, out) == (3, "")
    assert "at least one list that can be read" in err


@pytest.mark.slow
def test_plan_refuses_conversations(bundle, tmp_path, run):
    source = write(tmp_path / "lists.jsonl", *GOOD)
    code, _, err = run("rescore", source, "--plan", "--bundle", bundle, "--session", "group")
    assert code == 2
    assert "omit --session" in err
