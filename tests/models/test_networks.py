"""Context networks of every kind: ``forward`` equals ``step``, gradients, trie scoring, dropout."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.errors import BundleError
from rescorer.models.contexts import distinct_rows, node_windows
from rescorer.models.network_files import NetworkConfig, parameter_shapes
from rescorer.models.networks import apply_dropout, drop_words
from rescorer.models.neural import NeuralLanguageModel, deduplicated_state
from rescorer.trie import build_trie
from tests.support.tiny_models import NETWORK_WORDS, stable_network
from tests.support.trie_checks import assert_scores_equal_reference

KINDS = [
    {"kind": "lstm"},
    {"kind": "lstm", "softmaxes": 3},
    {"kind": "gru"},
    {"kind": "gru", "gru_reset": "before"},
    *({"kind": "elman", "activation": name} for name in ("tanh", "sigmoid", "relu", "linear")),
    *({"kind": "feedforward", "activation": name, "window": 3} for name in ("tanh", "sigmoid", "relu")),
    *({"kind": "lbl", "activation": name, "window": 4} for name in ("linear", "tanh", "relu")),
    {"kind": "lbl", "activation": "linear", "window": 1},
    *({"kind": "transformer", "window": window} for window in (1, 4, 9)),
]
CONFIGS = [
    {**kind, "layers": layers, "residual": residual, "tied": tied}
    for kind, layers, residual, tied in itertools.product(KINDS, (1, 2, 3), (False, True), (False, True))
    if not (residual and (layers == 1 or kind["kind"] == "transformer"))
    and not (layers > 1 and kind["kind"] == "lbl")
]
CONFIGS_AND_OUTPUTS = [
    {**config, "output": output}
    for config, output in itertools.product(CONFIGS, ("classes", "full", "tree"))
    if output == "classes" or "softmaxes" not in config  # only class-factored softmaxes are mixed
]


def config_id(settings):
    return "-".join(f"{key}={value}" for key, value in settings.items())


@pytest.mark.parametrize("hidden", [6, 8])
@pytest.mark.parametrize("config", CONFIGS, ids=config_id)
def test_forward_equals_step(config, hidden):
    model, vocabulary = stable_network(**config, hidden_size=hidden)
    network, ids = model.network, torch.randint(0, len(vocabulary), (4, 9))
    with torch.no_grad():
        whole, last = network(ids)
        # a linear network's values grow, and rounding errors with the largest of them
        tolerance = {"atol": 1e-5 * max(1.0, float(whole.abs().max())), "rtol": 1e-5}
        first, carried = network(ids[:, :4])
        second, _ = network(ids[:, 4:], carried)
        torch.testing.assert_close(torch.cat([first, second], dim=1), whole, **tolerance)
        state = network.initial_state(4)
        for t in range(9):
            vectors, state = network.step(network.inputs(ids[:, t]), state)
            torch.testing.assert_close(vectors, whole[:, t], **tolerance)
        for part, expected in zip(state, last, strict=True):
            torch.testing.assert_close(part, expected, **tolerance)


@pytest.mark.parametrize("hidden", [6, 8])
@pytest.mark.parametrize("config", CONFIGS_AND_OUTPUTS, ids=config_id)
def test_shapes_follow_from_the_configuration(config, hidden):
    classes = {} if config["output"] == "classes" else {"class_sizes": ()}
    model, _ = stable_network(**config, **classes, hidden_size=hidden)
    shapes = {name: tuple(tensor.shape) for name, tensor in deduplicated_state(model).items()}
    assert parameter_shapes(model.config) == shapes


WORDS = (*NETWORK_WORDS, "nobody", "knows")
sentences = st.lists(st.sampled_from(WORDS), max_size=7).map(tuple)
contexts = st.sampled_from([(), ("the",), ("nobody", "ran"), ("on", "the", "mat", "sat", "the", "cat")])
DEEP = tuple(WORDS[i * i % len(WORDS)] for i in range(100))


@pytest.fixture(scope="module")
def language_models():
    return [
        NeuralLanguageModel(*stable_network(**kind, carried=carried))
        for kind, carried in itertools.product(KINDS, (False, True))
    ]


@pytest.mark.slow
@settings(max_examples=15)
@given(st.lists(st.tuples(sentences, contexts), min_size=1, max_size=8))
def test_trie_scores_equal_reference(language_models, batch):
    for model in language_models:
        assert_scores_equal_reference(model, batch)


@pytest.mark.parametrize("batch", [[((), ())], [(("cat",), ())], [(DEEP, ()), (DEEP[:50], ("the",))]])
def test_empty_and_deep_tries_equal_reference(language_models, batch):
    for model in language_models:
        assert_scores_equal_reference(model, batch)


def test_windowed_network_scores_each_distinct_context_once(monkeypatch):
    model = NeuralLanguageModel(*stable_network(kind="lbl", activation="linear", window=2))
    calls = []
    original = model.model.network.context_vectors
    monkeypatch.setattr(
        model.model.network,
        "context_vectors",
        lambda words, windows: calls.append(windows) or original(words, windows),
    )
    model.score(build_trie([("cat", "the", "mat"), ("dog", "the", "mat"), ("ran", "cat", "the", "mat")]))
    # The eleven nodes have eight contexts:
    # <s> <s>, <s> cat, <s> dog, <s> ran, ran cat, cat the, dog the, the mat.
    assert len({tuple(row) for row in calls[0].tolist()}) == len(calls[0]) == 8


@given(st.integers(1, 9), st.lists(st.lists(st.integers(0, 6), min_size=9, max_size=9), min_size=1))
def test_distinct_rows_restore_the_input(size, rows):
    rows = np.array(rows)[:, :size]
    for n_values in (7, 10**9):
        distinct, position = distinct_rows(rows, n_values)
        assert (distinct[position] == rows).all()
        assert len({tuple(row) for row in distinct}) == len(distinct)


def test_windows_span_context_and_path():
    trie = build_trie([("b", "c"), ("b",)], [("x", "y", "a"), ("a",)])
    windows = node_windows(trie, 2, len(trie.words))
    window_words = {tuple((*trie.words, "START")[i] for i in row) for row in windows}
    assert window_words == {("y", "a"), ("a", "b"), ("b", "c"), ("START", "a")}


@pytest.mark.parametrize("kind", KINDS, ids=config_id)
def test_bfloat16_loss_is_close_and_has_finite_gradients(kind):
    model, vocabulary = stable_network(**kind)
    words = torch.randint(0, len(vocabulary) - 1, (4, 6))
    exact = model.loss(words, words)
    rounded = model.loss(words, words, bfloat16=True)
    assert float(rounded.detach()) == pytest.approx(float(exact.detach()), rel=0.05)
    rounded.backward()
    for parameter in model.parameters():
        assert parameter.grad is None or (
            parameter.grad.dtype == torch.float32 and bool(torch.isfinite(parameter.grad).all())
        )


@pytest.mark.parametrize("kind", KINDS, ids=config_id)
def test_dropout_applies_in_training_only(kind):
    recurrent = kind["kind"] in ("lstm", "gru", "elman")
    model, vocabulary = stable_network(
        **kind, dropout=0.5, locked_dropout=True, weight_dropout=0.5 if recurrent else 0.0
    )
    words = torch.randint(0, len(vocabulary) - 1, (4, 6))
    with torch.no_grad():
        assert torch.equal(model.network(words)[0], model.network(words)[0])
        model.train()
        assert not torch.equal(model.network(words)[0], model.network(words)[0])
        model.network.dropout = 0.0
        undropped = model.network(words)[0]
        assert torch.equal(undropped, model.network(words)[0]) is not recurrent  # weight dropout remains


@pytest.mark.parametrize("share", [0.01, 0.25, 0.9])
def test_dropout_preserves_the_mean(share):
    torch.manual_seed(0)
    values = torch.ones(101, 33, 61)  # the number of values is not a multiple of four
    kept = apply_dropout(values, share, locked=False)
    assert float((kept == 0).double().mean()) == pytest.approx(share, rel=0.03)
    assert float(kept.double().mean()) == pytest.approx(1.0, rel=0.03)
    assert kept.unique().tolist() == pytest.approx([0.0, 1 / (1 - share)], rel=1e-3)
    assert not (kept[0] == kept[1]).all()


def test_locked_dropout_uses_one_mask_for_all_positions():
    torch.manual_seed(0)
    kept = apply_dropout(torch.ones(7, 4, 50), 0.25, locked=True)
    assert (kept == kept[:1]).all()
    assert kept.unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert not (kept[0, 0] == kept[0, 1]).all()


def test_embedding_dropout_drops_a_word_wherever_it_occurs():
    torch.manual_seed(0)
    words = torch.randint(0, 40, (30, 8))
    kept = drop_words(torch.ones(30, 8, 5), words, n_words=40, share=0.25)
    factors = {int(word): set(kept[words == word].flatten().tolist()) for word in words.unique()}
    assert all(len(values) == 1 for values in factors.values())
    assert {round(value, 4) for values in factors.values() for value in values} == {0.0, 1.3333}
    assert drop_words(kept, words, n_words=40, share=0.0) is kept


def test_embedding_dropout_applies_in_training_only():
    model, vocabulary = stable_network(kind="lstm", embedding_dropout=0.5)
    words = torch.randint(0, len(vocabulary) - 1, (4, 6))
    with torch.no_grad():
        assert torch.equal(model.network(words)[0], model.network(words)[0])
        model.train()
        assert not torch.equal(model.network(words)[0], model.network(words)[0])


def test_weight_dropout_does_not_change_the_parameters():
    model, _ = stable_network(kind="gru", weight_dropout=0.5)
    layers = model.train().network.layers
    torch.manual_seed(0)
    weight, before = layers.recurrent_weight(0), layers.weight_hh_l0.detach().clone()
    assert 0.3 < float((weight == 0).float().mean()) < 0.7
    assert torch.equal(layers.weight_hh_l0, before)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ({"kind": "lbl", "window": 3, "layers": 2}, "layers is 2 for lbl; expected 1"),
        ({"kind": "lbl"}, "window is 0 for lbl"),
        ({"kind": "gru", "window": 3}, "window is 3 for gru"),
        ({"kind": "gru", "gru_reset": "never"}, "unknown gru_reset 'never'; expected one of after, before"),
        ({"gru_reset": "before"}, "gru_reset is 'before' for lstm; expected 'after'"),
        ({"kind": "lbl", "window": 3, "weight_dropout": 0.1}, "weight_dropout is 0.1 for lbl"),
        ({"kind": "lbl", "window": 3, "embedding_dropout": 0.1}, "embedding_dropout is 0.1 for lbl"),
        (
            {"kind": "gru", "output": "full", "class_sizes": (), "softmaxes": 2},
            "softmaxes is 2 for the output",
        ),
        ({"kind": "gru", "softmaxes": 0}, "softmaxes is 0; expected at least 1"),
        ({"kind": "gru", "embedding_dropout": 1.0}, "embedding_dropout is 1.0; expected 0 ≤"),
    ],
)
def test_rejects_inconsistent_settings(kind, message):
    with pytest.raises(BundleError, match=message):
        NetworkConfig(**{"vocabulary_size": 12, "class_sizes": (11,), **kind})
