"""Quantising weights and averaging models: results, rejected inputs and the commands."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from rescorer.errors import BundleError, ConfigError
from rescorer.models.kernels import dequantise_tensors, quantise_tensors
from rescorer.models.network_files import SCALE_SUFFIX, WEIGHTS_FILE
from rescorer.models.neural import load_model, save_model
from rescorer.text import NormaliserSettings
from rescorer_training.classes.trees import build_huffman_tree
from rescorer_training.cli import app
from rescorer_training.neural import checkpoint
from rescorer_training.neural.checkpoint import average, quantise
from tests.support.tiny_models import NETWORK_WORDS, random_network


@given(rows=st.integers(1, 5), columns=st.integers(1, 7), scale=st.floats(1e-3, 1e3), seed=st.integers(0, 99))
def test_int8_weights_round_to_the_nearest_step_of_their_row(rows, columns, scale, seed):
    torch.manual_seed(seed)
    matrix = torch.randn(rows, columns) * scale
    matrix[0] = 0.0  # a row of zeros has no scale
    stored = quantise_tensors({"a": matrix, "bias": matrix[0]})
    assert stored["a"].dtype == torch.int8
    assert torch.equal(stored["bias"], matrix[0])
    recovered = dequantise_tensors(stored)
    assert set(recovered) == {"a", "bias"}
    step = matrix.abs().amax(dim=1, keepdim=True) / 127
    assert ((recovered["a"] - matrix).abs() <= 0.5001 * step).all()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("precision", "max_ratio"), [("float16", 0.6), ("int8", 0.6)])
def test_quantised_model_is_smaller_and_nearly_equal(tied, precision, max_ratio, tmp_path):
    model, vocabulary = random_network(tied=tied)
    save_model(model, vocabulary, tmp_path / "whole")
    (tmp_path / "whole" / "training.json").write_text("{}")
    quantise(tmp_path / "whole", tmp_path / "small", precision)
    tensors = [load_file(tmp_path / name / WEIGHTS_FILE).values() for name in ("whole", "small")]
    before, after = (sum(tensor.numel() * tensor.element_size() for tensor in values) for values in tensors)
    assert after < max_ratio * before
    small, words = load_model(tmp_path / "small")
    assert words == vocabulary
    assert (tmp_path / "small" / "training.json").exists()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(
            small.state_dict()[name], value, atol=0.02 * float(value.abs().max()), rtol=0
        )


def test_bundle_keeps_the_precision_of_a_network(tmp_path):
    save_model(*random_network(), tmp_path / "small", torch.int8)
    (tmp_path / "valid.txt").write_text("the cat sat\n")
    arguments = ["bundle", str(tmp_path / "mine" / "1"), "--neural", str(tmp_path / "small")]
    arguments += ["--validation", str(tmp_path / "valid.txt"), "--json"]
    manifest = json.loads(CliRunner().invoke(app, arguments, catch_exceptions=False).stdout)
    assert manifest["measured"]["validation"]["unknown_words"] == 0
    stored = load_file(tmp_path / "mine" / "1" / "neural" / WEIGHTS_FILE)
    assert stored["network.embedding.weight"].dtype == torch.int8


def test_rejects_damaged_scales(tmp_path):
    save_model(*random_network(), tmp_path / "m", torch.int8)
    whole = load_file(tmp_path / "m" / WEIGHTS_FILE)
    name = next(name for name in whole if name.endswith(SCALE_SUFFIX))
    for damaged in (
        {**whole, name: whole[name][:-1].clone()},
        {key: value for key, value in whole.items() if key != name.removesuffix(SCALE_SUFFIX)},
    ):
        save_file(damaged, tmp_path / "m" / WEIGHTS_FILE)
        with pytest.raises(BundleError, match=r"scales have the shape|has the type I8|is missing"):
            load_model(tmp_path / "m")


def test_average_is_the_mean_of_every_weight(tmp_path):
    models = [random_network(seed=seed) for seed in range(3)]
    for i, model in enumerate(models):
        save_model(*model, tmp_path / f"run{i}" / "best")
    average([tmp_path / f"run{i}" / "best" for i in range(3)], tmp_path / "mean")
    mean_model, _ = load_model(tmp_path / "mean")
    for name, value in mean_model.state_dict().items():
        mean = torch.stack([model.state_dict()[name].double() for model, _ in models]).mean(dim=0)
        torch.testing.assert_close(value, mean.float())


def test_rejects_averaging_different_models(tmp_path):
    save_model(*random_network(), tmp_path / "a")
    save_model(*random_network(layers=2), tmp_path / "b")
    save_model(*random_network((*NETWORK_WORDS[:-1], "slow")), tmp_path / "c")
    with pytest.raises(ConfigError, match=r"layers is 2, but 1 in .*a"):
        average([tmp_path / "a", tmp_path / "b"], tmp_path / "mean")
    with pytest.raises(ConfigError, match="its vocabulary differs from that of"):
        average([tmp_path / "a", tmp_path / "c"], tmp_path / "mean")
    with pytest.raises(ConfigError, match="at least two"):
        average([tmp_path / "a"], tmp_path / "mean")
    with pytest.raises(ConfigError, match="already has a model"):
        average([tmp_path / "a", tmp_path / "a"], tmp_path / "a")
    with pytest.raises(ConfigError, match="expected one of float32, float16, int8"):
        quantise(tmp_path / "a", tmp_path / "d", "int4")


def test_rejects_averaging_different_trees(tmp_path):
    model, vocabulary = random_network(output="tree", tied=False, class_sizes=())
    save_model(model, vocabulary, tmp_path / "a")
    save_model(model, vocabulary, tmp_path / "b")
    average([tmp_path / "a", tmp_path / "b"], tmp_path / "same")
    averaged, _ = load_model(tmp_path / "same")
    assert torch.equal(averaged.output.tree, model.output.tree)
    model.output.set_tree(build_huffman_tree(np.arange(model.output.n_words) ** 3 + 1))
    save_model(model, vocabulary, tmp_path / "c")
    with pytest.raises(ConfigError, match="tree differs from that of"):
        average([tmp_path / "a", tmp_path / "c"], tmp_path / "mean")


def test_commands_report_perplexities(tmp_path):
    for name in "ab":
        save_model(*random_network(), tmp_path / name / "best")
    (tmp_path / "text.txt").write_text("the cat sat on the mat\nthe dog ran\n")

    def run(*arguments: str) -> dict:
        options = ["--test", str(tmp_path / "text.txt"), "--json"]
        return json.loads(CliRunner().invoke(app, [*arguments, *options], catch_exceptions=False).stdout)

    small = run("quantise", str(tmp_path / "a"), "-o", str(tmp_path / "small"))
    before, after = small["perplexity"].values()
    assert after == pytest.approx(before, rel=0.02)
    assert small["precision"] == "int8"
    mean = run("average", str(tmp_path / "a"), str(tmp_path / "b"), "-o", str(tmp_path / "mean"))
    assert list(mean["perplexity"].values()) == pytest.approx([before] * 3, rel=1e-6)
    result = CliRunner().invoke(app, ["quantise", str(tmp_path / "a"), "-o", str(tmp_path / "half")])
    assert "MB" in result.stdout


@pytest.mark.parametrize("command", ["quantise", "average"])
def test_a_folder_with_weights_has_its_normaliser(command, tmp_path, monkeypatch):
    for name in "ab":
        save_model(*random_network(), tmp_path / name)
        (tmp_path / name / "text.json").write_text(NormaliserSettings.raw().to_json())

    def fail(*_):
        assert (tmp_path / "made" / "text.json").read_text().strip() == NormaliserSettings.raw().to_json()
        raise ConfigError("the disk is full")

    monkeypatch.setattr(checkpoint, "save_model", fail)
    models = [str(tmp_path / name) for name in ("a" if command == "quantise" else "ab")]
    result = CliRunner().invoke(app, [command, *models, "-o", str(tmp_path / "made")])
    assert "the disk is full" in str(result.exception)
