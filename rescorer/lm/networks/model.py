"""Build ``NeuralModel``, a context network with its output layer, from a config."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from rescorer.lm.files.network_config import KINDS, WINDOWED_KINDS, NetworkConfig
from rescorer.lm.networks.base import ContextNetwork, State
from rescorer.lm.networks.recurrent import RecurrentNetwork
from rescorer.lm.networks.transformer import TransformerNetwork
from rescorer.lm.networks.windowed import WindowedNetwork
from rescorer.lm.output import (
    ClassFactoredSoftmax,
    FullSoftmax,
    MixtureOfSoftmaxes,
    OutputLayer,
    TreeSoftmax,
)

NETWORKS: dict[str, Callable[[NetworkConfig], ContextNetwork]] = {
    **dict.fromkeys(KINDS, RecurrentNetwork),
    **dict.fromkeys(WINDOWED_KINDS, WindowedNetwork),
    "transformer": TransformerNetwork,
}


def build_output_layer(config: NetworkConfig, size: int, tied_weight: Tensor | None) -> OutputLayer:
    """Build the configured output layer for context vectors of ``size``.

    Args:
        tied_weight: the input embedding, if the output layer shares it.

    """
    if config.output == "full":
        return FullSoftmax(size, config.n_words, tied_weight)
    if config.output == "tree":
        return TreeSoftmax(size, config.n_words, config.leaves, tied_weight)
    if config.softmaxes > 1:
        return MixtureOfSoftmaxes(size, config.class_sizes, config.softmaxes, tied_weight)
    return ClassFactoredSoftmax(size, config.class_sizes, tied_weight)


class NeuralModel(nn.Module):
    """A context network and its output layer."""

    network: ContextNetwork
    output: OutputLayer

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.network = NETWORKS[config.kind](config)
        tied_weight = self.network.embedding.weight if config.tied else None
        self.output = build_output_layer(config, self.network.output_size, tied_weight)

    def set_dropout(self, dropout: float) -> None:
        """Set the dropout probability for further training."""
        self.config = replace(self.config, dropout=dropout)
        self.network.set_dropout(dropout)

    def context_vectors(
        self, inputs: Tensor, state: State | None = None, *, bfloat16: bool = False
    ) -> tuple[Tensor, State]:
        """Vectors after each input in float32, (B, T) → (B, T, D), and the state after the last one.

        Args:
            bfloat16: multiply the matrices of the network in bfloat16 precision.
        """
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=bfloat16):
            hidden, state = self.network(inputs, state)
        return hidden.float(), tuple(part.float() if part.is_floating_point() else part for part in state)

    def loss(self, inputs: Tensor, targets: Tensor, bfloat16: bool = False) -> Tensor:
        """Compute Σ −ln P over the targets. Inputs and targets: (B, T); negative targets are padding."""
        hidden, _ = self.context_vectors(inputs, bfloat16=bfloat16)
        is_word = targets >= 0
        return self.output.loss(hidden[is_word], targets[is_word])
