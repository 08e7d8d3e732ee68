"""Read, verify and publish model bundles; needs neither torch nor KenLM.

A bundle is a folder:

manifest.json          schema, name, version, sha256 of every other file, how the models were trained
text.json              normaliser settings
ngram/model.arpa.gz    or an n-gram table, or a KenLM binary
neural/                config.json, model.safetensors, vocabulary.txt
units/                 config.json, model.safetensors, tokenizer.json or tokenizer.model
weights/default.json   stream and LM weights, λ, word and OOV terms, fingerprints of the tuning lists
reranker/NAME/         config.json, parameters.safetensors; optional
phrases/NAME.txt       names and phrases that requests can ask for, one per line; optional

``Bundle`` describes a bundle without its language models, which ``rescorer.pipeline`` loads.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal, get_args

from rescorer.errors import BundleError, ConfigError, FormatError, LimitExceeded, did_you_mean, quote
from rescorer.formats.io.text_io import make_folder
from rescorer.models.network_files import (
    CONFIG_FILE,
    NETWORK_FILES,
    TOKENIZER_FILES,
    WEIGHTS_FILE,
    read_config,
)
from rescorer.phrases import MAX_PHRASE_FILE_BYTES, PhraseSet, compile_phrases, parse_phrase_file
from rescorer.reranking.reranker import RERANKER_CONFIG_FILE, Reranker, read_reranker
from rescorer.safe_input import (
    MAX_FILES,
    MAX_JSON_BYTES,
    Folder,
    SealedFolder,
    check_name,
    check_regular,
    check_size,
    sha256,
)
from rescorer.text import Normaliser, NormaliserSettings
from rescorer.types import ImportedModel, Weights
from rescorer.weights import (
    COUNTED,
    EMPTY,
    MIXTURE,
    OOV,
    RERANKER,
    WORDS,
    KnownNames,
    check_weights,
    parse_weights,
)

SCHEMA, BACKWARD_SCHEMA, TEXT_RULES_SCHEMA, UNITS_SCHEMA = 1, 2, 3, 4
"""Schema 1 has only forward models, 2 also backward ones, 3 the second rules of the normaliser, and 4 models
in pieces of words. A bundle has the smallest schema that it needs. Without these numbers, older programs
would take backward models for forward ones, and refuse the rest with an unclear error."""
MANIFEST, TEXT, WEIGHTS, PHRASES = "manifest.json", "text.json", "weights", "phrases"
RERANKERS = "reranker"  # the folder of a bundle whose subfolders are its rerankers
RESERVED = {
    **dict.fromkeys((MIXTURE, *COUNTED), "another component of a total"),
    **dict.fromkeys((WEIGHTS, RERANKERS), "a folder of every bundle"),
}
"""Names that a model cannot have, each with the reason: what it stands for."""
ModelKind = Literal["ngram", "neural", "units"]

MAX_MODELS = 16
MAX_SLOTS = 10_000  # largest number of slots of an n-gram
MAX_NAME_CHARACTERS = 100  # longest name of a bundle or of one of its models


def newest_version(folder: Path) -> Path:
    """Return the newest bundle in a folder of numbered versions; return any other folder as it is."""
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
    if schema is None or schema not in range(SCHEMA, UNITS_SCHEMA + 1):
        known = f"a whole number from {SCHEMA} to {UNITS_SCHEMA}"
        raise BundleError(
            f"{place}: schema is {str(schema)[:100]}; expected {known}. Newer bundles need a newer rescorer"
        )
    for key, kind in (("name", str), ("version", int), ("files", dict), ("models", dict)):
        if not isinstance(manifest.get(key), kind):
            raise BundleError(f"{place}: {key!r} is missing or not of type {kind.__name__}")
    if isinstance(manifest["version"], bool) or manifest["version"] < 0:
        raise BundleError(f"{place}: 'version' is {manifest['version']}; expected a number, at least 0")
    check_label(place, "the name of the bundle", manifest["name"])
    if len(manifest["files"]) > MAX_FILES:
        found = len(manifest["files"])
        raise BundleError(f"{place}: lists {found:,} files; expected at most {MAX_FILES}")
    for name, digest in manifest["files"].items():
        check_name(name, place)
        if not isinstance(digest, str) or not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise BundleError(f"{place}: files: {name}: the hash is not a SHA-256 in hexadecimal digits")
    _check_model_entries(place, manifest)
    needed = required_schema(manifest)
    if schema < needed:
        what = "models in pieces of words" if needed == UNITS_SCHEMA else "backward models"
        raise BundleError(f"{place}: schema is {schema}, but {what} need {needed}")
    return manifest


def required_schema(manifest: Mapping[str, Any], text_rules: int = 1) -> int:
    """The smallest schema that allows the bundle's models and the rules of its normaliser."""
    if find_open(manifest):
        return UNITS_SCHEMA
    if text_rules > 1:
        return TEXT_RULES_SCHEMA
    return BACKWARD_SCHEMA if find_backward(manifest) else SCHEMA


def first_ngram(kinds: Mapping[str, ModelKind]) -> str:
    """The model whose vocabulary decides which words are unknown: the first n-gram, or else network.

    If all models are in pieces of words, this is the first of them, to which no word is unknown.
    """
    return min(kinds, key=lambda name: get_args(ModelKind).index(kinds[name]))


def find_backward(manifest: Mapping[str, Any]) -> frozenset[str]:
    """Names of the models that read sentences from their last word to their first."""
    models = manifest.get("models", {}).items()
    return frozenset(name for name, entry in models if entry.get("backward", False))


def find_open(manifest: Mapping[str, Any]) -> frozenset[str]:
    """Names of the models in pieces of words, whose vocabulary is open."""
    models = manifest.get("models", {}).items()
    return frozenset(name for name, entry in models if entry.get("kind") == "units")


def find_slots(manifest: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """The slots of each n-gram that has some: words such as ``$name``, which stand for phrases."""
    models = manifest["models"].items()
    return {name: frozenset(entry["slots"]) for name, entry in models if entry.get("slots")}


def find_networks(manifest: Mapping[str, Any], *kinds: ModelKind) -> dict[str, str]:
    """The folder of each model of some kinds, by the name of the model."""
    models = manifest["models"].items()
    return {name: entry["path"].rstrip("/") for name, entry in models if entry["kind"] in kinds}


def list_model_files(entry: Mapping[str, Any]) -> list[str]:
    """Return the names of all files of a model."""
    path = entry["path"].rstrip("/")
    if entry["kind"] == "neural":
        return [f"{path}/{name}" for name in NETWORK_FILES]
    if entry["kind"] == "units":
        return [f"{path}/{name}" for name in (CONFIG_FILE, WEIGHTS_FILE, entry["tokenizer"])]
    return [path, *([entry["words"]] if "words" in entry else [])]


def list_weights_files(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the file of each weights set, by the name of the set."""
    return _list_named(manifest, rf"{WEIGHTS}/([^/]+)\.json")


def list_phrase_files(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the file of each named list of phrases, by its name."""
    return _list_named(manifest, rf"{PHRASES}/([^/]+)\.txt")


def _list_named(manifest: Mapping[str, Any], pattern: str) -> dict[str, str]:
    matches = (re.fullmatch(pattern, name) for name in sorted(manifest["files"]))
    return {match[1]: match[0] for match in matches if match}


def check_listing(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Raise BundleError if a file on disk is not in the manifest, or is too large to be worth hashing."""
    for name, status in SealedFolder(folder).list_files():
        if name.endswith(".json"):
            check_size(folder / name, status.st_size, MAX_JSON_BYTES)
        if name != MANIFEST and name not in manifest["files"]:
            check_regular(folder / name, status)
            raise BundleError(
                f"{folder / name}: not part of the bundle; the manifest does not list it "
                f"(`rescorer seal {folder}` lists and hashes new files)"
            )


def _check_model_entries(place: str, manifest: Mapping[str, Any]) -> None:
    """Raise BundleError if the entry of a model is wrong, or names a file that the manifest does not list."""
    models = manifest["models"]
    if not 1 <= len(models) <= MAX_MODELS:
        found = f"{len(models):,} models" if models else "no models"
        raise BundleError(f"{place}: the manifest names {found}; expected 1 to {MAX_MODELS}")
    for name, entry in models.items():
        check_label(place, "the name of a model", name)
        role = f"{place}: model {name!r}"
        if not isinstance(entry, dict) or not all(isinstance(entry.get(k), str) for k in ("kind", "path")):
            raise BundleError(f"{role}: 'kind' or 'path' is missing or not a string")
        if entry["kind"] not in get_args(ModelKind):
            found, known = entry["kind"][:MAX_NAME_CHARACTERS], ", ".join(get_args(ModelKind))
            raise BundleError(f"{role} has the unknown kind {found!r}; expected one of: {known}")
        if not isinstance(entry.get("words", ""), str):
            raise BundleError(f"{role}: 'words' is not a string; expected the name of a file")
        if entry["kind"] == "units" and entry.get("tokenizer") not in TOKENIZER_FILES:
            raise BundleError(f"{role}: 'tokenizer' is not one of {', '.join(TOKENIZER_FILES)}")
        if not isinstance(entry.get("backward", False), bool):
            raise BundleError(f"{role}: 'backward' is not a boolean; expected true or false")
        slots = entry.get("slots", [])
        if not isinstance(slots, list) or not all(isinstance(slot, str) for slot in slots):
            raise BundleError(f"{role}: 'slots' is not a list of strings; expected words of the model")
        if len(slots) > MAX_SLOTS:
            raise BundleError(f"{role}: {len(slots):,} slots; expected at most {MAX_SLOTS:,}")
        if slots and (entry["kind"] != "ngram" or entry.get("backward")):
            raise BundleError(f"{role}: has slots; expected them only of forward n-grams")
        for file in list_model_files(entry):
            check_name(file, role)
            if file not in manifest["files"]:
                raise BundleError(f"{role}: {file}: the manifest does not list it in 'files'")


def check_label(place: str, role: str, name: str) -> None:
    """Raise BundleError unless a name is printable, not empty and not too long."""
    if not 0 < len(name) <= MAX_NAME_CHARACTERS or not name.isprintable() or "/" in name:
        raise BundleError(
            f"{place}: {role} is {name[:MAX_NAME_CHARACTERS]!a}; expected 1 to {MAX_NAME_CHARACTERS} "
            "printable characters without '/'"
        )


def check_model_name(name: str, streams: Collection[str]) -> None:
    """Raise ConfigError unless a model, and its folder in the bundle, can have this name.

    Args:
        streams: score streams of the default weights. A model cannot have the name of a stream.
    """
    if len(name) > MAX_NAME_CHARACTERS or not re.fullmatch(r"\w[\w-]*", name):
        raise ConfigError(
            f"a model is named {quote(name)}; expected at most {MAX_NAME_CHARACTERS} letters, digits, '_' "
            "and '-'"
        )
    owner = "a score stream of the weights" if name in streams else RESERVED.get(name)
    if owner:
        raise ConfigError(f"a model is named {quote(name)}, which is {owner}; choose another name")


def _explain_missing(folder: Path) -> str:
    """Explain why a path is not a bundle, and suggest one that is."""
    if not folder.exists():
        return "no such bundle folder"
    if not folder.is_dir():
        return f"no such bundle folder: this is a file; expected the folder that contains {MANIFEST}"
    bundles = sorted(path.parent for path in folder.glob(f"*/*/{MANIFEST}"))
    hint = f"; {bundles[-1]} is one, and `rescorer serve --repository {folder}` serves all" if bundles else ""
    return f"not a bundle: it does not contain {MANIFEST}{hint}"


MAX_MESSAGE_CHARACTERS = 1000  # longest message about the content of a bundle's JSON files


def read_weights(folder: Folder, names: Mapping[str, str], known: KnownNames) -> dict[str, Weights]:
    """Read all sets of weights of a bundle, and check them against its models.

    Args:
        names: the file of each set, by the name of the set.

    Raises:
        BundleError: a weights set is invalid, or the set ``default`` is missing or has no mixture weights.
    """
    weights_by_name: dict[str, Weights] = {}
    for name, file in names.items():
        try:
            weights = parse_weights({"name": name, **folder.read_json(file)})
            check_weights(weights, known)
        except ConfigError as error:
            raise BundleError(f"{folder.path / file}: {shorten_message(error)}") from None
        weights_by_name[name] = weights
    if "default" not in weights_by_name:
        raise BundleError(f"{folder.path / WEIGHTS}: default.json is missing")
    if not weights_by_name["default"].mixture and set(known.models) - set(known.open_vocabulary):
        path = folder.path / WEIGHTS / "default.json"
        raise BundleError(f"{path}: no mixture weights; expected at least one")
    return weights_by_name


def shorten_message(error: Exception) -> str:
    """The message of an error, shortened to ``MAX_MESSAGE_CHARACTERS``."""
    text = str(error)
    return text if len(text) <= MAX_MESSAGE_CHARACTERS else f"{text[:MAX_MESSAGE_CHARACTERS]}…"


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
        for problem in _find_problems(reranker, files, manifest):
            raise BundleError(f"{files.path / RERANKERS / name / RERANKER_CONFIG_FILE}: {problem}")
        rerankers[name] = reranker
    return rerankers


def hash_used_models(reranker: Reranker, manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return a hash for each model whose scores or vocabulary a reranker uses, by the model's name.

    In the bundle that the reranker was trained with, the hashes equal ``Reranker.models``.
    """
    models = manifest["models"]
    used = set(reranker.needs)
    if MIXTURE in used:
        used |= {name for name, share in reranker.base.mixture.items() if share}
    if reranker.counts_unknown_words:
        used.add(first_ngram({name: entry["kind"] for name, entry in models.items()}))
    return {name: hash_model(manifest, name) for name in models if name in used}


def hash_model(manifest: Mapping[str, Any], name: str) -> str:
    """SHA-256, in hexadecimal, of the hashes of a model's files; the names of the files do not matter."""
    hashes = [manifest["files"][file] for file in list_model_files(manifest["models"][name])]
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def find_vector_size(decoder: Mapping[str, Any]) -> Any:
    """Length of the context vectors of a model in pieces of words, from the configuration of its decoder."""
    if "kind" not in decoder or decoder.get("projected"):  # a transformer, or what projects like one
        return decoder.get("embedding_size")
    return (decoder.get("blocks") or [decoder.get("hidden_size")])[-1]


def _find_problems(reranker: Reranker, files: SealedFolder, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield reasons why a reranker does not fit a bundle, such as other base weights, models or encoders."""
    models = list(manifest["models"])
    try:
        check_weights(reranker.base, KnownNames(models))
    except ConfigError as error:
        yield f"base: {shorten_message(error)}"
    for name in reranker.needs:
        if name in (WORDS, OOV, EMPTY) or name.startswith(RERANKER):
            yield f"a score is named {quote(name)}, which can be neither a stream nor a model"
    if MIXTURE in reranker.needs and not reranker.base.mixture:
        yield "the base weights have no λ, but the reranker uses the mixture"
    for name, digest in reranker.models.items():
        if name not in models:
            meant = did_you_mean(name, models)
            yield f"trained with the model {quote(name)}, but the bundle has {', '.join(models)}{meant}"
        elif digest != hash_model(manifest, name):
            yield (
                f"trained with another model {quote(name)} than this bundle has: its files have other "
                "hashes; train the reranker with this bundle"
            )
    for name in hash_used_models(reranker, manifest):
        if name not in reranker.models:
            yield f"'models' does not have {quote(name)}, whose scores it uses"
    if (encoder := reranker.encoder) is None:
        return
    networks = find_networks(manifest, "neural", "units")
    if encoder.model not in networks:
        known = ", ".join(networks) or "it has none"
        yield f"encodes words by {quote(encoder.model)}; expected a network of the bundle: {known}"
        return
    folder = files.subfolder(networks[encoder.model])
    if encoder.model in find_open(manifest):
        size = find_vector_size(folder.read_json(CONFIG_FILE).get("decoder", {}))
    else:
        size = read_config(folder).embedding_size
    if len(encoder.projection) != size:
        yield (
            f"projects context vectors of length {len(encoder.projection)}, but those of the model "
            f"{quote(encoder.model)} have the length {size}"
        )


@dataclass(frozen=True, slots=True)
class UnitFacts:
    """How a model in pieces of words reads texts, as far as its tokenizer and its limits are concerned."""

    folder: str
    """Its folder in the bundle."""
    text: str = "canonical"
    """Form of the texts; see ``units.files.TextForm``."""
    is_whole: bool = False
    """Whether texts are divided as a whole, because words by themselves are divided otherwise."""
    n_before: int = 1
    """Number of pieces before every text."""
    n_positions: int = 0
    """Largest number of pieces that it can read; 0: any number."""
    units: tuple[str, ...] = ()
    """Names of the pieces in the order of the model's numbers, if the tokenizer numbers them otherwise."""
    prompt: Mapping[str, Any] | None = None
    """What it reads before a sentence, see ``units.prompts.Prompt``; None: only the context."""

    @property
    def reads_previous(self) -> bool:
        """Whether it reads previous utterances."""
        return self.prompt is not None and self.prompt.get("max_units") != 0

    @property
    def unmixed(self) -> str:
        """The reason why the model is not mixed word by word with others; empty if it may be."""
        if self.text == "surface":
            return "which reads texts as they are written, and scores no words"
        return "whose tokenizer divides texts as a whole, so that it scores no words" if self.is_whole else ""


@dataclass(frozen=True)
class Bundle:
    """A verified bundle without its language models: names, normaliser, weights and rerankers."""

    files: Folder
    """The bundle's folder. It compares each file with its hash when the file is opened."""
    name: str
    version: int
    manifest: Mapping[str, Any]
    normaliser: Normaliser
    model_kinds: Mapping[str, ModelKind]
    """The kind of each language model, by its name."""
    weights: Mapping[str, Weights]
    """Sets of weights by name, including ``default``."""
    reads_previous: frozenset[str] = frozenset()
    """Names of the models that read the previous utterances: networks that carry their state across
    sentences, networks with topics, and models in pieces of words with a prompt for them."""
    remembers: frozenset[str] = frozenset()
    """Names of the networks that can have a neural cache: forward ones without topics."""
    units: Mapping[str, UnitFacts] = field(default_factory=dict)
    """How each model in pieces of words reads texts, by its name."""
    rerankers: Mapping[str, Reranker] = field(default_factory=dict)
    """Rerankers by name; weights can name them."""
    phrases: Mapping[str, PhraseSet] = field(default_factory=dict)
    """Lists of names and phrases, by the name under which requests ask for them."""
    imported: Mapping[str, ImportedModel] = field(default_factory=dict)
    """Models that are no part of the bundle's folder, but were added to it in memory, by name."""

    @property
    def folder(self) -> Path:
        return self.files.path

    @cached_property
    def text_normaliser(self) -> Normaliser:
        """The default normaliser for texts in the language of the bundle. Texts are compared, counted and
        written in its words, unless another normaliser is given.
        """
        return Normaliser(NormaliserSettings(language=self.normaliser.settings.language))

    @cached_property
    def label(self) -> str:
        """Name and version, ``name/version``."""
        return f"{self.name}/{self.version}"

    @cached_property
    def backward(self) -> frozenset[str]:
        """Names of the backward models, which read sentences from their last word to their first."""
        return find_backward(self.manifest)

    @cached_property
    def open_vocabulary(self) -> frozenset[str]:
        """Names of the models in pieces of words, to which no word is unknown."""
        return find_open(self.manifest)

    @cached_property
    def surface(self) -> frozenset[str]:
        """Names of the models in pieces of words that read texts as they are written."""
        return frozenset(name for name, facts in self.units.items() if facts.text == "surface")

    @cached_property
    def whole(self) -> frozenset[str]:
        """Names of the models that score whole texts only, and no words: those of ``surface``, and those
        whose tokenizer divides words otherwise than in their sentence."""
        return self.surface.union(name for name, facts in self.units.items() if facts.is_whole)

    @cached_property
    def unmixed(self) -> Mapping[str, str]:
        """Models that are not mixed word by word, each with the reason."""
        return {name: facts.unmixed for name, facts in self.units.items() if facts.unmixed}

    def describe_lengths(self) -> str:
        """Say how many pieces of words the models read, such as ``llm reads 512 pieces of words``."""
        limits = ((name, facts.n_positions) for name, facts in self.units.items() if facts.n_positions)
        return ", ".join(f"{name} reads {n_positions:,} pieces of words" for name, n_positions in limits)

    @cached_property
    def slots(self) -> Mapping[str, frozenset[str]]:
        """The slots of each n-gram that has some, words such as ``$name``; see ``rescorer.phrases``."""
        return find_slots(self.manifest)

    @cached_property
    def slot_words(self) -> frozenset[str]:
        """The slots of all n-grams."""
        return frozenset().union(*self.slots.values())

    @cached_property
    def known_names(self) -> KnownNames:
        """Names that weights can use."""
        return KnownNames(
            list(self.model_kinds),
            self.rerankers,
            self.backward,
            self.remembers,
            self.open_vocabulary,
            self.unmixed,
            self.imported,
        )

    @cached_property
    def ngram(self) -> str:
        """Name of the model whose vocabulary decides which words are unknown."""
        return first_ngram(self.model_kinds)


@dataclass(frozen=True, slots=True)
class AddedModel:
    """A model in pieces of words that is added to a bundle in memory."""

    folder: SealedFolder
    identity: ImportedModel


@dataclass(frozen=True, slots=True)
class Composition:
    """A bundle to which models are added in memory; its folder stays as it is."""

    models: Mapping[str, AddedModel]
    """The added models, by name."""
    base: Path | None = None
    """Folder of the bundle, or of its versions; None: there are no other models."""
    language: str = ""
    """Language of the normaliser without a bundle."""

    def read(self) -> Bundle:
        """Read the bundle, and add the models.

        Raises:
            BundleError: as in ``read_bundle``; or there are too many models.
            ConfigError: the name of a model is that of another one, or of something else in a bundle.
        """
        base = read_bundle(self.base) if self.base else self._empty()
        for name in self.models:
            check_model_name(name, {stream for one in base.weights.values() for stream in one.streams})
            if name in base.model_kinds:
                raise ConfigError(f"{base.label} has a model {quote(name)} already; choose another name")
        entries, files = dict(base.manifest["models"]), dict(base.manifest["files"])
        for name, model in self.models.items():
            hashes = model.folder.hashes
            tokenizer = next((file for file in TOKENIZER_FILES if file in hashes), None)
            entries[name] = {"kind": "units", "path": name, "tokenizer": tokenizer}
            files |= {f"{name}/{file}": digest for file, digest in hashes.items()}
            model.folder.verify()
        label = "+".join([base.name] * bool(self.base) + [*self.models])
        manifest = {**base.manifest, "schema": UNITS_SCHEMA, "models": entries, "files": files}
        _check_model_entries(base.label, manifest)
        joined = _JoinedFolder(base.files, {name: model.folder for name, model in self.models.items()})
        units = read_unit_facts(joined, manifest)
        return replace(
            base,
            files=joined,
            name=label,
            manifest={**manifest, "name": label},
            model_kinds={name: entry["kind"] for name, entry in entries.items()},
            reads_previous=base.reads_previous.union(_list_readers(units)),
            units=units,
            imported={name: model.identity for name, model in self.models.items()},
        )

    def _empty(self) -> Bundle:
        """A bundle without models, whose weights are yet to be chosen."""
        files = next(iter(self.models.values())).folder
        manifest = {"name": "", "version": 1, "models": {}, "files": {}}
        normaliser = Normaliser(NormaliserSettings(language=self.language))
        weights = {"default": Weights("default", lm={})}
        return Bundle(files, "", 1, manifest, normaliser, {}, weights)


BundleSource = Path | str | Composition
"""What ``read_bundle`` reads."""


class _JoinedFolder(Folder):
    """A folder in which some subfolders lie elsewhere."""

    def __init__(self, base: Folder, elsewhere: Mapping[str, Folder]) -> None:
        super().__init__(base.path)
        self._base, self._elsewhere = base, elsewhere

    def open(self, name: str) -> BufferedReader:
        first, _, rest = name.partition("/")
        return self._elsewhere[first].open(rest) if first in self._elsewhere else self._base.open(name)

    def subfolder(self, name: str) -> Folder:
        return self._elsewhere.get(name) or self._base.subfolder(name)


def read_bundle(folder: BundleSource) -> Bundle:
    """Read a bundle without its models, and verify all its files.

    Args:
        folder: a bundle, a folder of versions, of which the newest is read, or a bundle with added models.

    Raises:
        BundleError: a file is missing, was changed after publishing, is not a regular file inside the bundle,
            or does not fit the other files.
    """
    if isinstance(folder, Composition):
        return folder.read()
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
    normaliser = read_normaliser(folder / TEXT, files)
    if manifest["schema"] < required_schema(manifest, normaliser.settings.rules):
        schema = manifest["schema"]
        raise BundleError(
            f"{folder / TEXT}: rules {normaliser.settings.rules} need schema {TEXT_RULES_SCHEMA} in "
            f"{MANIFEST}, which has {schema}"
        )
    readers, remembers = _find_readers(files, manifest)
    slots = frozenset().union(*find_slots(manifest).values())
    units = read_unit_facts(files, manifest)
    unmixed = {name: facts.unmixed for name, facts in units.items() if facts.unmixed}
    known = KnownNames(list(kinds), rerankers, backward, remembers, find_open(manifest), unmixed)
    return Bundle(
        files=files,
        name=manifest["name"],
        version=manifest["version"],
        manifest=manifest,
        normaliser=normaliser,
        model_kinds=kinds,
        weights=read_weights(files, weights_files, known),
        reads_previous=readers.union(_list_readers(units)),
        remembers=remembers,
        units=units,
        rerankers=rerankers,
        phrases={
            name: _read_phrases(files, file, normaliser, slots)
            for name, file in list_phrase_files(manifest).items()
        },
    )


def _read_phrases(files: Folder, name: str, normaliser: Normaliser, slots: frozenset[str]) -> PhraseSet:
    """Read a list of phrases; raise BundleError if a phrase is invalid, or there are too many."""
    place = str(files.path / name)
    try:
        phrases = parse_phrase_file(files.read_bytes(name, MAX_PHRASE_FILE_BYTES), place)
        return compile_phrases(phrases, normaliser.normalise, slots)
    except FormatError as error:
        raise BundleError(str(error)) from None
    except LimitExceeded as error:
        raise BundleError(f"{place}: {error}") from None


def _find_readers(files: Folder, manifest: Mapping[str, Any]) -> tuple[frozenset[str], frozenset[str]]:
    """Find ``Bundle.reads_previous`` and ``Bundle.remembers`` in the configurations of the networks."""
    readers, remembers = set(), set()
    for name, path in find_networks(manifest, "neural").items():
        config = files.read_json(f"{path}/{CONFIG_FILE}")
        if config.get("carried") is True or config.get("topics"):
            readers.add(name)
        if not config.get("backward") and not config.get("topics"):
            remembers.add(name)
    return frozenset(readers), frozenset(remembers)


def _list_readers(units: Mapping[str, UnitFacts]) -> list[str]:
    """Names of the models in pieces of words that read previous utterances."""
    return [name for name, facts in units.items() if facts.reads_previous]


def read_unit_facts(files: Folder, manifest: Mapping[str, Any]) -> dict[str, UnitFacts]:
    """Read ``Bundle.units`` from the configurations of the models, which their own reader checks."""
    found = {}
    for name, folder in find_networks(manifest, "units").items():
        config = files.read_json(f"{folder}/{CONFIG_FILE}")
        decoder, start, units = config.get("decoder"), config.get("start"), config.get("units")
        n_positions = decoder.get("context_length", 0) if isinstance(decoder, dict) else 0
        if not isinstance(n_positions, int):
            place = files.path / folder / CONFIG_FILE
            raise BundleError(f"{place}: context_length is not a number; expected a whole number")
        found[name] = UnitFacts(
            folder,
            str(config.get("text", "canonical")),
            config.get("whole") is True,
            len(start) if isinstance(start, list) else 1,
            n_positions,
            tuple(map(str, units)) if isinstance(units, list) else (),
            prompt if isinstance(prompt := config.get("prompt"), dict) else None,
        )
    return found


def read_normaliser(path: Path, folder: Folder | None = None) -> Normaliser:
    """Create the normaliser that a settings file (``text.json``) describes.

    Args:
        folder: opens the file, such as a bundle's folder, which verifies it; None to read it without a check.

    Raises:
        BundleError: the file is not a JSON object, or a setting is unknown or invalid.
    """
    folder = folder or Folder(path.parent)
    try:
        return Normaliser(NormaliserSettings.from_dict(folder.read_json(path.name)))
    except ConfigError as error:
        raise BundleError(f"{path}: {shorten_message(error)}") from None


def publish(folder: Path, fill: Callable[[Path], dict[str, Any]]) -> None:
    """Write a bundle atomically: fill a temporary folder next to it, then rename that folder.

    If several processes write the same bundle at once, one publishes it, and the others fail. A killed
    process leaves a hidden folder, which is not taken for a version.

    Args:
        fill: writes every file into the given folder, and returns the manifest without the key ``files``.

    Raises:
        ConfigError: the folder exists, perhaps because another process has just published it.
    """
    if os.path.lexists(folder):
        raise ConfigError(f"{folder} exists, and bundles are immutable; choose another version")
    try:
        with new_folder(folder) as partial:
            manifest = fill(partial)
            rules = SealedFolder(partial).read_json(TEXT).get("rules", 1) if (partial / TEXT).exists() else 1
            schema = required_schema(manifest, rules)
            _write_manifest(partial, {"schema": schema, **manifest, "files": hash_files(partial)})
    except OSError:
        if not folder.exists():
            raise
        raise ConfigError(
            f"{folder} was written by another process meanwhile, and bundles are immutable; choose "
            "another version"
        ) from None


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder to fill. At the end it becomes ``folder``; after an error, nothing is left.

    Raises:
        OSError: a folder with files is there already, or cannot be written.
    """
    make_folder(folder.parent)
    partial = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}.partial")
    partial.mkdir()
    try:
        yield partial
        os.replace(partial, folder)  # never replaces a folder that has files
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def seal(folder: Path) -> list[str]:
    """Update the hashes in a bundle's manifest after files were added, or weights or phrases were edited.

    Returns:
        The names of the files whose entries were added, changed or removed.

    Raises:
        BundleError: the manifest cannot be read, a file is not a regular file inside the bundle, or a file
            other than weights and phrases is missing or has changed.
    """
    manifest = SealedFolder(folder).read_json(MANIFEST)
    listed = manifest.setdefault("files", {})
    if not isinstance(listed, dict):
        raise BundleError(f"{folder / MANIFEST}: 'files' is not an object; expected hashes by name")
    found = hash_files(folder)
    for name in listed:
        if not name.startswith((f"{WEIGHTS}/", f"{PHRASES}/")) and found.get(name) != listed[name]:
            problem = "has changed" if name in found else "is missing"
            raise BundleError(
                f"{folder / name}: {problem} since the bundle was published; publish it as a new version"
            )
    changed = sorted(name for name in {*listed, *found} if listed.get(name) != found.get(name))
    if changed:
        _write_manifest(folder, {**manifest, "files": found})
    return changed


def hash_files(folder: Path) -> dict[str, str]:
    """Hash every file below a folder except the manifest; raise BundleError if one is not a regular file."""
    files = SealedFolder(folder)
    hashes = {}
    for name in (name for name, _ in files.list_files() if name != MANIFEST):
        with files.open(name) as stream:
            hashes[name] = sha256(stream)
    return dict(sorted(hashes.items()))


def _write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    text = json.dumps(manifest, indent=2, ensure_ascii=False)
    partial = folder / f".{MANIFEST}.partial"
    partial.write_text(text + "\n", encoding="utf-8")
    os.replace(partial, folder / MANIFEST)
