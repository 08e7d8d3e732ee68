"""Read causal language models from folders that Hugging Face's transformers saves, without that library.

A folder has ``config.json``, safetensors (one file, or shards with an index) and a tokenizer. The families of
``FAMILIES`` are translated into a ``DecoderConfig`` and the tensors of ``decoders``: halves of rotary heads
are reordered into pairs, matrices that a family stores transposed or apart are turned and stacked. GGUF files
of the same families are read too; their blocks of 32 weights are turned back into float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from rescorer.errors import BundleError, ConfigError, did_you_mean, quote
from rescorer.safe_input import Folder, TensorInfo, descriptor_path, read_tensor_header
from rescorer.units.decoders import MAX_SIZE, Activation, DecoderConfig, check_tensors

CONFIG_FILE, WEIGHTS_FILE, INDEX_FILE = "config.json", "model.safetensors", "model.safetensors.index.json"
Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Family:
    """How a family's configuration and tensors are translated."""

    config: Callable[[Mapping[str, Any]], DecoderConfig]
    names: Mapping[str, str]
    """Names in the file by names of ``decoders``; ``{}`` stands for the number of a layer."""
    stacked: Mapping[str, tuple[str, ...]]
    """Names in the file of matrices that ``decoders`` stacks, by its name."""
    prefixes: tuple[str, ...] = ("model.", "")
    """Beginnings of all names in files, of which each file has one."""
    transposed: bool = False
    """Whether matrices are stored as (columns, rows)."""


def _common(values: Mapping[str, Any], **changes: Any) -> DecoderConfig:
    """Configuration of a family with rotary positions and the usual names of sizes."""
    hidden, heads = values["hidden_size"], values["num_attention_heads"]
    head_size = values.get("head_dim") or hidden // heads
    frequencies, scale = rotary_frequencies(values, head_size)
    return DecoderConfig(
        **{
            "vocabulary_size": values["vocab_size"],
            "embedding_size": hidden,
            "hidden_size": hidden,
            "layers": values["num_hidden_layers"],
            "heads": heads,
            "key_heads": values.get("num_key_value_heads") or heads,
            "head_size": head_size,
            "feedforward_size": values["intermediate_size"],
            "context_length": _context_length(values),
            "norm_epsilon": values.get("rms_norm_eps", 1e-6),
            "activation": _activation(values.get("hidden_act", "silu")),
            "rotary_frequencies": frequencies,
            "rotary_scale": scale,
            "windows": _windows(values),
            **changes,
        }
    )


def _context_length(values: Mapping[str, Any]) -> Any:
    """Largest length of a text; for a scaling that depends on the length, the largest one without scaling."""
    scaling = values.get("rope_parameters") or values.get("rope_scaling") or {}
    longest = values["max_position_embeddings"]
    if (scaling.get("rope_type") or scaling.get("type")) in ("longrope", "su"):
        return scaling.get("original_max_position_embeddings") or values.get(
            "original_max_position_embeddings", longest
        )
    return longest


def _windows(values: Mapping[str, Any]) -> tuple[int, ...]:
    """The window of each layer; empty if no layer has one."""
    window, layers = values.get("sliding_window"), values["num_hidden_layers"]
    if not window or values.get("use_sliding_window") is False:
        return ()
    kinds = values.get("layer_types")
    if kinds is None:
        first = values.get("max_window_layers", 0) if "use_sliding_window" in values else 0
        kinds = ["full_attention"] * first + ["sliding_attention"] * (layers - first)
    windows = tuple(window if kind == "sliding_attention" else 0 for kind in kinds[:layers])
    return windows if any(windows) else ()


ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


def _activation(name: Any) -> Activation:
    if name not in ACTIVATIONS:
        raise BundleError(
            f"{CONFIG_FILE}: the activation {str(name)[:50]!r} is not known; {_others(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]


def _others(names: Mapping[str, Any]) -> str:
    return f"expected one of {', '.join(names)}"


def rotary_frequencies(values: Mapping[str, Any], head_size: int) -> tuple[tuple[float, ...], float]:
    """Angles per position of each pair of a head, and the factor of what is turned, from a configuration.

    Scaling follows transformers' ``modeling_rope_utils``: ``linear``, ``llama3``, ``yarn``, and ``dynamic``
    and ``longrope`` within the original length, beyond which these depend on the length of a text.
    """
    scaling = values.get("rope_parameters") or values.get("rope_scaling") or {}
    theta = scaling.get("rope_theta") or values.get("rope_theta") or values.get("rotary_emb_base") or 10_000.0
    share = scaling.get("partial_rotary_factor") or values.get("partial_rotary_factor")
    share = share or values.get("rotary_pct") or 1.0
    if not 0 < share <= 1:
        raise ValueError(f"the share of a head that is turned is {share}; expected a number up to 1")
    size = int(head_size * share)
    pairs = [float(theta) ** -(i / size) for i in range(0, size, 2)]
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    factor = float(scaling.get("factor") or 1.0)
    original = scaling.get("original_max_position_embeddings") or values.get(
        "original_max_position_embeddings", values.get("max_position_embeddings")
    )
    if kind in ("default", "mrope", "dynamic"):
        return tuple(pairs), 1.0
    if kind == "linear":
        return tuple(pair / factor for pair in pairs), 1.0
    if kind == "llama3":
        return tuple(_scale_llama3(pair, factor, scaling, original) for pair in pairs), 1.0
    if kind == "yarn":
        return _scale_yarn(pairs, factor, scaling, size, float(theta), original)
    if kind in ("longrope", "su"):
        short = scaling["short_factor"]
        stretched = factor if factor > 1 else values["max_position_embeddings"] / original
        attention = scaling.get("attention_factor")
        if attention is None:
            attention = math.sqrt(1 + math.log(stretched) / math.log(original)) if stretched > 1 else 1.0
        return tuple(pair / part for pair, part in zip(pairs, short, strict=True)), float(attention)
    raise BundleError(
        f"{CONFIG_FILE}: rotary positions are scaled by {str(kind)[:50]!r}; expected default, linear, "
        "llama3, yarn, dynamic or longrope"
    )


def _scale_llama3(pair: float, factor: float, scaling: Mapping[str, Any], original: int) -> float:
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    wavelength = 2 * math.pi / pair
    if wavelength < original / high:
        return pair
    if wavelength > original / low:
        return pair / factor
    smooth = (original / wavelength - low) / (high - low)
    return (1 - smooth) * pair / factor + smooth * pair


def _scale_yarn(
    pairs: Sequence[float],
    factor: float,
    scaling: Mapping[str, Any],
    size: int,
    theta: float,
    original: int,
) -> tuple[tuple[float, ...], float]:
    """YaRN (Peng et al. 2023): pairs that turn often keep their angles, others are stretched."""

    def turned(turns: float) -> float:  # the pair that turns so often within the original length
        return size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    def attention_scale(scale: float, mscale: float = 1.0) -> float:
        return 1.0 if scale <= 1 else 0.1 * mscale * math.log(scale) + 1.0

    low, high = turned(float(scaling.get("beta_fast") or 32)), turned(float(scaling.get("beta_slow") or 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    stretched = []
    for i, pair in enumerate(pairs):
        ramp = min(max((i - low) / max(high - low, 0.001), 0.0), 1.0)
        stretched.append(pair / factor * ramp + pair * (1 - ramp))
    attention = scaling.get("attention_factor")
    if attention is None:
        mscale, mscale_all = scaling.get("mscale"), scaling.get("mscale_all_dim")
        if mscale and mscale_all:
            attention = attention_scale(factor, mscale) / attention_scale(factor, mscale_all)
        else:
            attention = attention_scale(factor)
    return tuple(stretched), float(attention)


LLAMA_NAMES = {
    "embedding.weight": "embed_tokens.weight",
    "layers.{}.attention_norm.weight": "layers.{}.input_layernorm.weight",
    "layers.{}.attention_output.weight": "layers.{}.self_attn.o_proj.weight",
    "layers.{}.attention_output.bias": "layers.{}.self_attn.o_proj.bias",
    "layers.{}.query_norm.weight": "layers.{}.self_attn.q_norm.weight",
    "layers.{}.key_norm.weight": "layers.{}.self_attn.k_norm.weight",
    "layers.{}.feedforward_norm.weight": "layers.{}.post_attention_layernorm.weight",
    "layers.{}.feedforward_output.weight": "layers.{}.mlp.down_proj.weight",
    "layers.{}.feedforward_output.bias": "layers.{}.mlp.down_proj.bias",
    "norm.weight": "norm.weight",
    "output.weight": "^lm_head.weight",
}
LLAMA_STACKED = {
    f"layers.{{}}.{name}.{kind}": tuple(f"layers.{{}}.{part}.{kind}" for part in parts)
    for name, parts in {
        "attention_input": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "feedforward_input": ("mlp.gate_proj", "mlp.up_proj"),
    }.items()
    for kind in ("weight", "bias")
}


def _gemma_config(values: Mapping[str, Any]) -> DecoderConfig:
    activation = values.get("hidden_activation") or "gelu_pytorch_tanh"
    scale = float(torch.tensor(values["hidden_size"] ** 0.5, dtype=torch.float32))
    return _common(values, activation=_activation(activation), embedding_scale=scale)


def _gpt2_config(values: Mapping[str, Any]) -> DecoderConfig:
    hidden, heads = values["n_embd"], values["n_head"]
    if values.get("scale_attn_by_inverse_layer_idx") or not values.get("scale_attn_weights", True):
        raise BundleError(f"{CONFIG_FILE}: products of attention are scaled in a way that is not supported")
    return DecoderConfig(
        vocabulary_size=values["vocab_size"],
        embedding_size=hidden,
        hidden_size=hidden,
        layers=values["n_layer"],
        heads=heads,
        key_heads=heads,
        head_size=hidden // heads,
        feedforward_size=values.get("n_inner") or 4 * hidden,
        context_length=values["n_positions"],
        norm="layer",
        norm_epsilon=values.get("layer_norm_epsilon", 1e-5),
        activation=_activation(values.get("activation_function", "gelu_new")),
        gated=False,
        positions="table",
    )


def _neox_config(values: Mapping[str, Any]) -> DecoderConfig:
    return _common(
        {"rope_theta": values.get("rotary_emb_base", 10_000), "rotary_pct": 0.25, **values},
        key_heads=values["num_attention_heads"],
        norm="layer",
        norm_epsilon=values.get("layer_norm_eps", 1e-5),
        activation=_activation(values.get("hidden_act", "gelu")),
        gated=False,
        parallel=values.get("use_parallel_residual", True),
    )


def _opt_config(values: Mapping[str, Any]) -> DecoderConfig:
    hidden, heads = values["hidden_size"], values["num_attention_heads"]
    return DecoderConfig(
        vocabulary_size=values["vocab_size"],
        embedding_size=values.get("word_embed_proj_dim") or hidden,
        hidden_size=hidden,
        layers=values["num_hidden_layers"],
        heads=heads,
        key_heads=heads,
        head_size=hidden // heads,
        feedforward_size=values["ffn_dim"],
        context_length=values["max_position_embeddings"],
        norm="layer",
        norm_after=not values.get("do_layer_norm_before", True),
        activation=_activation(values.get("activation_function", "relu")),
        gated=False,
        positions="table",
    )


def _named(names: Mapping[str, str]) -> dict[str, str]:
    """Add the names of biases to those of weights."""
    biases = {
        ours.replace(".weight", ".bias"): theirs.replace(".weight", ".bias") for ours, theirs in names.items()
    }
    return {**names, **biases}


GPT2_NAMES = _named(
    {
        "embedding.weight": "wte.weight",
        "positions.weight": "wpe.weight",
        "layers.{}.attention_norm.weight": "h.{}.ln_1.weight",
        "layers.{}.attention_input.weight": "h.{}.attn.c_attn.weight",
        "layers.{}.attention_output.weight": "h.{}.attn.c_proj.weight",
        "layers.{}.feedforward_norm.weight": "h.{}.ln_2.weight",
        "layers.{}.feedforward_input.weight": "h.{}.mlp.c_fc.weight",
        "layers.{}.feedforward_output.weight": "h.{}.mlp.c_proj.weight",
        "norm.weight": "ln_f.weight",
        "output.weight": "^lm_head.weight",
    }
)
NEOX_NAMES = _named(
    {
        "embedding.weight": "embed_in.weight",
        "layers.{}.attention_norm.weight": "layers.{}.input_layernorm.weight",
        "layers.{}.attention_input.weight": "layers.{}.attention.query_key_value.weight",
        "layers.{}.attention_output.weight": "layers.{}.attention.dense.weight",
        "layers.{}.feedforward_norm.weight": "layers.{}.post_attention_layernorm.weight",
        "layers.{}.feedforward_input.weight": "layers.{}.mlp.dense_h_to_4h.weight",
        "layers.{}.feedforward_output.weight": "layers.{}.mlp.dense_4h_to_h.weight",
        "norm.weight": "final_layer_norm.weight",
        "output.weight": "^embed_out.weight",
    }
)
OPT_NAMES = _named(
    {
        "embedding.weight": "embed_tokens.weight",
        "positions.weight": "embed_positions.weight",
        "input_projection.weight": "project_in.weight",
        "layers.{}.attention_norm.weight": "layers.{}.self_attn_layer_norm.weight",
        "layers.{}.attention_output.weight": "layers.{}.self_attn.out_proj.weight",
        "layers.{}.feedforward_norm.weight": "layers.{}.final_layer_norm.weight",
        "layers.{}.feedforward_input.weight": "layers.{}.fc1.weight",
        "layers.{}.feedforward_output.weight": "layers.{}.fc2.weight",
        "norm.weight": "final_layer_norm.weight",
        "output_projection.weight": "project_out.weight",
        "output.weight": "^lm_head.weight",
    }
)
OPT_STACKED = {
    f"layers.{{}}.attention_input.{kind}": tuple(
        f"layers.{{}}.self_attn.{part}_proj.{kind}" for part in "qkv"
    )
    for kind in ("weight", "bias")
}
_LLAMA = Family(_common, LLAMA_NAMES, LLAMA_STACKED)
FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gemma": Family(_gemma_config, LLAMA_NAMES, LLAMA_STACKED),
    "gpt2": Family(_gpt2_config, GPT2_NAMES, {}, ("transformer.", ""), transposed=True),
    "gpt_neox": Family(_neox_config, NEOX_NAMES, {}, ("gpt_neox.", "")),
    "opt": Family(_opt_config, OPT_NAMES, OPT_STACKED, ("model.decoder.", "decoder.", "")),
}
"""Families by the ``model_type`` of their configuration."""


def translate(values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> tuple[DecoderConfig, Tensors]:
    """Translate a configuration and tensors of one of ``FAMILIES``.

    Raises:
        BundleError: the family is not known, or the file does not have its tensors.
    """
    kind = str(values.get("model_type"))
    if kind not in FAMILIES:
        raise BundleError(
            f"{CONFIG_FILE}: model_type {quote(kind)} has no runtime here; expected one of "
            f"{', '.join(FAMILIES)}{did_you_mean(kind, FAMILIES)}; transformers runs others: "
            "pip install 'rescorer[hf]'"
        )
    family = FAMILIES[kind]
    try:
        _check_sizes(values)
        config = family.config(values)
    except INVALID as error:
        raise BundleError(f"{CONFIG_FILE}: {kind}: missing or invalid value: {error}") from None
    try:
        return config, _rename(family, kind, config, values, tensors)
    except (KeyError, RuntimeError, IndexError):  # torch raises RuntimeError for shapes
        raise BundleError(
            f"the tensors do not have the shapes that {CONFIG_FILE} says; expected those of one model"
        ) from None


COMPUTED = ("inv_freq", ".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias")
"""Ends of names of tensors that older versions stored, though they are computed."""


def _join(pieces: Sequence[Tensor], name: str) -> Tensor:
    if len({piece.dtype for piece in pieces}) > 1:
        raise BundleError(f"the parts of {name} are of several types; expected one")
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))


INVALID = (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, IndexError)
"""What values of other types or sizes than expected can raise."""
HEADS = "num_attention_heads", "n_head"
SIZES = "hidden_size", "num_hidden_layers", "head_dim", "max_window_layers", "n_embd", "n_layer", *HEADS


def _check_sizes(values: Mapping[str, Any]) -> None:
    """Raise ValueError for sizes that are too large, before lists of that length are made; and for no heads,
    among which nothing can be divided."""
    for name in SIZES:
        value, least = values.get(name), int(name in HEADS)
        if value is not None and (type(value) is not int or not least <= value <= MAX_SIZE):
            expected = f"a whole number from {least} to {MAX_SIZE:,}"
            raise ValueError(f"{name} is {str(value)[:50]}; expected {expected}")


def _rename(
    family: Family,
    kind: str,
    config: DecoderConfig,
    values: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
) -> Tensors:
    """The tensors of a file by the names of ``decoders``, in their layout there."""
    prefix = next(p for p in family.prefixes if any(name.startswith(p) for name in tensors) or not p)
    found, used = Tensors(), set[str]()
    for ours, parts in _list_names(family, config.layers):
        names = [part.removeprefix("^") if part.startswith("^") else prefix + part for part in parts]
        if all(name in tensors for name in names):
            used.update(names)
            found[ours] = _join([tensors[name] for name in names], ours)
    if unknown := sorted(name for name in set(tensors) - used if not name.endswith(COMPUTED)):
        raise BundleError(
            f"{kind}: unexpected tensor {quote(unknown[0])}, one of {len(unknown):,}; expected those of "
            f"{config.layers} layers as transformers saves them"
        )
    _reshape(kind, config, found)
    if values.get("tie_word_embeddings", kind in ("gpt2", "opt", "gemma")):
        found.pop("output.weight", None)
    elif "output.weight" not in found:
        raise BundleError("the output layer is missing, and config.json does not tie it to the embedding")
    return found


def _list_names(family: Family, layers: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    for ours, theirs in (
        {name: (other,) for name, other in family.names.items()} | dict(family.stacked)
    ).items():
        if "{}" not in ours:
            yield ours, theirs
        else:
            for number in range(layers):
                yield ours.format(number), tuple(name.format(number) for name in theirs)


def _reshape(kind: str, config: DecoderConfig, found: Tensors) -> None:
    """Bring the tensors of a family into the layout of ``decoders``, in place."""
    if kind == "gpt2":
        for name, tensor in found.items():
            if tensor.dim() == 2 and name.startswith("layers."):
                found[name] = tensor.t().contiguous()
    if kind == "opt":
        found["positions.weight"] = found["positions.weight"][2:]  # its first rows were never used
    if kind == "gemma":
        for name, tensor in found.items():
            if "norm" in name:
                found[name] = tensor.float() + 1.0
    if config.positions == "rotary":
        for number in range(config.layers):
            for part in ("weight", "bias"):
                name = f"layers.{number}.attention_input.{part}"
                if name in found:
                    stacked = _split_heads(kind, config, found[name])
                    found[name] = torch.cat([pair_halves(config, rows) for rows in stacked[:2]] + stacked[2:])
            for name in ("query_norm", "key_norm"):
                if (gain := found.get(f"layers.{number}.{name}.weight")) is not None:
                    found[f"layers.{number}.{name}.weight"] = pair_halves(config, gain)


def _split_heads(kind: str, config: DecoderConfig, rows: Tensor) -> list[Tensor]:
    """Rows of queries, keys and values."""
    d = config.head_size
    if kind == "gpt_neox":  # queries, keys and values of one head, then those of the next
        return [part.flatten(0, 1) for part in rows.unflatten(0, (config.heads, 3, d)).unbind(1)]
    return list(rows.split([config.heads * d, config.key_heads * d, config.key_heads * d]))


def pair_halves(config: DecoderConfig, rows: Tensor) -> Tensor:
    """Reorder the rows of each head: row i of its first half comes before row i of its second half."""
    heads = rows.unflatten(0, (-1, config.head_size))
    n_pairs = len(config.rotary_frequencies)
    turned = heads[:, : 2 * n_pairs].unflatten(1, (2, n_pairs)).transpose(1, 2).flatten(1, 2)
    return torch.cat([turned, heads[:, 2 * n_pairs :]], dim=1).flatten(0, 1)


def part_halves(config: DecoderConfig, rows: Tensor) -> Tensor:
    """Reorder the rows of each head, all of which are turned: the inverse of ``pair_halves``."""
    return rows.unflatten(0, (-1, config.head_size // 2, 2)).transpose(1, 2).flatten(0, 2)


def to_llama(config: DecoderConfig, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Any], Tensors]:
    """Write a decoder as a configuration and tensors of LLaMA: the inverse of ``translate``.

    Projections and the scale of the embedding are folded into its table and the output layer. LLaMA has no
    windows: where layers have one, scores are equal up to that number of units.

    Raises:
        ConfigError: the decoder is not of LLaMA's form.
    """
    for reason in _find_differences(config, tensors):
        raise ConfigError(f"the model cannot be written as a LLaMA of transformers: {reason}")
    tensors = dict(tensors)
    table, output = tensors["embedding.weight"].float(), tensors.pop("output.weight", None)
    before, after = (tensors.pop(f"{part}_projection.weight", None) for part in ("input", "output"))
    changed = config.embedding_scale * (table if before is None else table @ before.T)
    if output is not None or after is not None or before is not None or config.embedding_scale != 1.0:
        output = table if output is None else output.float()
        tensors["output.weight"] = output if after is None else output @ after
    tensors["embedding.weight"] = changed
    longest = min([config.context_length, *filter(None, config.windows)])
    values = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocabulary_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.key_heads,
        "head_dim": config.head_size,
        "intermediate_size": config.feedforward_size,
        "max_position_embeddings": longest,
        "rms_norm_eps": config.norm_epsilon,
        "hidden_act": "silu",
        "rope_theta": _find_base(config),
        "tie_word_embeddings": "output.weight" not in tensors,
        "torch_dtype": "float32",
    }
    found = Tensors()
    for ours, theirs in _list_names(FAMILIES["llama"], config.layers):
        if ours not in tensors:
            continue
        parts = [tensors[ours].float()]
        if ours.endswith("attention_input.weight"):
            queries, keys, others = _split_heads("llama", config, parts[0])
            parts = [part_halves(config, queries), part_halves(config, keys), others]
        elif ours.endswith("feedforward_input.weight"):
            parts = list(parts[0].chunk(2))
        for name, part in zip(theirs, parts, strict=True):
            found[name.removeprefix("^") if name.startswith("^") else f"model.{name}"] = part.contiguous()
    return values, found


def _find_base(config: DecoderConfig) -> float:
    """The base of rotary frequencies, which are base^(-2i/d)."""
    frequencies = config.rotary_frequencies
    return round(float(frequencies[1] ** -(config.head_size / 2)), 6) if len(frequencies) > 1 else 10_000.0


def _find_differences(config: DecoderConfig, tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """Say in which ways a decoder is not a LLaMA."""
    head_size = config.head_size
    if config.norm != "rms" or config.norm_after or config.parallel or "norm.weight" not in tensors:
        yield "its layers are not normalised like those of LLaMA"
    if config.activation != "silu" or not config.gated:
        yield "its feed-forward network is not a SwiGLU"
    expected = [_find_base(config) ** -(i / head_size) for i in range(0, head_size, 2)]
    if config.positions != "rotary" or not np.allclose(config.rotary_frequencies, expected, rtol=1e-6):
        yield "its positions are not those of LLaMA without scaling"
    scales = (config.rotary_scale, (config.query_scale or head_size**-0.5) * head_size**0.5)
    if not np.allclose(scales, 1.0):
        yield "its queries are scaled otherwise"
    foreign = (".bias", "query_norm.weight", "key_norm.weight", "output_norm.weight")
    if other := next((name for name in tensors if name.endswith(foreign)), None):
        yield f"LLaMA has no {other}"


MAX_SHARDS = 1000
TYPE_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def read_config(files: Folder) -> dict[str, Any]:
    """Read ``config.json`` of a folder, and refuse folders that cannot be read exactly.

    Raises:
        BundleError: the folder has adapters only, weights that were quantised for other libraries, code of
            its own, or no configuration.
    """
    names = {path.name for path in files.path.iterdir()} if files.path.is_dir() else set[str]()
    if "adapter_config.json" in names and WEIGHTS_FILE not in names:
        raise BundleError(
            f"{files.path}: only adapters; merge them into their base model first "
            "(peft: model.merge_and_unload().save_pretrained(FOLDER))"
        )
    if CONFIG_FILE not in names:
        raise BundleError(f"{files.path}: no {CONFIG_FILE}; expected a folder of a causal language model")
    values = files.read_json(CONFIG_FILE)
    if values.get("auto_map"):
        raise BundleError(
            f"{files.path / CONFIG_FILE}: the model needs Python code of its own, which is not run"
        )
    if values.get("quantization_config"):
        settings = values["quantization_config"]
        kind = str(settings.get("quant_method") if isinstance(settings, dict) else settings)[:50]
        raise BundleError(
            f"{files.path / CONFIG_FILE}: the weights are quantised by {kind}; import the model as it was "
            "before, or a GGUF file of it"
        )
    return values


def read_safetensors(files: Folder) -> Tensors:
    """Read all tensors of a folder, in the types in which they are stored.

    The header of each file is checked before its library reads it, because the library gives no reasons.

    Raises:
        BundleError: a file is missing or damaged.
    """
    names = [WEIGHTS_FILE]
    if not (files.path / WEIGHTS_FILE).exists():
        if not (files.path / INDEX_FILE).exists():
            pickles = [path.name for path in files.path.glob("*.bin")]
            hint = "; save it again with safe_serialization=True: pickles are not read" if pickles else ""
            raise BundleError(f"{files.path}: no {WEIGHTS_FILE}{hint}")
        shards = files.read_json(INDEX_FILE).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
            raise BundleError(f"{files.path / INDEX_FILE}: expected files of tensors in 'weight_map'")
        names = sorted(set(shards.values()))
        if not names or len(names) > MAX_SHARDS or any("/" in name for name in names):
            raise BundleError(f"{files.path / INDEX_FILE}: expected 1 to {MAX_SHARDS:,} files in this folder")
    tensors: Tensors = {}
    for name in names:
        with files.open(name) as stream:
            read_tensor_header(stream)
            try:
                tensors |= load_file(descriptor_path(stream))
            except (OSError, ValueError, SafetensorError) as error:
                reason = str(error)[:200]
                raise BundleError(
                    f"{stream.name}: cannot be read as a safetensors file: {reason}; download it again"
                ) from None
    return tensors


def read_folder(folder: Path) -> tuple[DecoderConfig, Tensors]:
    """Read a causal language model from a folder.

    Raises:
        BundleError: a file is missing or damaged, or the model is of a kind that is not supported.
    """
    files = Folder(folder)
    values = read_config(files)
    config, tensors = translate(values, read_safetensors(files))
    infos = {
        name: TensorInfo(TYPE_NAMES.get(tensor.dtype, str(tensor.dtype)), tuple(tensor.shape))
        for name, tensor in tensors.items()
    }
    check_tensors(str(folder), config, infos)
    return config, tensors
