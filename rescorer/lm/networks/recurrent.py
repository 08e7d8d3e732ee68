"""Recurrent context networks: stacks of LSTM, GRU or Elman layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rescorer.lm.files.network_config import NetworkConfig
from rescorer.lm.kernels.linear import linear
from rescorer.lm.networks.base import State
from rescorer.lm.networks.dropout import apply_dropout, drop_words
from rescorer.lm.networks.layers import ElmanLayers, GruLayers, LstmLayers, RecurrentLayers

LAYERS: dict[str, type[RecurrentLayers]] = {"lstm": LstmLayers, "gru": GruLayers, "elman": ElmanLayers}


class RecurrentNetwork(nn.Module):
    """Embedding, recurrent layers and projection.

    If hidden and embedding sizes differ, a linear projection follows, so that the output layer always works
    at the embedding size (Sak et al. 2014, without the recurrence of the projection). Topics or tags are
    further inputs of the first layer (Mikolov & Zweig 2012).
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.kind, self.residual = config.kind, config.residual
        self.output_size = config.embedding_size
        self.window = 0
        self.dropout, self.locked = config.dropout, config.locked_dropout
        self.embedding_dropout, self.n_features = config.embedding_dropout, config.n_features
        self.embedding = nn.Embedding(config.vocabulary_size, config.embedding_size)
        self.add_module(config.kind, LAYERS[config.kind](config))
        same = config.hidden_size == config.embedding_size
        self.projection = (
            nn.Identity() if same else nn.Linear(config.hidden_size, config.embedding_size, bias=False)
        )
        nn.init.normal_(self.embedding.weight, std=config.embedding_size**-0.5)
        with torch.no_grad():
            self.layers.parameter("weight_ih", 0)[:, config.embedding_size :] = 0.0

    @property
    def layers(self) -> RecurrentLayers:
        """The stack of layers; its parameters are named after the kind."""
        return getattr(self, self.kind)

    def forward(
        self, words: Tensor, state: State | None = None, topics: Tensor | None = None
    ) -> tuple[Tensor, State]:
        words = words.t()  # (T, B): time first, because the recurrences loop over it
        below = self.embedding(words)  # (T, B, E)
        if self.training:
            below = drop_words(below, words, self.embedding.num_embeddings, self.embedding_dropout)
        state = self.initial_state(words.shape[1]) if state is None else state
        after: list[Tensor] = []
        for layer in range(self.layers.n_layers):
            before = self.layers.layer_state(state, layer)
            inputs = (
                self._apply_dropout(below) if layer else self._put_beside(self._apply_dropout(below), topics)
            )
            hidden, last = self.layers.run_sequence(layer, inputs, before)  # (T, B, H)
            below = below + hidden if self.residual and layer else hidden
            after += last
        vectors = self._apply_dropout(self.projection(below))
        return vectors.transpose(0, 1), tuple(after)  # (B, T, E)

    def _put_beside(self, embedded: Tensor, topics: Tensor | None) -> Tensor:
        """Append features beside the word, (B, 1 or T, K), to embeddings: (T, B, E) → (T, B, E + K)."""
        if not self.n_features:
            return embedded
        features = embedded.new_zeros(*embedded.shape[:2], self.n_features)
        if topics is not None:
            features += topics.transpose(0, 1)
        return torch.cat([embedded, features], dim=2)

    def _apply_dropout(self, values: Tensor) -> Tensor:
        return apply_dropout(values, self.dropout, self.locked) if self.training else values

    def initial_state(self, n: int) -> State:
        zeros = self.layers.input_bias(0).new_zeros(n, self.layers.hidden_size)
        return (zeros,) * (self.layers.n_parts * self.layers.n_layers)

    def step_matrices(self) -> list[Tensor]:
        """The matrices that ``step`` multiplies: all except the first input projection."""
        first = self.layers.parameter("weight_ih", 0)
        parameters: list[Tensor] = [*self.layers.parameters(), *self.projection.parameters()]
        return [parameter for parameter in parameters if parameter.dim() > 1 and parameter is not first]

    def inputs(self, words: Tensor) -> Tensor:
        weight = self.layers.parameter("weight_ih", 0)
        if self.n_features:
            weight = weight[:, : -self.n_features].contiguous()
        return linear(self.embedding(words), weight, self.layers.input_bias(0))  # (W, G·H)

    def topic_inputs(self, topics: Tensor) -> Tensor:
        return linear(topics, self.layers.parameter("weight_ih", 0)[:, -self.n_features :].contiguous())

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        below, after = inputs, list[Tensor]()
        for layer in range(self.layers.n_layers):
            gates = self.layers.input_gates(layer, below) if layer else inputs
            new = self.layers.step(layer, gates, self.layers.layer_state(state, layer))
            below = below + new[0] if self.residual and layer else new[0]
            after += new
        return self._project(below), tuple(after)

    def _project(self, hidden: Tensor) -> Tensor:
        """Apply ``projection`` with ``linear``, the matrix product used for scoring."""
        return linear(hidden, self.projection.weight) if isinstance(self.projection, nn.Linear) else hidden
