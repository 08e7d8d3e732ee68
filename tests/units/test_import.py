"""Importing models: choices by text, checks, folders and bundles, up to rescored lists."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from rescorer import Hypothesis, NBestList, Rescorer, Weights
from rescorer.client import Client
from rescorer.errors import BundleError, ConfigError, InvalidList
from rescorer.models.bundle import read_bundle
from rescorer.text import Normaliser, NormaliserSettings
from rescorer.trie import build_trie
from rescorer.units.files import load_unit_model
from rescorer.units.importing import import_model, read_huggingface, score_alone
from rescorer_training.adaptation import AdaptationInputs, adapt_bundle
from rescorer_training.evaluation.perplexity import load_models
from rescorer_training.neural.options import TrainingOptions
from rescorer_training.ngram.estimate import NGramOptions, train_ngram
from rescorer_training.recipe.bundles import BundleParts, make_bundle
from tests.support.servers import run_server
from tests.support.unit_models import PEER_MODELS, letters_json

RAW = Normaliser(NormaliserSettings.raw())
SENTENCES = [("the", "cat", "sat"), ("a", "dog", "ran", "on"), ("the", "dog", "sat", "on", "the", "cat")]
ACOUSTIC = {"acoustic": 1.0}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder that transformers saved, with a tokenizer of letters."""
    pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("source") / "llama"
    shutil.copytree(PEER_MODELS / "llama", folder)
    (folder / "tokenizer.json").write_text(letters_json())
    return folder


@pytest.fixture(scope="module")
def imported(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("imported") / "units"
    return folder, import_model(read_huggingface(source), folder, SENTENCES)


def test_chooses_the_start_with_the_lowest_perplexity_and_no_end_that_says_nothing(imported):
    _, found = imported
    assert [one.value for one in found.starts] == sorted(one.value for one in found.starts)
    assert found.config.start == (found.starts[0].unit,)
    assert found.config.end == found.ends[0].unit
    assert {one.name for one in found.starts} >= {"<s>", "</s>"}
    assert found.check.max_difference < 1e-4


def test_the_folder_scores_like_one_text_at_a_time(imported):
    folder, found = imported
    model = load_unit_model(folder)
    trie = build_trie(SENTENCES)
    expected = [score_alone(model, found.config, words) for words in SENTENCES]
    np.testing.assert_allclose(model.score(trie).sum_paths(trie), expected, atol=1e-3)
    bold = load_unit_model(folder, dtype="bfloat16").score(trie).sum_paths(trie)
    np.testing.assert_allclose(bold, expected, rtol=0.02)


def test_takes_named_units_and_refuses_unknown_ones(source, tmp_path):
    foreign = read_huggingface(source)
    found = import_model(foreign, tmp_path / "named", SENTENCES, start="<s>", end="</s>")
    assert (found.config.start, found.config.end) == ((0,), 1)
    with pytest.raises(ConfigError, match="--end is '<end>', which is not a unit of the tokenizer"):
        import_model(foreign, tmp_path / "other", SENTENCES, end="<end>")
    with pytest.raises(ConfigError, match="no sentences"):
        import_model(foreign, tmp_path / "none", [])
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.json", {"start": []}, "start is empty"),
        ("config.json", {"start": [999]}, "start is .*; expected units below 61"),
        ("config.json", {"text": "lower"}, "text is 'lower'"),
        ("config.json", {"new": 1}, "unknown 'new'"),
        ("config.json", {"decoder": None}, "'decoder' or 'start' is missing"),
        ("tokenizer.json", None, "no tokenizer"),
        ("model.safetensors", None, "model.safetensors"),
    ],
)
def test_refuses_damaged_folders(imported, tmp_path, file, change, message):
    folder = tmp_path / "units"
    shutil.copytree(imported[0], folder)
    if change is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | change))
    with pytest.raises(BundleError, match=message):
        load_unit_model(folder)


def publish(folder, units, **parts):
    """Publish a bundle ``toy/1`` with an imported model, ``llm``."""
    text = folder / "text"
    text.write_text("".join(f"{' '.join(words)}\n" for words in SENTENCES) * 4)
    parts = {"ngrams": {}, "networks": {}, "units": {"llm": units}, "tests": {}, "validation": text, **parts}
    make_bundle(
        BundleParts("toy", 1, normaliser=RAW, weights=Weights("w", ACOUSTIC), **parts), folder / "toy" / "1"
    )
    return folder / "toy" / "1"


@pytest.fixture(scope="module")
def bundle(imported, tmp_path_factory):
    """A bundle with an n-gram and an imported model."""
    folder = tmp_path_factory.mktemp("bundle")
    arpa = folder / "m.arpa"
    (folder / "text").write_text("".join(f"{' '.join(words)}\n" for words in SENTENCES) * 4)
    train_ngram([folder / "text"], RAW, arpa, NGramOptions(2))
    return publish(folder, imported[0], ngrams={"ngram": arpa})


LIST = NBestList("l", (Hypothesis("the cat sat"), Hypothesis("a zebra sat")), {"acoustic": (-5.0, -4.0)})


def test_lists_are_rescored_with_a_weight_of_its_own(bundle):
    rescorer = Rescorer.load(bundle)
    assert rescorer.bundle.manifest["schema"] == 4
    assert rescorer.bundle.open_vocabulary == {"llm"}
    assert rescorer.bundle.weights["default"].lm == {"mixture": 1.0, "llm": 0.0}
    (answer,) = rescorer.rescore(LIST, Weights("w", {"acoustic": 1.0}, {"mixture": 1.0, "llm": 0.5}))
    for hypothesis in answer.hypotheses:
        parts = hypothesis.components
        total = parts["acoustic"] + parts["mixture"] + 0.5 * parts["llm"]
        assert hypothesis.total == pytest.approx(total, abs=1e-5)
    assert {one.text: one.components["oov"] for one in answer.hypotheses}["a zebra sat"] == 1.0
    (text,) = rescorer.score_text("a zebra sat")
    assert len(text.log_probs["llm"]) == 4
    assert text.unknown == (False, True, False)


def test_it_is_not_mixed_word_by_word(bundle):
    rescorer = Rescorer.load(bundle)
    with pytest.raises(ConfigError, match="mixture names the model 'llm', which reads pieces of words"):
        rescorer.rescore(LIST, Weights("w", mixture={"ngram": 0.5, "llm": 0.5}))


def test_a_bundle_may_have_nothing_else(imported, tmp_path):
    rescorer = Rescorer.load(publish(tmp_path, imported[0]))
    (answer,) = rescorer.rescore(LIST)
    assert set(answer.best.components) == {"acoustic", "llm", "oov", "words"}
    with pytest.raises(ConfigError, match="all models of the bundle read pieces of words"):
        rescorer.rescore(LIST, Weights("w"))


def test_hypotheses_beyond_a_table_of_positions_are_rejected_alone(source, tmp_path):
    folder = tmp_path / "gpt2"
    shutil.copytree(PEER_MODELS / "gpt2", folder)
    shutil.copyfile(source / "tokenizer.json", folder / "tokenizer.json")
    import_model(read_huggingface(folder), tmp_path / "units", SENTENCES)
    rescorer = Rescorer.load(publish(tmp_path, tmp_path / "units"))
    long = NBestList("long", (Hypothesis("the cat " * 9),), {"acoustic": (0.0,)})
    answers = rescorer.rescore_each([long, LIST])
    assert isinstance(answers[0], InvalidList)
    assert "expected at most 40, the number of positions of the model 'llm'" in str(answers[0])
    assert answers[1].id == "l"


def test_the_manifest_of_such_a_bundle_is_checked(bundle, tmp_path):
    folder = tmp_path / "toy" / "1"
    shutil.copytree(bundle, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"schema": 3}))
    with pytest.raises(BundleError, match="schema is 3, but models in pieces of words need 4"):
        read_bundle(folder)
    manifest["models"]["llm"]["tokenizer"] = "../tokenizer.json"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="'tokenizer' is not one of"):
        read_bundle(folder)


def test_a_server_answers_like_the_library(bundle):
    weights = Weights("w", ACOUSTIC, {"mixture": 1.0, "llm": 0.5})
    (expected,) = Rescorer.load(bundle).rescore(LIST, weights)
    with run_server(bundle) as server, Client(f"127.0.0.1:{server.port}") as client:
        (found,) = client.rescore([LIST], weights=weights)
        (described,) = [model for model in client.get_model().language_models if model.name == "llm"]
    assert [one.text for one in found.hypotheses] == [one.text for one in expected.hypotheses]
    assert found.best.components == pytest.approx(expected.best.components, abs=1e-4)
    assert (described.kind, described.vocabulary_size) == ("units", 0)
    assert described.parameters == 5_872


def test_commands_that_need_words_leave_it_out_or_refuse_it(bundle, tmp_path):
    model_set = load_models(str(bundle))
    assert list(model_set.models) == ["ngram"]
    with pytest.raises(ConfigError, match="'llm' in pieces of words, which cannot be adapted"):
        adapt_bundle(
            AdaptationInputs(bundle, tmp_path / "text", tmp_path / "adapted" / "1"), TrainingOptions(1)
        )
