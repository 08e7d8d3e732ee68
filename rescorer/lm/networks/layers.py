"""Owns stacks of recurrent layers of one kind: parameters, ``sequence`` over positions, ``step`` over one.

Parameters have the names, shapes and order of gates of ``torch.nn``'s own, whose fast functions are used
where they are the fastest: for the LSTM everywhere, for the others on GPUs.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional

from rescorer.lm.linear import linear
from rescorer.lm.networks.config import NetworkConfig
from rescorer.lm.networks.recurrences import ACTIVATE, ElmanRecurrence, GruRecurrence

# cuDNN copies weights that it does not find in one block: a few MB a batch, and dropped ones are new anyway.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")


class RecurrentLayers(nn.Module):
    """What the kinds have in common; biases come in pairs, of the input and of the state before."""

    n_gates: int
    n_parts = 1
    """Tensors that one layer carries from word to word; the first is what the layer above sees."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.n_layers, self.hidden_size = config.layers, config.hidden_size
        self.weight_dropout = config.weight_dropout
        rows = self.n_gates * config.hidden_size
        for layer in range(config.layers):
            below = config.hidden_size if layer else config.embedding_size
            shapes = {
                "weight_ih": (rows, below),
                "weight_hh": (rows, config.hidden_size),
                "bias_ih": (rows,),
                "bias_hh": (rows,),
            }
            for name, shape in shapes.items():
                values = torch.empty(shape).uniform_(-1, 1) * config.hidden_size**-0.5
                self.register_parameter(f"{name}_l{layer}", nn.Parameter(values))
        with torch.no_grad():
            for layer in range(config.layers):
                self._start_well(layer)

    def _start_well(self, layer: int) -> None:
        """What helps this kind to learn, after uniform values of ±1/√H."""

    def parameter(self, name: str, layer: int) -> Tensor:
        return getattr(self, f"{name}_l{layer}")

    def parts(self, state: tuple[Tensor, ...], layer: int) -> tuple[Tensor, ...]:
        """The tensors of a state that belong to one layer."""
        return state[self.n_parts * layer : self.n_parts * (layer + 1)]

    def bias(self, layer: int) -> Tensor:
        """What is added to the input projection."""
        return self.parameter("bias_ih", layer) + self.parameter("bias_hh", layer)

    def gates(self, layer: int, below: Tensor) -> Tensor:
        """Input projection of what comes from below, (..., I) → (..., G·H)."""
        return linear(below, self.parameter("weight_ih", layer), self.bias(layer))

    def recurrent_weight(self, layer: int) -> Tensor:
        """In training a share of it is zero for the whole batch (Merity et al. 2018)."""
        weight = self.parameter("weight_hh", layer)
        return functional.dropout(weight, self.weight_dropout, self.training)

    def torch_parameters(self, layer: int) -> list[Tensor]:
        """What ``torch.lstm`` and its like take."""
        names = ("weight_ih", "bias_ih", "bias_hh")
        weight_ih, *biases = (self.parameter(name, layer) for name in names)
        return [weight_ih, self.recurrent_weight(layer), *biases]

    def sequence(
        self, layer: int, below: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """All positions of a batch: (T, B, I) → (T, B, H), and the state after the last one."""
        raise NotImplementedError

    def step(self, layer: int, gates: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The state after one word, from its input projection (N, G·H) and the state before.

        For scoring: in place where it can be, and not differentiable.
        """
        raise NotImplementedError

    def recalled(self, layer: int, hidden: Tensor, bias: Tensor | None = None) -> Tensor:
        """What the state before says of each gate, (N, H) → (N, G·H)."""
        return linear(hidden, self.parameter("weight_hh", layer), bias)


class LstmLayers(RecurrentLayers):
    """Long short-term memory (Hochreiter & Schmidhuber 1997, with forget gates: Gers et al. 2000)."""

    n_gates, n_parts = 4, 2

    def _start_well(self, layer: int) -> None:
        """Remember by default (Jozefowicz et al. 2015)."""
        self.parameter("bias_ih", layer)[self.hidden_size : 2 * self.hidden_size] = 1.0

    def sequence(self, layer, below, state):  # type: ignore[no-untyped-def]
        before = [part.to(below.dtype).unsqueeze(0) for part in state]
        hidden, *last = torch.lstm(
            below, before, self.torch_parameters(layer), True, 1, 0.0, self.training, False, False
        )
        return hidden, tuple(part.squeeze(0) for part in last)

    def step(self, layer, gates, state):  # type: ignore[no-untyped-def]
        hidden, cell = state  # (N, H)
        gates = self.recalled(layer, hidden).add_(gates)  # (N, 4H)
        i, f, g, o = gates.chunk(4, dim=1)
        g.mul_(2)
        gates.sigmoid_()  # all four at once, for tanh g = 2·σ(2g) - 1
        cell = torch.mul(f, cell).addcmul_(i, g, value=2).sub_(i)
        return tanh_(cell.clone()).mul_(o), cell


class GruLayers(RecurrentLayers):
    """Gated recurrent unit (Cho et al. 2014), in the variant that resets after the product, as ``nn.GRU``."""

    n_gates = 3

    def bias(self, layer: int) -> Tensor:
        return self.parameter("bias_ih", layer)  # the other one is inside, where the reset gate reaches it

    def sequence(self, layer, below, state):  # type: ignore[no-untyped-def]
        if below.is_cuda:
            return _on_gpu(torch.gru, self, layer, below, state)
        weight, bias = self.recurrent_weight(layer), self.parameter("bias_hh", layer)
        hidden = GruRecurrence.apply(self.gates(layer, below), state[0], weight, bias)
        return hidden, (hidden[-1],)

    def step(self, layer, gates, state):  # type: ignore[no-untyped-def]
        (hidden,) = state  # (N, H)
        recalled = self.recalled(layer, hidden, self.parameter("bias_hh", layer))  # (N, 3H)
        both = 2 * self.hidden_size
        reset, update = recalled[:, :both].add_(gates[:, :both]).sigmoid_().chunk(2, dim=1)
        new = tanh_(recalled[:, both:].mul_(reset).add_(gates[:, both:]))
        return (torch.lerp(new, hidden, update),)


class ElmanLayers(RecurrentLayers):
    """Simple recurrent network (Elman 1990; Mikolov et al. 2010)."""

    n_gates = 1

    def __init__(self, config: NetworkConfig) -> None:
        self.activation = config.activation
        super().__init__(config)

    def _start_well(self, layer: int) -> None:
        """Neither shrink nor blow up what was said before (Saxe et al. 2014; Le et al. 2015).

        A sigmoid starts as the same network does with tanh, for σ(a) = (1 + tanh(a / 2)) / 2.
        """
        weight = self.parameter("weight_hh", layer)
        nn.init.orthogonal_(weight)
        if self.activation == "sigmoid":
            weight.mul_(4)
            self.parameter("weight_ih", layer).mul_(2)
            self.parameter("bias_ih", layer).sub_(weight.sum(dim=1) / 2)

    def sequence(self, layer, below, state):  # type: ignore[no-untyped-def]
        if below.is_cuda and self.activation in ("tanh", "relu"):
            return _on_gpu(getattr(torch, f"rnn_{self.activation}"), self, layer, below, state)
        weight = self.recurrent_weight(layer)
        hidden = ElmanRecurrence.apply(self.gates(layer, below), state[0], weight, self.activation)
        return hidden, (hidden[-1],)

    def step(self, layer, gates, state):  # type: ignore[no-untyped-def]
        (hidden,) = state
        product = self.recalled(layer, hidden).add_(gates)
        return (tanh_(product) if self.activation == "tanh" else ACTIVATE[self.activation](product),)


def tanh_(values: Tensor) -> Tensor:
    """In place, 2·σ(2a) - 1: within 2e-7 of ``torch.tanh``, which takes eight times as long on CPUs."""
    return values.mul_(2).sigmoid_().mul_(2).sub_(1)


def _on_gpu(run, layers: RecurrentLayers, layer: int, below: Tensor, state):  # type: ignore[no-untyped-def]
    """One layer by cuDNN."""
    before = state[0].to(below.dtype).unsqueeze(0)
    parameters = layers.torch_parameters(layer)
    hidden, last = run(below, before, parameters, True, 1, 0.0, layers.training, False, False)
    return hidden, (last.squeeze(0),)
