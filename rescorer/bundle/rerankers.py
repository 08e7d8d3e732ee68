"""Find the rerankers of a bundle, and check that they were trained with its models."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from rescorer.bundle.manifest import MAX_MODELS, check_label, first_ngram, list_model_files
from rescorer.bundle.weights import check_weights, shorten_message
from rescorer.errors import BundleError, ConfigError, did_you_mean, quote
from rescorer.lm.files.network_files import read_config
from rescorer.reranking.files import CONFIG_FILE, read_reranker
from rescorer.reranking.reranker import Reranker
from rescorer.safe_input.files import SealedFolder
from rescorer.score_combination import EMPTY, MIXTURE, OOV, RERANKER, WORDS
from rescorer.word_encoder import WordEncoder

RERANKERS = "reranker"
"""The folder of a bundle whose subfolders are its rerankers."""


def read_rerankers(files: SealedFolder, manifest: Mapping[str, Any]) -> dict[str, Reranker]:
    """Read all rerankers of a bundle, by name.

    Raises:
        BundleError: a reranker cannot be read, or was trained with models that the bundle does not have.
    """
    matches = (re.match(rf"{RERANKERS}/([^/]+)/", name) for name in manifest["files"])
    names = sorted({match[1] for match in matches if match})
    if len(names) > MAX_MODELS:
        raise BundleError(f"{files.path}: {len(names):,} rerankers; expected at most {MAX_MODELS}")
    rerankers = {}
    for name in names:
        check_label(str(files.path / RERANKERS), "the name of a reranker", name)
        reranker = read_reranker(files.subfolder(f"{RERANKERS}/{name}"), name)
        place = str(files.path / RERANKERS / name / CONFIG_FILE)
        _check_base(place, reranker, list(manifest["models"]))
        _check_models(place, reranker, manifest)
        if reranker.encoder is not None:
            _check_encoder(place, reranker.encoder, files, manifest["models"])
        rerankers[name] = reranker
    return rerankers


def hash_used_models(reranker: Reranker, manifest: Mapping[str, Any]) -> dict[str, str]:
    """Hash the models of a bundle on whose scores or vocabularies a reranker depends, by name.

    ``Reranker.models`` is this of the bundle that the reranker was trained with.

    Args:
        manifest: manifest of the bundle.
    """
    models = manifest["models"]
    used = set(reranker.needs)
    if MIXTURE in used:
        used |= {name for name, share in reranker.base.mixture.items() if share}
    if reranker.counts_unknown_words:
        used.add(first_ngram({name: entry["kind"] for name, entry in models.items()}))
    return {name: hash_model(manifest, name) for name in models if name in used}


def hash_model(manifest: Mapping[str, Any], name: str) -> str:
    """SHA-256 of the hashes of a model's files, in hexadecimal digits; independent of their place."""
    hashes = [manifest["files"][file] for file in list_model_files(manifest["models"][name])]
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def _check_base(place: str, reranker: Reranker, models: list[str]) -> None:
    """Check the weights of the totals that the features of a reranker need."""
    try:
        check_weights(reranker.base, models, {})
    except ConfigError as error:
        raise BundleError(f"{place}: base: {shorten_message(error)}") from None
    for name in reranker.needs:
        if name in (WORDS, OOV, EMPTY) or name.startswith(RERANKER):
            raise BundleError(
                f"{place}: a score is named {quote(name)}, which can be neither a stream nor a model"
            )
    if MIXTURE in reranker.needs and not reranker.base.mixture:
        raise BundleError(f"{place}: the base weights have no λ, but the reranker uses the mixture")


def _check_models(place: str, reranker: Reranker, manifest: Mapping[str, Any]) -> None:
    """Compare the models that a reranker was trained with, with those of the bundle."""
    models = list(manifest["models"])
    for name, digest in reranker.models.items():
        if name not in models:
            raise BundleError(
                f"{place}: trained with the model {quote(name)}, but the bundle has {', '.join(models)}"
                f"{did_you_mean(name, models)}"
            )
        if digest != hash_model(manifest, name):
            raise BundleError(
                f"{place}: trained with another model {quote(name)} than this bundle has: its files have "
                "other hashes; train the reranker with this bundle"
            )
    for name in hash_used_models(reranker, manifest):
        if name not in reranker.models:
            raise BundleError(f"{place}: 'models' does not have {quote(name)}, whose scores it uses")


def _check_encoder(
    place: str, encoder: WordEncoder, files: SealedFolder, models: Mapping[str, Mapping[str, Any]]
) -> None:
    """Check that the model by which words are encoded is a network with vectors of the projected length."""
    networks = {name: entry["path"] for name, entry in models.items() if entry["kind"] == "neural"}
    if encoder.model not in networks:
        raise BundleError(
            f"{place}: encodes words by {quote(encoder.model)}; expected a network of the bundle: "
            f"{', '.join(networks) or 'it has none'}"
        )
    size = read_config(files.subfolder(networks[encoder.model].rstrip("/"))).embedding_size
    if len(encoder.projection) != size:
        raise BundleError(
            f"{place}: projects context vectors of length {len(encoder.projection)}, but those of the model "
            f"{quote(encoder.model)} have the length {size}"
        )
