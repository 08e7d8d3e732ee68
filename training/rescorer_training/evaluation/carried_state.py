"""Score a text in order with a network that carries its state across sentence boundaries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor

from rescorer.lm.base import LanguageModel
from rescorer.lm.neural import NeuralLanguageModel
from rescorer.trie import Words
from rescorer_training.evaluation.text_before import infer_token_topics, part_of

MAX_CHUNK_TOKENS = 4096
"""Maximum number of tokens whose context vectors are in memory at the same time."""


@dataclass(frozen=True, slots=True)
class TextReading:
    """A text of T tokens as a network has read it in order."""

    vectors: Tensor
    """(T, D) context vector from which each token was predicted."""
    words: Tensor
    """(T,) the tokens."""
    log_probs: np.ndarray
    """(T,) float64 ln P of each token; unknown words get the whole probability of ``<unk>``."""


def carries_state(model: LanguageModel) -> TypeGuard[NeuralLanguageModel]:
    """Whether the model is a network that was trained with its state carried across sentence boundaries."""
    return isinstance(model, NeuralLanguageModel) and model.model.config.carried


def encode_stream(model: NeuralLanguageModel, sentences: Sequence[Words]) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a text that is read in order, (T,) each, with ``</s>`` after each sentence.

    The first sentence starts like any sentence, after ``</s>``.
    """
    parts = [np.append(model.words.encode(words), model.words.end) for words in sentences]
    targets = torch.from_numpy(np.concatenate(parts)).to(model.device)
    return torch.cat([targets.new_tensor([model.start_word]), targets[:-1]]), targets


@torch.inference_mode()
def read_stream(
    model: NeuralLanguageModel, sentences: Sequence[Words]
) -> Iterator[tuple[Tensor, Tensor, np.ndarray]]:
    """Read a text in order, from the zero state.

    Yields:
        Context vectors of some tokens, (n, D), these tokens, (n,), and ln P of each, (n,) float64.
    """
    inputs, targets = encode_stream(model, sentences)
    topics, state = infer_token_topics(model, sentences), None
    for begin in range(0, len(targets), MAX_CHUNK_TOKENS):
        chunk = slice(begin, begin + MAX_CHUNK_TOKENS)
        vectors, state = model.model.context_vectors(  # (1, n, D)
            inputs[None, chunk], state, part_of(topics, chunk)
        )
        rows = torch.arange(vectors.shape[1], device=model.device)
        log_probs = model.model.output.log_probs(vectors[0], rows, targets[chunk])
        yield vectors[0], targets[chunk], log_probs.double().cpu().numpy()


def score_with_carried_state(model: NeuralLanguageModel, sentences: Sequence[Words]) -> np.ndarray:
    """Return ln P of every word and every ``</s>``, (T,) float64.

    Unknown words get the whole probability of ``<unk>``, not a share of it.
    """
    return np.concatenate([log_probs for _, _, log_probs in read_stream(model, sentences)])


def read_text(model: NeuralLanguageModel, sentences: Sequence[Words]) -> TextReading:
    """Read a whole text in order, from the zero state."""
    vectors, words, log_probs = zip(*read_stream(model, sentences), strict=True)
    return TextReading(torch.cat(vectors), torch.cat(words), np.concatenate(log_probs))
