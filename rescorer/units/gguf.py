"""Read language models from GGUF files, the format of llama.cpp, with their tokenizers.

Weights in F32, F16, BF16, Q8_0, Q4_0 and Q4_1 are turned back into float32. The tokenizer of such a file is a
list of units with merges or scores, from which a ``tokenizer.json`` is made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from rescorer.errors import BundleError, quote
from rescorer.safe_input import MAX_DIMENSIONS, TensorInfo, open_regular
from rescorer.units.decoders import MAX_SIZE, DecoderConfig, check_tensors
from rescorer.units.huggingface import INVALID, Tensors, pair_halves
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


MAX_UNIT_LENGTH = 1000
MAX_VALUES = 5_000_000
"""Largest number of values and tensors of a file, those of lists included: names of units, scores, merges."""
SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Sizes of values by the number of their type."""
STRING, LIST = 8, 9  # types of other values
MAGIC = b"GGUF"


class _Header:
    """The sizes that a file claims, for the library that reads it believes them."""

    def __init__(self, stream: BufferedReader) -> None:
        self._stream, self._size = stream, os.fstat(stream.fileno()).st_size
        self._place, self._n_values = stream.name, 0

    def check(self) -> None:
        """Go through values and tensors.

        Raises:
            BundleError: it is another file, something ends beyond the file, there is too much, or a list
                contains lists.
        """
        beginning = self._stream.read(len(MAGIC))
        if beginning != MAGIC and beginning:
            raise BundleError(f"{self._place}: is not a GGUF file, which begins with {MAGIC.decode()}")
        self._skip(4)  # the version, which the library checks
        n_tensors, n_values = self._number(8), self._number(8)
        for _ in range(self._count(n_values)):
            self._skip(self._number(8))
            kind = self._number(4)
            if kind != LIST:
                self._skip_values(kind, 1)
            else:
                kind = self._number(4)
                self._skip_values(kind, self._count(self._number(8)))
        for _ in range(self._count(n_tensors)):
            self._skip(self._number(8))
            n_dimensions = self._number(4)
            if n_dimensions > MAX_DIMENSIONS:
                self._refuse(f"a tensor has {n_dimensions:,} dimensions")
            self._skip(8 * n_dimensions + 12)  # sizes, type and place

    def _skip_values(self, kind: int, n: int) -> None:
        if kind == STRING:
            for _ in range(n):
                self._skip(self._number(8))
        elif kind in SCALAR_BYTES:
            self._skip(n * SCALAR_BYTES[kind])
        else:
            self._refuse(f"a value has the type {kind}")

    def _count(self, n: int) -> int:
        self._n_values += n
        if self._n_values > MAX_VALUES:
            self._refuse(f"it has more than {MAX_VALUES:,} values")
        return n

    def _number(self, n_bytes: int) -> int:
        data = self._stream.read(n_bytes)
        if len(data) < n_bytes:
            self._refuse("it ends too early")
        return int.from_bytes(data, "little")

    def _skip(self, n_bytes: int) -> None:
        if n_bytes > self._size - self._stream.tell():
            self._refuse("it ends too early")
        self._stream.seek(n_bytes, os.SEEK_CUR)

    def _refuse(self, problem: str) -> NoReturn:
        raise BundleError(f"{self._place}: cannot be read as a GGUF file: {problem}; download it again")


class GgufFile:
    """A GGUF file.

    Raises:
        BundleError: the file cannot be read, or is of an architecture without a runtime here.
        ConfigError: the package gguf is not installed.
    """

    def __init__(self, path: Path) -> None:
        self._library = import_library("gguf")
        self.path = path
        with open_regular(path) as stream:
            _Header(stream).check()
        with self._explain("cannot be read as a GGUF file"):
            reader = self._library.GGUFReader(path)
            self.values: Mapping[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
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
        with self._explain("missing or invalid value"):
            config = self._config()
            tensors = dict(self._translate(config))
            if (
                self.architecture != "llama" and config.positions == "rotary"
            ):  # llama's pairs are adjacent already
                for number in range(config.layers):
                    _pair_layer(config, tensors, f"layers.{number}.")
        found = {name: TensorInfo("F32", tuple(tensor.shape)) for name, tensor in tensors.items()}
        check_tensors(str(self.path), config, found)
        return config, tensors

    @contextmanager
    def _explain(self, problem: str) -> Iterator[None]:
        """Turn what damaged values can raise into a BundleError."""
        try:
            yield
        except (*INVALID, OSError, RuntimeError) as error:  # torch raises RuntimeError for shapes
            raise BundleError(f"{self.path}: {problem}: {str(error)[:200]}") from None

    def unit(self, role: str) -> int | None:
        """The number of a special unit, such as ``bos``; None if the file names none."""
        value = self.values.get(f"tokenizer.ggml.{role}_token_id")
        return value if isinstance(value, int) else None

    @property
    def licence(self) -> str:
        """The name of its licence; empty if the file has none."""
        value = self.values.get("general.license")
        return value[:100] if isinstance(value, str) else ""

    def _config(self) -> DecoderConfig:
        values = {
            name.removeprefix(f"{self.architecture}."): value
            for name, value in self.values.items()
            if name.startswith(f"{self.architecture}.")
        }
        hidden, heads = values["embedding_length"], values["attention.head_count"]
        head_size = values.get("attention.key_length") or hidden // heads
        turned = values.get("rope.dimension_count") or head_size
        if not 0 < turned <= MAX_SIZE:
            raise ValueError(f"heads of size {turned}")
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
        with self._explain("missing or invalid value of its tokenizer"):
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
        if max(map(len, units)) > MAX_UNIT_LENGTH:
            raise ValueError(f"a unit has more than {MAX_UNIT_LENGTH:,} letters")
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
