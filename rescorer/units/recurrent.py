"""Recurrent networks of other toolkits: LSTMs, GRUs and Elman's networks over units.

The layers are those of ``rescorer.models.networks``, with the parameters of ``torch.nn``. Blocks may stand
between the layers and the output layer, each of which multiplies by a matrix, normalises and activates; or
only a matrix, which projects to the size of the embedding (Sak et al. 2014).

Tensors, where H is the hidden size and G·H the rows of a layer's gates:

    embedding.weight (V, E)
    recurrent.weight_ih_lN (G·H, E or H), recurrent.weight_hh_lN (G·H, H), recurrent.bias_{ih,hh}_lN (G·H)
    projection.weight (E, H), if there is a projection
    blocks.N.weight (B, H or the B before), blocks.N.bias, blocks.N.norm.weight (B), blocks.N.norm.bias
    output.weight (V, D), output.bias (V)

D is the size of the last block, or else E if there is a projection, or else H. Without ``output.weight`` the
embedding is the output layer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from rescorer.models.network_files import MAXIMA, NetworkConfig
from rescorer.models.networks import LAYERS, State
from rescorer.units.decoders import (
    Activation,
    Shapes,
    UnitNetwork,
    UnitNetworkConfig,
    activate,
    check_count,
    multiply,
)
from rescorer.units.tokens import MAX_UNITS

Kind = Literal["lstm", "gru", "elman"]
MAX_BLOCKS = 16


@dataclass(frozen=True, slots=True)
class RecurrentConfig(UnitNetworkConfig):
    """Shape of a recurrent network.

    Raises:
        BundleError: a value is of the wrong type or out of range, or values do not fit together.
    """

    kind: Kind
    vocabulary_size: int
    embedding_size: int
    hidden_size: int
    layers: int
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation of Elman's network."""
    blocks: tuple[int, ...] = ()
    """Size of each block between the layers and the output layer."""
    block_activation: Activation = "leaky_relu"
    norm_epsilon: float = 1e-5
    projected: bool = False
    """Whether a matrix projects the output of the layers to the size of the embedding."""

    def _find_problems(self) -> Iterator[str]:
        yield from check_count("vocabulary_size", self.vocabulary_size, MAX_UNITS)
        for name in ("embedding_size", "hidden_size", "layers"):
            yield from check_count(name, getattr(self, name), MAXIMA[name])
        for name, known in (
            ("kind", get_args(Kind)),
            ("activation", ("tanh", "relu")),
            ("block_activation", get_args(Activation)),
        ):
            if getattr(self, name) not in known:
                yield f"{name} is {getattr(self, name)!r}; expected one of {', '.join(known)}"
        if not isinstance(self.blocks, tuple) or len(self.blocks) > MAX_BLOCKS:
            yield f"blocks is {str(self.blocks)[:100]}; expected at most {MAX_BLOCKS} sizes"
        for size in self.blocks:
            yield from check_count("the size of a block", size, MAXIMA["hidden_size"])
        if not isinstance(self.projected, bool) or (self.projected and self.blocks):
            yield f"projected is {self.projected!r}; expected true or false, and false if there are blocks"
        if not isinstance(self.norm_epsilon, float) or not 0 < self.norm_epsilon < 1:
            yield f"norm_epsilon is {self.norm_epsilon!r}; expected a number between 0 and 1"

    @property
    def output_size(self) -> int:
        """D, length of a context vector."""
        if self.projected:
            return self.embedding_size
        return self.blocks[-1] if self.blocks else self.hidden_size

    def tensor_shapes(self) -> tuple[Shapes, Shapes]:
        """See ``UnitNetworkConfig``."""
        gates = LAYERS[self.kind].n_gates * self.hidden_size
        shapes: Shapes = {"embedding.weight": (self.vocabulary_size, self.embedding_size)}
        for layer in range(self.layers):
            below = self.hidden_size if layer else self.embedding_size
            shapes[f"recurrent.weight_ih_l{layer}"] = (gates, below)
            shapes[f"recurrent.weight_hh_l{layer}"] = (gates, self.hidden_size)
            shapes |= {f"recurrent.bias_{part}_l{layer}": (gates,) for part in ("ih", "hh")}
        if self.projected:
            shapes["projection.weight"] = (self.embedding_size, self.hidden_size)
        below = self.embedding_size if self.projected else self.hidden_size
        for number, size in enumerate(self.blocks):
            shapes[f"blocks.{number}.weight"] = (size, below)
            names = ("bias", "norm.weight", "norm.bias")
            shapes |= {f"blocks.{number}.{name}": (size,) for name in names}
            below = size
        output: Shapes = {"output.weight": (self.vocabulary_size, below)}
        tied = {} if below == self.embedding_size else output
        return shapes | tied, output | {"output.bias": (self.vocabulary_size,)}


class RecurrentDecoder(UnitNetwork):
    """A recurrent network that reads units: step by step (see ``neural``), or one sequence at a time."""

    def __init__(self, config: RecurrentConfig, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(tensors)
        self.config, self.output_size = config, config.output_size
        shape = NetworkConfig(
            vocabulary_size=config.vocabulary_size + 2,  # plays no role in its layers
            kind=config.kind,
            embedding_size=config.embedding_size,
            hidden_size=config.hidden_size,
            layers=config.layers,
            tied=False,
            output="full",
            activation=config.activation,
        )
        with torch.device("meta"):
            self.layers = LAYERS[config.kind](shape)
        for name in list(self.layers._parameters):
            delattr(self.layers, name)
            setattr(self.layers, name, tensors[f"recurrent.{name}"])

    @property
    def n_positions(self) -> int:
        """Number of units of a text that it can read: any."""
        return sys.maxsize

    def initial_state(self, n: int) -> State:
        """See ``StepNetwork``."""
        zeros = torch.zeros(n, self.config.hidden_size, device=self.device)
        return (zeros,) * (self.layers.n_parts * self.config.layers)

    def inputs(self, words: Tensor) -> Tensor:
        """See ``StepNetwork``."""
        embedded = self.tensors["embedding.weight"].index_select(0, words).float()
        return self.layers.input_gates(0, embedded)

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """See ``StepNetwork``."""
        below, after = inputs, list[Tensor]()
        for layer in range(self.config.layers):
            gates = self.layers.input_gates(layer, below) if layer else inputs
            new = self.layers.step(layer, gates, self.layers.layer_state(state, layer))
            below = new[0]
            after += new
        return self._vectors(below), tuple(after)

    def _vectors(self, x: Tensor) -> Tensor:
        """Context vectors from the output of the last layer, (n, H) → (n, D)."""
        if self.config.projected:
            x = multiply(x, self.tensors, "projection")
        for number, size in enumerate(self.config.blocks):
            x = multiply(x, self.tensors, f"blocks.{number}")
            gain, bias = (self.tensors[f"blocks.{number}.norm.{part}"].to(x) for part in ("weight", "bias"))
            x = functional.layer_norm(x, (size,), gain, bias, self.config.norm_epsilon)
            x = activate(x, self.config.block_activation)
        return x

    def batch_vectors(self, units: Tensor) -> Tensor:
        """See ``UnitNetwork``."""
        return self._run(units, torch.float32)

    @torch.inference_mode()
    def sequence_vectors(self, units: Sequence[int], dtype: torch.dtype = torch.float64) -> Tensor:
        """See ``UnitNetwork``."""
        return self._run(torch.tensor([units], dtype=torch.int64, device=self.device), dtype)[0]

    def _run(self, units: Tensor, dtype: torch.dtype) -> Tensor:
        """Context vectors, (B, T) → (B, T, D); the layers are run by torch's own functions."""
        x = self.tensors["embedding.weight"].index_select(0, units.flatten()).unflatten(0, units.shape)
        parameters = [
            tensor.to(dtype) for layer in range(self.config.layers) for tensor in self._parts(layer)
        ]
        start = x.new_zeros(self.config.layers, len(units), self.config.hidden_size, dtype=dtype)
        settings = parameters, True, self.config.layers, 0.0, False, False, True  # rows first
        if self.config.kind == "lstm":
            hidden = torch.lstm(x.to(dtype), (start, start), *settings)[0]
        elif self.config.kind == "gru":
            hidden = torch.gru(x.to(dtype), start, *settings)[0]
        else:
            run = torch.rnn_tanh if self.config.activation == "tanh" else torch.rnn_relu
            hidden = run(x.to(dtype), start, *settings)[0]
        return self._vectors(hidden.flatten(0, 1)).unflatten(0, units.shape)

    def _parts(self, layer: int) -> list[Tensor]:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        return [self.tensors[f"recurrent.{name}_l{layer}"] for name in names]
