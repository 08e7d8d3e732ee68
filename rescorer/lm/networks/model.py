"""Context networks with an output layer: language models, and what other sequence models share with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rescorer.lm.features.tags import TagFilter
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


class SequenceConfig(Protocol):
    """Configuration of a sequence model, as far as training and saving it depend on it."""

    @property
    def carried(self) -> bool:
        """Whether the state is carried across sentences."""

    @property
    def tied(self) -> bool:
        """Whether the output layer shares the weights of the embedding."""

    @property
    def dropout(self) -> float: ...

    @property
    def locked_dropout(self) -> bool: ...

    @property
    def tied_copy(self) -> str | None:
        """Name of the parameter that is the embedding itself, so that it is not stored; None without one."""

    def to_dict(self) -> dict[str, Any]: ...


class SequenceModel(nn.Module):
    """A network over words and an output layer, which the training loop can train.

    Only its subclass ``NeuralModel`` is a language model: others predict something else than the next word,
    and may read words that come later.
    """

    config: SequenceConfig
    network: ContextNetwork
    output: OutputLayer
    is_causal = False
    """Whether vectors depend only on the words so far, so that a long text can be read in parts."""

    def context_vectors(
        self,
        inputs: Tensor,
        state: State | None = None,
        topics: Tensor | None = None,
        *,
        bfloat16: bool = False,
    ) -> tuple[Tensor, State]:
        """Vectors in float32 from which ``output`` predicts, (B, T) → (B, P, D), and the state after them.

        Args:
            topics: (B, T, K) or (B, 1, K) topic features beside the inputs, if the model reads them.
            bfloat16: multiply the matrices of the network in bfloat16 precision.
        """
        raise NotImplementedError


class NeuralModel(SequenceModel):
    """A language model: a context network and its output layer, which predicts the next word."""

    config: NetworkConfig
    is_causal = True

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.network = NETWORKS[config.kind](config)
        tied_weight = self.network.embedding.weight if config.tied else None
        self.output = build_output_layer(config, self.network.output_size, tied_weight)
        if config.topics:
            # P(topic | word) under even topics, (V, K); see ``rescorer.lm.features.topics``
            self.topic_words: Tensor
            self.register_buffer("topic_words", torch.zeros(config.vocabulary_size, config.topics))
        self.tags = TagFilter(config.pos_tags, config.vocabulary_size) if config.pos_tags else None
        if config.n_features:
            self.topic_output = nn.Linear(config.n_features, self.network.output_size, bias=False)
            nn.init.zeros_(self.topic_output.weight)

    def context_vectors(
        self,
        inputs: Tensor,
        state: State | None = None,
        topics: Tensor | None = None,
        *,
        bfloat16: bool = False,
    ) -> tuple[Tensor, State]:
        """Vectors after each input in float32, (B, T) → (B, T, D), and the state after the last one.

        The state of a model that reads tags has one tensor more than that of its network, the last one: what
        is expected of the next tag.

        Args:
            topics: (B, T, K) or (B, 1, K) topic features beside the inputs; None: zeros.
            bfloat16: multiply the matrices of the network in bfloat16 precision.
        """
        expected: State = ()
        if self.tags is not None:
            state, last = (state[:-1], state[-1]) if state else (None, None)
            topics, after = self.tags.read_texts(inputs, last)
            expected = (after,)
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=bfloat16):
            hidden, state = self.network(inputs, state, topics)
        hidden = hidden.float()
        if topics is not None:
            hidden = hidden + self.topic_output(topics)
        state = (*state, *expected)
        return hidden, tuple(part.float() if part.is_floating_point() else part for part in state)

    def loss(
        self, inputs: Tensor, targets: Tensor, bfloat16: bool = False, topics: Tensor | None = None
    ) -> Tensor:
        """Compute Σ −ln P over the targets. Inputs and targets: (B, T); negative targets are padding."""
        hidden, _ = self.context_vectors(inputs, None, topics, bfloat16=bfloat16)
        is_word = targets >= 0
        return self.output.loss(hidden[is_word], targets[is_word])
