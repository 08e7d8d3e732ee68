"""Golden answers: lists rescored with an n-gram give the same file to the byte, on every machine.

An n-gram's scores are looked up and summed in float64, and files have six decimals, so that the last bits of
exponentials, which depend on the machine, are not in them. Networks compute in float32, which differs more.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from rescorer.models.bundle import publish
from tests.conftest import REPOSITORY

STARTER = REPOSITORY / "models" / "starter" / "1"
DEMO = REPOSITORY / "demo" / "lists.jsonl.gz"
WEIGHTS = {
    "name": "default",
    "streams": {"acoustic": 1.0},
    "lm": {"mixture": 9.5},
    "word": -0.6296,
    "oov": -2.0,
    "mixture": {"ngram": 1.0},
}
SHA256 = "3f97b2fad68a6c6c2e0d56a08397c07070b43da53cd485bf81a4dfc1c2197a3f"
"""If this changes, so do users' answers: say so in the changelog. New starter models change it."""


@pytest.fixture(scope="module")
def starter_ngram(tmp_path_factory) -> Path:
    """A bundle of the n-gram of the starter models."""

    def fill(partial: Path) -> dict:
        for name in ("ngram", "weights"):
            (partial / name).mkdir()
        for name in ("ngram/model.arpa.gz", "text.json"):
            shutil.copyfile(STARTER / name, partial / name)
        (partial / "weights" / "default.json").write_text(json.dumps(WEIGHTS))
        return {
            "name": "golden",
            "version": 1,
            "models": {"ngram": {"kind": "ngram", "path": "ngram/model.arpa.gz"}},
        }

    folder = tmp_path_factory.mktemp("golden") / "1"
    publish(folder, fill)
    return folder


@pytest.mark.slow
def test_answers_on_the_demo_lists_stay_the_same(run, starter_ngram, tmp_path):
    out = tmp_path / "out.jsonl"
    code, _, errors = run("rescore", DEMO, "--bundle", starter_ngram, "-o", out)
    assert code == 0, errors
    assert out.read_bytes().count(b"\n") == 96
    assert hashlib.sha256(out.read_bytes()).hexdigest() == SHA256
