"""Topics of the sentences before each sentence of a text, for networks that read them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rescorer.lm.base import LanguageModel
from rescorer.lm.neural import NeuralLanguageModel
from rescorer.trie import SENTENCE_END, Words

CHUNK_SENTENCES = 64
"""Number of sentences whose topics are inferred together."""


def find_topical_histories(model: LanguageModel, sentences: Sequence[Words]) -> list[Words]:
    """Return a history for each sentence that has the topics of all sentences before it.

    A history has the last topical words and an end of sentence, and nothing else; before the first topical
    word, and for models without topics, it is empty.
    """
    if not isinstance(model, NeuralLanguageModel) or model.topics is None:
        return [()] * len(sentences)
    histories: list[Words] = []
    last: Words = ()
    for words in sentences:
        histories.append((*last, SENTENCE_END) if last else ())
        is_topical = model.topics.topical(model.words.encode(words))
        topical = (word for word, kept in zip(words, is_topical, strict=True) if kept)
        last = (*last, *topical)[-model.topics.n_read :]
    return histories


def infer_token_topics(model: NeuralLanguageModel, sentences: Sequence[Words]) -> Tensor | None:
    """Infer the topics of the sentences before that of each token, (T, K); None if the network has none.

    The tokens are all words, and one ``</s>`` for each sentence.
    """
    if model.topics is None:
        return None
    histories = [model.words.encode(history[:-1]) for history in find_topical_histories(model, sentences)]
    chunks = range(0, len(histories), CHUNK_SENTENCES)
    features = torch.cat([model.topics.features(histories[i : i + CHUNK_SENTENCES]) for i in chunks])
    lengths = torch.from_numpy(np.array([len(words) + 1 for words in sentences]))
    return features.repeat_interleave(lengths, dim=0).to(model.device)


def part_of(topics: Tensor | None, part: slice) -> Tensor | None:
    """Topics of some tokens as one row of a batch, (1, n, K)."""
    return None if topics is None else topics[None, part]
