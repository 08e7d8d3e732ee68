"""Bundles of models of both directions: hostile manifests, weights, and scores of words in reading order."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from rescorer import ConfigError, Hypothesis, NBestList, Rescorer
from rescorer.errors import BundleError
from rescorer.evaluation.folds import Parameters
from rescorer.evaluation.scored_lists import load_cached_rescorer
from rescorer.evaluation.systems import weights_by_system
from rescorer.models.bundle import read_bundle
from tests.support.backward_models import BACKWARD, LM_WEIGHTS, write_bundle
from tests.support.reference_scorer import reference_log_probs
from tests.support.tiny_rerankers import random_reranker, weights_of

TEXTS = ("the cat sat on the mat", "the cat sad on a mat", "b a c", "", "the zebra sat", "the cat sat on")
SCORES = (0.0, -0.5, -1.0, -2.0, -0.2, -0.1)
LISTS = [
    NBestList("context", tuple(map(Hypothesis, TEXTS)), {"acoustic": SCORES}, "on the mat"),
    NBestList("alone", tuple(map(Hypothesis, TEXTS[::-1])), {"acoustic": SCORES}),
]


@pytest.fixture
def folder(tmp_path):
    return write_bundle(tmp_path)


@pytest.fixture(scope="module")
def rescorer(tmp_path_factory):
    return Rescorer.load(write_bundle(tmp_path_factory.mktemp("bundle")))


def edit(folder, change):
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_directions_are_read_from_the_manifest(folder, ngram_bundle):
    assert read_bundle(folder).backward == set(BACKWARD)
    assert json.loads((folder / "manifest.json").read_text())["schema"] == 2  # refused by older versions
    assert read_bundle(ngram_bundle).backward == set()
    assert (
        json.loads((ngram_bundle / "manifest.json").read_text())["schema"] == 3
    )  # for the second rules of its text


@pytest.mark.parametrize("value", [1, "true", None, [], {}])
def test_rejects_a_direction_that_is_not_a_boolean(folder, value):
    edit(folder, lambda manifest: manifest["models"]["back"].update(backward=value))
    with pytest.raises(BundleError, match="model 'back': 'backward' is not a boolean"):
        read_bundle(folder)


def test_rejects_backward_models_in_the_older_schema(folder):
    edit(folder, lambda manifest: manifest.update(schema=1))
    with pytest.raises(BundleError, match="schema is 1, but backward models need 2"):
        read_bundle(folder)


@pytest.mark.parametrize(("name", "direction"), [("neural", True), ("leftward", False)])
def test_rejects_a_network_in_the_wrong_direction(folder, name, direction):
    edit(folder, lambda manifest: manifest["models"][name].update(backward=direction))
    weights = replace(read_weights(folder), mixture={"ngram": 1.0})
    (folder / "weights" / "default.json").write_text(json.dumps({"mixture": weights.mixture}))
    reseal(folder)
    with pytest.raises(BundleError, match=f"model '{name}' is a .* network by its config.json"):
        Rescorer.load(folder)


def read_weights(folder):
    return Rescorer.load(write_bundle(folder.parent / "other")).bundle.weights["default"]


def reseal(folder):
    from rescorer.models.bundle import seal

    seal(folder)


def test_words_come_back_in_reading_order(rescorer):
    for score, text in zip(rescorer.score_text(TEXTS), TEXTS, strict=True):
        words = tuple(text.split())
        assert score.words == words
        for name, model in rescorer.models.items():
            np.testing.assert_allclose(score.log_probs[name], reference_log_probs(model, words), atol=1e-4)


@pytest.mark.parametrize("max_batch_words", [65_536, 9])
def test_components_are_sums_of_words(rescorer, max_batch_words):
    small = Rescorer(rescorer.bundle, rescorer.models, max_batch_words)
    for nbest, answer in zip(LISTS, small.rescore(LISTS), strict=True):
        context = tuple(nbest.context.split())
        for hypothesis in answer.hypotheses:
            words = tuple(hypothesis.text.split())
            for name, model in rescorer.models.items():
                expected = reference_log_probs(model, words, context).sum()
                assert hypothesis.components[name] == pytest.approx(expected, abs=1e-3)
            parts = {name: weight * hypothesis.components[name] for name, weight in LM_WEIGHTS.items()}
            others = hypothesis.components["acoustic"] + 0.1 * len(words) - hypothesis.components["oov"]
            assert hypothesis.total == pytest.approx(sum(parts.values()) + others, abs=1e-6)


def test_weights_do_not_mix_directions(rescorer):
    default = rescorer.bundle.weights["default"]
    with pytest.raises(ConfigError, match="forward model 'ngram' and the backward model 'back'"):
        rescorer.rescore(LISTS, replace(default, mixture={"ngram": 0.5, "back": 0.5}))
    backward = replace(default, mixture={"back": 0.5, "leftward": 0.5})
    answer = rescorer.rescore(LISTS, backward)[0].best
    assert answer.components["mixture"] != rescorer.rescore(LISTS, default)[0].best.components["mixture"]


def test_cached_scores_are_the_same(rescorer, folder, tmp_path):
    notes = []
    for _ in range(2):
        cached = load_cached_rescorer(folder, "cpu", tmp_path / "cache", notes.append)
        assert cached.rescore(LISTS) == rescorer.rescore(LISTS)
    assert not notes
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_weights_of_backward_models_are_tuned_and_their_shares_are_not(rescorer):
    start = rescorer.bundle.weights["default"]
    parameters = Parameters.choose(start, ("lm", "lm:back", "mix"))
    assert {"lm:back", "lm:leftward"} <= {*parameters.names}
    assert parameters.models == ("ngram", "neural")


def test_models_alone_get_the_weight_that_the_directions_share(rescorer):
    systems = weights_by_system(rescorer, rescorer.bundle.weights["default"])
    assert systems["back"].lm == {"back": pytest.approx(sum(LM_WEIGHTS.values()))}
    assert systems["mixture + back + leftward"].lm == LM_WEIGHTS


def test_rerankers_take_backward_models_as_features(rescorer):
    default = rescorer.bundle.weights["default"]
    features = ("total", "score:back", "score_per_word:leftward", "words")
    reranker = random_reranker("both", default, units=2, features=features)
    bundle = replace(rescorer.bundle, rerankers={"both": reranker})
    answer = Rescorer(bundle, rescorer.models).rescore(LISTS[:1], weights_of(reranker))[0]
    hypotheses = sorted(answer.hypotheses, key=lambda hypothesis: hypothesis.original_rank)
    names = [name for name in hypotheses[0].components if name != reranker.component]
    components = {name: np.array([h.components[name] for h in hypotheses]) for name in names}
    for name in BACKWARD:
        expected = [
            reference_log_probs(rescorer.models[name], tuple(h.text.split())).sum() for h in hypotheses
        ]
        np.testing.assert_allclose(components[name], expected, atol=1e-3)
    words = [tuple(hypothesis.text.split()) for hypothesis in hypotheses]
    expected = reranker.score(components, words, ("on", "the", "mat"), None)
    assert [h.components[reranker.component] for h in hypotheses] == pytest.approx(expected.tolist())
