"""Precisions: what a lower one changes, which one a bundle records, and what ``auto`` then means."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from rescorer.errors import BundleError, ConfigError
from rescorer.models.bundle import read_bundle
from rescorer.models.neural import NeuralLanguageModel
from rescorer.models.precision import (
    RECORD,
    PrecisionCheck,
    choose_fastest,
    choose_precisions,
    compare_precisions,
    make_record,
    vary,
)
from rescorer.pipeline import Rescorer
from rescorer.trie import build_trie
from rescorer.types import Hypothesis, NBestList
from rescorer_training.cli import main
from tests.support.tiny_models import random_network

SENTENCES = [("the", "cat", "sat"), ("the", "mat"), ()]
LISTS = [NBestList("u", (Hypothesis("the cat sat"), Hypothesis("a mat")), {"acoustic": (-1.0, -1.5)})]


def check(difference: float, speed: float) -> PrecisionCheck:
    return PrecisionCheck(difference, difference, 0, 1, speed)


def score_alone(model, text):
    trie = build_trie([text])
    return model.score(trie).sum_paths(trie)[0]


def test_differences_are_those_of_the_sentences_scored_alone():
    def load(dtype: str) -> NeuralLanguageModel:
        model, words = random_network(kind="lstm", seed=3)
        return NeuralLanguageModel(model, words, dtype=dtype)

    found = compare_precisions(load, SENTENCES)
    texts = [text for words in SENTENCES if words for text in vary(words)]
    exact, half = (
        np.array([score_alone(load(dtype), text) / (len(text) + 1) for text in texts])
        for dtype in ("float32", "bfloat16")
    )
    assert found["float32"].mean_difference == 0
    assert found["bfloat16"].mean_difference == pytest.approx(np.abs(half - exact).mean(), abs=1e-6)
    assert found["bfloat16"].max_difference == pytest.approx(np.abs(half - exact).max(), abs=1e-6)
    assert {one.n_sentences for one in found.values()} == {2}


@pytest.mark.parametrize(
    ("half", "eighth", "chosen"),
    [
        (check(0.01, 200), check(0.015, 300), "int8"),
        (check(0.01, 200), check(0.021, 300), "bfloat16"),
        (check(0.03, 200), check(0.04, 300), "float32"),
        (check(0.01, 105), check(0.01, 90), "float32"),  # not worthwhile
    ],
)
def test_the_fastest_within_the_tolerance_is_chosen(half, eighth, chosen):
    checks = {"float32": check(0, 100), "bfloat16": half, "int8": eighth}
    assert choose_fastest(checks, 0.02) == chosen


def recorded(bundle, dtype, half=0.01):
    """A bundle that records a precision for its network."""
    models = {"neural": {"dtype": dtype, "difference": {"bfloat16": half}}}
    return replace(bundle, manifest={**bundle.manifest, RECORD: {"tolerance": 0.02, "models": models}})


def test_auto_is_what_the_bundle_records(bundle):
    plain = read_bundle(bundle)
    assert choose_precisions(recorded(plain, "int8"), "auto") == {"neural": "int8"}
    assert choose_precisions(recorded(plain, "int8"), "auto", "cuda:1") == {"neural": "bfloat16"}
    assert choose_precisions(recorded(plain, "int8", half=0.03), "auto", "cuda") == {"neural": "float32"}
    assert choose_precisions(plain, "int8") == {"neural": "int8"}
    with pytest.raises(ConfigError, match="records no precision"):
        choose_precisions(plain, "auto")
    with pytest.raises(ConfigError, match="expected float32, bfloat16 or int8"):
        choose_precisions(plain, "float8")


@pytest.mark.parametrize(
    "record",
    [
        None,
        [],
        {"tolerance": "high", "models": {}},
        {"tolerance": 0.1, "models": {"neural": "int8"}},
        {"tolerance": 10**400, "models": {"neural": {"dtype": "int8", "difference": {}}}},
        {"tolerance": 0.1, "models": {"neural": {"dtype": "int8", "difference": 0.01}}},
        {"tolerance": 0.1, "models": {"neural": {"dtype": "float8", "difference": {"bfloat16": 0}}}},
    ],
)
def test_a_record_that_is_not_one_is_refused(bundle, record):
    plain = read_bundle(bundle)
    with pytest.raises(BundleError, match="precision"):
        choose_precisions(replace(plain, manifest={**plain.manifest, RECORD: record}), "auto")


def test_a_model_that_cannot_be_computed_in_bfloat16_stays_in_float32_on_a_gpu(bundle):
    models = {"neural": {"dtype": "int8", "difference": {"int8": 0.001}}}
    plain = read_bundle(bundle)
    found = replace(plain, manifest={**plain.manifest, RECORD: {"tolerance": 0.02, "models": models}})
    assert choose_precisions(found, "auto", "cuda") == {"neural": "float32"}
    assert choose_precisions(found, "auto") == {"neural": "int8"}


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", [], "the text has no words"),
        ("the cat\n", ["--tolerance", "inf"], "--tolerance is inf; expected a number of nats"),
    ],
)
def test_nothing_is_published_without_a_text_or_a_tolerance(bundle, run, tmp_path, content, options, message):
    """A tolerance that is not finite made a manifest that is not JSON."""
    (tmp_path / "text.txt").write_text(content, encoding="utf-8")
    output = tmp_path / "fast" / "2"
    code, _, err = run(
        "precision", bundle, "--text", tmp_path / "text.txt", "-o", output, *options, command=main
    )
    assert (code, message in err, output.exists()) == (2, True, False), err


def test_a_record_keeps_the_choice_and_the_differences():
    checks = {"float32": check(0, 100), "bfloat16": check(0.01, 200)}
    assert make_record({"lstm": checks}, 0.02) == {
        "tolerance": 0.02,
        "models": {"lstm": {"dtype": "bfloat16", "difference": {"bfloat16": 0.01}}},
    }


def test_a_bundle_is_published_with_its_precision_and_rescored_in_it(bundle, run, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat\nthe mat\n" * 4, encoding="utf-8")
    output = tmp_path / "fast" / "2"
    code, out, err = run(
        "precision", bundle, "--text", text, "-o", output, "--tolerance", "1", "--json", command=main
    )
    assert code == 0, err
    chosen = json.loads(out)["models"]["neural"]["chosen"]
    after = read_bundle(output)
    assert after.label == "fast/2"
    assert after.manifest[RECORD]["models"]["neural"]["dtype"] == chosen
    assert after.manifest["files"] == read_bundle(bundle).manifest["files"]
    fixed, auto = Rescorer.load(bundle, dtype=chosen), Rescorer.load(output, dtype="auto")
    assert fixed.rescore(LISTS)[0].hypotheses == auto.rescore(LISTS)[0].hypotheses


def test_a_bundle_of_n_grams_has_no_precision_to_choose(ngram_bundle, run, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat\n", encoding="utf-8")
    code, _, err = run("precision", ngram_bundle, "--text", text, "-o", tmp_path / "m" / "1", command=main)
    assert code == 2
    assert "only n-grams" in err
    assert Rescorer.load(ngram_bundle, dtype="auto").rescore(LISTS)
