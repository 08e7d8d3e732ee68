"""Stacks of recurrent layers of one kind, run over whole sequences or one step at a time.

Parameters have the names, shapes and gate order of those in ``torch.nn``, whose fused functions are used
where they are fastest: on GPUs, and for the LSTM in float32 everywhere.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from rescorer.lm.files.network_config import NetworkConfig
from rescorer.lm.kernels.linear import linear
from rescorer.lm.networks.dropout import apply_dropout
from rescorer.lm.networks.recurrences import ACTIVATE_IN_PLACE, ElmanRecurrence, GruRecurrence, LstmRecurrence

# cuDNN copies weights that are not contiguous with each other. That is a few MB per batch, and weight dropout
# makes new weights anyway.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")


class RecurrentLayers(nn.Module):
    """Base class of all kinds of recurrent layers. Biases come in pairs: one for the input, one for the
    previous state."""

    n_gates: int
    n_parts = 1
    """Number of tensors that a layer carries from word to word; the first is the input of the layer above."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.n_layers, self.hidden_size = config.layers, config.hidden_size
        self.weight_dropout = config.weight_dropout
        rows = self.n_gates * config.hidden_size
        for layer in range(config.layers):
            input_size = config.hidden_size if layer else config.embedding_size + config.n_features
            shapes = {
                "weight_ih": (rows, input_size),
                "weight_hh": (rows, config.hidden_size),
                "bias_ih": (rows,),
                "bias_hh": (rows,),
            }
            for name, shape in shapes.items():
                values = torch.empty(shape).uniform_(-1, 1) * config.hidden_size**-0.5
                self.register_parameter(f"{name}_l{layer}", nn.Parameter(values))
        with torch.no_grad():
            for layer in range(config.layers):
                self._adjust_initial_values(layer)

    def _adjust_initial_values(self, layer: int) -> None:
        """Replace the initial values, within ±1/√H, where others help this kind of layer to learn."""

    def parameter(self, name: str, layer: int) -> Tensor:
        return getattr(self, f"{name}_l{layer}")

    def layer_state(self, state: tuple[Tensor, ...], layer: int) -> tuple[Tensor, ...]:
        """The tensors of a state that belong to one layer."""
        return state[self.n_parts * layer : self.n_parts * (layer + 1)]

    def input_bias(self, layer: int) -> Tensor:
        """The bias of the input projection."""
        return self.parameter("bias_ih", layer) + self.parameter("bias_hh", layer)

    def input_gates(self, layer: int, below: Tensor) -> Tensor:
        """Contribution of a layer's input to its gates, (..., I) → (..., G·H)."""
        return linear(below, self.parameter("weight_ih", layer), self.input_bias(layer))

    def recurrent_gates(self, layer: int, hidden: Tensor, bias: Tensor | None = None) -> Tensor:
        """Contribution of the previous hidden state to a layer's gates, (N, H) → (N, G·H)."""
        return linear(hidden, self.parameter("weight_hh", layer), bias)

    def recurrent_weight(self, layer: int) -> Tensor:
        """The recurrent weights, with weight dropout in training (Merity et al. 2018)."""
        weight = self.parameter("weight_hh", layer)
        return apply_dropout(weight, self.weight_dropout, locked=False) if self.training else weight

    def torch_parameters(self, layer: int) -> list[Tensor]:
        """The parameters in the order that ``torch.lstm``, ``torch.gru`` and ``torch.rnn_tanh`` expect."""
        names = ("weight_ih", "bias_ih", "bias_hh")
        weight_ih, *biases = (self.parameter(name, layer) for name in names)
        return [weight_ih, self.recurrent_weight(layer), *biases]

    def run_sequence(
        self, layer: int, below: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run one layer over all positions: (T, B, I) → (T, B, H), and the state after the last one."""
        raise NotImplementedError

    def step(self, layer: int, gates: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The layer's state after one word, from its input gates (N, G·H) and its previous state.

        For scoring: works in place where possible, and is not differentiable.
        """
        raise NotImplementedError


class LstmLayers(RecurrentLayers):
    """Long short-term memory (Hochreiter & Schmidhuber 1997, with forget gates: Gers et al. 2000)."""

    n_gates, n_parts = 4, 2

    def _adjust_initial_values(self, layer: int) -> None:
        """Set the bias of the forget gates to 1, to remember by default (Jozefowicz et al. 2015)."""
        self.parameter("bias_ih", layer)[self.hidden_size : 2 * self.hidden_size] = 1.0

    def run_sequence(self, layer, below, state):  # type: ignore[no-untyped-def]
        if self._is_faster_by_hand(below):
            weight = self.recurrent_weight(layer)
            hidden, cell = LstmRecurrence.apply(self.input_gates(layer, below), *state, weight)
            return hidden, (hidden[-1], cell)
        before = [part.to(below.dtype).unsqueeze(0) for part in state]
        hidden, *last = torch.lstm(
            below, before, self.torch_parameters(layer), True, 1, 0.0, self.training, False, False
        )
        return hidden, tuple(part.squeeze(0) for part in last)

    @staticmethod
    def _is_faster_by_hand(below: Tensor) -> bool:
        """Gradients in bfloat16 on a CPU, for which oneDNN takes 1.5 times as long as ``LstmRecurrence``."""
        is_bfloat16_cpu = below.device.type == "cpu" and torch.is_autocast_enabled("cpu")
        return is_bfloat16_cpu and torch.is_grad_enabled()

    def step(self, layer, gates, state):  # type: ignore[no-untyped-def]
        hidden, cell = state  # (N, H)
        product = self.recurrent_gates(layer, hidden)  # (N, 4H)
        if product.is_cuda:  # one kernel in place of the ten below
            return torch.ops.aten._thnn_fused_lstm_cell(gates, product, cell)[:2]
        gates = product.add_(gates)
        i, f, g, o = gates.chunk(4, dim=1)
        g.mul_(2)
        gates.sigmoid_()  # all four in one call, because tanh g = 2·σ(2g) - 1
        cell = torch.mul(f, cell).addcmul_(i, g, value=2).sub_(i)
        return tanh_(cell.clone()).mul_(o), cell


class GruLayers(RecurrentLayers):
    """Gated recurrent unit (Cho et al. 2014); as in ``nn.GRU``, the reset gate applies after the product."""

    n_gates = 3

    def input_bias(self, layer: int) -> Tensor:
        # The recurrent bias is added inside the recurrence, because the reset gate applies to it.
        return self.parameter("bias_ih", layer)

    def run_sequence(self, layer, below, state):  # type: ignore[no-untyped-def]
        if below.is_cuda:
            return _run_cudnn(torch.gru, self, layer, below, state)
        weight, bias = self.recurrent_weight(layer), self.parameter("bias_hh", layer)
        hidden = GruRecurrence.apply(self.input_gates(layer, below), state[0], weight, bias)
        return hidden, (hidden[-1],)

    def step(self, layer, gates, state):  # type: ignore[no-untyped-def]
        (hidden,) = state  # (N, H)
        recurrent = self.recurrent_gates(layer, hidden, self.parameter("bias_hh", layer))  # (N, 3H)
        if recurrent.is_cuda:
            return torch.ops.aten._thnn_fused_gru_cell(gates, recurrent, hidden)[:1]
        both = 2 * self.hidden_size
        reset, update = recurrent[:, :both].add_(gates[:, :both]).sigmoid_().chunk(2, dim=1)
        new = tanh_(recurrent[:, both:].mul_(reset).add_(gates[:, both:]))
        return (torch.lerp(new, hidden, update),)


class ElmanLayers(RecurrentLayers):
    """Simple recurrent network (Elman 1990; Mikolov et al. 2010)."""

    n_gates = 1

    def __init__(self, config: NetworkConfig) -> None:
        self.activation = config.activation
        super().__init__(config)

    def _adjust_initial_values(self, layer: int) -> None:
        """Make the recurrent weights orthogonal, so that states neither vanish nor explode.

        See Saxe et al. 2014 and Le et al. 2015. With a sigmoid the network starts as the same function as
        with tanh, because σ(a) = (1 + tanh(a / 2)) / 2.
        """
        weight = self.parameter("weight_hh", layer)
        nn.init.orthogonal_(weight)
        if self.activation == "sigmoid":
            weight.mul_(4)
            self.parameter("weight_ih", layer).mul_(2)
            self.parameter("bias_ih", layer).sub_(weight.sum(dim=1) / 2)

    def run_sequence(self, layer, below, state):  # type: ignore[no-untyped-def]
        if below.is_cuda and self.activation in ("tanh", "relu"):
            return _run_cudnn(getattr(torch, f"rnn_{self.activation}"), self, layer, below, state)
        weight = self.recurrent_weight(layer)
        hidden = ElmanRecurrence.apply(self.input_gates(layer, below), state[0], weight, self.activation)
        return hidden, (hidden[-1],)

    def step(self, layer, gates, state):  # type: ignore[no-untyped-def]
        (hidden,) = state
        product = self.recurrent_gates(layer, hidden).add_(gates)
        return (tanh_(product) if self.activation == "tanh" else ACTIVATE_IN_PLACE[self.activation](product),)


def tanh_(values: Tensor) -> Tensor:
    """Compute tanh in place as 2·σ(2a) - 1.

    The result is within 2e-7 of ``torch.tanh``, which takes eight times as long on CPUs.
    """
    return values.mul_(2).sigmoid_().mul_(2).sub_(1)


def _run_cudnn(run, layers: RecurrentLayers, layer: int, below: Tensor, state):  # type: ignore[no-untyped-def]
    """Run one layer over all positions with cuDNN."""
    before = state[0].to(below.dtype).unsqueeze(0)
    parameters = layers.torch_parameters(layer)
    hidden, last = run(below, before, parameters, True, 1, 0.0, layers.training, False, False)
    return hidden, (last.squeeze(0),)
