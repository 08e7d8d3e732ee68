"""The command ``calibrate``, and the confidences that ``rescore`` writes with its weights."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from rescorer.weights import parse_weights
from tests.support.list_lines import GOOD, record, write


@pytest.fixture
def lists(tmp_path):
    """Lists in which a wide margin of the acoustic score means that the first hypothesis is right."""
    rng = np.random.default_rng(5)
    lines = []
    for i in range(120):
        margin = float(rng.exponential(3.0))
        right = rng.random() < 1 / (1 + np.exp(-margin + 1))
        # other words, so that no two references are the same
        first, second = f"the cat sat {i}", f"the mat sat {i}"
        content = {
            "id": f"u{i}",
            "hypotheses": [
                {"text": first, "scores": {"acoustic": 0.0}},
                {"text": second, "scores": {"acoustic": -10 * margin}},
            ],
            "reference": first if right else second,
        }
        lines.append(json.dumps(content))
    return write(tmp_path / "lists.jsonl", *lines)


OPTIONS = ("-w", "lm:mixture=0", "-w", "word=0")


def test_calibrates_reports_and_answers_with_confidences(run, ngram_bundle, lists, tmp_path):
    weights, plot = tmp_path / "sure.json", tmp_path / "sure.svg"
    code, out, err = run("calibrate", lists, "-b", ngram_bundle, *OPTIONS, "-o", weights, "--plot", plot)
    assert (code, err) == (0, "")
    assert "utterance: calibrated (" in out
    assert "cross-validation: 10 folds by id" in out
    assert "utterance, posterior" in out
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")
    calibrated = parse_weights(json.loads(weights.read_text()))
    assert calibrated.name == "sure"
    assert calibrated.calibration.utterance.temperature > 3
    code, out, _ = run("rescore", lists, "-b", ngram_bundle, "--weights", weights, "--quiet")
    answers = [json.loads(line) for line in out.splitlines()]
    best = answers[0]["hypotheses"][0]
    assert 0 < best["confidence"] < 1
    assert [word["word"] for word in best["word_confidences"]] == ["the", "cat", "sat", "0"]
    assert "calibration" not in answers[0]["weights"]
    assert "confidence" not in answers[0]["hypotheses"][1]


def test_json_has_the_measures(run, ngram_bundle, lists, tmp_path):
    arguments = ("calibrate", lists, "-b", ngram_bundle, *OPTIONS, "-o", tmp_path / "w.json", "--json")
    code, out, _ = run(*arguments)
    report = json.loads(out)
    assert (code, report["lists"], report["rejected"]) == (0, 120, 0)
    assert report["utterance"]["helps"] is True
    assert report["utterance"]["claims"] == 120
    measures = report["utterance"]["held_out"]
    assert measures["expected_calibration_error"] < 0.2
    assert measures["normalised_cross_entropy"] > 0


def test_changed_weights_are_not_calibrated(run, ngram_bundle, lists, tmp_path):
    weights = tmp_path / "sure.json"
    run("calibrate", lists, "-b", ngram_bundle, *OPTIONS, "-o", weights)
    code, out, err = run(
        "rescore", lists, "-b", ngram_bundle, "--weights", weights, "-w", "word=1", "--quiet"
    )
    assert (code, "their calibration does not apply any more" in err) == (0, True)
    assert "confidence" not in out


def test_says_that_nothing_helps(run, ngram_bundle, tmp_path):
    source = write(tmp_path / "in.jsonl", *GOOD)
    weights = tmp_path / "w.json"
    code, out, _ = run("calibrate", source, "-b", ngram_bundle, "-o", weights)
    assert (code, "no confidence written" in out) == (0, True)
    assert "calibration" not in json.loads(weights.read_text())


def test_rejects_what_cannot_be_used(run, ngram_bundle, tmp_path):
    source = write(tmp_path / "in.jsonl", record("u1", "the cat"))
    code, _, err = run("calibrate", source, "-b", ngram_bundle, "-o", tmp_path / "w.json")
    assert (code, "no reference" in err, "no list could be used for calibration" in err) == (3, True, True)
    code, _, err = run("calibrate", source, "-b", ngram_bundle, "-o", tmp_path / "none" / "w.json")
    assert (code, "no such folder" in err) == (2, True)


def test_ctm_gets_the_confidences(run, ngram_bundle, lists, tmp_path):
    weights = tmp_path / "sure.json"
    run("calibrate", lists, "-b", ngram_bundle, *OPTIONS, "-o", weights)
    assert parse_weights(json.loads(weights.read_text())).calibration.word is not None
    words = [
        {"word": word, "start_s": i, "duration_s": 0.5, "confidence": 0.123}
        for i, word in enumerate(["the", "<sil>", "cat"])
    ]
    hypothesis = {"text": "the <sil> cat", "scores": {"acoustic": -1.0}, "words": words}
    source = write(tmp_path / "in.jsonl", json.dumps({"id": "call 1", "hypotheses": [hypothesis]}))
    code, out, _ = run("rescore", source, "-b", ngram_bundle, "--weights", weights, "--to", "ctm", "--quiet")
    columns = [line.split() for line in out.splitlines()]
    assert (code, [line[4] for line in columns]) == (0, ["the", "<sil>", "cat"])
    assert columns[1][5] == "0.123"
    assert float(columns[0][5]) != 0.123
