"""Owns the recurrent context networks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rescorer.lm.networks.base import State
from rescorer.lm.networks.config import NetworkConfig


class LstmNetwork(nn.Module):
    """Long short-term memory (Hochreiter & Schmidhuber 1997, with forget gates: Gers et al. 2000).

    A linear projection follows where hidden and embedding sizes differ, so that the output layer always
    works at the size of the embedding (Sak et al. 2014 without the recurrence of the projection).
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.layers, self.hidden_size = config.layers, config.hidden_size
        self.output_size = config.embedding_size
        self.window = 0
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

    def forward(self, words: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        embedded = self.dropout(self.embedding(words))  # (B, T, E)
        before = None if state is None else (torch.stack(state[::2]), torch.stack(state[1::2]))  # (L, B, H)
        hidden, (last, cells) = self.lstm(embedded, before)  # (B, T, H)
        after = tuple(part for layer in zip(last, cells, strict=True) for part in layer)
        return self.dropout(self.projection(hidden)), after  # (B, T, E)

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

    def set_dropout(self, dropout: float) -> None:
        self.dropout.p = dropout
        self.lstm.dropout = dropout if self.layers > 1 else 0.0
