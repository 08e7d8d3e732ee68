"""Read language models of ESPnet, SpeechBrain and icefall, without these toolkits.

Their tensors are renamed to those of ``decoders`` and ``recurrent``. What a transformer computes of a unit
before positions enter (projection, normalisation, activation, scale) is computed once, so that the
embedding is the table of the results. Sinusoidal positions become a table too.

The toolkits say which units stand before and after sentences: ESPnet its last unit, icefall the unit 1, and
SpeechBrain the units of its settings. Models are trained with them, so that no others are considered.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from rescorer.errors import BundleError, ConfigError, quote
from rescorer.models.network_files import MAXIMA, SENTENCEPIECE_FILE, TOKENIZER_FILE, UNKNOWN
from rescorer.safe_input import Folder, TensorInfo, open_regular
from rescorer.units.checkpoints import Checkpoint, Tagged, read_settings
from rescorer.units.decoders import (
    MAX_POSITIONS,
    Activation,
    DecoderConfig,
    UnitNetworkConfig,
    check_tensors,
)
from rescorer.units.importing import ForeignModel, read_gguf, read_huggingface, read_licence
from rescorer.units.recurrent import RecurrentConfig
from rescorer.units.tokens import MAX_TOKENIZER_BYTES, MAX_UNITS

Tensors = dict[str, Tensor]
Toolkit = Literal["hf", "gguf", "espnet", "speechbrain", "icefall"]


def find_toolkit(source: Path) -> Toolkit:
    """Find out from its files which toolkit wrote a model.

    Raises:
        ConfigError: there is no model of a known toolkit.
    """
    if not source.exists():
        raise ConfigError(f"{source}: no such folder or file of a language model")
    marks: dict[Toolkit, bool]
    if source.is_file():
        with open_regular(source) as stream:
            is_gguf = stream.read(4) == b"GGUF"
        is_espnet = source.suffix == ".pth" and (source.parent / "config.yaml").exists()
        marks = {"gguf": is_gguf, "espnet": is_espnet, "icefall": source.suffix == ".pt"}
    else:
        marks = {
            "hf": (source / "config.json").exists(),
            "speechbrain": (source / "lm.ckpt").exists(),
            "espnet": (source / "config.yaml").exists(),
        }
    for toolkit, is_there in marks.items():
        if is_there:
            return toolkit
    raise ConfigError(
        f"{source}: no language model was found in it; expected a GGUF file, a folder with config.json, "
        "safetensors and tokenizer.json (Hugging Face), one with config.yaml and checkpoints or one of these "
        "(ESPnet), a folder with lm.ckpt (SpeechBrain), or epoch-N.pt (icefall)"
    )


def read_source(toolkit: Toolkit, source: Path, tokenizer: Path | None = None) -> ForeignModel:
    """Read a model of any toolkit, or of transformers (``hf``) or llama.cpp (``gguf``), with its licence.

    The licence is that which the model's file names, or else other files of its folder.

    Args:
        tokenizer: SentencePiece model of a toolkit's model, if it is not with the model.

    Raises:
        BundleError: a file is missing or damaged, or the model is of a kind that is not supported.
        ConfigError: the tokenizer is not found or not needed, or a package is not installed.
    """
    foreign = _read_model(toolkit, source, tokenizer)
    licence, text = read_licence(source if source.is_dir() else source.parent)
    named = {"licence": licence} if licence and "licence" not in foreign.source else {}
    return replace(foreign, source={**foreign.source, **named}, licence=text)


def _read_model(toolkit: Toolkit, source: Path, tokenizer: Path | None) -> ForeignModel:
    if toolkit in ("hf", "gguf"):
        if tokenizer is not None:
            raise ConfigError(f"--tokenizer is not for {toolkit}, whose models have their own; leave it out")
        return read_huggingface(source) if toolkit == "hf" else read_gguf(source)
    if not source.exists():
        raise BundleError(f"{source}: is missing; expected a model of {toolkit}")
    readers = {"espnet": _read_espnet, "speechbrain": _read_speechbrain, "icefall": _read_icefall}
    try:
        return readers[toolkit](source, tokenizer)
    except RuntimeError as error:  # torch refuses to put tensors together that do not fit
        reason = str(error).partition("\n")[0][:200]
        raise BundleError(f"{source}: its tensors do not fit each other: {reason}") from None


def _read_espnet(source: Path, tokenizer: Path | None) -> ForeignModel:
    """Read a language model of ESPnet 2: a folder with ``config.yaml`` and checkpoints, or one of these.

    Without a tokenizer, it is the one that the configuration names.
    """
    folder = source if source.is_dir() else source.parent
    weights = _choose_espnet_weights(source) if source.is_dir() else source
    place = folder / "config.yaml"
    settings = read_settings(place)
    units, kind = settings.get("token_list"), settings.get("lm", "seq_rnn")
    shape = settings.get("lm_conf") or {}
    if not isinstance(units, list) or not all(isinstance(unit, str) for unit in units):
        raise BundleError(
            f"{place}: 'token_list' is not a list of units; expected the file that training wrote"
        )
    if not isinstance(shape, dict):
        raise BundleError(f"{place}: 'lm_conf' is not an object; expected the sizes of the language model")
    checkpoint = Checkpoint(weights)
    decoder: DecoderConfig | RecurrentConfig
    if kind == "seq_rnn":
        decoder, tensors = _read_espnet_rnn(checkpoint, shape, place)
    elif kind == "transformer":
        decoder, tensors = _read_espnet_transformer(checkpoint, shape, place)
    else:
        raise BundleError(f"{place}: lm is {_show(kind)}; expected seq_rnn or transformer")
    if decoder.vocabulary_size != len(units):
        raise BundleError(
            f"{place}: token_list has {len(units):,} units, but {weights.name} has "
            f"{decoder.vocabulary_size:,}; expected the configuration with which it was trained"
        )
    data, name = _read_espnet_tokenizer(settings, units, folder, tokenizer)
    return ForeignModel(
        decoder,
        tensors,
        data,
        name,
        {"bos": len(units) - 1, "eos": len(units) - 1},
        {"toolkit": "espnet", "path": f"{folder.name}/{weights.name}", "architecture": kind},
        tuple(units) if name == SENTENCEPIECE_FILE else (),
        certain=True,
    )


def _choose_espnet_weights(folder: Path) -> Path:
    """The checkpoint of a folder that ESPnet's recipes decode with: the mean of the best, or the best."""
    for name in ("valid.loss.ave.pth", "valid.loss.best.pth"):
        if (folder / name).exists():
            return folder / name
    found = sorted(path.name for path in folder.glob("*.pth"))
    if len(found) != 1:
        listed = ", ".join(found[:5]) or "none"
        raise BundleError(
            f"{folder}: no valid.loss.ave.pth; name one of its checkpoints as the source (found: {listed})"
        )
    return folder / found[0]


RNN_TYPES: Mapping[str, dict[str, str]] = {
    "lstm": {"kind": "lstm"},
    "gru": {"kind": "gru"},
    "rnn_tanh": {"kind": "elman", "activation": "tanh"},
    "rnn_relu": {"kind": "elman", "activation": "relu"},
}


def _read_espnet_rnn(
    checkpoint: Checkpoint, shape: Mapping[str, Any], place: Path
) -> tuple[RecurrentConfig, Tensors]:
    kind = shape.get("rnn_type", "lstm")
    options = RNN_TYPES.get(kind.lower()) if isinstance(kind, str) else None
    if options is None:
        raise BundleError(f"{place}: rnn_type is {_show(kind)}; expected one of {', '.join(RNN_TYPES)}")
    checkpoint.strip_prefix("encoder.weight")
    names = {"embedding.weight": "encoder.weight", **_output_names("decoder")}
    return _read_recurrent(checkpoint, names, "rnn", **options)


def _read_espnet_transformer(
    checkpoint: Checkpoint, shape: Mapping[str, Any], place: Path
) -> tuple[DecoderConfig, Tensors]:
    positions = shape.get("pos_enc")
    if positions not in (None, "sinusoidal"):
        raise BundleError(f"{place}: pos_enc is {_show(positions)}; expected null or sinusoidal")
    checkpoint.strip_prefix("embed.weight")
    embedding = checkpoint.take("embed.weight", 2).double()
    projected = _project(checkpoint, embedding, "encoder.embed.0", "decoder")  # (V, H)
    hidden = projected.shape[1]
    gain, bias = (checkpoint.take(f"encoder.embed.1.{part}", 1).double() for part in ("weight", "bias"))
    embedding = functional.layer_norm(projected, (hidden,), gain, bias).relu_()
    tensors: Tensors = {"embedding.weight": embedding.float()}
    if positions:
        tensors["embedding.weight"] = (embedding * math.sqrt(hidden)).float()
        tensors["positions.weight"] = sinusoids(ESPNET_POSITIONS, hidden)
    names = {"norm": "encoder.after_norm", "output": "decoder"}
    layers = checkpoint.count("encoder.encoders.")
    for number in range(layers):
        here, there = f"layers.{number}.", f"encoder.encoders.{number}."
        for part in ("weight", "bias"):
            parts = [checkpoint.take(f"{there}self_attn.linear_{role}.{part}") for role in "qkv"]
            tensors[f"{here}attention_input.{part}"] = torch.cat(parts)
        names |= {
            f"{here}attention_norm": f"{there}norm1",
            f"{here}attention_output": f"{there}self_attn.linear_out",
            f"{here}feedforward_norm": f"{there}norm2",
            f"{here}feedforward_input": f"{there}feed_forward.w_1",
            f"{here}feedforward_output": f"{there}feed_forward.w_2",
        }
    tensors |= _take_pairs(checkpoint, names)
    config = _transformer(
        tensors,
        shape.get("head", 2),
        layers,
        norm_epsilon=1e-12,
        activation="relu",
        positions="table" if positions else "none",
        context_length=ESPNET_POSITIONS if positions else MAX_POSITIONS,
    )
    return config, _check(checkpoint, config, tensors)


ESPNET_POSITIONS = 5000
"""Number of sinusoidal positions that are written; ESPnet computes them for any length."""


def _read_espnet_tokenizer(
    settings: Mapping[str, Any], units: Sequence[str], folder: Path, tokenizer: Path | None
) -> tuple[bytes, str]:
    """The file of the tokenizer, and its name in our folders."""
    kind = settings.get("token_type")
    if kind in ("char", "word"):
        return _write_tokenizer(kind, units), TOKENIZER_FILE
    if kind != "bpe":
        raise BundleError(
            f"{folder / 'config.yaml'}: token_type is {_show(kind)}; expected bpe, char or word"
        )
    named = settings.get("bpemodel")
    named = named if isinstance(named, str) else "bpe.model"
    beside = [folder / Path(named).name, *(base / named for base in (folder, *folder.resolve().parents))]
    return _read_sentencepiece(tokenizer, beside), SENTENCEPIECE_FILE


def _write_tokenizer(kind: str, units: Sequence[str]) -> bytes:
    """A tokenizer that divides texts into characters or words, in the format of ``tokenizers``."""
    split = {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False}
    names = [" " if unit == "<space>" and kind == "char" else unit for unit in units]
    vocabulary = {name: number for number, name in enumerate(names)}
    if len(vocabulary) != len(units) or UNKNOWN not in vocabulary:
        raise BundleError(f"token_list has a unit twice or no {UNKNOWN}; expected each unit once")
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [
            {"id": vocabulary[name], "content": name, "special": True, **flags}
            for name in ("<blank>", UNKNOWN, "<sos/eos>")
            if name in vocabulary
        ],
        "pre_tokenizer": split if kind == "char" else {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": UNKNOWN},
    }
    return json.dumps(tokenizer, ensure_ascii=False).encode()


def _read_speechbrain(source: Path, tokenizer: Path | None) -> ForeignModel:
    """Read an RNNLM or TransformerLM of SpeechBrain: a folder with ``lm.ckpt``, or this checkpoint.

    The scores are those of SpeechBrain's rescorers, with one difference: where a transformer's text has the
    unit of padding, which is also that of unknown pieces, theirs is -inf, and ours ``PADDING_SCORE``.
    """
    folder = source if source.is_dir() else source.parent
    names = ("lm.ckpt", "model.ckpt")
    weights = next((folder / name for name in names if (folder / name).exists()), folder / names[0])
    weights = weights if source.is_dir() else source
    place = folder / "hyperparams.yaml"
    settings = read_settings(place) if place.exists() else {}
    checkpoint = Checkpoint(weights)
    decoder: DecoderConfig | RecurrentConfig
    if checkpoint.strip_prefix("custom_src_module.emb.Embedding.weight"):
        kind, start, end = "TransformerLM", 1, 2
        decoder, tensors = _read_speechbrain_transformer(checkpoint, settings, place)
    elif checkpoint.strip_prefix("embedding.Embedding.weight"):
        kind, start, end = "RNNLM", 0, 0
        decoder, tensors = _read_speechbrain_rnn(checkpoint, settings, place)
    else:
        raise BundleError(f"{weights}: no embedding; expected an RNNLM or TransformerLM of SpeechBrain")
    data = _read_sentencepiece(tokenizer, [folder / "tokenizer.ckpt"])
    return ForeignModel(
        decoder,
        tensors,
        data,
        SENTENCEPIECE_FILE,
        {
            "bos": _read_unit(settings, "bos_index", start, place),
            "eos": _read_unit(settings, "eos_index", end, place),
        },
        {"toolkit": "speechbrain", "path": f"{folder.name}/{weights.name}", "architecture": kind},
        certain=True,
    )


PADDING_SCORE = -100.0
"""Score of a unit that the softmax leaves out: its share is below 1e-40, but texts that have it can still be
compared."""
ACTIVATIONS: Mapping[str, Activation] = {
    "LeakyReLU": "leaky_relu",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
}


def _read_speechbrain_rnn(
    checkpoint: Checkpoint, settings: Mapping[str, Any], place: Path
) -> tuple[RecurrentConfig, Tensors]:
    options = _find_options(settings, "RNNLM")
    names = {"embedding.weight": "embedding.Embedding.weight", **_output_names("out.w")}
    n_blocks = 0
    while checkpoint.has(linear := f"dnn.linear{_suffix(n_blocks)}.w"):
        for part in ("weight", "bias"):
            names[f"blocks.{n_blocks}.{part}"] = f"{linear}.{part}"
            names[f"blocks.{n_blocks}.norm.{part}"] = f"dnn.norm{_suffix(n_blocks)}.norm.{part}"
        n_blocks += 1
    gates, hidden = checkpoint.take("rnn.rnn.weight_hh_l0", 2).shape
    kind = {4: "lstm", 3: "gru"}.get(gates // hidden)
    if kind is None:
        raise BundleError(f"{checkpoint.path}: its layers are neither those of an LSTM nor of a GRU")
    sizes = [checkpoint.take(names[f"blocks.{number}.bias"], 1).numel() for number in range(n_blocks)]
    activation = _read_activation(options, "LeakyReLU", place)
    return _read_recurrent(
        checkpoint, names, "rnn.rnn", kind=kind, blocks=tuple(sizes), block_activation=activation
    )


def _suffix(number: int) -> str:
    """What SpeechBrain appends to the name of a layer that occurs again."""
    return f"_{number - 1}" if number else ""


def _read_speechbrain_transformer(
    checkpoint: Checkpoint, settings: Mapping[str, Any], place: Path
) -> tuple[DecoderConfig, Tensors]:
    options = _find_options(settings, "TransformerLM")
    if not options:
        raise BundleError(
            f"{place}: no TransformerLM, whose number of heads the checkpoint does not say; expected the "
            "hyperparams.yaml with which it was trained"
        )
    if options.get("attention_type", "regularMHA") != "regularMHA" or checkpoint.has("decoder"):
        raise BundleError(
            f"{place}: attention is not of the type regularMHA in an encoder, which is not read"
        )
    embedding = checkpoint.take("custom_src_module.emb.Embedding.weight", 2).double()
    embedding *= math.sqrt(embedding.shape[1])
    if checkpoint.has("embedding_proj"):
        embedding = _project(checkpoint, embedding, "embedding_proj.w", "output_proj.layers.2.w")
    positions = checkpoint.take("positional_encoding.pe", 3).squeeze(0)  # (P, H)
    tensors: Tensors = {"embedding.weight": embedding.float(), "positions.weight": positions}
    names = {
        "norm": "encoder.norm.norm",
        "output_projection": "output_proj.layers.0.w",
        "output_norm": "output_proj.layers.1.norm",
        "output": "output_proj.layers.2.w",
    }
    layers = checkpoint.count("encoder.layers.")
    for number in range(layers):
        here, there = f"layers.{number}.", f"encoder.layers.{number}."
        for part in ("weight", "bias"):
            stacked = checkpoint.take(f"{there}self_att.att.in_proj_{part}")
            tensors[f"{here}attention_input.{part}"] = stacked
        names |= {
            f"{here}attention_norm": f"{there}norm1.norm",
            f"{here}attention_output": f"{there}self_att.att.out_proj",
            f"{here}feedforward_norm": f"{there}norm2.norm",
            f"{here}feedforward_input": f"{there}pos_ffn.ffn.0",
            f"{here}feedforward_output": f"{there}pos_ffn.ffn.3",
        }
    tensors |= _take_pairs(checkpoint, names)
    padding = _read_unit(settings, "pad_index", 0, place)
    config = _transformer(
        tensors,
        options.get("nhead", 8),
        layers,
        norm_epsilon=1e-6,
        norm_after=options.get("normalize_before") is not True,
        activation=_read_activation(options, "ReLU", place),
        positions="table",
        context_length=len(positions),
    )
    _check(checkpoint, config, tensors)
    if padding >= config.vocabulary_size:
        raise BundleError(
            f"{place}: pad_index is {padding:,}; expected one of {config.vocabulary_size:,} units"
        )
    tensors["output.bias"] = tensors["output.bias"].clone()
    tensors["output.bias"][padding] = PADDING_SCORE
    return config, tensors


def _find_options(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The options of the model ``!new:….NAME`` of HyperPyYAML's settings, with their references resolved."""
    for value in settings.values():
        if isinstance(value, Tagged) and value.tag.startswith("new:") and value.tag.endswith(f".{name}"):
            options = value.value if isinstance(value.value, dict) else {}
            return {key: _resolve(settings, option) for key, option in options.items()}
    return {}


def _resolve(settings: Mapping[str, Any], value: Any) -> Any:
    """The value that a reference such as ``!ref <d_model>`` stands for; other values are returned."""
    for _ in range(10):
        if not isinstance(value, Tagged) or value.tag != "ref" or not isinstance(value.value, str):
            break
        value = settings.get(value.value.removeprefix("<").removesuffix(">"))
    return value


def _read_activation(options: Mapping[str, Any], default: str, place: Path) -> Activation:
    """An activation such as ``!name:torch.nn.GELU``, without options of its own."""
    found = options.get("activation", Tagged(f"name:torch.nn.{default}", ""))
    name = found.tag.rpartition(".")[2] if isinstance(found, Tagged) and not found.value else ""
    if name not in ACTIVATIONS:
        raise BundleError(
            f"{place}: the activation is {_show(name)}; expected one of {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]


def _read_unit(settings: Mapping[str, Any], name: str, default: int, place: Path) -> int:
    value = settings.get(name, default)
    if type(value) is not int or not 0 <= value < MAX_UNITS:
        raise BundleError(f"{place}: {name} is {_show(value)}; expected the number of a unit")
    return value


def _show(value: Any) -> str:
    """A value of settings in a message; only what is short is shown."""
    return quote(value) if isinstance(value, str) else f"of the type {type(value).__name__}"


def _read_icefall(source: Path, tokenizer: Path | None) -> ForeignModel:
    """Read a checkpoint of icefall's RnnLm, such as ``epoch-30.pt`` or ``pretrained.pt``."""
    if source.is_dir():
        raise BundleError(f"{source}: is a folder; name one of its checkpoints, such as pretrained.pt")
    checkpoint = Checkpoint(source)
    if not checkpoint.strip_prefix("input_embedding.weight"):
        transformer = (
            "; icefall's TransformerLM, whose layers are scaled and read relative positions, is not read"
        )
        raise BundleError(
            f"{source}: no input_embedding.weight; expected an RnnLm of icefall"
            f"{transformer if checkpoint.has('encoder') else ''}"
        )
    names = {"embedding.weight": "input_embedding.weight", **_output_names("output_linear")}
    decoder, tensors = _read_recurrent(checkpoint, names, "rnn", kind="lstm")
    data = _read_sentencepiece(tokenizer, [source.parent / "bpe.model"])
    return ForeignModel(
        decoder,
        tensors,
        data,
        SENTENCEPIECE_FILE,
        {"bos": 1, "eos": 1},
        {"toolkit": "icefall", "path": source.name, "architecture": "RnnLm"},
        certain=True,
    )


def _read_recurrent(
    checkpoint: Checkpoint, names: Mapping[str, str], layers: str, **options: Any
) -> tuple[RecurrentConfig, Tensors]:
    """Read a recurrent network.

    Args:
        names: names in the checkpoint by names of ``recurrent``, all except those of the layers.
        layers: what comes before the names of the layers' tensors.
        options: fields of its configuration that are not sizes of tensors.
    """
    tensors = {ours: checkpoint.take(theirs) for ours, theirs in names.items()}
    depth = 0
    while checkpoint.has(f"{layers}.weight_ih_l{depth}"):
        for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            tensors[f"recurrent.{part}_l{depth}"] = checkpoint.take(f"{layers}.{part}_l{depth}")
        depth += 1
    hidden = checkpoint.take(f"{layers}.weight_hh_l0", 2).shape[1]
    units, embedding = checkpoint.take(names["embedding.weight"], 2).shape
    config = RecurrentConfig(
        vocabulary_size=units, embedding_size=embedding, hidden_size=hidden, layers=depth, **options
    )
    return config, _check(checkpoint, config, tensors)


def _output_names(theirs: str) -> dict[str, str]:
    return {f"output.{part}": f"{theirs}.{part}" for part in ("weight", "bias")}


def _take_pairs(checkpoint: Checkpoint, names: Mapping[str, str]) -> Tensors:
    """Weights and biases by our names of layers."""
    return {
        f"{ours}.{part}": checkpoint.take(f"{theirs}.{part}")
        for ours, theirs in names.items()
        for part in ("weight", "bias")
    }


def _project(checkpoint: Checkpoint, embedding: Tensor, projection: str, output: str) -> Tensor:
    """Embeddings after a projection, (V, E) → (V, H) float64: as many values as the output layer has.

    Args:
        projection, output: names of the layers in the checkpoint.
    """
    weight, bias = (checkpoint.take(f"{projection}.{part}").double() for part in ("weight", "bias"))
    shape = tuple(checkpoint.take(f"{output}.weight", 2).shape)
    if shape != (len(embedding), len(weight)) or shape[1] > MAXIMA["hidden_size"]:
        raise BundleError(
            f"{checkpoint.path}: {quote(projection)} and {quote(output)} have other sizes than the "
            f"embedding, or more than {MAXIMA['hidden_size']:,} values"
        )
    return functional.linear(embedding, weight, bias)


def _transformer(tensors: Tensors, heads: Any, layers: int, **options: Any) -> DecoderConfig:
    """Configuration of a transformer whose sizes are those of its tensors."""
    units, hidden = tensors["embedding.weight"].shape
    if type(heads) is not int or not 0 < heads <= hidden or hidden % heads:
        raise BundleError(
            f"the number of heads does not divide {hidden:,} values evenly; expected another one"
        )
    if not layers:
        raise BundleError("the checkpoint has no layers of a transformer")
    return DecoderConfig(
        vocabulary_size=units,
        embedding_size=hidden,
        hidden_size=hidden,
        layers=layers,
        heads=heads,
        key_heads=heads,
        head_size=hidden // heads,
        feedforward_size=len(tensors["layers.0.feedforward_input.weight"]),
        norm="layer",
        gated=False,
        **options,
    )


def _check(checkpoint: Checkpoint, config: UnitNetworkConfig, tensors: Tensors) -> Tensors:
    """Check the shapes of tensors, and leave out the output layer if it is the embedding."""
    found = {name: TensorInfo("F32", tuple(tensor.shape)) for name, tensor in tensors.items()}
    check_tensors(str(checkpoint.path), config, found)
    if torch.equal(tensors["output.weight"], tensors["embedding.weight"]):
        del tensors["output.weight"]
    return tensors


def _read_sentencepiece(named: Path | None, beside: Sequence[Path]) -> bytes:
    """Read the SentencePiece model that was named, or else the first that is there."""
    path = named or next((path for path in beside if path.is_file()), None)
    if path is None:
        raise ConfigError(
            f"the tokenizer of the model was not found ({beside[0]} is missing); name its SentencePiece "
            "model by --tokenizer"
        )
    return Folder(path.parent).read_bytes(path.name, MAX_TOKENIZER_BYTES)


def sinusoids(n_positions: int, size: int) -> Tensor:
    """Sinusoidal positions of the first transformer (Vaswani et al. 2017), (n, size) float32."""
    step = -math.log(10_000.0) / size
    frequencies = torch.exp(torch.arange(0, size, 2).float() * step)  # in float32, as the toolkits compute
    angles = torch.arange(n_positions).float().unsqueeze(1) * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[:, :size].contiguous()
