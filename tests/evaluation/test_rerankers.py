"""Rerankers in evaluation: their rows, their weights in tuning, and what their features explain."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from rescorer import ConfigError, Hypothesis, NBestList, Rescorer
from rescorer.evaluation.error_analysis import INTERACTION, encode_words, explain_list
from rescorer.evaluation.folds import count_tuning_lists, fingerprint_list
from rescorer.evaluation.scored_lists import order_by_weights, score_lists
from rescorer.evaluation.systems import Tuning, compare_systems, drop_models, weights_by_system
from rescorer.extensions import used_rerankers
from rescorer.trie import WordEncoder

WORDS = ["the", "cat", "sat", "on", "mat", "dog", "ran", "fast"]


def make_lists(n=12):
    random = np.random.default_rng(1)
    lists = []
    for index in range(n):
        reference = random.choice(WORDS, size=5).tolist()
        texts = []
        for _ in range(6):
            changed = np.where(random.random(5) < 0.25, random.choice(WORDS, size=5), reference)
            texts.append(Hypothesis(" ".join(changed)))
        scores = tuple(random.normal(size=6).tolist())
        lists.append(
            NBestList(f"u{index}", tuple(texts), {"acoustic": scores}, "the cat", " ".join(reference))
        )
    return lists


@pytest.fixture(scope="module")
def rescorer(reranker_bundle):
    return Rescorer.load(reranker_bundle)


@pytest.fixture(scope="module")
def lists():
    return make_lists()


def test_rows_of_models_use_the_base_weights(rescorer, lists):
    weights = rescorer.bundle.weights["mlp"]
    systems = weights_by_system(rescorer, weights)
    assert list(systems) == ["ngram", "neural", "mixture", "reranker:mlp"]
    assert systems["ngram"].lm == {"ngram": 1.0}
    assert systems["ngram"].streams == {"acoustic": 1.0}
    assert (systems["ngram"].rerankers, systems["ngram"].word) == ({}, 0.5)
    scored, errors = score_lists(rescorer, lists, weights)
    assert not errors
    comparison = compare_systems(scored, systems, with_tuning=False)
    assert [row.name for row in comparison.rows][-4:] == [
        "mixture",
        "reranker:mlp",
        "reranker:mlp, MBR",
        "oracle",
    ]
    answers = rescorer.rescore(lists, weights)
    for item, answer in zip(scored, answers, strict=True):
        assert order_by_weights(item, weights) == [h.original_rank for h in answer.hypotheses]


def test_the_weight_of_a_word_alone_has_no_reranker(rescorer):
    assert drop_models(rescorer.bundle.weights["mlp"]) is None
    base = weights_by_system(rescorer, rescorer.bundle.weights["mlp"])["mixture"]
    assert drop_models(base).rerankers == {}


def test_tunes_weights_beside_that_of_a_reranker(rescorer, lists):
    weights = replace(rescorer.bundle.weights["linear"], rerankers={"linear": 1.0, "mlp": 0.5})
    scored, _ = score_lists(rescorer, lists, weights)
    tuning = Tuning(scored, weights, ["all"])
    assert tuning.parameters.scale == "reranker:linear"
    assert tuning.parameters.free == {"acoustic", "lm:mixture", "word", "oov", "empty", "mix", "reranker:mlp"}
    assert not tuning.parameters.tunes_mixture
    tuned = tuning.report().tuned
    assert tuned.rerankers["linear"] == 1.0
    assert set(tuned.streams) <= {"acoustic"}
    for item in scored:
        assert order_by_weights(item, tuned)


def test_counts_the_lists_that_trained_a_reranker(rescorer, lists):
    weights = rescorer.bundle.weights["mlp"]
    reranker = replace(rescorer.bundle.rerankers["mlp"], tuned_on=tuple(map(fingerprint_list, lists[:3])))
    assert count_tuning_lists(weights, lists, [reranker]) == 3
    assert count_tuning_lists(weights, lists) == 0


def test_features_and_the_encoding_of_words_add_up_to_the_score_of_a_transformer(transformer_bundle, lists):
    rescorer = Rescorer.load(transformer_bundle)
    weights = replace(rescorer.bundle.weights["transformer"], rerankers={"transformer": -2.0})
    scored, _ = score_lists(rescorer, lists, weights)
    rerankers = used_rerankers(rescorer.bundle, weights)
    encodings = encode_words(rescorer, [item.nbest for item in scored], rerankers)
    for item, encoding in zip(scored, encodings, strict=True):
        found = explain_list(item, weights, rerankers, encoding)
        for candidate in found.best:
            parts = candidate.features["reranker:transformer"]
            assert list(parts)[-2:] == ["encoding:neural", INTERACTION]
            assert parts["encoding:neural"].value is None
            assert sum(part.term for part in parts.values()) == pytest.approx(
                candidate.terms["reranker:transformer"]
            )


def test_explains_a_transformer(run, transformer_bundle, lists, tmp_path):
    source = tmp_path / "lists.jsonl"
    with source.open("w") as file:
        for nbest in lists:
            rows = [
                {"text": h.text, "scores": {"acoustic": score}}
                for h, score in zip(nbest.hypotheses, nbest.streams["acoustic"], strict=True)
            ]
            file.write(json.dumps({"id": nbest.id, "ref": nbest.reference, "hypotheses": rows}) + "\n")
    options = ("--bundle", transformer_bundle, "--weights", "transformer")
    code, output, _ = run("explain", source, "u1", *options)
    assert code == 0
    assert "features of reranker:transformer" in output
    assert "encoding:neural" in output
    assert run("explain", source, *options)[0] == 0


def test_encodes_no_lists_and_by_no_unknown_model(transformer_bundle):
    rescorer = Rescorer.load(transformer_bundle)
    assert rescorer.encode([], WordEncoder("neural", np.eye(6))) == []
    with pytest.raises(ConfigError, match=r"words are to be encoded by 'lstm'; the bundle has \['ngram'"):
        rescorer.encode([], WordEncoder("lstm", np.eye(6)))


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_features_of_a_hypothesis_add_up_to_its_score(rescorer, lists, name):
    weights = replace(rescorer.bundle.weights[name], streams={"acoustic": 0.5}, rerankers={name: -2.0})
    scored, _ = score_lists(rescorer, lists, weights)
    for item in scored:
        found = explain_list(item, weights, used_rerankers(rescorer.bundle, weights))
        for candidate in found.best:
            parts = candidate.features[f"reranker:{name}"]
            assert (INTERACTION in parts) == (name == "mlp")
            assert sum(part.term for part in parts.values()) == pytest.approx(
                candidate.terms[f"reranker:{name}"]
            )
            assert candidate.total == pytest.approx(sum(candidate.terms.values()))
            assert parts["words"].value == len(candidate.words)
    assert set(found.to_dict()["first_pass"]["features"]) == {f"reranker:{name}"}
