"""Owns a neural model on disk: ``config.json``, ``model.safetensors``, ``vocabulary.txt``; no pickles."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from rescorer.errors import BundleError
from rescorer.lm.networks import NetworkConfig, NeuralModel
from rescorer.lm.quantisation import quantised, restored
from rescorer.vocabulary import Vocabulary

CONFIG, WEIGHTS, VOCABULARY = "config.json", "model.safetensors", "vocabulary.txt"


def own_parameters(model: NeuralModel) -> dict[str, torch.Tensor]:
    """Every parameter once: a tied matrix is the network's, the output layer only borrows it."""
    state = model.state_dict()
    if model.config.tied:
        del state["output.word_weight"]
    return state


def save_model(
    model: NeuralModel, vocabulary: Vocabulary, folder: Path, dtype: torch.dtype = torch.float32
) -> None:
    """Writes the three files into ``folder``; weights are stored as ``dtype``, int8 with a scale a row."""
    folder.mkdir(parents=True, exist_ok=True)
    own = {name: value.detach().contiguous() for name, value in own_parameters(model).items()}
    tensors = quantised(own) if dtype == torch.int8 else _floats_as(dtype, own)
    save_file(tensors, folder / WEIGHTS)
    (folder / WEIGHTS).chmod(0o644)  # safetensors makes it private; a server may run as someone else
    (folder / CONFIG).write_text(json.dumps(model.config.to_dict()) + "\n", encoding="utf-8")
    vocabulary.save(folder / VOCABULARY)


def _floats_as(dtype: torch.dtype, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights in another precision; whole numbers, such as a tree's, stay what they are."""
    return {name: each.to(dtype) if each.is_floating_point() else each for name, each in tensors.items()}


def load_model(folder: Path) -> tuple[NeuralModel, Vocabulary]:
    """Builds the model anew, in float32, ready for scoring.

    Raises:
        BundleError: a file is missing or damaged, or weights, config and vocabulary do not fit together.
    """
    try:
        values = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        tensors = restored(load_file(folder / WEIGHTS))
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as fault:
        raise BundleError(f"{folder}: cannot be read as a neural model: {fault}") from None
    if not isinstance(values, dict):
        raise BundleError(f"{folder / CONFIG}: expected an object of settings")
    vocabulary = Vocabulary.load(folder / VOCABULARY)
    config = NetworkConfig.from_dict(values)
    if len(vocabulary) != config.vocabulary_size:
        raise BundleError(
            f"{folder}: the vocabulary has {len(vocabulary)} words, the network {config.vocabulary_size}"
        )
    model = NeuralModel(config)
    if config.tied and "network.embedding.weight" in tensors:
        tensors["output.word_weight"] = tensors["network.embedding.weight"]
    try:
        model.load_state_dict(_floats_as(torch.float32, tensors))
    except RuntimeError as fault:
        raise BundleError(f"{folder}: the weights do not fit the network: {fault}") from None
    for name, value in model.state_dict().items():
        if not torch.isfinite(value).all():
            raise BundleError(f"{folder}: {name} has values that are not finite")
    return model.eval(), vocabulary
