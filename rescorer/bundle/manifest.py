"""Read a bundle's manifest, check what it says, and compare the files that it lists with those on disk."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from rescorer.errors import BundleError
from rescorer.lm.files.network_files import NETWORK_FILES
from rescorer.safe_input.files import MAX_FILES, SealedFolder, check_name, check_regular, check_size
from rescorer.safe_input.json import MAX_JSON_BYTES

SCHEMA, BACKWARD_SCHEMA, TEXT_RULES_SCHEMA = 1, 2, 3
"""Schemas of bundles without and with backward models, and of those whose text has the second rules. Older
versions would take backward models for forward ones, and refuse the second rules with an unclear error."""
MANIFEST, TEXT, WEIGHTS, PHRASES = "manifest.json", "text.json", "weights", "phrases"
ModelKind = Literal["ngram", "neural"]

MAX_MODELS = 16
MAX_SLOTS = 10_000
"""Largest number of slots of an n-gram."""
MAX_NAME_CHARACTERS = 100
"""Longest name of a bundle or of one of its models."""
SEAL_HINT = "`rescorer seal {folder}` lists and hashes new files"


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
    manifest = SealedFolder(folder).read_json(MANIFEST)
    place = str(folder / MANIFEST)
    schema = manifest.get("schema")
    if schema not in (SCHEMA, BACKWARD_SCHEMA, TEXT_RULES_SCHEMA):
        known = f"{SCHEMA}, {BACKWARD_SCHEMA} or {TEXT_RULES_SCHEMA}"
        raise BundleError(f"{folder}: bundle schema {str(schema)[:100]!r}; expected {known}")
    for key, kind in (("name", str), ("version", int), ("files", dict), ("models", dict)):
        if not isinstance(manifest.get(key), kind):
            raise BundleError(f"{place}: {key!r} is missing or not of type {kind.__name__}")
    if isinstance(manifest["version"], bool) or manifest["version"] < 0:
        raise BundleError(f"{place}: 'version' is {manifest['version']}; expected a number, at least 0")
    check_label(place, "the name of the bundle", manifest["name"])
    _check_files(place, manifest["files"])
    _check_models(place, manifest)
    if schema < required_schema(manifest):
        raise BundleError(f"{place}: schema is {schema}, but backward models need {BACKWARD_SCHEMA}")
    return manifest


def required_schema(manifest: Mapping[str, Any], text_rules: int = 1) -> int:
    """The schema of a bundle with these models and rules of its normaliser."""
    if text_rules > 1:
        return TEXT_RULES_SCHEMA
    return BACKWARD_SCHEMA if find_backward(manifest) else SCHEMA


def first_ngram(kinds: Mapping[str, ModelKind]) -> str:
    """Name of the model whose vocabulary decides what counts as an unknown word.

    Args:
        kinds: kind of each model of a bundle, by its name.
    """
    return next((name for name, kind in kinds.items() if kind == "ngram"), next(iter(kinds)))


def find_backward(manifest: Mapping[str, Any]) -> frozenset[str]:
    """Names of the models that read sentences from their last words to their first ones."""
    models = manifest.get("models", {}).items()
    return frozenset(name for name, entry in models if entry.get("backward", False))


def find_slots(manifest: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Words that stood for phrases in the text of n-grams, by the name of the n-gram."""
    models = manifest["models"].items()
    return {name: frozenset(entry["slots"]) for name, entry in models if entry.get("slots")}


def list_model_files(entry: Mapping[str, Any]) -> list[str]:
    """Return the names of all files of a model."""
    path = entry["path"].rstrip("/")
    if entry["kind"] == "neural":
        return [f"{path}/{name}" for name in NETWORK_FILES]
    return [path, *([entry["words"]] if "words" in entry else [])]


def list_weights_files(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the file of each weights set, by the name of the set."""
    names = (re.fullmatch(rf"{WEIGHTS}/([^/]+)\.json", name) for name in sorted(manifest["files"]))
    return {match[1]: match[0] for match in names if match}


def list_phrase_files(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the file of each named list of phrases, by its name."""
    names = (re.fullmatch(rf"{PHRASES}/([^/]+)\.txt", name) for name in sorted(manifest["files"]))
    return {match[1]: match[0] for match in names if match}


def check_listing(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Raise BundleError if a file on disk is not in the manifest, or is too large to be worth hashing."""
    for name, status in SealedFolder(folder).list_files():
        if name.endswith(".json"):
            check_size(folder / name, status.st_size, MAX_JSON_BYTES)
        if name == MANIFEST or name in manifest["files"]:
            continue
        check_regular(folder / name, status)
        hint = SEAL_HINT.format(folder=folder)
        raise BundleError(f"{folder / name}: not part of the bundle; the manifest does not list it ({hint})")


def _check_files(place: str, files: Mapping[str, Any]) -> None:
    if len(files) > MAX_FILES:
        raise BundleError(f"{place}: lists {len(files):,} files; expected at most {MAX_FILES}")
    for name, digest in files.items():
        check_name(name, place)
        if not isinstance(digest, str) or not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise BundleError(f"{place}: files: {name}: the hash is not a SHA-256 in hexadecimal digits")


def _check_models(place: str, manifest: Mapping[str, Any]) -> None:
    """Check the entries of the models, and that each file that they name is listed."""
    models = manifest["models"]
    if not 1 <= len(models) <= MAX_MODELS:
        found = f"{len(models):,} models" if models else "no models"
        raise BundleError(f"{place}: the manifest names {found}; expected 1 to {MAX_MODELS}")
    for name, entry in models.items():
        check_label(place, "the name of a model", name)
        if not isinstance(entry, dict) or not all(isinstance(entry.get(k), str) for k in ("kind", "path")):
            raise BundleError(f"{place}: model {name!r}: 'kind' or 'path' is missing or not a string")
        role = f"model {name!r}"
        if entry["kind"] not in get_args(ModelKind):
            found, known = entry["kind"][:MAX_NAME_CHARACTERS], ", ".join(get_args(ModelKind))
            raise BundleError(f"{place}: {role} has the unknown kind {found!r}; expected one of: {known}")
        if not isinstance(entry.get("words", ""), str):
            raise BundleError(f"{place}: {role}: 'words' is not a string; expected the name of a file")
        if not isinstance(entry.get("backward", False), bool):
            raise BundleError(f"{place}: {role}: 'backward' is not a boolean; expected true or false")
        _check_slots(f"{place}: {role}", entry)
        for file in list_model_files(entry):
            check_name(file, f"{place}: {role}")
            if file not in manifest["files"]:
                raise BundleError(f"{place}: {role}: {file}: the manifest does not list it in 'files'")


def _check_slots(place: str, entry: Mapping[str, Any]) -> None:
    """Check the slots of a model, which only forward n-grams have."""
    slots = entry.get("slots", [])
    if not isinstance(slots, list) or not all(isinstance(slot, str) for slot in slots):
        raise BundleError(f"{place}: 'slots' is not a list of strings; expected words of the model")
    if len(slots) > MAX_SLOTS:
        raise BundleError(f"{place}: {len(slots):,} slots; expected at most {MAX_SLOTS:,}")
    if slots and (entry["kind"] != "ngram" or entry.get("backward")):
        raise BundleError(f"{place}: has slots; expected them only of forward n-grams")


def check_label(place: str, role: str, name: str) -> None:
    """Raise BundleError unless a name is printable, not empty and not too long."""
    if not 0 < len(name) <= MAX_NAME_CHARACTERS or not name.isprintable() or "/" in name:
        raise BundleError(
            f"{place}: {role} is {name[:MAX_NAME_CHARACTERS]!a}; expected 1 to {MAX_NAME_CHARACTERS} "
            "printable characters without '/'"
        )


def _explain_missing(folder: Path) -> str:
    """Explain why a path is not a bundle, and suggest one that is."""
    if not folder.exists():
        return "no such bundle folder"
    if not folder.is_dir():
        return f"no such bundle folder: this is a file; expected the folder that contains {MANIFEST}"
    bundles = sorted(path.parent for path in folder.glob(f"*/*/{MANIFEST}"))
    hint = f"; {bundles[-1]} is one, and `rescorer serve --repository {folder}` serves all" if bundles else ""
    return f"not a bundle: it does not contain {MANIFEST}{hint}"
