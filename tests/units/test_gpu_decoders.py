"""CUDA devices give models in pieces of words the same scores as the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from rescorer.trie import build_trie
from rescorer.units.decoders import Decoder, set_precision
from rescorer.units.model import DecoderScorer, UnitLanguageModel
from rescorer.units.tokens import WordDivider
from tests.support.unit_models import END, PEER_NAMES, START, LetterTokenizer, peer_decoder

pytestmark = pytest.mark.gpu


def on_gpu(decoder: Decoder, dtype: str, cache_bytes: int) -> UnitLanguageModel:
    tensors = {name: tensor.cuda() for name, tensor in decoder.tensors.items()}
    set_precision(tensors, dtype)
    scorer = DecoderScorer(Decoder(decoder.config, tensors), START, END, cache_bytes)
    return UnitLanguageModel(scorer, WordDivider(LetterTokenizer()))


@pytest.mark.parametrize("name", PEER_NAMES)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-3), ("bfloat16", 1.0)])
def test_log_probs_equal_those_of_the_cpu(name, dtype, tolerance):
    random = np.random.default_rng(3)
    draw = lambda n: tuple(random.choice(["a", "ab", "abc", "abcdefg", "é"], n))  # noqa: E731
    hypotheses = [draw(n) for n in random.integers(0, 12, 300)]
    contexts = [hypotheses[i % 3] for i in range(300)]
    trie = build_trie(hypotheses, contexts)
    decoder = peer_decoder(name)
    divider = WordDivider(LetterTokenizer())
    expected = UnitLanguageModel(DecoderScorer(decoder, START, END, 0), divider).score(trie)
    model = on_gpu(decoder, dtype, 1 << 20)
    for _ in range(2):  # the second time, contexts are cached
        found = model.score(trie).log_probs
        np.testing.assert_allclose(found, expected.log_probs, atol=tolerance)
        assert np.abs(found - expected.log_probs).mean() < tolerance / 10
