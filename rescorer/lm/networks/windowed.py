"""Owns the context networks that see a fixed number of words: feed-forward and log-bilinear.

Before a text's first word stands that word itself, as often as the window asks: a sentence starts from
``<s> <s> <s>``, or from as many ``</s>`` where state was carried in training.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional

from rescorer.lm.networks.base import State
from rescorer.lm.networks.config import NetworkConfig
from rescorer.lm.networks.dropout import dropped

NOTHING = -1
"""Stands in a state for words before the first one."""
FUNCTIONS = {"tanh": torch.tanh, "sigmoid": torch.sigmoid, "relu": torch.relu, "linear": lambda x: x}


class WindowedNetwork(nn.Module):
    """Each word of the window, by its place, has a matrix; their products with the words' embeddings sum up.

    The sum itself predicts in the log-bilinear model (Mnih & Hinton 2007); with an activation upon it, it is
    the non-linear one. The feed-forward network (Bengio et al. 2003) may have further hidden layers. As with
    recurrent networks, a linear projection follows where hidden and embedding sizes differ.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.window, self.output_size = config.window, config.embedding_size
        self.dropout, self.locked, self.residual = config.dropout, config.locked_dropout, config.residual
        self.activation = FUNCTIONS[config.activation]
        embedding, hidden = config.embedding_size, config.hidden_size
        self.embedding = nn.Embedding(config.vocabulary_size, embedding)
        nn.init.normal_(self.embedding.weight, std=embedding**-0.5)
        self.positions = nn.Parameter(torch.empty(config.window, hidden, embedding))  # oldest word first
        nn.init.uniform_(self.positions, -1, 1)
        with torch.no_grad():
            self.positions.mul_((3 / (config.window * embedding)) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.deeper = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(config.layers - 1))
        same = hidden == embedding
        self.projection = nn.Identity() if same else nn.Linear(hidden, embedding, bias=False)

    def forward(self, words: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        (before,) = self.start(len(words)) if state is None else state
        seen = torch.cat([before[:, 1:], words], dim=1)  # (B, n - 1 + T)
        seen = torch.where(seen == NOTHING, words[:, :1], seen)
        embedded = self._dropped(self.embedding(seen.t()))  # (n - 1 + T, B, E)
        if torch.is_autocast_enabled(words.device.type):
            embedded = embedded.to(torch.get_autocast_dtype(words.device.type))
        summed = _PositionSum.apply(embedded, self.positions, self.bias)  # (T, B, H)
        vectors = self._dropped(self._vectors(summed))
        return vectors.transpose(0, 1), (seen[:, -self.window :],)

    def _vectors(self, summed: Tensor) -> Tensor:
        """From sums over the window to context vectors, (..., H) → (..., D)."""
        hidden = self.activation(summed)
        for layer in self.deeper:
            made = self.activation(layer(self._dropped(hidden)))
            hidden = hidden + made if self.residual else made
        return self.projection(hidden)

    def _dropped(self, values: Tensor) -> Tensor:
        return dropped(values, self.dropout, self.locked) if self.training else values

    def start(self, n: int) -> State:
        """A state is the last words, (N, window)."""
        return (torch.full((n, self.window), NOTHING, device=self.positions.device),)

    def inputs(self, words: Tensor) -> Tensor:
        return words.unsqueeze(1)

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        seen = torch.cat([state[0][:, 1:], inputs], dim=1)
        seen = torch.where(seen == NOTHING, inputs, seen)
        distinct, places = torch.unique(seen, return_inverse=True)
        return self.contexts(distinct, places), (seen,)

    def contexts(self, words: Tensor, windows: Tensor) -> Tensor:
        """Vectors of many contexts, every word multiplied once for each place in them: gathers and sums.

        Args:
            words: (W,) distinct words.
            windows: (U, window) the words of each context, oldest first, as indices into ``words``.

        Returns:
            (U, D).
        """
        embedded = self.embedding(words).to(self.positions.dtype)
        products = embedded @ self.positions.transpose(1, 2)  # (window, W, H)
        rows = windows + len(words) * torch.arange(self.window, device=words.device)
        summed = functional.embedding_bag(rows, products.flatten(0, 1), mode="sum") + self.bias
        return self._vectors(summed)

    def set_dropout(self, dropout: float) -> None:
        self.dropout = dropout


class _PositionSum(Function):
    """b + Σ_i C_i e_{t-n+1+i} at all positions; the shifted sequences are slices, never copies."""

    @staticmethod
    def forward(ctx, embedded, matrices, bias):  # type: ignore[no-untyped-def]
        """embedded: (n - 1 + T, B, E), matrices: (n, H, E), bias: (H,) → (T, B, H)."""
        n, size = matrices.shape[:2]
        batch = embedded.shape[1]
        flat, cast = embedded.flatten(0, 1), matrices.to(embedded.dtype)
        positions = len(embedded) - n + 1
        summed = bias.to(embedded.dtype).expand(positions * batch, size).contiguous()
        for i in range(n):
            summed.addmm_(flat[i * batch : (i + positions) * batch], cast[i].t())
        ctx.save_for_backward(flat, matrices)
        return summed.view(positions, batch, size)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        flat, matrices = ctx.saved_tensors
        positions, batch = grad.shape[:2]
        grad, cast = grad.flatten(0, 1), matrices.to(flat.dtype)
        flat_grad, matrices_grad = torch.zeros_like(flat), torch.empty_like(matrices)
        for i in range(len(matrices)):
            here = slice(i * batch, (i + positions) * batch)
            flat_grad[here].addmm_(grad, cast[i])
            matrices_grad[i] = grad.t() @ flat[here]
        bias_grad = grad.sum(0, dtype=matrices.dtype)
        return flat_grad.view(-1, batch, flat.shape[1]), matrices_grad, bias_grad
