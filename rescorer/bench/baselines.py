"""Baseline of the benchmark: a plain PyTorch scorer as a user would write it.

It uses none of the rescorer's code for networks: ``nn.Embedding``, ``nn.LSTM`` or transformer
layers, ``nn.Linear`` over the whole vocabulary, ``log_softmax``, and padded batches of 64 hypotheses in input
order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from rescorer.lm.files.parameter_shapes import feedforward_size
from rescorer.lm.networks import NetworkConfig
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


class PlainTransformer(nn.Module):
    """Transformer layers of the same shape as those of ``TransformerNetwork``, and a full softmax."""

    def __init__(self, vocabulary_size: int, size: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, size)
        self.layers = nn.ModuleList(PlainTransformerLayer(size, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(size)
        self.decoder = nn.Linear(size, vocabulary_size)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        return self.decoder(self.norm(x))  # (B, T, V)


class PlainTransformerLayer(nn.Module):
    """Causal attention with rotary positions, and SwiGLU, both after normalisation."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        units = feedforward_size(size)
        self.heads, self.head_size = heads, size // heads
        self.attention_norm, self.feedforward_norm = nn.RMSNorm(size), nn.RMSNorm(size)
        self.projection = nn.Linear(size, 3 * size, bias=False)
        self.attention_output = nn.Linear(size, size, bias=False)
        self.gate, self.up = nn.Linear(size, units, bias=False), nn.Linear(size, units, bias=False)
        self.down = nn.Linear(units, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        projected = self.projection(self.attention_norm(x)).unflatten(2, (3, self.heads, self.head_size))
        queries, keys, values = projected.permute(2, 0, 3, 1, 4)  # (B, heads, T, d) each
        attended = functional.scaled_dot_product_attention(
            self._rotate(queries), self._rotate(keys), values, is_causal=True
        )
        x = x + self.attention_output(attended.transpose(1, 2).flatten(2))
        normalised = self.feedforward_norm(x)
        return x + self.down(functional.silu(self.gate(normalised)) * self.up(normalised))

    def _rotate(self, x: Tensor) -> Tensor:
        frequencies = 10_000.0 ** (-torch.arange(0, self.head_size, 2, device=x.device) / self.head_size)
        angles = torch.arange(x.shape[2], device=x.device).unsqueeze(1) * frequencies
        cos, sin = angles.cos(), angles.sin()
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


def make_plain_model(config: NetworkConfig) -> PlainLstm | PlainTransformer:
    """A transformer of the same shape as a transformer; for all other networks an LSTM of their hidden
    size."""
    if config.kind == "transformer":
        return PlainTransformer(config.vocabulary_size, config.hidden_size, config.layers, config.heads)
    return PlainLstm(config.vocabulary_size, config.hidden_size)


@torch.inference_mode()
def score_padded_batch(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """ln P of each sentence of a padded batch, (B,).

    Args:
        inputs, targets: (B, T) word ids; targets are -1 where padded.
    """
    log_probs = model(inputs).log_softmax(dim=2)
    target_log_probs = log_probs.gather(2, targets.clamp(min=0).unsqueeze(2)).squeeze(2)
    return (target_log_probs * (targets >= 0)).sum(dim=1)


def measure_plain_model(
    model: nn.Module,
    sentences: Sequence[Words],
    vocabulary: Vocabulary,
    device: str | torch.device = "cpu",
    seconds: float = 5.0,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Measure the words per second of the plain scorer, counting ``</s>`` but not padding.

    Args:
        seconds: time after which no further batch is started.
    """
    model = model.to(device).eval()
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
