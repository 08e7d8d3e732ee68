"""Tests of ``rescorer load``: a short load test of a real server, and the printed table."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from rescorer.bench.load import ClientConfig, StageResult, run_clients, run_server
from rescorer.cli.measure import HEADER, format_stage
from rescorer.errors import ServiceError, Unavailable
from rescorer.types import Weights
from tests.support.list_lines import GOOD, write
from tests.support.tiny_models import write_bundle

pytestmark = pytest.mark.slow


def test_measures_every_stage(tmp_path):
    weights = Weights("default", {}, {"mixture": 1.0}, mixture={"ngram": 1.0})
    bundle = write_bundle(tmp_path, weights, neural=False)
    lists = tmp_path / "lists.jsonl"
    lists.write_text(
        "".join(
            json.dumps({"id": f"u{i}", "hypotheses": ["the cat", f"the mat {i}"]}) + "\n" for i in range(9)
        )
    )
    command = (sys.executable, "-m", "rescorer.cli", "load", lists, "--bundle", bundle, "--json")
    options = (
        "--seconds",
        "1",
        "--clients",
        "1",
        "--lists-a-call",
        "2",
        "--client-niceness",
        "1",
        "--serve=--max-in-flight-lists 130",
    )
    process = subprocess.run([*command, *options], capture_output=True, text=True, timeout=300)
    assert (process.returncode, process.stderr) == (0, "")
    stages = [json.loads(line) for line in process.stdout.splitlines()]
    assert [stage["name"] for stage in stages] == [
        "library", "library, one thread", "peak", "half of the peak", "3 × the peak",
    ]  # fmt: skip
    *_, peak, half, overload = stages
    assert [stage["offered_lists_per_s"] for stage in stages[:3]] == [None] * 3
    assert half["offered_lists_per_s"] == pytest.approx(0.5 * peak["lists_per_s"])
    assert overload["offered_lists_per_s"] == pytest.approx(3 * peak["lists_per_s"])
    for stage in stages:
        assert 0 < stage["p50_ms"] <= stage["p99_ms"]
        assert stage["lists_per_s"] > 0
    for stage in stages[:2]:
        assert stage["late_p99_ms"] is stage["health_p99_ms"] is stage["max_rss_bytes"] is None
    for stage in stages[2:]:
        assert sum(stage["codes"].values()) == stage["calls"]
        # If the client's timer is later still, gRPC at the server ends a late call with CANCELLED. The tiny
        # model answers so many calls that gRPC may refuse those above the limit of a connection: UNAVAILABLE.
        late, refused = {"DEADLINE_EXCEEDED", "CANCELLED"}, {"RESOURCE_EXHAUSTED", "UNAVAILABLE"}
        assert set(stage["codes"]) <= {"OK"} | late | refused
        assert stage["max_rss_bytes"] > 1e7
        assert 0 <= stage["late_p99_ms"] < 1000
        assert stage["health_p99_ms"] > 0


@pytest.mark.parametrize("terminal", [True, False])
def test_shows_the_current_stage_only_on_a_terminal(run, monkeypatch, tmp_path, terminal):
    def run_stages(bundle, lists, weights, plan, on_stage):
        on_stage("warm-up", plan.stage_s)
        on_stage("peak", plan.stage_s)
        yield StageResult("peak", len(lists))

    monkeypatch.setattr("rescorer.bench.load.run_stages", run_stages)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    code, out, err = run("load", write(tmp_path / "lists.jsonl", *GOOD), "--bundle", "any", "--seconds", 3)
    assert code == 0
    assert out.startswith(f"{HEADER}\n")
    first, second = out.removeprefix(f"{HEADER}\n").splitlines()
    assert first.split()[:3] == ["peak", "–", "0.0"]
    assert second.split()[0] == "2"
    for name in ("warm-up", "peak"):
        assert (f"0 stages done in 00:00; now {name}, 3 s" in err) == terminal


def test_unmeasured_values_are_dashes():
    result = StageResult("library", 9, lists_per_s=3.0, lists_per_cpu_s=2.0, p50_ms=1.0, p99_ms=1.5)
    first, second = format_stage(result).splitlines()
    assert first.split() == ["library", "–", "3.0", "2.0", "1.0", "1.5", "–"]
    assert second.split() == ["9", "0", "0", "–", "–", "–"]


def test_formats_all_measurements_below_their_names_on_80_columns():
    result = StageResult("peak", 9, {"OK": 9}, 3.0, 2.0, 1.0, 1.5, None, 0.0, 0.5, 1.0, 10**8, 7.5)
    lines = format_stage(result).splitlines()
    assert lines[0].split() == ["peak", "7.5", "3.0", "2.0", "1.0", "1.5", "100"]
    assert lines[1].split() == ["9", "0", "0", "0.0", "–", "0.5"]
    assert [len(line) for line in (*HEADER.splitlines(), *lines)] == [79] * 4


def test_timeouts_do_not_count_as_refusals():
    result = StageResult("", 9, {"OK": 2, "RESOURCE_EXHAUSTED": 3, "DEADLINE_EXCEEDED": 3, "CANCELLED": 1})
    assert (result.refused, result.failed) == (3, 4)


def test_reports_the_error_of_a_client_process():
    with pytest.raises(ServiceError, match="base64"):
        run_clients([ClientConfig("127.0.0.1:1", ["a"], 0.0, 1.0, 1.0)])


def test_says_why_the_server_did_not_start(tmp_path):
    bundle = tmp_path / "missing"
    with (
        pytest.raises(Unavailable, match=r"did not start: .*--bundle \S+missing: .*no such"),
        run_server(["--bundle", str(bundle)]),
    ):
        pass
