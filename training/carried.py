"""Owns the scoring of a text in its order by a network whose state goes on over sentence ends, as it did in
its training; there is one path through such a text, so that it is no trie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import numpy as np
import torch

from rescorer.lm.base import LanguageModel
from rescorer.lm.neural import NeuralLanguageModel
from rescorer.trie import Words

TOKENS_A_STEP = 4096
"""Tokens whose vectors are held at once."""


def carries_state(model: LanguageModel) -> TypeGuard[NeuralLanguageModel]:
    """Whether the model is a network trained with its state carried over sentence ends."""
    return isinstance(model, NeuralLanguageModel) and model.model.config.carried


@torch.inference_mode()
def carried_log_probs(model: NeuralLanguageModel, sentences: Sequence[Words]) -> np.ndarray:
    """ln P of every word and every ``</s>``, without shares of ``<unk>``: (T,) float64.

    The first sentence starts as any does, after ``</s>`` and the zero state.
    """
    parts = [np.append(model.words.encode(words), model.words.end) for words in sentences]
    targets = torch.from_numpy(np.concatenate(parts)).to(model.device)  # (T,)
    inputs = torch.cat([targets.new_tensor([model.start_word]), targets[:-1]])
    out, state = [], None
    for begin in range(0, len(targets), TOKENS_A_STEP):
        chunk = slice(begin, begin + TOKENS_A_STEP)
        vectors, state = model.model.context_vectors(inputs[None, chunk], state)  # (1, n, D)
        rows = torch.arange(vectors.shape[1], device=model.device)
        out.append(model.model.output.log_probs(vectors[0], rows, targets[chunk]).double().cpu().numpy())
    return np.concatenate(out)
