"""``python -m tools.archive`` on a tiny archive: all scenarios, and the price of shards."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.sharding import make_lines, write_lines
from tools.archive.overhead import median_ratio
from tools.archive.scenarios import Outcome, find_differences

pytestmark = pytest.mark.slow


def run_command(*arguments):
    command = [sys.executable, "-m", "tools.archive", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture
def archive(tmp_path):
    real = write_lines(tmp_path / "real.jsonl", [line for line in make_lines(10) if line])
    done = run_command("make", real, "-o", tmp_path / "archive", "--lists", 60, "--hypotheses", 20)
    assert done.returncode == 0, done.stderr
    assert "10 real lists; copies of a list are at least 6 lists apart" in done.stdout
    return [tmp_path / "archive" / f"archive-0{number}.jsonl" for number in range(2)]


def test_nothing_is_lost_or_repeated_whatever_happens(archive, ngram_bundle, tmp_path):
    """All disturbances come before the first commit, so that none comes too late."""
    early = "--last-share", 0, "--max-delay-s", 0, "--worker-kills", 1, "--driver-kills", 1, "--shards", 6
    names = "--scenarios", "plain,everything"
    options = "-o", tmp_path / "work", "--bundle", ngram_bundle, "--json"
    done = run_command("run", *archive, *options, *names, *early)
    assert done.returncode == 0, done.stderr
    assert "60 lists, each once and in order; the output is the same in all rows" in done.stderr
    plain, everything = map(json.loads, done.stdout.splitlines())
    assert (plain["scenario"], everything["scenario"]) == ("plain", "everything")
    assert plain["hypotheses"] == everything["hypotheses"] == 1200
    assert everything["kills"] == 4  # a worker, the main process, and two workers that commit
    assert everything["resumes"] >= 2
    assert plain["cpu_s"] > 0
    assert plain["peak_mb"] > 1
    assert list((tmp_path / "work").glob("*/")) == []


def test_overhead_gives_an_interval(archive, ngram_bundle, tmp_path):
    arguments = "-o", tmp_path / "work", "--bundle", ngram_bundle, "--lists", 10, "--pairs", 1
    done = run_command("overhead", *archive, *arguments)
    assert done.returncode == 0, done.stderr
    assert "which contain it with 0.0 %" in done.stdout  # one pair says nothing


def test_says_which_scenario_it_does_not_know(archive, ngram_bundle, tmp_path):
    done = run_command("run", *archive, "-o", tmp_path, "--bundle", ngram_bundle, "--scenarios", "plain,rain")
    assert done.returncode == 2
    assert "'rain': expected some of plain, shards, worker-kills" in done.stderr


def test_compares_the_outputs_of_scenarios():
    outcomes = [Outcome(name, 1, 1, 1, 1, 1, 0, 0, 0, 0, name[0], []) for name in ("plain", "pain", "shards")]
    assert find_differences(outcomes) == ["shards: the output differs from that of plain"]


def test_interval_of_a_median_is_that_of_order_statistics():
    """Ten pairs: the second smallest and the second largest, with 1 - 2 · 11 / 1024."""
    found = median_ratio([1.1, 1.0, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9])
    assert (found.low, found.high) == (1.1, 1.8)
    assert found.ratio == pytest.approx(1.45)
    assert found.coverage == pytest.approx(1 - 22 / 1024)
