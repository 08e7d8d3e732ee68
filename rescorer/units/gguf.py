"""Read language models from GGUF files, the format of llama.cpp, with their tokenizers.

Weights in F32, F16, BF16, Q8_0, Q4_0 and Q4_1 are turned back into float32. The tokenizer of such a file is a
list of units with merges or scores, from which a ``tokenizer.json`` is made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rescorer.errors import BundleError, quote
from rescorer.units.decoders import DecoderConfig
from rescorer.units.huggingface import Tensors, pair_halves
from rescorer.units.tokens import import_library

TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1")
ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma", "gpt2")
NAMES = {
    "token_embd": "embedding",
    "position_embd": "positions",
    "output_norm": "norm",
    "output": "output",
    "attn_norm": "attention_norm",
    "attn_output": "attention_output",
    "attn_qkv": "attention_input",
    "attn_q_norm": "query_norm",
    "attn_k_norm": "key_norm",
    "ffn_norm": "feedforward_norm",
    "ffn_down": "feedforward_output",
}
"""Names of ``decoders`` by those of files; in a layer, with its number before them."""
STACKED = {"attention_input": ("attn_q", "attn_k", "attn_v"), "feedforward_input": ("ffn_gate", "ffn_up")}


class GgufFile:
    """A GGUF file.

    Raises:
        BundleError: the file cannot be read, or is of an architecture without a runtime here.
        ConfigError: the package gguf is not installed.
    """

    def __init__(self, path: Path) -> None:
        self._library = import_library("gguf")
        self.path = path
        try:
            reader = self._library.GGUFReader(path)
            self.values: Mapping[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise BundleError(f"{path}: cannot be read as a GGUF file: {error}") from None
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.architecture = str(self.values.get("general.architecture"))
        if self.architecture not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise BundleError(f"{path}: architecture {quote(self.architecture)}; expected one of {known}")

    def read(self) -> tuple[DecoderConfig, Tensors]:
        """The configuration and tensors of its decoder.

        Raises:
            BundleError: a value or tensor is missing, or of a type that is not supported.
        """
        try:
            config = self._config()
        except (KeyError, TypeError) as error:
            raise BundleError(f"{self.path}: missing or invalid value: {error}") from None
        tensors = dict(self._translate(config))
        if (
            self.architecture != "llama" and config.positions == "rotary"
        ):  # llama's pairs are adjacent already
            for number in range(config.layers):
                _pair_layer(config, tensors, f"layers.{number}.")
        return config, tensors

    def _config(self) -> DecoderConfig:
        values = {
            name.removeprefix(f"{self.architecture}."): value
            for name, value in self.values.items()
            if name.startswith(f"{self.architecture}.")
        }
        hidden, heads = values["embedding_length"], values["attention.head_count"]
        head_size = values.get("attention.key_length") or hidden // heads
        turned = values.get("rope.dimension_count") or head_size
        theta = float(values.get("rope.freq_base") or 10_000.0)
        frequencies = np.array([theta ** -(i / turned) for i in range(0, turned, 2)])
        if (kind := values.get("rope.scaling.type", "none")) == "linear":
            frequencies /= float(values["rope.scaling.factor"])
        elif kind != "none":
            raise BundleError(
                f"{self.path}: rotary positions are scaled by {quote(str(kind))}, which is not supported"
            )
        if "rope_freqs.weight" in self._tensors:
            frequencies /= self.tensor("rope_freqs.weight").double().numpy()
        is_gpt2 = self.architecture == "gpt2"
        return DecoderConfig(
            vocabulary_size=len(self.values["tokenizer.ggml.tokens"]),
            embedding_size=hidden,
            hidden_size=hidden,
            layers=values["block_count"],
            heads=heads,
            key_heads=values.get("attention.head_count_kv") or heads,
            head_size=head_size,
            feedforward_size=values["feed_forward_length"],
            context_length=values["context_length"],
            norm="layer" if is_gpt2 else "rms",
            norm_epsilon=_short(
                values["attention.layer_norm_epsilon" if is_gpt2 else "attention.layer_norm_rms_epsilon"]
            ),
            activation="gelu_tanh" if self.architecture in ("gpt2", "gemma") else "silu",
            gated=not is_gpt2,
            embedding_scale=float(np.float32(hidden**0.5)) if self.architecture == "gemma" else 1.0,
            positions="table" if is_gpt2 else "rotary",
            rotary_frequencies=() if is_gpt2 else tuple(frequencies.tolist()),
        )

    def _translate(self, config: DecoderConfig) -> Iterator[tuple[str, torch.Tensor]]:
        places = [("", ""), *((f"blk.{number}.", f"layers.{number}.") for number in range(config.layers))]
        for theirs, ours in places:
            for kind in ("weight", "bias"):
                for name, parts in (*((ours_, (name,)) for name, ours_ in NAMES.items()), *STACKED.items()):
                    names = [f"{theirs}{part}.{kind}" for part in parts]
                    if all(one in self._tensors for one in names):
                        yield f"{ours}{name}.{kind}", torch.cat([self.tensor(one) for one in names])
                if not config.gated and (name := f"{theirs}ffn_up.{kind}") in self._tensors:
                    yield f"{ours}feedforward_input.{kind}", self.tensor(name)

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor of the file, in float32.

        Raises:
            BundleError: its type is not supported.
        """
        tensor = self._tensors[name]
        if tensor.tensor_type.name not in TYPES:
            raise BundleError(
                f"{self.path}: the weights {name} are stored as {tensor.tensor_type.name}; expected one of "
                f"{', '.join(TYPES)}"
            )
        values = self._library.quants.dequantize(tensor.data, tensor.tensor_type)
        shape = [int(size) for size in reversed(tensor.shape)]
        return torch.from_numpy(np.array(values, dtype=np.float32).reshape(shape))

    def tokenizer_json(self) -> bytes:
        """Its tokenizer, as a ``tokenizer.json``.

        Raises:
            BundleError: the tokenizer is of a kind that is not supported.
        """
        kind = self.values.get("tokenizer.ggml.model")
        if kind == "gpt2":
            return json.dumps(self._byte_tokenizer(), ensure_ascii=False).encode()
        if kind == "llama":
            return json.dumps(self._sentencepiece_tokenizer(), ensure_ascii=False).encode()
        raise BundleError(f"{self.path}: a tokenizer of kind {quote(str(kind))}; expected gpt2 or llama")

    def _byte_tokenizer(self) -> dict[str, Any]:
        """Byte-level BPE. The file names the rule by which a text is divided before units are merged."""
        name = str(self.values.get("tokenizer.ggml.pre", "default"))
        if name not in DIVIDERS:
            raise BundleError(
                f"{self.path}: texts are divided as in {quote(name)}, which is not known; import the model "
                "from its original folder"
            )
        units: Sequence[str] = self.values["tokenizer.ggml.tokens"]
        merges = [merge.split(" ") for merge in self.values["tokenizer.ggml.merges"]]
        return {
            "version": "1.0",
            "added_tokens": self._special_units(),
            "normalizer": {"type": "NFC"} if name == "qwen2" else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": DIVIDERS[name]},
            "decoder": {**_BYTES, "use_regex": True},
            "model": {
                "type": "BPE",
                "vocab": {unit: number for number, unit in enumerate(units)},
                "merges": merges,
                "ignore_merges": name == "llama-bpe",
            },
        }

    def _sentencepiece_tokenizer(self) -> dict[str, Any]:
        """BPE of SentencePiece: pairs are merged by the score of what they make."""
        units: Sequence[str] = self.values["tokenizer.ggml.tokens"]
        scores: Sequence[float] = self.values["tokenizer.ggml.scores"]
        number = {unit: i for i, unit in enumerate(units)}
        merges = []
        for unit, score in zip(units, scores, strict=True):
            pairs = ((unit[:cut], unit[cut:]) for cut in range(1, len(unit)))
            known = [pair for pair in pairs if pair[0] in number and pair[1] in number]
            known.sort(key=lambda pair: (number[pair[0]], number[pair[1]]))
            merges += [(-score, *pair) for pair in known]
        merges.sort(key=lambda merge: merge[0])  # stable
        space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
        prefix = (
            [{"type": "Prepend", "prepend": "▁"}]
            if self.values.get("tokenizer.ggml.add_space_prefix", True)
            else []
        )
        unknown = self.values.get("tokenizer.ggml.unknown_token_id", 0)
        return {
            "version": "1.0",
            "added_tokens": self._special_units(),
            "normalizer": {"type": "Sequence", "normalizers": [*prefix, space]},
            "pre_tokenizer": None,
            "decoder": None,
            "model": {
                "type": "BPE",
                "vocab": number,
                "merges": [list(pair) for _, *pair in merges],
                "unk_token": units[unknown],
                "fuse_unk": True,
                "byte_fallback": True,
            },
        }

    def _special_units(self) -> list[dict[str, Any]]:
        kinds: Sequence[int] = self.values.get("tokenizer.ggml.token_type", ())
        units: Sequence[str] = self.values["tokenizer.ggml.tokens"]
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        return [
            {"id": number, "content": unit, "special": kind == CONTROL, **flags}
            for number, (unit, kind) in enumerate(zip(units, kinds, strict=False))
            if kind in (CONTROL, USER_DEFINED)
        ]


CONTROL, USER_DEFINED = 3, 4  # types of units
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}


def _split(pattern: str) -> list[dict[str, Any]]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return [split, {**_BYTES, "use_regex": False}]


DIVIDERS: Mapping[str, list[dict[str, Any]]] = {
    "default": [{**_BYTES, "use_regex": True}],
    "gpt-2": [{**_BYTES, "use_regex": True}],
    "smollm": [{"type": "Digits", "individual_digits": True}, {**_BYTES, "use_regex": True}],
    "llama-bpe": _split(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "qwen2": _split(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ),
}
"""Steps that divide a text before units are merged, by the name in the file."""


def _pair_layer(config: DecoderConfig, tensors: Tensors, layer: str) -> None:
    """Reorder rows in place, so that the two rows of each rotary pair are adjacent."""
    d = config.head_size
    for kind in ("weight", "bias"):
        if (stacked := tensors.get(f"{layer}attention_input.{kind}")) is not None:
            sizes = [config.heads * d, config.key_heads * d, config.key_heads * d]
            queries, keys, values = stacked.split(sizes)
            parts = [pair_halves(config, queries), pair_halves(config, keys), values]
            tensors[f"{layer}attention_input.{kind}"] = torch.cat(parts)
    for name in ("query_norm", "key_norm"):
        if (gain := tensors.get(f"{layer}{name}.weight")) is not None:
            tensors[f"{layer}{name}.weight"] = pair_halves(config, gain)


def _short(value: float) -> float:
    """The shortest number that is the same in float32, such as 1e-5 for 9.999999747378752e-06."""
    return float(str(np.float32(value)))
