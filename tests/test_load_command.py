"""The command ``rescorer load``: a short load on a real server, and what it tells of it."""

from __future__ import annotations

import json
import subprocess
import sys

from models import write_bundle
from rescorer.types import Weights


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
    assert done.returncode == 0, done.stderr
    stages = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["name"] for each in stages] == ["library", "peak", "half of the peak", "3 × the peak"]
    for each in stages:
        assert 0 < each["p50_ms"] <= each["p99_ms"]
        assert each["lists_per_s"] > 0
    for each in stages[1:]:
        assert sum(each["codes"].values()) == each["calls"]
        # gRPC's core at the server ends a late call by CANCELLED, if the client's own timer is later still.
        assert set(each["codes"]) <= {"OK", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "CANCELLED"}
        assert each["max_rss_bytes"] > 1e7
        assert each["health_p99_ms"] > 0
