"""Turn networks that were trained here in pieces of words into models for ``rescorer`` and for transformers.

A run's best network becomes a folder for ``rescorer-train bundle --units``, by the same checks as an imported
model (``write_units``). Recurrent networks and transformers have their forms there (``recurrent``,
``decoders``). The transformer is that of LLaMA (Touvron et al. 2023), so that ``write_llama`` can write it as
transformers does.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from rescorer.errors import ConfigError
from rescorer.models.bundle import new_folder
from rescorer.models.network_files import CONFIG_FILE, TOKENIZER_FILE, UNKNOWN, WEIGHTS_FILE
from rescorer.models.networks import RecurrentNetwork
from rescorer.models.neural import NeuralModel, load_model
from rescorer.models.transformer import NORM_EPSILON, TransformerNetwork
from rescorer.safe_input import Folder
from rescorer.text import Normaliser
from rescorer.units.decoders import MAX_POSITIONS, Decoder, DecoderConfig
from rescorer.units.files import UnitConfig, load_unit_model
from rescorer.units.huggingface import to_llama
from rescorer.units.importing import CHOSEN_BY, ForeignModel, Imported, import_model
from rescorer.units.model import DecoderScorer
from rescorer.units.recurrent import RecurrentConfig
from rescorer.units.tokens import MAX_TOKENIZER_BYTES
from rescorer_training.corpus import UNITS_FOLDER, read_sentences
from rescorer_training.neural.prepare import TRAIN_FILE

ROTARY_BASE = 10_000.0
Tensors = dict[str, Tensor]


def write_units(run: Path, validation: Path, normaliser: Normaliser) -> Imported:
    """Write the best network of a run to its folder ``units``, after the checks of an imported model.

    Raises:
        BundleError: the scores of tries differ from those of single texts.
        OSError: the folder cannot be written.
    """
    sentences = list(islice(read_sentences([validation], normaliser), CHOSEN_BY))
    shutil.rmtree(run / UNITS_FOLDER, ignore_errors=True)
    return import_model(read_run(run), run / UNITS_FOLDER, sentences)


def read_run(run: Path) -> ForeignModel:
    """Read the best network of a run that was trained in pieces of words.

    Raises:
        BundleError: a file is damaged.
        ConfigError: the run has words as its units, or none has been saved yet.
    """
    has_best = (run / "best" / WEIGHTS_FILE).exists()
    for name in (TOKENIZER_FILE, *(() if has_best else (TRAIN_FILE,))):
        if not (run / name).exists():
            raise ConfigError(f"{run}: no {name}; expected the folder of rescorer-train neural --units …")
    if not has_best:
        raise ConfigError(f"{run}: no network has been validated yet; continue the training with --resume")
    model, _ = load_model(run / "best")
    decoder, tensors = convert(model)
    tokenizer = Folder(run).read_bytes(TOKENIZER_FILE, MAX_TOKENIZER_BYTES)
    source = {"toolkit": "rescorer", "path": run.name, "architecture": model.config.kind}
    units = {"bos": 0, "eos": 0}
    return ForeignModel(decoder, tensors, tokenizer, TOKENIZER_FILE, units, source, certain=True)


def convert(model: NeuralModel) -> tuple[DecoderConfig | RecurrentConfig, Tensors]:
    """The configuration and tensors, with the same scores, of a network over units that ``</s>`` begins.

    The row of the embedding for ``<s>``, which no text has, is left out.
    """
    config, network = model.config, model.network
    n_units = config.vocabulary_size - 1
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    tensors = {"embedding.weight": state["network.embedding.weight"][:n_units]}
    if not config.tied:
        tensors["output.weight"] = state["output.word_weight"]
    if state["output.word_bias"].any():
        tensors["output.bias"] = state["output.word_bias"]
    sizes: dict[str, Any] = {
        "vocabulary_size": n_units,
        "embedding_size": config.embedding_size,
        "hidden_size": config.hidden_size,
        "layers": config.layers,
    }
    if isinstance(network, TransformerNetwork):
        return _convert_transformer(network, state, tensors, sizes)
    assert isinstance(network, RecurrentNetwork)
    for name, tensor in network.layers.named_parameters():
        tensors[f"recurrent.{name}"] = tensor.detach()
    projected = "network.projection.weight" in state
    if projected:
        tensors["projection.weight"] = state["network.projection.weight"]
    sizes |= {"kind": config.kind, "activation": config.activation, "projected": projected}
    return RecurrentConfig(**sizes), tensors


def _convert_transformer(
    network: TransformerNetwork, state: Mapping[str, Tensor], tensors: Tensors, sizes: Mapping[str, Any]
) -> tuple[DecoderConfig, Tensors]:
    """Convert a transformer; the scale of its embedding is folded into the table."""
    scale, tied = network.output_size**0.5, "output.weight" not in tensors
    tensors["embedding.weight"] = tensors["embedding.weight"] * scale
    tensors["norm.weight"] = state["network.norm"]
    for ours, theirs in (("input_projection", "input_projection"), ("projection", "output_projection")):
        if f"network.{ours}.weight" in state:
            tensors[f"{theirs}.weight"] = state[f"network.{ours}.weight"]
    if tied:  # the output layer reads the scaled table too
        last = "output_projection.weight" if "output_projection.weight" in tensors else "norm.weight"
        tensors[last] = tensors[last] / scale
    names = {
        "attention_norm": "attention_norm",
        "queries_keys_values": "attention_input",
        "attention_output": "attention_output",
        "feedforward_norm": "feedforward_norm",
        "gate_and_input": "feedforward_input",
        "feedforward_output": "feedforward_output",
    }
    for number, layer in enumerate(network.blocks):
        for ours, theirs in names.items():
            tensors[f"layers.{number}.{theirs}.weight"] = getattr(layer, ours).detach()
    head_size = network.hidden_size // network.heads
    config = DecoderConfig(
        **sizes,
        heads=network.heads,
        key_heads=network.heads,
        head_size=head_size,
        feedforward_size=next(network.blocks).units,
        context_length=MAX_POSITIONS,
        norm_epsilon=NORM_EPSILON,
        rotary_frequencies=tuple(ROTARY_BASE ** -(pair / head_size) for pair in range(0, head_size, 2)),
        windows=(network.window,) * sizes["layers"],
    )
    return config, tensors


def write_llama(units: Path, output: Path) -> dict[str, Any]:
    """Write a model in pieces of words as a folder of LLaMA that transformers loads.

    Args:
        units: folder of an imported model, or of a run that was trained in pieces of words.

    Returns:
        The configuration that was written.

    Raises:
        BundleError: a file is missing or damaged.
        ConfigError: the model is not of LLaMA's form, or its tokenizer is not in the format of transformers.
        OSError: the folder cannot be written.
    """
    files = Folder(units / UNITS_FOLDER if (units / UNITS_FOLDER).is_dir() else units)
    model = load_unit_model(files.path, context_cache_bytes=0)
    config = UnitConfig.from_dict(files.read_json(CONFIG_FILE), str(files.path / CONFIG_FILE))
    if not isinstance(config.decoder, DecoderConfig) or not (files.path / TOKENIZER_FILE).exists():
        raise ConfigError(
            f"{files.path}: only transformers with {TOKENIZER_FILE} are exported; recurrent networks have no "
            "form in the library transformers"
        )
    assert isinstance(model.scorer, DecoderScorer)
    assert isinstance(model.scorer.decoder, Decoder)
    values, tensors = to_llama(config.decoder, model.scorer.decoder.tensors)
    start, end = next(iter(config.start), None), config.end
    values |= {"bos_token_id": start, "eos_token_id": end}
    name = model.divider.tokenizer.name
    special = {"bos_token": start, "eos_token": end, "unk_token": model.divider.tokenizer.find(UNKNOWN)}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": values["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        **{role: name(unit) for role, unit in special.items() if unit is not None},
    }
    with new_folder(output) as partial:
        save_file(tensors, partial / WEIGHTS_FILE, metadata={"format": "pt"})
        (partial / WEIGHTS_FILE).chmod(0o644)  # safetensors makes it private
        for file, content in ((CONFIG_FILE, values), ("tokenizer_config.json", settings)):
            (partial / file).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        (partial / TOKENIZER_FILE).write_bytes(files.read_bytes(TOKENIZER_FILE, MAX_TOKENIZER_BYTES))
    return values
