"""Read a bundle without its models: verify its files, build the normaliser, check the weights sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rescorer.bundle.manifest import (
    TEXT,
    WEIGHTS,
    ModelKind,
    check_listing,
    list_weights_files,
    newest_version,
    read_manifest,
)
from rescorer.errors import BundleError, ConfigError, did_you_mean
from rescorer.lm.mixture import check_mixture
from rescorer.safe_input.files import Folder, SealedFolder
from rescorer.score_combination import MIXTURE, parse_weights
from rescorer.text import Normaliser, NormaliserSettings
from rescorer.types import Weights

MAX_MESSAGE_CHARACTERS = 1000
"""Longest message about the content of a bundle's JSON files."""


@dataclass(frozen=True)
class Bundle:
    """A verified bundle without its models: names, normaliser and weights."""

    files: Folder
    """The bundle's folder, which verifies the files that are opened in it."""
    name: str
    version: int
    manifest: Mapping[str, Any]
    normaliser: Normaliser
    model_kinds: Mapping[str, ModelKind]
    """The kind of each language model, by its name."""
    weights: Mapping[str, Weights]
    """Sets of weights by name; always includes ``default``."""

    @property
    def folder(self) -> Path:
        return self.files.path

    @property
    def label(self) -> str:
        """Name and version, ``name/version``."""
        return f"{self.name}/{self.version}"

    @property
    def ngram(self) -> str:
        """Name of the model whose vocabulary decides what counts as an unknown word."""
        ngrams = (name for name, kind in self.model_kinds.items() if kind == "ngram")
        return next(ngrams, next(iter(self.model_kinds)))


def read_bundle(folder: Path | str) -> Bundle:
    """Read a bundle without its models, and verify all its files.

    Args:
        folder: a bundle, or a folder of versions, of which the newest is read.

    Raises:
        BundleError: a file is missing, was changed after publishing, is not a regular file inside the bundle,
            or is inconsistent with the others.
    """
    folder = newest_version(Path(folder))
    manifest = read_manifest(folder)
    try:
        check_listing(folder, manifest)
    except OSError as error:
        raise BundleError(f"{folder}: cannot be read: {error.strerror}") from None
    files = SealedFolder(folder, manifest["files"])
    files.verify()
    kinds = {name: entry["kind"] for name, entry in manifest["models"].items()}
    weights = read_weights(files, list_weights_files(manifest), list(kinds))
    return Bundle(
        files, manifest["name"], manifest["version"], manifest, _read_normaliser(files, TEXT), kinds, weights
    )


def read_normaliser(path: Path) -> Normaliser:
    """Create the normaliser that a settings file (``text.json``) describes.

    Raises:
        BundleError: the file is not a JSON object, or a setting is unknown or invalid.
    """
    return _read_normaliser(Folder(path.parent), path.name)


def _read_normaliser(folder: Folder, name: str) -> Normaliser:
    try:
        return Normaliser(NormaliserSettings.from_dict(folder.read_json(name)))
    except ConfigError as error:
        raise BundleError(f"{folder.path / name}: {_shorten(error)}") from None


def read_weights(folder: Folder, names: Mapping[str, str], models: list[str]) -> dict[str, Weights]:
    """Read all weights sets of a bundle, by name, and check them against the bundle's models.

    Args:
        names: the file of each set in the folder, by the name of the set.

    Raises:
        BundleError: a weights set is invalid, or the set ``default`` is missing or has no mixture weights.
    """
    weights_by_name: dict[str, Weights] = {}
    for name, file in names.items():
        try:
            weights = parse_weights({"name": name, **folder.read_json(file)})
            check_weights(weights, models)
        except ConfigError as error:
            raise BundleError(f"{folder.path / file}: {_shorten(error)}") from None
        weights_by_name[name] = weights
    if "default" not in weights_by_name:
        raise BundleError(f"{folder.path / WEIGHTS}: default.json is missing")
    if not weights_by_name["default"].mixture:
        path = folder.path / WEIGHTS / "default.json"
        raise BundleError(f"{path}: no mixture weights; expected at least one")
    return weights_by_name


def check_weights(weights: Weights, models: list[str]) -> None:
    """Raise ConfigError if weights name unknown models, or the λ of the mixture do not sum to 1."""
    unknown = sorted(set(weights.lm) - {*models, MIXTURE})
    if unknown:
        known = [*models, MIXTURE]
        raise ConfigError(
            f"weights.lm names {unknown}; the bundle has {known}{did_you_mean(unknown[0], known)}"
        )
    if weights.mixture:
        check_mixture(weights.mixture, models)


def _shorten(error: Exception) -> str:
    text = str(error)
    return text if len(text) <= MAX_MESSAGE_CHARACTERS else f"{text[:MAX_MESSAGE_CHARACTERS]}…"
