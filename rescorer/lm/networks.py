"""Owns the context networks: one set of parameters and two methods, ``forward`` over whole sequences
(training) and ``step`` over single states (the trie), which give the same vectors.

A sentence starts from the zero state with ``<s>`` as its first input, in training as in scoring.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rescorer.errors import BundleError
from rescorer.lm.output import ClassFactoredSoftmax

State = tuple[Tensor, ...]
"""What a network carries from word to word: tensors whose first axis is the node, (N, …)."""


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Everything needed to build a network again; stored as ``config.json``."""

    vocabulary_size: int
    """V, with ``<s>``."""
    class_sizes: tuple[int, ...]
    """Words in each output class; they sum to V - 1, for ``<s>`` is never predicted."""
    kind: str = "lstm"
    embedding_size: int = 200
    hidden_size: int = 200
    layers: int = 1
    tied: bool = True
    """Input embedding and output word weights are one matrix."""
    dropout: float = 0.0
    """Training only: on embeddings, between layers and on the vectors that reach the output layer."""

    def __post_init__(self) -> None:
        if self.kind not in NETWORKS:
            raise BundleError(f"unknown network {self.kind!r}; known are {', '.join(sorted(NETWORKS))}")
        if sum(self.class_sizes) != self.vocabulary_size - 1 or min(self.class_sizes, default=0) < 1:
            raise BundleError(
                f"class sizes sum to {sum(self.class_sizes)}; expected {self.vocabulary_size - 1} words in "
                f"classes of at least one"
            )
        for name in ("embedding_size", "hidden_size", "layers"):
            if getattr(self, name) < 1:
                raise BundleError(f"{name} is {getattr(self, name)}; expected at least 1")
        if not 0 <= self.dropout < 1:
            raise BundleError(f"dropout is {self.dropout}; expected 0 ≤ dropout < 1")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> NetworkConfig:
        """Raises BundleError where a setting is unknown or missing."""
        unknown = sorted(set(values) - {each.name for each in fields(cls)})
        if unknown:
            raise BundleError(f"unknown network settings {unknown}; was the model made by a newer version?")
        try:
            arguments: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
            return cls(**arguments)
        except TypeError as fault:
            raise BundleError(f"network settings are incomplete: {fault}") from None


class ContextNetwork(Protocol):
    """From words to context vectors."""

    output_size: int

    def forward(self, words: Tensor) -> Tensor:
        """Context vectors after each word: (B, T) → (B, T, D); rows start from the start state."""

    def start(self, n: int) -> State:
        """The state before ``<s>``, for n nodes."""

    def inputs(self, words: Tensor) -> Tensor:
        """What ``step`` needs of each distinct word, computed once a word: (W,) → (W, I)."""

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """One word further: (N, I) and the states of N nodes → (N, D) vectors and N new states."""


class LstmNetwork(nn.Module):
    """Long short-term memory (Hochreiter & Schmidhuber 1997, with forget gates: Gers et al. 2000).

    A linear projection follows where hidden and embedding sizes differ, so that the output layer always
    works at the size of the embedding (Sak et al. 2014 without the recurrence of the projection).
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.layers, self.hidden_size = config.layers, config.hidden_size
        self.output_size = config.embedding_size
        self.embedding = nn.Embedding(config.vocabulary_size, config.embedding_size)
        between = config.dropout if config.layers > 1 else 0.0
        self.lstm = nn.LSTM(
            config.embedding_size, config.hidden_size, config.layers, batch_first=True, dropout=between
        )
        same = config.hidden_size == config.embedding_size
        self.projection = (
            nn.Identity() if same else nn.Linear(config.hidden_size, config.embedding_size, bias=False)
        )
        self.dropout = nn.Dropout(config.dropout)
        nn.init.normal_(self.embedding.weight, std=config.embedding_size**-0.5)
        with torch.no_grad():
            for layer in range(self.layers):  # remember by default (Jozefowicz et al. 2015)
                self._parameter("bias_ih", layer)[self.hidden_size : 2 * self.hidden_size] = 1.0

    def _parameter(self, name: str, layer: int) -> Tensor:
        return getattr(self.lstm, f"{name}_l{layer}")

    def forward(self, words: Tensor) -> Tensor:
        embedded = self.dropout(self.embedding(words))  # (B, T, E)
        hidden, _ = self.lstm(embedded)  # (B, T, H)
        return self.dropout(self.projection(hidden))  # (B, T, E)

    def start(self, n: int) -> State:
        zeros = self.embedding.weight.new_zeros(n, self.hidden_size)
        return (zeros,) * (2 * self.layers)

    def inputs(self, words: Tensor) -> Tensor:
        bias = self._parameter("bias_ih", 0) + self._parameter("bias_hh", 0)
        return torch.addmm(bias, self.embedding(words), self._parameter("weight_ih", 0).t())  # (W, 4H)

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        new_state: list[Tensor] = []
        gates, below = inputs, inputs
        for layer in range(self.layers):
            hidden, cell = state[2 * layer], state[2 * layer + 1]  # (N, H)
            if layer:
                bias = self._parameter("bias_ih", layer) + self._parameter("bias_hh", layer)
                gates = torch.addmm(bias, below, self._parameter("weight_ih", layer).t())
            gates = torch.addmm(gates, hidden, self._parameter("weight_hh", layer).t())  # (N, 4H)
            i, f, g, o = gates.chunk(4, dim=1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            below = torch.sigmoid(o) * torch.tanh(cell)
            new_state += [below, cell]
        return self.projection(below), tuple(new_state)


NETWORKS = {"lstm": LstmNetwork}


class NeuralModel(nn.Module):
    """A context network and its output layer."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.network: LstmNetwork = NETWORKS[config.kind](config)
        tied = self.network.embedding.weight if config.tied else None
        self.output = ClassFactoredSoftmax(self.network.output_size, config.class_sizes, tied)

    def set_dropout(self, dropout: float) -> None:
        """Changes the share of values dropped in further training."""
        self.config = replace(self.config, dropout=dropout)
        self.network.dropout.p = dropout
        self.network.lstm.dropout = dropout if self.config.layers > 1 else 0.0

    def loss(self, inputs: Tensor, targets: Tensor, bfloat16: bool = False) -> Tensor:
        """Σ −ln P over the targets that are not negative (padding); inputs, targets: (B, T).

        ``bfloat16`` multiplies the network's matrices in that precision; the output layer stays in float32.
        """
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=bfloat16):
            hidden = self.network(inputs)
        real = targets >= 0
        return self.output.loss(hidden[real].float(), targets[real])
