"""``rescorer rescore`` with decision rules: options, and what each output format holds."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from rescorer.cli.rescore import DecisionOptions
from rescorer.types import DecisionRule, Weights

STREAM_ONLY = {"streams": {"s": 1.0}, "lm": {}}
HYPOTHESES = (("The cat, sat", 0.4), ("the hat sad", 0.3), ("a cat sad", 0.3))


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A list whose consensus is new text, with times, and weights that use only its scores."""
    hypotheses = [
        {
            "text": text,
            "scores": {"s": math.log(share)},
            "words": [
                {"word": word, "start_s": i + share, "duration_s": 0.5} for i, word in enumerate(text.split())
            ],
        }
        for text, share in HYPOTHESES
    ]
    lists, weights = tmp_path / "lists.jsonl", tmp_path / "weights.json"
    lists.write_text(json.dumps({"id": "u1", "hypotheses": hypotheses}) + "\n", encoding="utf-8")
    weights.write_text(json.dumps(STREAM_ONLY), encoding="utf-8")
    return lists, weights


def rescore(run, files, bundle, *options: str) -> str:
    lists, weights = files
    code, out, err = run("rescore", lists, "--bundle", bundle, "--weights", weights, "-q", *options)
    assert (code, err) == (0, "")
    return out


def test_mbr_writes_expected_errors_and_the_rule(run, files, ngram_bundle):
    answer = json.loads(rescore(run, files, ngram_bundle, "--decision", "mbr", "--temperature", "2"))
    assert answer["decision"] == {"kind": "minimum_bayes_risk", "unit": "word", "temperature": 2.0}
    errors = [hypothesis["expected_errors"] for hypothesis in answer["hypotheses"]]
    assert errors == sorted(errors)
    assert "consensus" not in answer


def test_maximum_writes_nothing_new(run, files, ngram_bundle):
    answer = json.loads(rescore(run, files, ngram_bundle))
    assert answer.keys() == {"id", "model", "weights", "hypotheses"}
    assert "expected_errors" not in answer["hypotheses"][0]


def test_confusion_network_writes_the_consensus(run, files, ngram_bundle):
    answer = json.loads(rescore(run, files, ngram_bundle, "--decision", "confusion-network"))
    assert answer["decision"]["kind"] == "confusion_network"
    assert answer["consensus"] == [
        {"word": "the", "posterior": 0.7, "start_s": 0.357143, "duration_s": 0.5, "text": "The"},
        {"word": "cat", "posterior": 0.7, "start_s": 1.357143, "duration_s": 0.5, "text": "cat,"},
        {"word": "sad", "posterior": 0.6, "start_s": 2.3, "duration_s": 0.5},
    ]
    assert answer["consensus_rank"] is None


def test_one_best_formats_hold_the_consensus(run, files, ngram_bundle):
    options = ("--decision", "confusion-network", "--to")
    assert rescore(run, files, ngram_bundle, *options, "trn") == "The cat, sad (u1)\n"
    assert rescore(run, files, ngram_bundle, *options, "ctm").splitlines() == [
        "u1 1 0.357143 0.5 The 0.7",
        "u1 1 1.357143 0.5 cat, 0.7",
        "u1 1 2.3 0.5 sad 0.6",
    ]
    low = (*options, "trn", "--temperature", "0.01")
    assert rescore(run, files, ngram_bundle, *low) == "The cat, sat (u1)\n"


def test_options_change_the_rule_of_the_weights():
    rule = DecisionRule("minimum_bayes_risk", "character", 3.0)
    weights = Weights(decision=rule)
    assert DecisionOptions().resolve(weights) == rule
    assert DecisionOptions("maximum").resolve(weights) == DecisionRule("maximum", "character", 3.0)
    network = DecisionRule("confusion_network", "word", 3.0)
    assert DecisionOptions("confusion-network").resolve(weights) == network  # which has no characters
    assert DecisionOptions(None, "word", 0.5).resolve(weights) == DecisionRule(
        "minimum_bayes_risk", "word", 0.5
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--temperature", "0"], "decision.temperature is 0.0; expected a finite number above 0"),
        (["--decision", "confusion-network", "--decision-unit", "character"], "decides word by word"),
    ],
)
def test_invalid_options_are_one_line(run, files, ngram_bundle, options, message):
    code, _, err = run("rescore", files[0], "--bundle", ngram_bundle, *options)
    assert (code, message in err, len(err.splitlines())) == (2, True, 1)
