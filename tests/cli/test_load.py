"""The command ``rescorer load``: a short load on a real server, and what it tells of it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from rescorer.cli.load import HEADER, row
from rescorer.errors import ServiceError
from rescorer.load.client import Spec
from rescorer.load.crowd import client
from rescorer.load.stages import Stage
from rescorer.types import Weights
from tests.support.list_lines import GOOD, write
from tests.support.tiny_models import write_bundle


def test_every_stage_is_told(tmp_path):
    weights = Weights("default", {}, {"mixture": 1.0}, mixture={"ngram": 1.0})
    bundle = write_bundle(tmp_path, weights, neural=False)
    lists = tmp_path / "lists.jsonl"
    lists.write_text(
        "".join(
            json.dumps({"id": f"u{i}", "hypotheses": ["the cat", f"the mat {i}"]}) + "\n" for i in range(9)
        )
    )
    command = (sys.executable, "-m", "rescorer.cli", "load", lists, "--bundle", bundle, "--json")
    options = ("--seconds", "1", "--clients", "1", "--lists-a-call", "2", "--serve=--max-in-flight-lists 130")
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    stages = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["name"] for each in stages] == [
        "library", "library, one thread", "peak", "half of the peak", "3 × the peak",
    ]  # fmt: skip
    *_, peak, half, more = stages
    assert [each["offered_lists_per_s"] for each in stages[:3]] == [None] * 3
    assert half["offered_lists_per_s"] == pytest.approx(0.5 * peak["lists_per_s"])
    assert more["offered_lists_per_s"] == pytest.approx(3 * peak["lists_per_s"])
    for each in stages:
        assert 0 < each["p50_ms"] <= each["p99_ms"]
        assert each["lists_per_s"] > 0
    for each in stages[:2]:
        assert each["late_p99_ms"] is each["health_p99_ms"] is each["max_rss_bytes"] is None
    for each in stages[2:]:
        assert sum(each["codes"].values()) == each["calls"]
        # gRPC's core at the server ends a late call by CANCELLED, if the client's own timer is later still.
        assert set(each["codes"]) <= {"OK", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "CANCELLED"}
        assert each["max_rss_bytes"] > 1e7
        assert 0 <= each["late_p99_ms"] < 1000
        assert each["health_p99_ms"] > 0


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_shows_which_stage_runs(run, monkeypatch, tmp_path, terminal):
    def stages(bundle, lists, weights, plan, begins):
        begins("warm-up", plan.seconds)
        begins("peak", plan.seconds)
        yield Stage("peak", len(lists))

    monkeypatch.setattr("rescorer.load.stages.stages", stages)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    code, out, err = run("load", write(tmp_path / "lists.jsonl", *GOOD), "--bundle", "any", "--seconds", 3)
    assert (code, out.splitlines()[0]) == (0, HEADER)
    assert out.splitlines()[1].split()[:3] == ["peak", "–", "2"]
    for name in ("warm-up", "peak"):
        assert (f"0 stages done in 00:00; now {name}, 3 s" in err) == terminal


def test_what_a_row_does_not_measure_is_a_dash():
    library = row(Stage("library", 9, lists_per_s=3.0, lists_per_cpu_s=2.0, p50_ms=1.0, p99_ms=1.5))
    assert library.split() == ["library", "–", "9", "0", "0", "3.0", "2.0", "1.0", "1.5", "–", "–", "–", "–"]
    served = row(Stage("peak", 9, {"OK": 9}, 3.0, 2.0, 1.0, 1.5, None, 0.0, 0.5, 1.0, 10**8, 7.5))
    assert served.split()[:2] == ["peak", "7.5"]
    assert served.split()[-4:] == ["0.0", "–", "0.5", "100"]
    assert len(library) == len(served) == len(HEADER)


def test_what_ran_out_of_time_is_no_refusal():
    stage = Stage("", 9, {"OK": 2, "RESOURCE_EXHAUSTED": 3, "DEADLINE_EXCEEDED": 3, "CANCELLED": 1})
    assert (stage.refused, stage.failed) == (3, 4)


def test_a_client_that_fails_says_why():
    with pytest.raises(ServiceError, match="base64"):
        client(Spec("127.0.0.1:1", ["a"], 0.0, 1.0, 1.0), limit_s=60.0)
