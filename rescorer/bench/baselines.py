"""Baselines of the benchmark: a plain PyTorch scorer as a user would write it, and KenLM's sentence call.

The plain scorer uses none of the rescorer's code for networks: ``nn.Embedding``, ``nn.LSTM``, ``nn.Linear``
over the whole vocabulary, ``log_softmax``, and padded batches of 64 hypotheses in input order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from rescorer.lm.ngram import NgramModel
from rescorer.trie import Words
from rescorer.vocabulary import Vocabulary

BATCH_SENTENCES = 64


class PlainLstm(nn.Module):
    """One LSTM layer and a full softmax."""

    def __init__(self, vocabulary_size: int, size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, size)
        self.lstm = nn.LSTM(size, size, batch_first=True)
        self.decoder = nn.Linear(size, vocabulary_size)

    def forward(self, words: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(words))
        return self.decoder(hidden)  # (B, T, V)


@torch.inference_mode()
def score_padded_batch(model: PlainLstm, inputs: Tensor, targets: Tensor) -> Tensor:
    """ln P of each sentence of a padded batch, (B,).

    Args:
        inputs, targets: (B, T) word ids; targets are -1 where padded.
    """
    log_probs = model(inputs).log_softmax(dim=2)
    target_log_probs = log_probs.gather(2, targets.clamp(min=0).unsqueeze(2)).squeeze(2)
    return (target_log_probs * (targets >= 0)).sum(dim=1)


def measure_plain_lstm(
    sentences: Sequence[Words],
    vocabulary: Vocabulary,
    size: int,
    device: str | torch.device = "cpu",
    seconds: float = 5.0,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Measure the words per second of the plain scorer, counting ``</s>`` but not padding.

    Args:
        seconds: time after which no further batch is started.
    """
    model = PlainLstm(len(vocabulary), size).to(device).eval()
    words, start = 0, clock()
    for first in range(0, len(sentences), BATCH_SENTENCES):
        batch = sentences[first : first + BATCH_SENTENCES]
        inputs = torch.full((len(batch), max(map(len, batch)) + 1), vocabulary.end)
        targets = torch.full_like(inputs, -1)
        for row, sentence in enumerate(batch):
            ids = vocabulary.encode(sentence).tolist()
            inputs[row, : len(ids) + 1] = torch.tensor([vocabulary.start, *ids])
            targets[row, : len(ids) + 1] = torch.tensor([*ids, vocabulary.end])
        score_padded_batch(model, inputs.to(device), targets.to(device)).tolist()
        words += sum(len(sentence) + 1 for sentence in batch)
        if clock() - start >= seconds:
            break
    return words / (clock() - start)


def measure_kenlm(
    sentences: Sequence[Words], model: NgramModel, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Measure the words per second of KenLM's ``score``, one call per sentence, counting ``</s>``."""
    texts = [" ".join(sentence) for sentence in sentences]
    score, start = model.kenlm.score, clock()
    for text in texts:
        score(text)
    return sum(len(sentence) + 1 for sentence in sentences) / (clock() - start)
