"""Read a bundle without its models: verify its files, build the normaliser, check the weights sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rescorer.bundle.manifest import (
    MANIFEST,
    TEXT,
    TEXT_RULES_SCHEMA,
    ModelKind,
    check_listing,
    find_backward,
    find_slots,
    first_ngram,
    list_phrase_files,
    list_weights_files,
    newest_version,
    read_manifest,
    required_schema,
)
from rescorer.bundle.rerankers import read_rerankers
from rescorer.bundle.weights import read_weights, shorten_message
from rescorer.errors import BundleError, ConfigError, FormatError, LimitExceeded
from rescorer.lm.files.network_files import CONFIG_FILE
from rescorer.phrases.files import MAX_PHRASE_FILE_BYTES, parse_phrase_file
from rescorer.phrases.phrase_set import PhraseSet, compile_phrases
from rescorer.reranking.reranker import Reranker
from rescorer.safe_input.files import Folder, SealedFolder
from rescorer.text import Normaliser, NormaliserSettings
from rescorer.types import Weights


@dataclass(frozen=True)
class Bundle:
    """A verified bundle without its language models: names, normaliser, weights and rerankers."""

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
    reads_previous: frozenset[str] = frozenset()
    """Names of the networks that read the utterances before that of a list: those that carry their state
    across sentence boundaries, and those with topics."""
    remembers: frozenset[str] = frozenset()
    """Names of the networks that can have a neural cache: forward ones without topics."""
    rerankers: Mapping[str, Reranker] = field(default_factory=dict)
    """Models of the hypotheses of a list by name, whose scores weights can name."""
    phrases: Mapping[str, PhraseSet] = field(default_factory=dict)
    """Lists of names and phrases, by the name under which requests ask for them."""

    @property
    def folder(self) -> Path:
        return self.files.path

    @cached_property
    def text_normaliser(self) -> Normaliser:
        """The normaliser by whose words texts are compared, counted and written, unless another is given: the
        default one, in the language of the bundle's text."""
        return Normaliser(NormaliserSettings(language=self.normaliser.settings.language))

    @cached_property
    def label(self) -> str:
        """Name and version, ``name/version``."""
        return f"{self.name}/{self.version}"

    @cached_property
    def backward(self) -> frozenset[str]:
        """Names of the backward models, which read sentences from their last words to their first ones."""
        return find_backward(self.manifest)

    @cached_property
    def slots(self) -> Mapping[str, frozenset[str]]:
        """Words that stand for phrases in n-grams, by the name of the n-gram; see ``phrases.slots``."""
        return find_slots(self.manifest)

    @cached_property
    def slot_words(self) -> frozenset[str]:
        """The slots of all n-grams."""
        return frozenset().union(*self.slots.values())

    @cached_property
    def ngram(self) -> str:
        """Name of the model whose vocabulary decides what counts as an unknown word."""
        return first_ngram(self.model_kinds)


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
    rerankers = read_rerankers(files, manifest)
    weights_files, backward = list_weights_files(manifest), find_backward(manifest)
    normaliser = _read_normaliser(files, TEXT)
    if manifest["schema"] < required_schema(manifest, normaliser.settings.rules):
        schema = manifest["schema"]
        raise BundleError(
            f"{folder / TEXT}: rules {normaliser.settings.rules} need schema {TEXT_RULES_SCHEMA} in "
            f"{MANIFEST}, which has {schema}"
        )
    readers, remembers = _find_readers(files, manifest)
    slots = frozenset().union(*find_slots(manifest).values())
    return Bundle(
        files=files,
        name=manifest["name"],
        version=manifest["version"],
        manifest=manifest,
        normaliser=normaliser,
        model_kinds=kinds,
        weights=read_weights(files, weights_files, list(kinds), rerankers, backward, remembers),
        reads_previous=readers,
        remembers=remembers,
        rerankers=rerankers,
        phrases={
            name: _read_phrases(files, file, normaliser, slots)
            for name, file in list_phrase_files(manifest).items()
        },
    )


def _read_phrases(files: Folder, name: str, normaliser: Normaliser, slots: frozenset[str]) -> PhraseSet:
    """Read a list of phrases; raises BundleError if a phrase is invalid, or there are too many."""
    place = str(files.path / name)
    try:
        phrases = parse_phrase_file(files.read_bytes(name, MAX_PHRASE_FILE_BYTES), place)
        return compile_phrases(phrases, normaliser.normalise, slots)
    except FormatError as error:
        raise BundleError(str(error)) from None
    except LimitExceeded as error:
        raise BundleError(f"{place}: {error}") from None


def _find_readers(files: Folder, manifest: Mapping[str, Any]) -> tuple[frozenset[str], frozenset[str]]:
    """``Bundle.reads_previous`` and ``Bundle.remembers``, as the configurations of networks say."""
    paths = {n: entry["path"] for n, entry in manifest["models"].items() if entry["kind"] == "neural"}
    configs = {name: f"{path.rstrip('/')}/{CONFIG_FILE}" for name, path in paths.items()}
    settings = {name: files.read_json(file) for name, file in configs.items()}
    readers = (name for name, of in settings.items() if of.get("carried") is True or of.get("topics"))
    remembers = (name for name, of in settings.items() if not (of.get("backward") or of.get("topics")))
    return frozenset(readers), frozenset(remembers)


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
        raise BundleError(f"{folder.path / name}: {shorten_message(error)}") from None
