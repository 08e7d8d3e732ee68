"""Rerankers of a bundle: they are verified with it, and lists are ranked by their scores."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from rescorer import ConfigError, Hypothesis, InvalidList, NBestList, Rescorer, Weights
from rescorer.errors import BundleError
from rescorer.evaluation.scored_lists import collect_components
from rescorer.models.bundle import hash_used_models, read_bundle, seal
from rescorer.trie import WordEncoder
from rescorer_training.recipe.bundles import BundleParts, make_bundle
from tests.support.tiny_models import write_bundle
from tests.support.tiny_rerankers import (
    add_reranker,
    add_tiny_rerankers,
    random_reranker,
    random_transformer_reranker,
    weights_of,
)

TEXTS = ("the cat sat", "the cat sat on", "a cat sad", "", "the the cat cat")
LISTS = [
    NBestList("all", tuple(map(Hypothesis, TEXTS)), {"acoustic": (-1.0, -1.5, -0.5, -3.0, -2.0)}, "on the"),
    NBestList("one", (Hypothesis("the cat"),), {"acoustic": (-1.0,)}),
    NBestList("equal", (Hypothesis("the cat"),) * 3, {"acoustic": (-1.0,) * 3}),
    NBestList("empty", (Hypothesis(""),) * 3, {"acoustic": (-3.0, -2.0, -1.0)}),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return add_tiny_rerankers(write_bundle(tmp_path_factory.mktemp("rerankers"), neural=False))


@pytest.fixture(scope="module")
def rescorer(folder):
    return Rescorer.load(folder)


@pytest.fixture
def copy(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "tiny" / "1")
    return tmp_path / "tiny" / "1"


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_ranks_lists_by_the_score_of_a_reranker(rescorer, name):
    reranker, weights = rescorer.bundle.rerankers[name], rescorer.bundle.weights[name]
    for nbest, answer in zip(LISTS, rescorer.rescore(LISTS, weights), strict=True):
        components = collect_components(answer)
        words = [tuple(hypothesis.text.split()) for hypothesis in nbest.hypotheses]
        expected = reranker.score(components, words, tuple(nbest.context.split()))
        np.testing.assert_allclose(components[f"reranker:{name}"], expected, rtol=0, atol=0)
        totals = [hypothesis.total for hypothesis in answer.hypotheses]
        assert totals == sorted(expected, reverse=True) == sorted(totals, reverse=True)


def test_adds_the_scores_of_rerankers_to_other_components(rescorer):
    weights = Weights("both", {"acoustic": 2.0}, {"mixture": 0.5}, rerankers={"linear": 3.0, "mlp": -1.0})
    for hypothesis in rescorer.rescore(LISTS, weights)[0].hypotheses:
        parts = hypothesis.components
        expected = 2 * parts["acoustic"] + 0.5 * parts["mixture"]
        expected += 3 * parts["reranker:linear"] - parts["reranker:mlp"]
        assert hypothesis.total == pytest.approx(expected)


def test_lists_of_one_and_of_equal_hypotheses_keep_their_order(rescorer):
    for answer in rescorer.rescore(LISTS[1:3], rescorer.bundle.weights["mlp"]):
        assert [h.original_rank for h in answer.hypotheses] == list(range(len(answer.hypotheses)))


def test_needs_the_streams_of_its_features(rescorer):
    nbest = replace(LISTS[0], streams={"am": LISTS[0].streams["acoustic"]})
    with pytest.raises(InvalidList, match=r"list.*all.*acoustic.*reranker .linear. needs it; .* am"):
        rescorer.rescore([nbest], rescorer.bundle.weights["linear"])
    rescorer.rescore([nbest], Weights("other"))  # which do not use it


def test_streams_may_not_have_the_name_of_its_score(rescorer):
    nbest = replace(LISTS[1], streams={"acoustic": (0.0,), "reranker:mlp": (1.0,)})
    with pytest.raises(InvalidList, match="'reranker:mlp' is reserved"):
        rescorer.rescore([nbest])


def test_huge_scores_are_refused_as_under_other_weights(rescorer):
    nbest = replace(LISTS[0], streams={"acoustic": (1e308, -1e308, 1e308, 1e308, 0.0)})
    with pytest.raises(InvalidList, match="the scores or weights are too large"):
        rescorer.rescore([nbest], rescorer.bundle.weights["mlp"])


def test_weights_that_name_an_unknown_reranker_are_refused(rescorer):
    with pytest.raises(ConfigError, match="names 'mpl'; the bundle has linear, mlp; did you mean 'mlp'"):
        rescorer.rescore(LISTS, Weights(rerankers={"mpl": 1.0}))


def test_takes_the_interpolation_weights_of_the_reranker(bundle, tmp_path):
    shutil.copytree(bundle, tmp_path / "tiny" / "1")
    trained = {"ngram": 0.9, "neural": 0.1}
    reranker = random_reranker("mine", Weights("base", {}, {"mixture": 1.0}, mixture=trained))
    add_reranker(tmp_path / "tiny" / "1", reranker)
    rescorer = Rescorer.load(tmp_path / "tiny" / "1")
    weights = replace(weights_of(reranker), mixture={})
    assert rescorer.ranker.effective_weights(weights).mixture == trained
    assert rescorer.ranker.effective_weights(Weights()).mixture == {"ngram": 0.5, "neural": 0.5}
    with pytest.raises(ConfigError, match=r"λ ngram 0.5, neural 0.5, but reranker 'mine' was trained with"):
        rescorer.rescore(LISTS, replace(weights, mixture={"ngram": 0.5, "neural": 0.5}))


def edit_config(folder, name, **changes):
    path = folder / "reranker" / name / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"][f"reranker/{name}/config.json"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    seal(folder)


def test_refuses_a_reranker_that_was_trained_with_other_models(copy):
    for models, message in (
        ({"ngram": "0" * 64}, "trained with another model 'ngram'"),
        ({"ngrm": "0" * 64}, "trained with the model 'ngrm', but the bundle has ngram; did you mean 'ngram'"),
        ({}, "'models' does not have 'ngram'"),
    ):
        edit_config(copy, "mlp", models=models)
        with pytest.raises(BundleError, match=message):
            read_bundle(copy)


def test_refuses_encoders_that_the_bundle_does_not_have(transformer_bundle, tmp_path):
    folder = tmp_path / "tiny" / "1"
    shutil.copytree(transformer_bundle, folder)
    config = json.loads((folder / "reranker" / "transformer" / "config.json").read_text())
    assert list(config["models"]) == ["ngram", "neural"]
    encoder = config["encoder"]
    edit_config(folder, "transformer", models={"ngram": config["models"]["ngram"]})
    with pytest.raises(BundleError, match="'models' does not have 'neural'"):
        read_bundle(folder)
    for name in ("ngram", "lstm", "mixture"):
        edit_config(folder, "transformer", models=config["models"], encoder=encoder | {"model": name})
        message = f"encodes words by '{name}'; expected a network of the bundle: neural"
        with pytest.raises(BundleError, match=message):
            read_bundle(folder)


def test_refuses_projections_of_vectors_of_another_length(tmp_path):
    folder = write_bundle(tmp_path)
    encoder = WordEncoder("neural", np.ones((7, 2)))
    reranker = random_transformer_reranker("mine", Weights(lm={}), encoder, ("words",))
    add_reranker(folder, reranker)
    with pytest.raises(BundleError, match="of length 7, but those of the model 'neural' have the length 6"):
        read_bundle(folder)


def test_refuses_base_weights_that_do_not_fit_the_bundle(copy):
    for base, message in (
        ({"lm": {"ngrm": 1.0}}, "names .'ngrm'"),
        ({"lm": {"mixture": 1.0}}, "no λ"),
        ({"rerankers": {"linear": 1.0}}, "names 'linear'; the bundle has no rerankers"),
        ({"streams": {"reranker:linear": 1.0}}, "named 'reranker:linear', which can be neither"),
        ({"streams": {"empty": 1.0}}, "named 'empty', which can be neither"),
    ):
        edit_config(copy, "mlp", base=base)
        with pytest.raises(BundleError, match=message):
            read_bundle(copy)


def test_files_of_rerankers_are_listed_and_do_not_change(copy):
    manifest = json.loads((copy / "manifest.json").read_text())
    del manifest["files"]["reranker/mlp/parameters.safetensors"]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=r"parameters\.safetensors: not part of the bundle"):
        read_bundle(copy)
    assert seal(copy) == ["reranker/mlp/parameters.safetensors"]
    (copy / "reranker" / "mlp" / "config.json").write_text("{}")
    with pytest.raises(BundleError, match=r"config\.json: corrupt"):
        read_bundle(copy)
    with pytest.raises(BundleError, match="has changed since the bundle was published"):
        seal(copy)


def test_weights_of_a_reranker_that_is_gone_are_refused(copy):
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["files"] = {name: h for name, h in manifest["files"].items() if "reranker/mlp" not in name}
    (copy / "manifest.json").write_text(json.dumps(manifest))
    shutil.rmtree(copy / "reranker" / "mlp")
    with pytest.raises(BundleError, match=r"mlp\.json: weights\.rerankers names 'mlp'; the bundle has"):
        read_bundle(copy)


def test_hashes_only_the_models_that_a_reranker_uses(bundle):
    manifest = read_bundle(bundle).manifest
    for features, base, expected in (
        (("words",), Weights(lm={}), []),
        (("words", "oov"), Weights(lm={}), ["ngram"]),
        (("score:neural",), Weights(lm={}), ["neural"]),
        (("words",), Weights(mixture={"ngram": 0.0, "neural": 1.0}), ["neural"]),
        (("score:mixture",), Weights(lm={}, mixture={"ngram": 0.5, "neural": 0.5}), ["ngram", "neural"]),
    ):
        reranker = random_reranker("mine", base, features=features)
        assert list(hash_used_models(reranker, manifest)) == expected


def test_a_new_bundle_includes_rerankers_of_the_same_models(folder, tmp_path):
    text = tmp_path / "valid.txt"
    text.write_text("the cat sat on the mat\n" * 5)

    def export(**parts):
        settings = read_bundle(folder).normaliser
        arguments = {
            "networks": {},
            "normaliser": settings,
            "weights": Weights(),
            "validation": text,
            "tests": {},
            "ngrams": {"ngram": folder / "ngram" / "model.arpa"},
            "rerankers": [folder / "reranker" / "mlp"],
        }
        make_bundle(BundleParts(name="new", version=1, **(arguments | parts)), tmp_path / "new" / "1")

    other = tmp_path / "other.arpa"
    other.write_text((folder / "ngram" / "model.arpa").read_text().replace("-1.6\tzebra", "-1.7\tzebra"))
    with pytest.raises(BundleError, match="trained with another model 'ngram'"):
        export(ngrams={"ngram": other})
    assert not (tmp_path / "new").exists() or not list((tmp_path / "new").iterdir())
    export(weight_sets=[folder / "weights" / "mlp.json"])
    bundle = read_bundle(tmp_path / "new" / "1")
    assert list(bundle.rerankers) == ["mlp"]
    assert bundle.weights["mlp"].rerankers == {"mlp": 1.0}
