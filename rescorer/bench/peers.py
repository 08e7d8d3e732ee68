"""Owns what scoring is compared with: a plain PyTorch scorer as a user writes it, and KenLM's sentence call.

Nothing of ours is in the first: nn.Embedding, nn.LSTM, nn.Linear over the whole vocabulary, log_softmax, and
padded batches of 64 hypotheses in the order they come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from rescorer.lm.ngram import NgramModel
from rescorer.trie import Words
from rescorer.vocabulary import Vocabulary

SENTENCES_A_BATCH = 64


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
def plain_scores(model: PlainLstm, inputs: Tensor, targets: Tensor) -> Tensor:
    """ln P of each sentence of a padded batch, (B,); inputs, targets: (B, T), targets -1 where padded."""
    log_probs = model(inputs).log_softmax(dim=2)
    picked = log_probs.gather(2, targets.clamp(min=0).unsqueeze(2)).squeeze(2)
    return (picked * (targets >= 0)).sum(dim=1)


def plain_words_per_second(
    sentences: Sequence[Words],
    vocabulary: Vocabulary,
    size: int,
    device: str | torch.device = "cpu",
    seconds: float = 5.0,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Speed of the plain scorer, ``</s>`` counted, padding not; after ``seconds`` it takes no new batch."""
    model = PlainLstm(len(vocabulary), size).to(device).eval()
    words, began = 0, clock()
    for first in range(0, len(sentences), SENTENCES_A_BATCH):
        batch = sentences[first : first + SENTENCES_A_BATCH]
        inputs = torch.full((len(batch), max(map(len, batch)) + 1), vocabulary.end)
        targets = torch.full_like(inputs, -1)
        for row, sentence in enumerate(batch):
            ids = vocabulary.encode(sentence).tolist()
            inputs[row, : len(ids) + 1] = torch.tensor([vocabulary.start, *ids])
            targets[row, : len(ids) + 1] = torch.tensor([*ids, vocabulary.end])
        plain_scores(model, inputs.to(device), targets.to(device)).tolist()
        words += sum(len(sentence) + 1 for sentence in batch)
        if clock() - began >= seconds:
            break
    return words / (clock() - began)


def kenlm_words_per_second(
    sentences: Sequence[Words], model: NgramModel, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Speed of KenLM's ``score``, a sentence a call, ``</s>`` counted."""
    texts = [" ".join(sentence) for sentence in sentences]
    score, began = model.kenlm.score, clock()
    for text in texts:
        score(text)
    return sum(len(sentence) + 1 for sentence in sentences) / (clock() - began)
