"""Rerankers in files: what is written is read again, and what does not fit together is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rescorer.errors import BundleError
from rescorer.reranking.reranker import read_reranker, write_reranker
from rescorer.safe_input import Folder
from rescorer.trie import WordEncoder
from rescorer.types import Weights
from tests.support.tiny_rerankers import random_reranker, random_transformer_reranker

BASE = Weights("base", {"acoustic": 1.0}, {"mixture": 0.5}, 0.25, mixture={"ngram": 0.4, "neural": 0.6})


ENCODER = WordEncoder("neural", np.random.default_rng(1).normal(size=(7, 4)))


@pytest.mark.parametrize("encoder", [None, ENCODER])
@pytest.mark.parametrize("units", [0, 5])
def test_reads_what_was_written(tmp_path, units, encoder):
    reranker = random_reranker("mine", BASE, units, encoder=encoder)
    write_reranker(reranker, tmp_path / "mine")
    found = read_reranker(Folder(tmp_path / "mine"), "mine")
    for name in ("name", "features", "base", "models", "tuned_on", "held_out", "needs"):
        assert getattr(found, name) == getattr(reranker, name)
    np.testing.assert_array_equal(found.scales, reranker.scales)
    check_networks(found, reranker)


@pytest.mark.parametrize("encoder", [None, ENCODER])
def test_reads_transformers_that_were_written(tmp_path, encoder):
    reranker = random_transformer_reranker("mine", BASE, encoder)
    write_reranker(reranker, tmp_path / "mine")
    found = read_reranker(Folder(tmp_path / "mine"), "mine")
    assert found.needs == reranker.needs
    check_networks(found, reranker)


def check_networks(found, expected):
    assert found.ensemble.sizes == expected.ensemble.sizes
    for name, values in expected.ensemble.parameters.items():
        np.testing.assert_array_equal(found.ensemble.parameters[name], values)
    assert (found.encoder is None) == (expected.encoder is None)
    if found.encoder:
        assert found.encoder.model == expected.encoder.model
        np.testing.assert_array_equal(found.encoder.projection, expected.encoder.projection)


def edit_config(**changes):
    def apply(folder):
        config = json.loads((folder / "config.json").read_text()) | changes
        config = {key: value for key, value in config.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(config))

    return apply


def edit_parameters(**changes):
    def apply(folder):
        tensors = load_file(folder / "parameters.safetensors") | changes
        tensors = {name: values for name, values in tensors.items() if values is not None}
        save_file(tensors, folder / "parameters.safetensors")

    return apply


NAN = np.full(19, np.nan)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edit_config(schema=2), "'schema' is 2; expected 1"),
        (edit_config(features=None), "'features' is missing"),
        (edit_config(feature=[]), "unknown key 'feature'; .*did you mean 'features'"),
        (edit_config(features=[]), "0 features; expected 1 to 256"),
        (edit_config(features=["words"] * 19), "a feature stands twice"),
        (edit_config(features=["words"]), "'hidden' has .* the shape 3×19×5; .* needs F64 and 3×1×5"),
        (edit_config(features=[1]), "'features' is not a list of strings"),
        (edit_config(members=10**9), "'members' is 1000000000; expected an integer from 1 to 64"),
        (edit_config(members=True), "'members' is True"),
        (edit_config(members=64, hidden_units=1024), r"1,\d+,\d+ parameters; expected at most 1,048,576"),
        (edit_config(hidden_units=3), "'hidden' is missing|the shape 3×5; .* needs F64 and 3×3"),
        (edit_config(hidden_units=-1), "'hidden_units' is -1"),
        (edit_config(base=[]), "'base' is not an object"),
        (edit_config(base={"lm": {"mixture": float("nan")}}), "expected a finite number"),
        (edit_config(models={"ngram": 1}), "'models' is not an object of SHA-256"),
        (edit_config(held_out={"wer": "good"}), "'held_out' is not an object of finite numbers"),
        (edit_parameters(output=None), "'output' is missing"),
        (edit_parameters(more=np.zeros(1)), "'more' is not a parameter"),
        (edit_parameters(linear=np.zeros((3, 19), np.float32)), "the type F32"),
        (edit_parameters(scales=np.zeros(19)), "a scale is not a finite number above 0"),
        (edit_parameters(scales=NAN), "scales has values that are not finite"),
        (edit_parameters(bias=np.full((3, 5), np.inf)), "bias has values that are not finite"),
        (lambda folder: (folder / "config.json").write_text("{"), "cannot be read as JSON"),
        (lambda folder: (folder / "config.json").unlink(), "is missing"),
        (lambda folder: (folder / "parameters.safetensors").write_bytes(b"\xff" * 40), "the header has"),
    ],
)
def test_refuses_what_does_not_fit_together(tmp_path, change, message):
    write_reranker(random_reranker("mine", BASE, 5), tmp_path)
    change(tmp_path)
    with pytest.raises(BundleError, match=message) as caught:
        read_reranker(Folder(tmp_path), "mine")
    assert str(tmp_path) in str(caught.value)


SIZES = {"layers": 2, "width": 6, "heads": 2}
WORDS = {"model": "neural", "vector_size": 7, "size": 4}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edit_config(transformer=None), "attention.* is not a parameter of the reranker"),
        (edit_config(transformer=[]), "'transformer' is not an object"),
        (edit_config(transformer=SIZES | {"layers": 5}), "'transformer.layers' is 5; .* from 1 to 4"),
        (
            edit_config(transformer=SIZES | {"layers": 2.0}),
            "'transformer.layers' is 2.0; expected an integer",
        ),
        (edit_config(transformer=SIZES | {"width": 10**12}), "'transformer.width' is 1000000000000"),
        (edit_config(transformer=SIZES | {"heads": 4}), "width 6 with 4 heads"),
        (edit_config(transformer=SIZES | {"head": 2}), "unknown key 'transformer.head'; .*mean 'heads'"),
        (edit_config(transformer={"layers": 2, "width": 6}), "'transformer.heads' is missing"),
        (edit_config(transformer=SIZES | {"layers": 3}), "'attention' .* the shape 3×2×6×18; .* 3×3×6×18"),
        (edit_config(hidden_units=0), "'hidden_units' is 0; expected an integer from 1 to 512"),
        (edit_config(hidden_units=513), "'hidden_units' is 513; expected an integer from 1 to 512"),
        (edit_config(encoder=WORDS | {"size": 33}), "'encoder.size' is 33; .* from 1 to 32"),
        (edit_config(encoder=WORDS | {"vector_size": 0}), "'encoder.vector_size' is 0"),
        (edit_config(encoder=WORDS | {"model": 1}), "'encoder.model' is not a string"),
        (edit_config(encoder=WORDS | {"size": 3}), "'input' has .* the shape 3×23×6; .* F64 and 3×22×6"),
        (edit_config(encoder=None), "'input' has .*needs F64 and 3×19×6"),
        (
            edit_config(transformer=SIZES | {"width": 128}, hidden_units=512, members=9),
            r"3,588,734 parameters",
        ),
        (edit_config(encoder=WORDS | {"vector_size": 16384}, members=64), "'projection' has|'attention' has"),
        (edit_parameters(projection=None), "'projection' is missing"),
        (edit_parameters(projection=np.full((7, 4), np.inf)), "projection has values that are not finite"),
        (edit_parameters(attention_bias=None), "'attention_bias' is missing"),
        (edit_parameters(scales=np.zeros(19)), "a scale is not a finite number above 0"),
    ],
)
def test_refuses_transformers_that_do_not_fit_together(tmp_path, change, message):
    write_reranker(random_transformer_reranker("mine", BASE, ENCODER), tmp_path)
    change(tmp_path)
    with pytest.raises(BundleError, match=message) as caught:
        read_reranker(Folder(tmp_path), "mine")
    assert str(tmp_path) in str(caught.value)


def test_refuses_an_unknown_feature(tmp_path):
    write_reranker(random_reranker("mine", BASE), tmp_path)
    features = json.loads((tmp_path / "config.json").read_text())["features"]
    edit_config(features=["totl", *features[1:]])(tmp_path)
    with pytest.raises(BundleError, match=r"unknown feature 'totl'.*did you mean 'total'"):
        read_reranker(Folder(tmp_path), "mine")
