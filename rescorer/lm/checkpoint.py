"""Save and load a neural model as ``config.json``, ``model.safetensors`` and ``vocabulary.txt``.

No pickles: loading a model never runs code from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from rescorer.errors import BundleError
from rescorer.lm.files.network_files import (
    CONFIG_FILE,
    VOCABULARY_FILE,
    WEIGHTS_FILE,
    read_config,
    read_vocabulary,
)
from rescorer.lm.kernels.quantisation import dequantise_tensors, quantise_tensors
from rescorer.lm.networks import NeuralModel, SequenceModel
from rescorer.safe_input.files import Folder, descriptor_path
from rescorer.vocabulary import Vocabulary

PROBABILITIES = ("topic_words", "tags.start", "tags.transitions", "tags.words")
MAX_PROBABILITY = 1.001
"""Largest stored probability: rounding to fewer bits may exceed 1."""


def deduplicated_state(model: SequenceModel) -> dict[str, torch.Tensor]:
    """State dict in which a tied matrix appears once, as the network's embedding."""
    state = model.state_dict()
    if model.config.tied_copy:
        del state[model.config.tied_copy]
    return state


def save_model(
    model: SequenceModel, vocabulary: Vocabulary, folder: Path, dtype: torch.dtype = torch.float32
) -> None:
    """Write the three files into ``folder``.

    Args:
        dtype: type of the stored weights; int8 matrices are stored with one scale per row.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: value.detach().contiguous() for name, value in deduplicated_state(model).items()}
    tensors = quantise_tensors(state) if dtype == torch.int8 else _cast_floats(dtype, state)
    save_file(tensors, folder / WEIGHTS_FILE)
    (folder / WEIGHTS_FILE).chmod(0o644)  # safetensors makes it private; a server may run as another user
    (folder / CONFIG_FILE).write_text(json.dumps(model.config.to_dict()) + "\n", encoding="utf-8")
    vocabulary.save(folder / VOCABULARY_FILE)


def _cast_floats(dtype: torch.dtype, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Cast weights to ``dtype``; integer tensors, such as a tree's, keep their type."""
    return {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()
    }


def load_model(folder: Path | Folder) -> tuple[NeuralModel, Vocabulary]:
    """Load a model in float32 and evaluation mode.

    The sizes of all three files are compared before anything is built.

    Raises:
        BundleError: If a file is missing or damaged, or weights, config and vocabulary do not fit together.
    """
    files = folder if isinstance(folder, Folder) else Folder(folder)
    config = read_config(files)
    vocabulary = read_vocabulary(files, config)
    model = NeuralModel(config)
    load_weights(model, files)
    for name, value in model.named_buffers():
        if name in PROBABILITIES and not 0 <= value.min() <= value.max() <= MAX_PROBABILITY:
            raise BundleError(f"{files.path}: {name} has values outside 0 … 1; expected probabilities")
    return model, vocabulary


def load_weights(model: SequenceModel, files: Folder) -> None:
    """Load the weights of a new model, in float32, and set it to evaluation mode.

    Raises:
        BundleError: the file is missing or damaged, does not fit the model, or has values that are not
            finite.
    """
    config = model.config
    with files.open(WEIGHTS_FILE) as stream:
        try:
            tensors = dequantise_tensors(load_file(descriptor_path(stream)))
        except (OSError, ValueError, SafetensorError):
            raise BundleError(f"{stream.name}: cannot be read as a safetensors file") from None
        if config.tied_copy and "network.embedding.weight" in tensors:
            tensors[config.tied_copy] = tensors["network.embedding.weight"]
        try:
            model.load_state_dict(_cast_floats(torch.float32, tensors))
        except RuntimeError as error:
            raise BundleError(f"{stream.name}: the weights do not fit the network: {error}") from None
    for name, value in model.state_dict().items():
        if not torch.isfinite(value).all():
            raise BundleError(f"{files.path}: {name} has values that are not finite")
    model.eval()
