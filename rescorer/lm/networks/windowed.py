"""Context networks that see a fixed number of words: feed-forward and log-bilinear.

Positions before the first word of a text are filled with that word: a sentence starts with ``<s> <s> <s>``,
or with ``</s> </s> </s>`` if training carried the state across sentences.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional

from rescorer.lm.files.network_config import NetworkConfig
from rescorer.lm.networks.base import State
from rescorer.lm.networks.dropout import apply_dropout

NO_WORD = -1
"""Marks positions of a state before the first word."""
ACTIVATION_FUNCTIONS = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "linear": lambda x: x,
}


class WindowedNetwork(nn.Module):
    """Sums a linear map of each word in the window, with one matrix per position.

    The log-bilinear model (Mnih & Hinton 2007) predicts from the sum itself; an activation makes it
    non-linear. The feed-forward network (Bengio et al. 2003) may have further hidden layers. As in recurrent
    networks, a linear projection follows if hidden and embedding sizes differ. Topics or tags are one more
    term of the sum (Mirowski et al. 2010).
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.window, self.output_size = config.window, config.embedding_size
        self.dropout, self.locked, self.residual = config.dropout, config.locked_dropout, config.residual
        self.activation = ACTIVATION_FUNCTIONS[config.activation]
        embedding, hidden = config.embedding_size, config.hidden_size
        self.embedding = nn.Embedding(config.vocabulary_size, embedding)
        nn.init.normal_(self.embedding.weight, std=embedding**-0.5)
        self.positions = nn.Parameter(torch.empty(config.window, hidden, embedding))  # oldest word first
        nn.init.uniform_(self.positions, -1, 1)
        with torch.no_grad():
            self.positions.mul_((3 / (config.window * embedding)) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(hidden))
        if config.n_features:
            self.topics = nn.Linear(config.n_features, hidden, bias=False)
            nn.init.zeros_(self.topics.weight)
        self.deeper = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(config.layers - 1))
        same = hidden == embedding
        self.projection = nn.Identity() if same else nn.Linear(hidden, embedding, bias=False)

    def forward(
        self, words: Tensor, state: State | None = None, topics: Tensor | None = None
    ) -> tuple[Tensor, State]:
        (before,) = self.initial_state(len(words)) if state is None else state
        seen = torch.cat([before[:, 1:], words], dim=1)  # (B, n - 1 + T)
        seen = torch.where(seen == NO_WORD, words[:, :1], seen)
        embedded = self._apply_dropout(self.embedding(seen.t()))  # (n - 1 + T, B, E)
        if torch.is_autocast_enabled(words.device.type):
            embedded = embedded.to(torch.get_autocast_dtype(words.device.type))
        summed = _PositionSum.apply(embedded, self.positions, self.bias)  # (T, B, H)
        if topics is not None:
            summed = summed + self.topics(topics.transpose(0, 1))
        vectors = self._apply_dropout(self._vectors(summed))
        return vectors.transpose(0, 1), (seen[:, -self.window :],)

    def _vectors(self, summed: Tensor) -> Tensor:
        """Context vectors from the sums over the window, (..., H) → (..., D)."""
        hidden = self.activation(summed)
        for layer in self.deeper:
            deeper = self.activation(layer(self._apply_dropout(hidden)))
            hidden = hidden + deeper if self.residual else deeper
        return self.projection(hidden)

    def _apply_dropout(self, values: Tensor) -> Tensor:
        return apply_dropout(values, self.dropout, self.locked) if self.training else values

    def initial_state(self, n: int) -> State:
        """A state holds the last words, (N, window)."""
        return (torch.full((n, self.window), NO_WORD, device=self.positions.device),)

    def inputs(self, words: Tensor) -> Tensor:
        return words.unsqueeze(1)

    def topic_inputs(self, topics: Tensor) -> Tensor:
        return self.topics(topics)

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        seen = torch.cat([state[0][:, 1:], inputs], dim=1)
        seen = torch.where(seen == NO_WORD, inputs, seen)
        distinct, indices = torch.unique(seen, return_inverse=True)
        return self.context_vectors(distinct, indices), (seen,)

    def context_vectors(self, words: Tensor, windows: Tensor, added: Tensor | None = None) -> Tensor:
        """Compute the vectors of many contexts, multiplying each word only once per position.

        Args:
            words: (W,) distinct words.
            windows: (U, window) words of each context, oldest first, as indices into ``words``.
            added: (U, H) what is added to each sum, from ``topic_inputs``; None: nothing.

        Returns:
            (U, D).
        """
        embedded = self.embedding(words).to(self.positions.dtype)
        products = embedded @ self.positions.transpose(1, 2)  # (window, W, H)
        rows = windows + len(words) * torch.arange(self.window, device=words.device)
        summed = functional.embedding_bag(rows, products.flatten(0, 1), mode="sum") + self.bias
        if added is not None:
            summed += added
        return self._vectors(summed)


class _PositionSum(Function):
    """b + Σ_i C_i e_{t-n+1+i} at all positions; the shifted sequences are slices, not copies."""

    @staticmethod
    def forward(ctx, embedded, matrices, bias):  # type: ignore[no-untyped-def]
        """embedded: (n - 1 + T, B, E), matrices: (n, H, E), bias: (H,) → (T, B, H)."""
        n = len(matrices)
        batch = embedded.shape[1]
        flat, cast = embedded.flatten(0, 1), matrices.to(embedded.dtype)
        positions = len(embedded) - n + 1
        summed = bias.to(embedded.dtype).repeat(positions * batch, 1)  # always a copy, changed in place below
        for i in range(n):
            summed.addmm_(flat[i * batch : (i + positions) * batch], cast[i].t())
        ctx.save_for_backward(flat, matrices)
        return summed.view(positions, batch, -1)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        flat, matrices = ctx.saved_tensors
        positions, batch = grad.shape[:2]
        grad, cast = grad.flatten(0, 1), matrices.to(flat.dtype)
        flat_grad, matrices_grad = torch.zeros_like(flat), torch.empty_like(matrices)
        for i in range(len(matrices)):
            shifted = slice(i * batch, (i + positions) * batch)
            flat_grad[shifted].addmm_(grad, cast[i])
            matrices_grad[i] = grad.t() @ flat[shifted]
        bias_grad = grad.sum(0, dtype=matrices.dtype)
        return flat_grad.view(-1, batch, flat.shape[1]), matrices_grad, bias_grad
