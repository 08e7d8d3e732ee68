"""Scaling for int8: the same scores in float32, and better ones in int8."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rescorer.models.kernels import is_int8_exact
from rescorer.trie import build_trie
from rescorer.units.decoders import set_precision
from rescorer.units.files import make_model
from rescorer.units.smoothing import smooth_channels
from tests.support.unit_models import PEER_NAMES, LetterTokenizer, unit_model

SENTENCES = [("ab", "abc", "on"), ("b", "abcdefg", "a", "on"), ("é", "on", "ab")]
TRIE = build_trie([*SENTENCES, ("ab", "on"), ()])


def score(config, tensors, dtype="float32"):
    tensors = dict(tensors)
    set_precision(tensors, dtype)
    model = make_model(config, tensors, LetterTokenizer(), context_cache_bytes=0)
    return model.score(TRIE).sum_paths(TRIE)


@pytest.mark.parametrize("name", PEER_NAMES)
def test_scores_in_float32_stay(name):
    model, config = unit_model(name)
    before = dict(model.scorer.decoder.tensors)
    tensors = smooth_channels(model, SENTENCES)
    assert any(not torch.equal(tensors[key], before[key]) for key in before)
    np.testing.assert_allclose(score(config, tensors), model.score(TRIE).sum_paths(TRIE), atol=2e-4)
    assert all(torch.equal(before[key], model.scorer.decoder.tensors[key]) for key in before)


def test_outlying_channels_cost_less_in_int8():
    if not is_int8_exact():
        pytest.skip("this machine has no int8 products")
    model, config = unit_model("llama")
    tensors = {name: tensor.clone() for name, tensor in model.scorer.decoder.tensors.items()}
    for number in range(config.decoder.layers):
        for part in ("attention", "feedforward"):
            tensors[f"layers.{number}.{part}_norm.weight"][3] *= 300
            tensors[f"layers.{number}.{part}_input.weight"][:, 3] /= 300
    model = make_model(config, tensors, LetterTokenizer(), context_cache_bytes=0)
    expected = score(config, tensors)
    plain = np.abs(score(config, tensors, "int8") - expected).mean()
    smooth = np.abs(score(config, smooth_channels(model, SENTENCES), "int8") - expected).mean()
    assert smooth < plain / 3
