"""Transformer decoders of other toolkits, described by one configuration and one set of tensor names.

The families differ in a few places only: how they normalise, whether the feed-forward network is gated, where
positions enter, how many heads share a key, whether attention and feed-forward network run side by side, and
how far a layer looks back. ``DecoderConfig`` has a field for each. Readers of foreign files translate a
family's configuration into it, and rename the tensors; everything after that knows no family.

Tensors, where H is the hidden size, d the size of a head:

    embedding.weight (V, E)              input_projection.*, positions.weight (P, H)
    layers.N.attention_norm.*            layers.N.attention_input.* (queries, keys, values stacked)
    layers.N.query_norm.weight (d)       layers.N.key_norm.weight (d)
    layers.N.attention_output.*          layers.N.feedforward_norm.*
    layers.N.feedforward_input.* (gate above inner, if gated)          layers.N.feedforward_output.*
    norm.*                               output_projection.*, output_norm.*, output.*

Only some have a bias; without ``output.weight`` the embedding is the output layer. Rotary positions turn
adjacent pairs of a head, so that readers of files whose halves are turned reorder the rows of queries and
keys.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rescorer.errors import BundleError
from rescorer.models.contexts import RowCache
from rescorer.models.kernels import is_multiplied_in_int8, linear, linear_plus, multiply_in_int8
from rescorer.models.outputs import row_blocks, rows_per_block
from rescorer.models.precision import check_precision
from rescorer.models.tree_attention import PrefixTree, attend, prepare_mask, tree_vectors
from rescorer.safe_input import TensorInfo, format_shape
from rescorer.units.tokens import MAX_UNITS

MAX_SIZE = 1 << 20
"""Largest size of any layer of a decoder."""
MAX_LAYERS = 512
MAX_POSITIONS = 1 << 24
STORED_TYPES = ("F32", "F16", "BF16")  # types of tensors in files

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "leaky_relu"]
Norm = Literal["rms", "layer"]
Positions = Literal["rotary", "table", "none"]


Shapes = dict[str, tuple[int, ...]]


class UnitNetworkConfig:
    """Base of the configurations of networks that read units: frozen dataclasses that check themselves."""

    __slots__ = ()
    vocabulary_size: int

    def __post_init__(self) -> None:
        for problem in self._find_problems():
            raise BundleError(f"config of the decoder: {problem}")

    def _find_problems(self) -> Iterator[str]:
        raise NotImplementedError

    def tensor_shapes(self) -> tuple[Shapes, Shapes]:
        """Shapes of the tensors that the network must have, and of those that it may have, by name."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Plain data that ``from_dict`` reads back; fields that have their defaults are left out."""
        known = fields(self)  # type: ignore[arg-type]
        plain = {field.name: getattr(self, field.name) for field in known}
        defaults = {field.name: field.default for field in known}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in plain.items()
            if value != defaults[name]
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read a configuration from plain data.

        Raises:
            BundleError: a key is unknown or missing, or a value is invalid.
        """
        known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
        if unknown := sorted(set(values) - known):
            expected = f"expected some of {sorted(known)}"
            raise BundleError(f"config of the decoder: unknown {unknown[0]!r}; {expected}")
        lists: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        try:
            return cls(**lists)
        except TypeError as error:
            raise BundleError(f"config of the decoder: {error}") from None


MAX_FACTOR = 1e9


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 < value <= MAX_FACTOR


def check_count(name: str, value: Any, largest: int, least: int = 1) -> Iterator[str]:
    """Describe what is wrong with a size, if anything is."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= largest:
        yield f"{name} is {value!r}; expected a whole number from {least} to {largest:,}"


@dataclass(frozen=True, slots=True)
class DecoderConfig(UnitNetworkConfig):
    """Shape of a decoder.

    Raises:
        BundleError: a value is of the wrong type or out of range, or values do not fit together.
    """

    vocabulary_size: int
    embedding_size: int
    hidden_size: int
    layers: int
    heads: int
    key_heads: int
    """Number of heads of keys and values; each serves ``heads / key_heads`` heads of queries."""
    head_size: int
    feedforward_size: int
    context_length: int
    """Largest number of units that it can read, with the start symbol: its table of positions has no more, or
    it was not trained with longer texts."""
    norm: Norm = "rms"
    norm_epsilon: float = 1e-5
    norm_after: bool = False
    """Whether layers normalise the sum after each part, as the first transformer did; else the input."""
    parallel: bool = False
    """Whether a layer's feed-forward network reads the layer's input, beside attention."""
    activation: Activation = "silu"
    gated: bool = True
    embedding_scale: float = 1.0
    positions: Positions = "rotary"
    rotary_frequencies: tuple[float, ...] = ()
    """Angle by which each pair of a head is turned per position; pairs without one are not turned."""
    rotary_scale: float = 1.0
    """Factor of rotated queries and keys."""
    query_scale: float | None = None
    """Factor of products of queries and keys; None: 1 / √head_size."""
    windows: tuple[int, ...] = ()
    """For each layer, the number of units that a unit attends to, itself included; 0: all. Empty: all of
    every layer."""

    def _find_problems(self) -> Iterator[str]:
        for name in ("embedding_size", "hidden_size", "heads", "key_heads", "head_size", "feedforward_size"):
            yield from check_count(name, getattr(self, name), MAX_SIZE)
        yield from check_count("vocabulary_size", self.vocabulary_size, MAX_UNITS)
        yield from check_count("layers", self.layers, MAX_LAYERS)
        yield from check_count("context_length", self.context_length, MAX_POSITIONS)
        for name, kind in (("norm", Norm), ("activation", Activation), ("positions", Positions)):
            if getattr(self, name) not in get_args(kind):
                yield f"{name} is {getattr(self, name)!r}; expected one of {', '.join(get_args(kind))}"
        for name in ("norm_epsilon", "embedding_scale", "rotary_scale", "query_scale"):
            value = getattr(self, name)
            if not (_is_number(value) or (value is None and name == "query_scale")):
                yield f"{name} is {value!r}; expected a number above 0, at most {MAX_FACTOR:g}"
        for name in ("norm_after", "parallel", "gated"):
            if not isinstance(getattr(self, name), bool):
                yield f"{name} is {getattr(self, name)!r}; expected true or false"
        if not isinstance(self.rotary_frequencies, tuple) or not all(
            map(_is_number, self.rotary_frequencies)
        ):
            yield f"rotary_frequencies are not numbers above 0, at most {MAX_FACTOR:g}"
        if not isinstance(self.windows, tuple):
            yield f"windows is {self.windows!r}; expected a list"
        for window in self.windows:
            yield from check_count("a window", window, sys.maxsize, least=0)
        if self.heads % self.key_heads:
            yield f"{self.heads} heads cannot share {self.key_heads} heads of keys evenly"
        if self.positions == "rotary" and not 0 < len(self.rotary_frequencies) <= self.head_size // 2:
            yield f"{len(self.rotary_frequencies)} rotary frequencies for heads of size {self.head_size}"
        if self.windows and len(self.windows) != self.layers:
            yield f"{len(self.windows)} windows for {self.layers} layers"

    def tensor_shapes(self) -> tuple[Shapes, Shapes]:
        """See ``UnitNetworkConfig``."""
        return required_tensors(self), optional_tensors(self)


def required_tensors(config: DecoderConfig) -> Shapes:
    """Shapes of the tensors that a decoder must have, by name."""
    embedding, hidden, units = config.embedding_size, config.hidden_size, config.vocabulary_size
    queries, keys = config.heads * config.head_size, config.key_heads * config.head_size
    inner = config.feedforward_size * (2 if config.gated else 1)
    shapes: Shapes = {"embedding.weight": (units, embedding)}
    if config.positions == "table":
        shapes["positions.weight"] = (config.context_length, hidden)
    if embedding != hidden:
        shapes["input_projection.weight"] = (hidden, embedding)
    for number in range(config.layers):
        layer = f"layers.{number}."
        shapes |= {
            f"{layer}attention_norm.weight": (hidden,),
            f"{layer}attention_input.weight": (queries + 2 * keys, hidden),
            f"{layer}attention_output.weight": (hidden, queries),
            f"{layer}feedforward_norm.weight": (hidden,),
            f"{layer}feedforward_input.weight": (inner, hidden),
            f"{layer}feedforward_output.weight": (hidden, config.feedforward_size),
        }
    return shapes


def optional_tensors(config: DecoderConfig) -> Shapes:
    """Shapes of the tensors that a decoder may have besides, by name: biases, and layers of some families."""
    embedding, hidden, units = config.embedding_size, config.hidden_size, config.vocabulary_size
    required = required_tensors(config)
    shapes = {
        name.removesuffix("weight") + "bias": shape[:1]
        for name, shape in required.items()
        if name not in ("embedding.weight", "positions.weight")
    }
    shapes |= {
        "norm.weight": (hidden,),
        "norm.bias": (hidden,),
        "input_projection.weight": (hidden, embedding),
        "input_projection.bias": (hidden,),
        "output_projection.weight": (embedding, hidden),
        "output_projection.bias": (embedding,),
        "output_norm.weight": (embedding,),
        "output_norm.bias": (embedding,),
        "output.weight": (units, embedding),
        "output.bias": (units,),
    }
    for number in range(config.layers):
        shapes |= {f"layers.{number}.{name}_norm.weight": (config.head_size,) for name in ("query", "key")}
    return shapes


def check_tensors(place: str, config: UnitNetworkConfig, found: Mapping[str, TensorInfo]) -> None:
    """Compare the tensors of a file with those of a configuration, before any is read.

    Raises:
        BundleError: a tensor is missing, unexpected, or of another shape or type.
    """
    required, optional = config.tensor_shapes()
    expected = {**optional, **required}
    for name, shape in required.items():
        if name not in found:
            raise BundleError(f"{place}: the tensor {name} is missing; expected {format_shape(shape)}")
    for name, info in found.items():
        if name not in expected:
            raise BundleError(f"{place}: unexpected tensor {name[:100]!r}")
        if info.dtype not in STORED_TYPES:
            raise BundleError(
                f"{place}: the tensor {name} is stored as {info.dtype}; expected {STORED_TYPES}"
            )
        if tuple(info.shape) != expected[name]:
            shapes = format_shape(info.shape), format_shape(expected[name])
            raise BundleError(f"{place}: the tensor {name} is {shapes[0]}; expected {shapes[1]}")


def set_precision(tensors: dict[str, Tensor], dtype: str) -> None:
    """Convert the matrices of a decoder, in place; see ``NeuralLanguageModel`` for the names of precisions.

    What is added, normalised or summed stays in float32, as do embeddings that are only looked up.

    Raises:
        ConfigError: the dtype is unknown, or not supported on this device.
    """
    output = "output.weight" if "output.weight" in tensors else "embedding.weight"
    looked_up = {"positions.weight", "embedding.weight"} - {output}
    names = [name for name, tensor in tensors.items() if tensor.dim() == 2 and name not in looked_up]
    check_precision(dtype, str(tensors[output].device))
    if dtype == "int8":
        multiply_in_int8(tensors[name] for name in names)
    if dtype == "bfloat16":
        for name in names:
            tensors[name] = nn.Parameter(tensors[name].bfloat16(), requires_grad=False)


def rotary_table(frequencies: Sequence[float], n_positions: int, like: Tensor) -> Tensor:
    """Rotations of positions 0 … n - 1, (n, pairs) complex; angles are computed in float64."""
    angles = torch.outer(
        torch.arange(n_positions, dtype=torch.float64), torch.tensor(frequencies, dtype=torch.float64)
    )
    dtype = torch.complex128 if like.dtype == torch.float64 else torch.complex64
    return torch.polar(torch.ones_like(angles), angles).to(like.device, dtype)


class DecoderLayer:
    """One layer: attention, and a feed-forward network."""

    def __init__(self, config: DecoderConfig, tensors: Mapping[str, Tensor]) -> None:
        self.config, self.tensors = config, tensors

    def attention_inputs(self, x: Tensor, rotations: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (n, heads, d), keys and values (n, key_heads, d) of units, turned by their positions.

        Args:
            x: (n, H) input of the layer.
            rotations: (n, pairs) complex; None if positions enter elsewhere.
        """
        config, d = self.config, self.config.head_size
        inputs = x if config.norm_after else self.normalise(x, "attention_norm")
        stacked = self.multiply(inputs, "attention_input")
        heads = stacked.unflatten(-1, (-1, d))  # of queries, keys, values
        turned, values = heads.split([config.heads + config.key_heads, config.key_heads], dim=1)
        if "query_norm.weight" in self.tensors or "key_norm.weight" in self.tensors:
            queries, keys = turned.split([config.heads, config.key_heads], dim=1)
            queries = self._normalise_head(queries, "query_norm")
            turned = torch.cat([queries, self._normalise_head(keys, "key_norm")], dim=1)
        if rotations is not None:
            turned = self._rotate(turned, rotations)
        queries, keys = turned.split([config.heads, config.key_heads], dim=1)
        return queries, keys, values

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Output of the layer, (n, H), from its input and the result of attention, (n, heads · d)."""
        config = self.config
        if config.parallel:
            fed = self._feed_forward(self.normalise(x, "feedforward_norm"), x)
            return self.multiply(attended, "attention_output", fed)
        x = self.multiply(attended, "attention_output", x)
        if config.norm_after:
            x = self.normalise(x, "attention_norm")
            return self.normalise(self._feed_forward(x, x), "feedforward_norm")
        return self._feed_forward(self.normalise(x, "feedforward_norm"), x)

    def _feed_forward(self, x: Tensor, added: Tensor) -> Tensor:
        """The feed-forward network of x, plus ``added``."""
        return self.multiply(self._inner(x), "feedforward_output", added)

    def _inner(self, x: Tensor) -> Tensor:
        if not self.config.gated:
            return activate(self.multiply(x, "feedforward_input"), self.config.activation)
        if x.is_cuda:  # its kernels are faster on rows that are adjacent
            size = self.config.feedforward_size
            gate = self.multiply(x, "feedforward_input", rows=slice(size))
            inner = self.multiply(x, "feedforward_input", rows=slice(size, None))
        else:
            gate, inner = self.multiply(x, "feedforward_input").chunk(2, dim=-1)
        if torch.is_grad_enabled():
            return activate(gate, self.config.activation) * inner
        return activate(gate, self.config.activation).mul_(inner)

    def _normalise_head(self, x: Tensor, name: str) -> Tensor:
        gain = self.tensors.get(f"{name}.weight")
        return x if gain is None else functional.rms_norm(x, gain.shape, gain.to(x), self.config.norm_epsilon)

    def _rotate(self, x: Tensor, rotations: Tensor) -> Tensor:
        n_turned = 2 * rotations.shape[-1]
        halves = x[..., :n_turned].to(rotations.real.dtype).unflatten(-1, (-1, 2))
        pairs = torch.view_as_complex(halves.contiguous())
        turned = torch.view_as_real(pairs * rotations.unsqueeze(-2)).flatten(-2)
        if self.config.rotary_scale != 1.0:
            turned *= self.config.rotary_scale
        turned = turned.to(x.dtype)
        return turned if n_turned == x.shape[-1] else torch.cat([turned, x[..., n_turned:]], dim=-1)

    def multiply(
        self, x: Tensor, name: str, added: Tensor | None = None, rows: slice | None = None
    ) -> Tensor:
        """See the function ``multiply``; the tensors are those of the layer."""
        return multiply(x, self.tensors, name, added, rows)

    def normalise(self, x: Tensor, name: str) -> Tensor:
        """Normalise (n, H) by a gain of the layer, and its bias if there is one."""
        return normalise(x, self.tensors, name, self.config)


def activate(x: Tensor, name: Activation) -> Tensor:
    """Apply an activation function, in place where torch can and no gradients are needed."""
    in_place = not torch.is_grad_enabled()
    if name == "silu":
        return functional.silu(x, inplace=in_place)
    if name == "relu":
        return functional.relu(x, inplace=in_place)
    if name == "leaky_relu":
        return functional.leaky_relu(x, inplace=in_place)
    return functional.gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")


def multiply(
    x: Tensor,
    tensors: Mapping[str, Tensor],
    name: str,
    added: Tensor | None = None,
    rows: slice | None = None,
) -> Tensor:
    """x·Wᵀ + b by the tensors of a name, or some of their rows; in float64 if x is.

    On a GPU, products in bfloat16 stay in it, because converting them takes longer than computing them. What
    is added up over layers is in float32.

    Args:
        added: added to the product, (n, rows).
        rows: those of the matrix and the bias that are used; None: all.
    """
    weight, bias = tensors[f"{name}.weight"], tensors.get(f"{name}.bias")
    if rows is not None:
        weight, bias = weight[rows], None if bias is None else bias[rows]
    if x.dtype == torch.float64:
        product = functional.linear(x, weight.double(), None if bias is None else bias.double())
    elif weight.is_cuda and weight.dtype == torch.bfloat16:
        if added is not None:
            return linear_plus(x, weight, added if bias is None else added + bias)
        product = functional.linear(x.bfloat16(), weight, None if bias is None else bias.bfloat16())
    else:
        product = linear(x, weight, bias)
    return product if added is None else added + product


def normalise(x: Tensor, tensors: Mapping[str, Tensor], name: str, config: DecoderConfig) -> Tensor:
    """Normalise (n, H) by the tensors of a name; x is returned unchanged if there are none."""
    gain, bias = tensors.get(f"{name}.weight"), tensors.get(f"{name}.bias")
    if gain is None:
        return x
    if config.norm == "rms":
        return functional.rms_norm(x, gain.shape, gain.to(x), config.norm_epsilon)
    return functional.layer_norm(
        x, gain.shape, gain.to(x), None if bias is None else bias.to(x), config.norm_epsilon
    )


TOGETHER = -1
"""Number that stands for any of several units."""
LOG_TINY = -80.0
"""ln of the least probability of several units together that float32 can tell from 0."""


def score_edges(
    scores: Callable[[Tensor], Tensor],
    n_units: int,
    vectors: Tensor,
    rows: Tensor,
    units: Tensor,
    together: Tensor | None = None,
) -> Tensor:
    """ln P(units[e] | vectors[rows[e]]) of every edge e, (E,) float64.

    The scores of all units are held for some rows at a time only.

    Args:
        scores: unnormalised log-probabilities of all units, (n, D) → (n, V).
        n_units: V.
        together: units of which edges with the number ``TOGETHER`` have the sum of the probabilities; None:
            there are no such edges.
    """
    out = torch.empty(len(units), dtype=torch.float64, device=vectors.device)
    chosen = mark_units(together, n_units, vectors)
    for block, edges, places in row_blocks(rows, len(vectors), rows_per_block(vectors, n_units)):
        log_probs = scores(vectors[block]).log_softmax(dim=1)  # (n, V); faster than logsumexp
        found = log_probs[places, units[edges].clamp_min(0)].double()
        if chosen is not None:
            sums = (log_probs.exp_() @ chosen.to(log_probs.dtype)).double().log().clamp_min(LOG_TINY)  # (n,)
            found = torch.where(units[edges] == TOGETHER, sums[places], found)
        out[edges] = found
    return out


def mark_units(units: Tensor | None, n_units: int, like: Tensor) -> Tensor | None:
    """1.0 for each of some units and 0.0 for all others, (V,), on the device of ``like``; None for None."""
    if units is None:
        return None
    return torch.zeros(n_units, device=like.device).index_fill_(0, units, 1.0)


COLUMNS, ROWS = 4096, 1024
"""Units, and context vectors, whose scores are held at once on a CPU where there are more units: 16 MB."""


class UnitNetwork:
    """Base of networks that read units and predict the next one by a softmax over all of them.

    Args:
        tensors: by name, ``embedding.weight`` (V, E) and perhaps ``output.weight`` (V, D) and
            ``output.bias`` (V) among them; not changed. Without ``output.weight`` the embedding is the output
            layer.
    """

    output_size: int
    """D, length of a context vector."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors
        self.output_name = "output" if "output.weight" in tensors else "embedding"

    @property
    def device(self) -> torch.device:
        return self.tensors["embedding.weight"].device

    def sequence_vectors(self, units: Sequence[int], dtype: torch.dtype = torch.float64) -> Tensor:
        """Context vectors after each unit of one sequence, (T, D): the slow twin of reading tries."""
        raise NotImplementedError

    def batch_vectors(self, units: Tensor) -> Tensor:
        """Context vectors after each unit of sequences, (B, T) int64 → (B, T, D), for training.

        Gradients flow back to tensors that require them. Shorter sequences are padded at their ends.
        """
        raise NotImplementedError

    def scores(self, vectors: Tensor) -> Tensor:
        """Unnormalised log-probabilities of all units, (n, D) → (n, V)."""
        weight, bias = self.tensors[f"{self.output_name}.weight"], self.tensors.get("output.bias")
        if vectors.dtype == torch.float64:
            return functional.linear(vectors, weight.double(), None if bias is None else bias.double())
        return linear(vectors, weight, bias)

    def log_probs(
        self, vectors: Tensor, rows: Tensor, units: Tensor, together: Tensor | None = None
    ) -> Tensor:
        """ln P(units[e] | vectors[rows[e]]) of every edge e, (E,) float64; see ``score_edges``."""
        weight = self.tensors[f"{self.output_name}.weight"]
        is_plain = weight.dtype == torch.float32 and not is_multiplied_in_int8(weight)
        if is_plain and weight.device.type == "cpu" and len(weight) > COLUMNS:
            return self._log_probs_by_columns(weight, vectors, rows, units, together)
        return score_edges(self.scores, len(weight), vectors, rows, units, together)

    def _log_probs_by_columns(
        self, weight: Tensor, vectors: Tensor, rows: Tensor, units: Tensor, together: Tensor | None
    ) -> Tensor:
        """Like ``score_edges``, with the scores of some units at a time, which fit into a CPU's cache."""
        bias = self.tensors.get("output.bias")
        marks = mark_units(together, len(weight), vectors)
        out = torch.empty(len(units), dtype=torch.float64)
        for block, edges, places in row_blocks(rows, len(vectors), ROWS):
            x, chosen = vectors[block], units[edges]
            log_sum = torch.full((len(x),), -math.inf, dtype=torch.float64)
            log_sum_together = log_sum.clone()
            found = torch.empty(len(chosen), dtype=torch.float64)
            for start in range(0, len(weight), COLUMNS):
                columns = slice(start, start + COLUMNS)
                scores = linear(x, weight[columns], None if bias is None else bias[columns])
                normalised = scores.log_softmax(dim=1)  # faster than logsumexp
                part = (scores.amax(dim=1) - normalised.amax(dim=1)).double()
                log_sum = torch.logaddexp(log_sum, part)
                if marks is not None:
                    sums = (normalised.exp_() @ marks[columns]).double().log() + part
                    log_sum_together = torch.logaddexp(log_sum_together, sums)
                inside = ((chosen >= start) & (chosen < start + COLUMNS)).nonzero().squeeze(1)
                found[inside] = scores[places[inside], chosen[inside] - start].double()
            found -= log_sum[places]
            if marks is not None:
                sums = (log_sum_together - log_sum).clamp_min(LOG_TINY)
                found = torch.where(chosen == TOGETHER, sums[places], found)
            out[edges] = found
        return out

    @torch.inference_mode()
    def sequence_log_probs(self, units: Sequence[int], dtype: torch.dtype = torch.float64) -> Tensor:
        """ln P of each unit after the first given those before it, (T - 1,); see ``sequence_vectors``."""
        following = torch.tensor(units[1:], dtype=torch.int64, device=self.device)
        log_probs = self.scores(self.sequence_vectors(units[:-1], dtype)).log_softmax(dim=1)
        return log_probs.gather(1, following.unsqueeze(1)).squeeze(1)


class Decoder(UnitNetwork):
    """A decoder that reads units: over trees (see ``tree_attention``), or one sequence at a time.

    Args:
        tensors: see the head of this module; not changed.
    """

    def __init__(self, config: DecoderConfig, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(tensors)
        self.config = config
        self.layers = [
            DecoderLayer(
                config,
                {
                    name.removeprefix(f"layers.{number}."): tensor
                    for name, tensor in tensors.items()
                    if name.startswith(f"layers.{number}.")
                },
            )
            for number in range(config.layers)
        ]
        self.output_size = config.embedding_size

    @property
    def key_size(self) -> int:
        """Length of the keys, and of the values, of a unit in a layer."""
        return self.config.key_heads * self.config.head_size

    @property
    def windows(self) -> tuple[int, ...]:
        """Number of units that a unit attends to in each layer, itself included; 0: all."""
        return self.config.windows or (0,) * self.config.layers

    @property
    def n_positions(self) -> int:
        """Number of units of a text that it can read."""
        return self.config.context_length

    @property
    def query_scale(self) -> float | None:
        """Factor of products of queries and keys; None: 1 / √head_size."""
        return self.config.query_scale

    @property
    def blocks(self) -> Iterator[DecoderLayer]:
        """The layers."""
        return iter(self.layers)

    def read_tree(
        self, tree: PrefixTree, cache: RowCache, *, leaves: bool = True, root: bool = True
    ) -> tuple[Tensor, np.ndarray]:
        """See ``tree_attention.tree_vectors``."""
        return tree_vectors(self, tree, cache, leaves=leaves, root=root)

    def inputs(self, units: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Input of the first layer for units, (n,) int64: (n, H), without what positions add."""
        x = self.tensors["embedding.weight"].index_select(0, units).to(dtype)
        if "input_projection.weight" in self.tensors:
            x = multiply(x, self.tensors, "input_projection").to(dtype)
        if self.config.embedding_scale != 1.0:
            x = x * self.config.embedding_scale
        return x

    def add_positions(self, inputs: Tensor, positions: Tensor) -> Tensor:
        """Add what the positions of units, (n,), add to their inputs, (n, H)."""
        if self.config.positions != "table":
            return inputs
        return inputs + self.tensors["positions.weight"].index_select(0, positions).to(inputs.dtype)

    def rotations(self, n_positions: int, dtype: torch.dtype = torch.float32) -> Tensor | None:
        """Rotations of the first positions, (n, pairs) complex; None if the decoder has none."""
        if self.config.positions != "rotary":
            return None
        like = torch.empty(0, dtype=dtype, device=self.device)
        return rotary_table(self.config.rotary_frequencies, n_positions, like)

    def vectors(self, x: Tensor) -> Tensor:
        """Context vectors from the output of the last layer, (n, H) → (n, D)."""
        x = normalise(x, self.tensors, "norm", self.config)
        if "output_projection.weight" in self.tensors:
            x = multiply(x, self.tensors, "output_projection").to(x.dtype)
        return normalise(x, self.tensors, "output_norm", self.config)

    def batch_vectors(self, units: Tensor) -> Tensor:
        """See ``UnitNetwork``."""
        shape = n_rows, length = units.shape
        positions = torch.arange(length, device=self.device)
        distance = positions.unsqueeze(1) - positions  # (T, T)
        positions = positions.repeat(n_rows)  # (B · T,)
        x, rotations = self.add_positions(self.inputs(units.flatten()), positions), self.rotations(length)
        rotations = None if rotations is None else rotations.index_select(0, positions)
        for layer, window in zip(self.layers, self.windows, strict=True):
            parts = layer.attention_inputs(x, rotations)
            queries, keys, values = (part.unflatten(0, shape) for part in parts)  # (B, T, heads, d)
            seen = (distance >= 0) & (distance < (window or length))
            mask = prepare_mask(seen[None, None], queries, keys)
            attended = attend(queries, keys, values, mask, self.query_scale)
            x = layer.finish(x, attended.flatten(0, 1))
        return self.vectors(x).unflatten(0, shape)

    @torch.inference_mode()
    def sequence_vectors(self, units: Sequence[int], dtype: torch.dtype = torch.float64) -> Tensor:
        """Context vectors after each unit of one sequence, (T, D): the slow twin of reading trees.

        The sequence is read at once, with a plain causal mask and no caches.
        """
        ids = torch.tensor(units, dtype=torch.int64, device=self.device)
        positions = torch.arange(len(ids), device=self.device)
        distance = positions.unsqueeze(1) - positions  # (T, T)
        x, rotations = self.add_positions(self.inputs(ids, dtype), positions), self.rotations(len(ids), dtype)
        for layer, window in zip(self.layers, self.windows, strict=True):
            seen = (distance >= 0) & (distance < (window or len(ids)))
            queries, keys, values = layer.attention_inputs(x, rotations)
            shared = self.config.heads // self.config.key_heads
            keys, values = (part.repeat_interleave(shared, dim=1) for part in (keys, values))
            scale = self.config.query_scale or self.config.head_size**-0.5
            products = torch.einsum("qhd,khd->hqk", queries, keys) * scale
            shares = products.masked_fill(~seen, -math.inf).softmax(dim=-1)
            x = layer.finish(x, torch.einsum("hqk,khd->qhd", shares, values).flatten(1))
        return self.vectors(x)
