"""Trained networks compute the published equations: NumPy over the files of a run gives the same scores."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from rescorer.errors import ConfigError
from rescorer.models.neural import NeuralLanguageModel, load_model
from rescorer.trie import build_trie
from rescorer_training.cli import app
from rescorer_training.neural.build import check_network
from rescorer_training.neural.options import NetworkOptions
from rescorer_training.state_files import read_options
from tests.support.toy_training import write_text

OPTIONS = [
    *("--output-layer", "full", "--untied", "--embedding", "6", "--hidden", "6", "--window", "3"),
    *("--epochs", "2", "--batch-words", "64", "--warmup-steps", "2", "--threads", "1"),
]
DEEP = ["--hidden", "9"]  # with a projection to the size of the embedding


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


ACTIVATIONS = {"linear": lambda x: x, "tanh": np.tanh, "sigmoid": sigmoid}


def windowed(weights, inputs, activation):
    """ẑ = f(Σ_i C_i z_{t-n+1+i} + b): log-bilinear if f is linear."""
    matrices, bias = weights["network.positions"], weights["network.bias"]
    words = [inputs[0]] * (len(matrices) - 1) + inputs
    embedded = weights["network.embedding.weight"][words]
    for t in range(len(inputs)):
        summed = sum(c @ z for c, z in zip(matrices, embedded[t : t + len(matrices)], strict=True))
        yield ACTIVATIONS[activation](summed + bias)


def recurrent(weights, inputs, kind, step):
    """h_t = step(W_x x_t, h_{t-1}, W_h, b_x, b_h)."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    w_x, w_h, b_x, b_h = (weights[f"network.{kind}.{name}_l0"] for name in names)
    state = np.zeros((2, w_h.shape[1]))
    for word in inputs:
        state = step(w_x @ weights["network.embedding.weight"][word], state, w_h, b_x, b_h)
        yield state[0]


def elman_step(x, state, w_h, b_x, b_h):
    return np.tanh(x + w_h @ state[0] + b_x + b_h), state[1]


def lstm_step(x, state, w_h, b_x, b_h):
    i, f, g, o = np.split(x + w_h @ state[0] + b_x + b_h, 4)
    cell = sigmoid(f) * state[1] + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(cell), cell


def gru_step_after(x, state, w_h, b_x, b_h):
    h, (w_r, w_z, w_n), (b_r, b_z, b_n) = state[0], np.split(w_h, 3), np.split(b_h, 3)
    x_r, x_z, x_n = np.split(x + b_x, 3)
    r, z = sigmoid(x_r + w_r @ h + b_r), sigmoid(x_z + w_z @ h + b_z)
    return (1 - z) * np.tanh(x_n + r * (w_n @ h + b_n)) + z * h, state[1]


def gru_step_before(x, state, w_h, b_x, b_h):
    h, (w_r, w_z, w_n) = state[0], np.split(w_h, 3)
    x_r, x_z, x_n = np.split(x + b_x + b_h, 3)
    r, z = sigmoid(x_r + w_r @ h), sigmoid(x_z + w_z @ h)
    return (1 - z) * np.tanh(x_n + w_n @ (r * h)) + z * h, state[1]


NETWORKS = {
    "lbl": (["lbl"], lambda w, x: windowed(w, x, "linear")),
    "nlbl": (["nlbl"], lambda w, x: windowed(w, x, "tanh")),
    "nlbl-sigmoid": (["nlbl", "--activation", "sigmoid", *DEEP], lambda w, x: windowed(w, x, "sigmoid")),
    "elman": (["elman"], lambda w, x: recurrent(w, x, "elman", elman_step)),
    "lstm": (["lstm", *DEEP], lambda w, x: recurrent(w, x, "lstm", lstm_step)),
    "gru": (["gru"], lambda w, x: recurrent(w, x, "gru", gru_step_after)),
    "gru-before": (
        ["gru", "--gru-reset", "before", *DEEP],
        lambda w, x: recurrent(w, x, "gru", gru_step_before),
    ),
}  # fmt: skip


def train(folder: Path, name: str) -> Path:
    text, validation = write_text(folder)
    arguments = ["neural", str(text), "--validation", str(validation), "-o", str(folder / "run"), *OPTIONS]
    arguments = [*arguments, "--network", *NETWORKS[name][0]]
    if "lbl" not in name:
        del arguments[arguments.index("--window") : arguments.index("--window") + 2]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return folder / "run" / "best"


def log_probs(weights, contexts, targets):
    """ln P of each target word after its context."""
    projection = weights.get("network.projection.weight")
    for vector, word in zip(contexts, targets, strict=True):
        vector = vector if projection is None else projection @ vector
        scores = weights["output.word_weight"] @ vector + weights["output.word_bias"]
        yield scores[word] - np.log(np.exp(scores).sum())


@pytest.mark.parametrize("name", NETWORKS)
def test_scores_and_perplexity_are_those_of_the_published_equations(tmp_path, name):
    best = train(tmp_path, name)
    weights = {key: value.astype(np.float64) for key, value in load_file(best / "model.safetensors").items()}
    ids = {word: i for i, word in enumerate((best / "vocabulary.txt").read_text().split("\n"))}
    validation = [tuple(line.split()) for line in (tmp_path / "valid.txt").read_text().splitlines()]
    sentences, expected = [*validation, ("zebra", "cat"), ()], []
    for sentence in sentences:
        words = [ids["<s>"], *(ids.get(word, ids["<unk>"]) for word in sentence)]
        contexts = NETWORKS[name][1](weights, words)
        expected.append(list(log_probs(weights, contexts, [*words[1:], ids["</s>"]])))
    trie = build_trie(sentences)
    found = NeuralLanguageModel(*load_model(best)).score(trie).log_probs
    for i, of_sentence in enumerate(expected):
        assert found[trie.path_edges(i)].tolist() == pytest.approx(of_sentence, abs=2e-6)
    perplexity = np.exp(-np.mean(np.concatenate(expected[: len(validation)])))
    facts = json.loads((best / "training.json").read_text())
    assert facts["validation_perplexity"] == pytest.approx(perplexity, abs=1e-3)


@pytest.mark.parametrize(("name", "activation"), [("lbl", "linear"), ("nlbl", "tanh")])
def test_files_name_the_activation_of_a_log_bilinear_network(tmp_path, name, activation):
    config = json.loads((train(tmp_path, name) / "config.json").read_text())
    assert (config["kind"], config["activation"]) == ("lbl", activation)


def test_a_nonlinear_log_bilinear_network_cannot_be_linear():
    with pytest.raises(ConfigError, match="activation is linear for nlbl, the nonlinear model"):
        check_network(NetworkOptions("nlbl", activation="linear"), "ml", 50, starts_from_other=False)
    with pytest.raises(ConfigError, match=r"kind is 'lbm'; expected one of lstm, .*, lbl, transformer, nlbl"):
        check_network(NetworkOptions("lbm"), "ml", 50, starts_from_other=False)


def test_a_run_from_before_linear_was_the_default_is_resumed_with_tanh(tmp_path):
    """Such a run names the kind lbl, and no activation."""
    best = train(tmp_path, "nlbl")
    state = tmp_path / "run" / "state.safetensors"
    with safe_open(state, "np") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    options = json.loads(metadata["options"])
    assert (options["network"]["kind"], options["network"]["activation"]) == ("lbl", "tanh")
    options["network"]["activation"] = None
    save_file(tensors, state, metadata | {"options": json.dumps(options)})
    resume(tmp_path, "lbl")
    assert json.loads((best / "config.json").read_text())["activation"] == "tanh"
    assert read_options(state)["network"]["activation"] == "tanh"
    with pytest.raises(ConfigError, match="activation was tanh, is linear"):
        resume(tmp_path, "lbl", "--activation", "linear")


def resume(folder, kind, *more):
    options = [*OPTIONS, "--epochs", "3", "--network", kind, "--resume", *more]
    texts = [str(folder / "train.txt"), "--validation", str(folder / "valid.txt")]
    result = CliRunner().invoke(app, ["neural", *texts, "-o", str(folder / "run"), *options])
    if result.exception:
        raise result.exception
