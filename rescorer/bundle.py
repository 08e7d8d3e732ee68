"""Read, verify and publish model bundles; needs neither torch nor KenLM.

manifest.json          schema, name, version, sha256 of every model file, how the models were made
text.json              normaliser settings
ngram/model.arpa.gz    or another file that KenLM reads
neural/                config.json, model.safetensors, vocabulary.txt
weights/default.json   stream and LM weights, λ, word and OOV terms, fingerprints of the tuning lists

``Bundle`` is what a process knows of a bundle without its models; ``model_loading`` loads those.
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
    """Where its files are."""
    name: str
    version: int
    manifest: Mapping[str, Any]
    normaliser: Normaliser
    model_kinds: Mapping[str, ModelKind]
    """The kind of each language model, by its name."""
    weights: Mapping[str, Weights]
    """By name; ``default`` is always there."""

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
    """Read and verify a bundle, its models not among it.

    Args:
        folder: the bundle, or the folder of its versions, of which the newest is read.

    Raises:
        BundleError: something is missing, was changed after publishing, or does not fit together.
    """
    folder = newest_version(Path(folder))
    manifest = read_manifest(folder)
    verify_hashes(folder, manifest)
    kinds = {name: entry["kind"] for name, entry in manifest["models"].items()}
    for name, kind in kinds.items():
        if kind not in get_args(ModelKind):
            known = ", ".join(get_args(ModelKind))
            raise BundleError(f"{folder}: model {name!r} is of kind {kind!r}; known kinds are {known}")
    if not kinds:
        raise BundleError(f"{folder}: the manifest names no models")
    normaliser = read_normaliser(folder / TEXT)
    weights = read_weights(folder, list(kinds))
    return Bundle(folder, manifest["name"], manifest["version"], manifest, normaliser, kinds, weights)


def read_normaliser(path: Path) -> Normaliser:
    """The normaliser that a file of settings describes.

    Raises:
        BundleError: it is no JSON object.
        ConfigError: it has settings that are unknown or wrong.
    """
    return Normaliser(NormaliserSettings.from_dict(_read_json(path)))


def newest_version(folder: Path) -> Path:
    """``name/3`` for ``name`` where that holds versions, folders called by numbers; else the folder."""
    if (folder / MANIFEST).exists() or not folder.is_dir():
        return folder
    versions = [each for each in folder.iterdir() if each.name.isdecimal() and (each / MANIFEST).exists()]
    return max(versions, key=lambda each: int(each.name), default=folder)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest; raises BundleError where it is missing, damaged or of another schema."""
    if not (folder / MANIFEST).exists():
        raise BundleError(f"{folder}: {_no_bundle(folder)}")
    manifest = _read_json(folder / MANIFEST)
    if manifest.get("schema") != SCHEMA:
        raise BundleError(f"{folder}: bundle schema {manifest.get('schema')!r}; this version reads {SCHEMA}")
    for key, kind in (("name", str), ("version", int), ("files", dict), ("models", dict)):
        if not isinstance(manifest.get(key), kind):
            raise BundleError(f"{folder / MANIFEST}: {key!r} is missing or no {kind.__name__}")
    for name, entry in manifest["models"].items():
        if not isinstance(entry, dict) or not all(isinstance(entry.get(k), str) for k in ("kind", "path")):
            raise BundleError(f"{folder / MANIFEST}: model {name!r} lacks its kind or path")
    return manifest


def _no_bundle(folder: Path) -> str:
    """Why there is none in a folder, and where there may be some."""
    if not folder.exists():
        return "no such bundle folder"
    if not folder.is_dir():
        return f"no such bundle folder: this is a file; expected the folder that holds {MANIFEST}"
    inside = sorted(path.parent for path in folder.glob(f"*/*/{MANIFEST}"))
    near = f"; {inside[-1]} is one, and `rescorer serve --repository {folder}` serves all" if inside else ""
    return f"no bundle, for it holds no {MANIFEST}{near}"


def verify_hashes(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Raises BundleError where a file is missing or is not the one the bundle was made with."""
    for name, expected in manifest["files"].items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise BundleError(f"{folder}: {name!r} is outside the bundle")
        if not path.is_file():
            raise BundleError(f"{folder}: {name} is missing")
        found = sha256(path)
        if found != expected:
            raise BundleError(f"{path}: damaged: sha256 is {found[:12]}…, the manifest says {expected[:12]}…")
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and path.parent.name != WEIGHTS and name not in (*manifest["files"], MANIFEST):
            raise BundleError(f"{path}: no part of the bundle; the manifest does not name it")


def read_words(path: Path) -> list[str]:
    """A list of words, one a line; raises BundleError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as fault:
        raise BundleError(f"{path}: cannot be read as a list of words: {fault}") from None


def read_weights(folder: Path, models: list[str]) -> dict[str, Weights]:
    """All weight files of a bundle by name, checked against its models; raises BundleError."""
    found: dict[str, Weights] = {}
    for path in sorted((folder / WEIGHTS).glob("*.json")):
        try:
            weights = parse_weights({"name": path.stem, **_read_json(path)})
            check_weights(weights, models)
        except ConfigError as fault:
            raise BundleError(f"{path}: {fault}") from None
        found[path.stem] = weights
    if "default" not in found:
        raise BundleError(f"{folder / WEIGHTS}: no default.json")
    if not found["default"].mixture:
        raise BundleError(f"{folder / WEIGHTS / 'default.json'}: names no mixture weights")
    return found


def check_weights(weights: Weights, models: list[str]) -> None:
    """Raises ConfigError where weights name models that are not there, or λ are no shares."""
    unknown = sorted(set(weights.lm) - {*models, MIXTURE})
    if unknown:
        known = [*models, MIXTURE]
        raise ConfigError(
            f"weights.lm names {unknown}; the bundle has {known}{did_you_mean(unknown[0], known)}"
        )
    if weights.mixture:
        check_mixture(weights.mixture, models)


def publish(folder: Path, fill: Callable[[Path], dict[str, Any]]) -> None:
    """Makes a bundle beside its final place and moves it there by one rename.

    Args:
        fill: writes every file into the folder it is given and returns the manifest without ``files``.

    Raises:
        ConfigError: the place is taken.
    """
    if folder.exists():
        raise ConfigError(f"{folder} exists; bundles are immutable: choose another version")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        manifest = fill(partial)
        models = [p for p in sorted(partial.rglob("*")) if p.is_file() and p.parent.name != WEIGHTS]
        manifest["files"] = {str(p.relative_to(partial)): sha256(p) for p in models}
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
    except (OSError, ValueError) as fault:
        raise BundleError(f"{path}: cannot be read as JSON: {fault}") from None
    if not isinstance(values, dict):
        raise BundleError(f"{path}: expected an object")
    return values
