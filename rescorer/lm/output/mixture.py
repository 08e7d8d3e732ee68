"""Mixture of softmaxes: several class-factored softmaxes over the same words, mixed per context."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from rescorer.lm.kernels.linear import linear
from rescorer.lm.output.classes import ClassFactoredSoftmax


class MixtureOfSoftmaxes(ClassFactoredSoftmax):
    """P(w|h) = Σ_k π_k(h) P(w | tanh(W_k h))  (Yang et al. 2018).

    A softmax of context vectors of D values cannot represent every table of probabilities; a mixture is not
    bound to their rank. All components share the words' weights, and π is a softmax of its own.

    Args:
        n_softmaxes: K, number of components; other arguments are those of ``ClassFactoredSoftmax``.
    """

    def __init__(
        self, size: int, class_sizes: Sequence[int], n_softmaxes: int, word_weight: Tensor | None = None
    ) -> None:
        super().__init__(size, class_sizes, word_weight)
        self.n_softmaxes = n_softmaxes
        self.share_layer = nn.Linear(size, n_softmaxes)
        self.component_layer = nn.Linear(size, n_softmaxes * size, bias=False)

    def losses(self, hidden: Tensor, words: Tensor) -> Tensor:
        """See ``ClassFactoredSoftmax``."""
        log_shares, vectors = self._components(hidden)
        losses = super().losses(vectors, words.repeat_interleave(self.n_softmaxes))
        return -torch.logsumexp(log_shares - losses.view_as(log_shares), dim=1)

    @torch.no_grad()
    def log_probs(self, hidden: Tensor, rows: Tensor, words: Tensor) -> Tensor:
        """See ``OutputLayer``."""
        log_shares, vectors = self._components(hidden)
        n_softmaxes = self.n_softmaxes
        component_rows = (
            rows.unsqueeze(1) * n_softmaxes + torch.arange(n_softmaxes, device=rows.device)
        ).flatten()
        log_probs = super().log_probs(vectors, component_rows, words.repeat_interleave(n_softmaxes))  # (E·K,)
        return torch.logsumexp(log_shares[rows] + log_probs.view(-1, n_softmaxes), dim=1)

    def log_distribution(self, hidden: Tensor) -> Tensor:
        """See ``ClassFactoredSoftmax``."""
        log_shares, vectors = self._components(hidden)
        by_component = super().log_distribution(vectors).view(*log_shares.shape, -1)  # (N, K, V)
        return torch.logsumexp(log_shares.unsqueeze(2) + by_component, dim=1)

    def _components(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """ln π, (N, K), and the context vectors of all components, (N·K, D), those of one row adjacent."""
        size, dtype = hidden.shape[1], self.share_layer.weight.dtype
        given = hidden.to(dtype)
        shares = functional.log_softmax(
            linear(given, self.share_layer.weight, self.share_layer.bias).to(hidden.dtype), dim=1
        )
        vectors = torch.tanh(linear(given, self.component_layer.weight).to(hidden.dtype))
        return shares, vectors.view(-1, size)
