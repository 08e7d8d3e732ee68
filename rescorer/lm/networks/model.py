"""Owns ``NeuralModel``: a context network and its output layer, built from a config."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from rescorer.errors import BundleError
from rescorer.lm.networks.base import ContextNetwork, State
from rescorer.lm.networks.config import KINDS, WINDOWED, NetworkConfig
from rescorer.lm.networks.recurrent import RecurrentNetwork
from rescorer.lm.networks.windowed import WindowedNetwork
from rescorer.lm.output import ClassFactoredSoftmax, FullSoftmax, OutputLayer, TreeSoftmax

NETWORKS = {kind: WindowedNetwork if kind in WINDOWED else RecurrentNetwork for kind in KINDS}


def make_output(config: NetworkConfig, size: int, word_weight: Tensor | None) -> OutputLayer:
    """The layer that a config asks for, over vectors of ``size``; ``word_weight`` is the tied embedding."""
    if config.output == "full":
        return FullSoftmax(size, config.n_words, word_weight)
    if config.output == "tree":
        if word_weight is not None:
            raise BundleError("a tree's decisions are no words: its weights cannot be tied to the embedding")
        return TreeSoftmax(size, config.n_words)
    return ClassFactoredSoftmax(size, config.class_sizes, word_weight)


class NeuralModel(nn.Module):
    """A context network and its output layer."""

    network: ContextNetwork
    output: OutputLayer

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.network = NETWORKS[config.kind](config)
        tied = self.network.embedding.weight if config.tied else None
        self.output = make_output(config, self.network.output_size, tied)

    def set_dropout(self, dropout: float) -> None:
        """Changes the share of values dropped in further training."""
        self.config = replace(self.config, dropout=dropout)
        self.network.set_dropout(dropout)

    def context_vectors(
        self, inputs: Tensor, state: State | None = None, *, bfloat16: bool = False
    ) -> tuple[Tensor, State]:
        """Vectors after each input in float32, (B, T) → (B, T, D), and the state after the last one.

        ``bfloat16`` multiplies the network's matrices in that precision.
        """
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=bfloat16):
            hidden, state = self.network(inputs, state)
        return hidden.float(), tuple(part.float() if part.is_floating_point() else part for part in state)

    def loss(self, inputs: Tensor, targets: Tensor, bfloat16: bool = False) -> Tensor:
        """Σ −ln P over the targets that are not negative (padding); inputs, targets: (B, T)."""
        hidden, _ = self.context_vectors(inputs, bfloat16=bfloat16)
        real = targets >= 0
        return self.output.loss(hidden[real], targets[real])
