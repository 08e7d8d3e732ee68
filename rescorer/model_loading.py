"""Load the language models of a bundle into memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rescorer.bundle import Bundle
from rescorer.bundle.manifest import MANIFEST
from rescorer.errors import BundleError, quote
from rescorer.lm import CONTEXT_CACHE_BYTES
from rescorer.lm.base import LanguageModel
from rescorer.lm.files.network_files import CONFIG_FILE
from rescorer.lm.files.word_list import read_words
from rescorer.lm.ngrams import NgramModel, place_ngram, read_ngram
from rescorer.lm.vocabulary_alignment import align_vocabularies
from rescorer.safe_input.files import Folder


def load_bundle_models(
    bundle: Bundle,
    device: str = "cpu",
    dtype: str = "float32",
    context_cache_bytes: int = CONTEXT_CACHE_BYTES,
) -> dict[str, LanguageModel]:
    """Load a bundle's models, by name, and align their vocabularies.

    Args:
        device: torch name of the device on which networks run, and n-gram tables where there is room; see
            ``place_ngram``.
        dtype: precision of the networks' matrix products, see ``NeuralLanguageModel``.
        context_cache_bytes: maximum memory in which each recurrent network caches contexts, see
            ``NeuralLanguageModel``.

    Raises:
        BundleError: a model cannot be read.
        ConfigError: torch does not have the device, or the dtype is unknown.
    """
    models: dict[str, LanguageModel] = {}
    for name, entry in bundle.manifest["models"].items():
        if entry["kind"] == "ngram":
            ngram = load_ngram(bundle.files, name, entry)
            place_ngram(ngram, device)
            models[name] = ngram
        else:
            folder = bundle.files.subfolder(entry["path"].rstrip("/"))
            models[name] = load_network(folder, name, device, dtype, context_cache_bytes)
            check_direction(bundle, models[name])
    align_vocabularies(list(models.values()))
    return models


def load_ngram(folder: Folder, name: str, entry: Mapping[str, Any]) -> NgramModel:
    """Load an n-gram; for a KenLM binary, ``words`` in the model's manifest entry names the word list."""
    words = frozenset(read_words(folder, entry["words"])) if "words" in entry else None
    with folder.open(entry["path"]) as stream:
        ngram = read_ngram(stream, name, words, backward=entry.get("backward", False))
    if unknown := sorted(set(entry.get("slots", ())).difference(ngram.vocabulary())):
        place = f"{folder.path / MANIFEST}: model {name!r}"
        raise BundleError(f"{place}: the slot {quote(unknown[0])} is not a word of the model")
    return ngram


def check_direction(bundle: Bundle, network: LanguageModel) -> None:
    """Raise BundleError if the manifest, which weights are checked against, errs about a network."""
    if network.backward != (network.name in bundle.backward):
        found = "backward" if network.backward else "forward"
        raise BundleError(
            f"{bundle.folder / MANIFEST}: model {network.name!r} is a {found} network by its {CONFIG_FILE}, "
            "but not by 'backward' in the manifest"
        )


def load_network(
    folder: Path | Folder,
    name: str,
    device: str,
    dtype: str = "float32",
    context_cache_bytes: int = CONTEXT_CACHE_BYTES,
) -> LanguageModel:
    """Load a network. Imports torch, which takes seconds, only now: a bundle of n-grams does not need it."""
    from rescorer.lm.checkpoint import load_model
    from rescorer.lm.device import torch_device
    from rescorer.lm.neural import NeuralLanguageModel
    from rescorer.lm.threads import apply_threads

    apply_threads()
    place = torch_device(device)
    model, words = load_model(folder)
    return NeuralLanguageModel(model, words, name, place, dtype, context_cache_bytes)
