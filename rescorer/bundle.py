"""Read, verify and publish model bundles; needs neither torch nor KenLM.

A bundle is a folder:

manifest.json          schema, name, version, sha256 of every model file, how the models were trained
text.json              normaliser settings
ngram/model.arpa.gz    or another file that KenLM can read
neural/                config.json, model.safetensors, vocabulary.txt
weights/default.json   stream and LM weights, λ, word and OOV terms, fingerprints of the tuning lists

``Bundle`` describes a bundle without its models; ``model_loading`` loads the models.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from rescorer.errors import BundleError, ConfigError, did_you_mean
from rescorer.lm.mixture import check_mixture
from rescorer.score_combination import MIXTURE, parse_weights
from rescorer.text import Normaliser, NormaliserSettings
from rescorer.types import Weights

SCHEMA = 1
MANIFEST, TEXT, WEIGHTS = "manifest.json", "text.json", "weights"
ModelKind = Literal["ngram", "neural"]


@dataclass(frozen=True)
class Bundle:
    """A verified bundle without its models: names, normaliser and weights."""

    folder: Path
    name: str
    version: int
    manifest: Mapping[str, Any]
    normaliser: Normaliser
    model_kinds: Mapping[str, ModelKind]
    """The kind of each language model, by its name."""
    weights: Mapping[str, Weights]
    """Sets of weights by name; always includes ``default``."""

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
        BundleError: a file is missing, was changed after publishing, or is inconsistent with the others.
    """
    folder = newest_version(Path(folder))
    manifest = read_manifest(folder)
    verify_hashes(folder, manifest)
    kinds = {name: entry["kind"] for name, entry in manifest["models"].items()}
    for name, kind in kinds.items():
        if kind not in get_args(ModelKind):
            known = ", ".join(get_args(ModelKind))
            raise BundleError(
                f"{folder}: model {name!r} has the unknown kind {kind!r}; expected one of: {known}"
            )
    if not kinds:
        raise BundleError(f"{folder}: the manifest names no models")
    normaliser = read_normaliser(folder / TEXT)
    weights = read_weights(folder, list(kinds))
    return Bundle(folder, manifest["name"], manifest["version"], manifest, normaliser, kinds, weights)


def read_normaliser(path: Path) -> Normaliser:
    """Create the normaliser that a settings file (``text.json``) describes.

    Raises:
        BundleError: the file is not a JSON object.
        ConfigError: a setting is unknown or invalid.
    """
    return Normaliser(NormaliserSettings.from_dict(_read_json(path)))


def newest_version(folder: Path) -> Path:
    """Return the newest bundle in a folder of numbered versions; return any other folder unchanged."""
    if (folder / MANIFEST).exists() or not folder.is_dir():
        return folder
    versions = [path for path in folder.iterdir() if path.name.isdecimal() and (path / MANIFEST).exists()]
    return max(versions, key=lambda path: int(path.name), default=folder)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a bundle.

    Raises:
        BundleError: the manifest is missing or invalid, or has an unsupported schema.
    """
    if not (folder / MANIFEST).exists():
        raise BundleError(f"{folder}: {_explain_missing(folder)}")
    manifest = _read_json(folder / MANIFEST)
    if manifest.get("schema") != SCHEMA:
        raise BundleError(f"{folder}: bundle schema {manifest.get('schema')!r}; expected {SCHEMA}")
    for key, kind in (("name", str), ("version", int), ("files", dict), ("models", dict)):
        if not isinstance(manifest.get(key), kind):
            raise BundleError(f"{folder / MANIFEST}: {key!r} is missing or not of type {kind.__name__}")
    for name, entry in manifest["models"].items():
        if not isinstance(entry, dict) or not all(isinstance(entry.get(k), str) for k in ("kind", "path")):
            raise BundleError(
                f"{folder / MANIFEST}: model {name!r}: 'kind' or 'path' is missing or not a string"
            )
    return manifest


def _explain_missing(folder: Path) -> str:
    """Explain why a path is not a bundle, and suggest one that is."""
    if not folder.exists():
        return "no such bundle folder"
    if not folder.is_dir():
        return f"no such bundle folder: this is a file; expected the folder that contains {MANIFEST}"
    bundles = sorted(path.parent for path in folder.glob(f"*/*/{MANIFEST}"))
    hint = f"; {bundles[-1]} is one, and `rescorer serve --repository {folder}` serves all" if bundles else ""
    return f"not a bundle: it does not contain {MANIFEST}{hint}"


def verify_hashes(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Raise BundleError if a file is missing, changed, or not in the manifest."""
    for name, expected in manifest["files"].items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise BundleError(f"{folder}: {name!r} is outside the bundle")
        if not path.is_file():
            raise BundleError(f"{folder}: {name} is missing")
        actual = sha256(path)
        if actual != expected:
            raise BundleError(
                f"{path}: corrupt: sha256 is {actual[:12]}…, but the manifest says {expected[:12]}…"
            )
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and path.parent.name != WEIGHTS and name not in (*manifest["files"], MANIFEST):
            raise BundleError(f"{path}: not part of the bundle; the manifest does not list it")


def read_words(path: Path) -> list[str]:
    """Read a word list, one word per line; raise BundleError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"{path}: cannot be read as a word list: {error}") from None


def read_weights(folder: Path, models: list[str]) -> dict[str, Weights]:
    """Read all weights sets of a bundle, by name, and check them against the bundle's models.

    Raises:
        BundleError: a weights set is invalid, or the set ``default`` is missing or has no mixture weights.
    """
    weights_by_name: dict[str, Weights] = {}
    for path in sorted((folder / WEIGHTS).glob("*.json")):
        try:
            weights = parse_weights({"name": path.stem, **_read_json(path)})
            check_weights(weights, models)
        except ConfigError as error:
            raise BundleError(f"{path}: {error}") from None
        weights_by_name[path.stem] = weights
    if "default" not in weights_by_name:
        raise BundleError(f"{folder / WEIGHTS}: default.json is missing")
    if not weights_by_name["default"].mixture:
        raise BundleError(f"{folder / WEIGHTS / 'default.json'}: no mixture weights; expected at least one")
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


def publish(folder: Path, fill: Callable[[Path], dict[str, Any]]) -> None:
    """Write a bundle atomically: fill a temporary folder next to it, then rename that folder.

    Args:
        fill: writes every file into the given folder and returns the manifest without the key ``files``.

    Raises:
        ConfigError: the folder exists.
    """
    if folder.exists():
        raise ConfigError(f"{folder} exists, and bundles are immutable; choose another version")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        manifest = fill(partial)
        # Weights are not listed: they may be tuned again and added after publishing.
        files = [
            path for path in sorted(partial.rglob("*")) if path.is_file() and path.parent.name != WEIGHTS
        ]
        manifest["files"] = {str(path.relative_to(partial)): sha256(path) for path in files}
        text = json.dumps({"schema": SCHEMA, **manifest}, indent=2, ensure_ascii=False)
        (partial / MANIFEST).write_text(text + "\n", encoding="utf-8")
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def sha256(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BundleError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(values, dict):
        raise BundleError(f"{path}: expected a JSON object")
    return values
