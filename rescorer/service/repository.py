"""The model repository: find versions of bundles on disk, load, switch, drain and unload them.

A new version is loaded while the old one is in service. Then new requests use the new version, and the old
one is unloaded when the last request that uses it is answered. If a version cannot be used, it is refused
with the reason, and the previous version stays in service. A version that vanishes from the disk also stays
in service, unless the disk has another version of its model: only the setting ``models`` retires a model.
Everything here runs in the event loop, except for reading and loading.
"""

from __future__ import annotations

import asyncio
import math
import os
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from rescorer.errors import (
    BundleError,
    ModelNotFound,
    ModelRefused,
    RescorerError,
    ScoringError,
    Unavailable,
    quote,
)
from rescorer.extensions import make_ranker
from rescorer.models.arpa import has_arpa_header, read_arpa_counts
from rescorer.models.bundle import (
    MANIFEST,
    Bundle,
    list_phrase_files,
    list_weights_files,
    read_bundle,
    read_manifest,
)
from rescorer.models.network_files import SPECIAL_TOKENS, WEIGHTS_FILE, parameter_shapes, read_config
from rescorer.models.ngram_files import is_table_file, read_kenlm_header, read_table_header, read_words
from rescorer.safe_input import Folder, SealedFolder, read_tensor_header
from rescorer.scoring.ranker import ListRanker
from rescorer.service.workers.pool import WorkerPool

log = structlog.get_logger()

Fingerprint = tuple[tuple[str, int, int], ...]
"""Path, size and modification time of every file of a folder."""


NO_BUNDLES = (
    f"no bundles; expected folders NAME/VERSION with a {MANIFEST}, or the setting bundle for a single one"
)


class FoundVersion(NamedTuple):
    """A version on disk, valid or not."""

    name: str
    version: int
    folder: Path
    strict: bool = True
    """Whether the manifest must state the same name and version as the folders."""

    @property
    def label(self) -> str:
        return f"{self.name}/{self.version}"


class Discovery(NamedTuple):
    """The versions on disk, and the folders of models that cannot be listed."""

    versions: list[FoundVersion]
    unreadable: dict[str, str]
    """Why a model's folder cannot be listed, by the name of the model."""

    def why_missing(self, label: str) -> str:
        """Explain why a version is not among those on disk; empty if it is."""
        if any(version.label == label for version in self.versions):
            return ""
        return self.unreadable.get(label.split("/")[0]) or f"{label}: no such bundle folder"


def find_versions(folder: Path, single: bool) -> Discovery:
    """Find the versions in a folder; if the folder of one model cannot be listed, find those of the others.

    Args:
        single: whether the folder is one bundle, or holds the versions of one bundle.

    Raises:
        BundleError: the folder, or the manifest of a single bundle, cannot be read.
    """
    try:
        if not single:
            return _find_models(folder)
        is_bundle = (folder / MANIFEST).exists() or not folder.is_dir()
        found = [] if is_bundle else _versions_in(folder, folder.resolve().name)
    except OSError as error:
        raise BundleError(f"{folder}: cannot be read as a folder of bundles: {error.strerror}") from None
    if not found:
        manifest = read_manifest(folder)
        found = [FoundVersion(manifest["name"], manifest["version"], folder, strict=False)]
    return Discovery(found, {})


def _find_models(folder: Path) -> Discovery:
    """Find the versions of every model in a repository; raises OSError if the repository cannot be listed."""
    discovery = Discovery([], {})
    for path in sorted(folder.iterdir()):
        try:
            if stat.S_ISDIR(path.stat().st_mode):
                discovery.versions.extend(_versions_in(path, path.name))
        except FileNotFoundError:
            pass  # removed since it was listed, or a link that leads nowhere
        except OSError as error:
            discovery.unreadable[path.name] = f"{path}: cannot be listed: {error.strerror}"
    return discovery


def _versions_in(folder: Path, name: str) -> list[FoundVersion]:
    """Find the versions of a model: folders whose names are numbers. Hidden ones are still being written."""
    if name.startswith("."):
        return []
    numbers = [path for path in folder.iterdir() if path.name.isdecimal() and path.is_dir()]
    return [FoundVersion(name, int(path.name), path) for path in numbers]


def select_versions(found: Sequence[FoundVersion], models: Sequence[str]) -> dict[str, list[FoundVersion]]:
    """Return the versions to try for each model to serve, newest first.

    Args:
        models: ``name``, or ``name/version`` for that version only; empty: all names found.
    """
    newest_first = sorted(found, key=lambda version: -version.version)
    return {
        model: [version for version in newest_first if model in (version.name, version.label)]
        for model in models or sorted({version.name for version in found})
    }


def fingerprint(folder: Path) -> Fingerprint:
    """Fingerprint a folder, to detect changes.

    The fingerprint is partial if the folder is being removed, or has files that no bundle has.
    """
    seen: list[tuple[str, int, int]] = []
    with suppress(OSError, BundleError):
        for name, status in SealedFolder(folder).list_files():
            seen.append((name, status.st_size, status.st_mtime_ns))
    return tuple(seen)


WORD_BYTES = 200
"""Memory per word in Python's vocabularies and tables."""
NGRAM_BYTES = 32
"""Memory per n-gram of an ARPA file while its table is built."""
WEIGHT_BYTES = 4
"""Memory per weight: float32, whatever the type on disk."""


class ModelFacts(NamedTuple):
    """Metadata of one model. A number is 0 if the model's files do not state it."""

    name: str
    kind: str
    vocabulary_size: int
    """Known words, without sentence marks and ``<unk>``."""
    parameters: int
    """Weights of a network, or n-grams of an n-gram model."""
    memory_bytes: int
    """Estimated memory that the loaded model takes."""
    backward: bool = False
    """Whether the model reads sentences from their last words to their first ones."""


def read_model_facts(bundle: Bundle) -> list[ModelFacts]:
    """Read the metadata of every model of a bundle, before a worker builds anything from it.

    Raises:
        BundleError: a file cannot be read, or its sizes do not fit together.
    """
    readers = {"ngram": _read_ngram_facts, "neural": _read_network_facts, "units": _read_unit_facts}
    models = bundle.manifest["models"].items()
    facts = (readers[entry["kind"]](name, bundle.files, entry) for name, entry in models)
    return [model._replace(backward=model.name in bundle.backward) for model in facts]


def _read_network_facts(name: str, files: Folder, entry: Mapping[str, Any]) -> ModelFacts:
    """Read the network's configuration and derive the number of its parameters."""
    config = read_config(files.subfolder(entry["path"].rstrip("/")))
    shapes = parameter_shapes(config)
    parameters = sum(math.prod(shape) for shape in shapes.values())
    words = config.vocabulary_size - len(SPECIAL_TOKENS)
    return ModelFacts(name, "neural", words, parameters, parameters * WEIGHT_BYTES + words * WORD_BYTES)


def _read_unit_facts(name: str, files: Folder, entry: Mapping[str, Any]) -> ModelFacts:
    """Read the sizes of the tensors of a model in pieces of words, whose vocabulary is open."""
    folder = files.subfolder(entry["path"].rstrip("/"))
    with folder.open(WEIGHTS_FILE) as stream:
        tensors = read_tensor_header(stream)
    parameters = sum(math.prod(tensor.shape) for tensor in tensors.values())
    units = max((tensor.shape[0] for tensor in tensors.values() if tensor.shape), default=0)
    return ModelFacts(name, "units", 0, parameters, parameters * WEIGHT_BYTES + units * WORD_BYTES)


def _read_ngram_facts(name: str, files: Folder, entry: Mapping[str, Any]) -> ModelFacts:
    """Read the counts of a table or an ARPA file, or the size of a KenLM binary, which is memory-mapped."""
    with files.open(entry["path"]) as stream:
        if is_table_file(stream):
            header = read_table_header(stream)
            memory_bytes = header.file_bytes + header.n_words * WORD_BYTES
            return ModelFacts(name, "ngram", header.n_words, sum(header.counts), memory_bytes)
        if "words" not in entry or has_arpa_header(stream):
            counts = read_arpa_counts(stream)
            words, n_grams = max(0, counts[0] - len(SPECIAL_TOKENS)), sum(counts)
            return ModelFacts(name, "ngram", words, n_grams, n_grams * NGRAM_BYTES + words * WORD_BYTES)
        read_kenlm_header(stream)
        words = len(read_words(files, entry["words"]))
        size = os.fstat(stream.fileno()).st_size
        return ModelFacts(name, "ngram", words, 0, size + words * WORD_BYTES)


@dataclass(eq=False)
class Version:
    """One version of a bundle, loaded."""

    ranker: ListRanker
    """The bundle without the models themselves: normaliser, weights, names of models."""
    facts: list[ModelFacts]
    fingerprint: Fingerprint
    """Fingerprint of the folder when the version was read."""
    loaded_at: float = field(default_factory=time.time)
    """Unix time in seconds."""
    leases: int = 0
    retired: bool = False

    @property
    def bundle(self) -> Bundle:
        return self.ranker.bundle

    @property
    def label(self) -> str:
        return self.bundle.label

    @property
    def memory_bytes(self) -> int:
        return sum(model.memory_bytes for model in self.facts)


@dataclass
class Changes:
    """The labels of versions that a reload loaded, changed, retired or refused."""

    loaded: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    """Versions whose weights changed, and nothing else."""
    retired: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    """Why versions are refused, by label. Includes versions on disk that an earlier reload refused."""

    def __bool__(self) -> bool:
        return bool(self.loaded or self.changed or self.retired)


UNEXPECTED_ERROR = "unexpected error while loading; the server's log has the details"


class ModelRepository:
    """Bundles on disk, and their versions in service.

    Args:
        host: holds the models in memory.
        folder: the folder of several bundles, name/version/; if ``single``, of one bundle or its versions.
        models: models to serve, ``name`` or ``name/version``, the default first; empty: every name.
        max_bytes: limit for the estimated total memory of the loaded models; 0: no limit.
        dictionary: dictionary of pronunciations; None: the installed one.
        language: language of the texts that are compared; empty: that of each bundle.
    """

    def __init__(
        self,
        host: WorkerPool,
        folder: Path,
        *,
        single: bool,
        models: tuple[str, ...] = (),
        max_bytes: int = 0,
        dictionary: Path | None = None,
        language: str = "",
    ) -> None:
        self.host = host
        self._folder, self._single = folder, single
        self.models, self._max_bytes = models, max_bytes
        self._dictionary, self._language = dictionary, language
        self._serving: dict[str, Version] = {}  # by the model to serve, the default first
        self._loaded: dict[str, Version] = {}  # by label, including retired versions
        self._refused: dict[str, tuple[Fingerprint, RescorerError]] = {}  # by label
        self.missing: dict[str, str] = {}
        """Versions in service that could not be loaded again from the disk: the reason for each, by label."""
        self._awaited: set[str] = set()
        """Models to serve that the current reload has not loaded yet."""
        self._unreadable: dict[str, str] = {}
        """Why the folders of models cannot be listed, by model."""
        self._reload_lock = asyncio.Lock()
        self._unload_tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Load all models to serve.

        Raises:
            BundleError: a model cannot be served. A single error is raised unchanged; several are combined
                into one.
        """
        await self.reload()
        errors = {label: error for label, (_, error) in self._refused.items()}
        if self._serving and set(self.models) <= set(self._serving):
            return
        names = {*errors, *(label.split("/")[0] for label in errors)}
        missing = [model for model in self.models if model not in (*self._serving, *names)]
        if len(errors) == 1 and not missing:
            raise next(iter(errors.values()))
        reasons = [str(error) for error in errors.values()]
        reasons += [f"{self._folder}: has no bundle {model}" for model in missing]
        raise BundleError("; ".join(reasons) or f"{self._folder}: {NO_BUNDLES}")

    async def reload(self, *, again: bool = True) -> Changes:
        """Update the models in service to match the folder on disk.

        Args:
            again: whether to retry versions that were refused and have not changed since.
        """
        changes = Changes()
        async with self._reload_lock:
            try:
                found, unreadable = await asyncio.to_thread(find_versions, self._folder, self._single)
            except BundleError as error:
                if not self._serving:
                    raise
                changes.refused[""] = self.reason(error)
                self._record_missing(Discovery([], {}), self.reason(error))
                return changes
            if again:
                self._refused.clear()
            choice = select_versions(found, self.models)
            self._retire_deselected(choice, changes)  # makes room in memory for the others
            self._awaited = choice.keys() - self._serving.keys()
            try:
                for name, candidates in choice.items():
                    version = await self._load_first_usable(candidates, changes)
                    if version is not None:
                        self._switch(name, version, changes)
                    self._awaited.discard(name)
            finally:  # what was not reached is not being loaded any more
                self._awaited = set()
            self._retire_deselected(choice, changes)
            for label in self._refused.keys() - {version.label for version in found}:
                del self._refused[label]
            self._record_missing(Discovery(found, unreadable))
            self._unreadable = {name: self._hide_folder(reason) for name, reason in unreadable.items()}
            changes.refused |= self._unreadable
            changes.refused |= self.missing | self.refused
            return changes

    @contextmanager
    def lease(self, model: str = "") -> Iterator[ListRanker]:
        """Yield the ranker of the version that serves a request.

        The version stays loaded during the ``with`` block. To be used in the event loop only.

        Args:
            model: ``name``, ``name/version``, or empty for the default.

        Raises:
            ModelNotFound: the model is not served, or no model was named and there is no default.
            ModelRefused: the model cannot be loaded, or not any more after a worker was lost.
            Unavailable: it is not loaded yet.
        """
        version = self.version(model)
        if reason := self.host.why_lost(version.label):
            raise ModelRefused(
                f"model {quote(version.label)} cannot be loaded again: {self._hide_folder(reason)}"
            )
        version.leases += 1
        try:
            yield version.ranker
        finally:
            version.leases -= 1
            self.unload_if_unused(version)

    def version(self, model: str = "") -> Version:
        """Return the version that serves a request, as ``lease`` chooses it, without keeping it loaded."""
        if not self._serving:
            raise Unavailable("the models are being loaded")
        if model in self._serving:
            return self._serving[model]
        if not model and (self.models or len(self._serving) == 1):
            return next(iter(self._serving.values()))
        for version in self._serving.values():
            if model in (version.label, version.bundle.name):
                return version
        if model in self._awaited:
            raise Unavailable(f"model {quote(model)} is being loaded")
        for label, reason in (*self.refused.items(), *self._unreadable.items()):
            if model in (label, label.split("/")[0]):
                raise ModelRefused(f"model {quote(model)} cannot be loaded: {reason}")
        served = ", ".join(repr(version.label) for version in self._serving.values())
        verb = "is" if len(self._serving) == 1 else "are"
        problem = f"model {quote(model)} is not served"
        problem = problem if model else "no model is named, and there is no default"
        raise ModelNotFound(f"{problem}; {served} {verb}")

    @property
    def n_serving(self) -> int:
        """Number of models in service."""
        return len(self._serving)

    @property
    def versions(self) -> list[Version]:
        """The versions in memory, including retired ones that are still in use."""
        return list(self._loaded.values())

    @property
    def refused(self) -> dict[str, str]:
        """The reasons for refused versions, by label."""
        return {label: self.reason(error) for label, (_, error) in self._refused.items()}

    def is_default(self, version: Version) -> bool:
        return bool(self.models or len(self._serving) == 1) and next(iter(self._serving.values())) is version

    def reason(self, error: RescorerError) -> str:
        """Return the message of an error without the path of the repository on this machine."""
        return self._hide_folder(str(error))

    def _hide_folder(self, text: str) -> str:
        return text.replace(f"{self._folder}/", "").replace(str(self._folder), self._folder.name)

    def unload_if_unused(self, version: Version) -> None:
        """Unload a version if it is retired and no request uses it."""
        if version.retired and not version.leases and version.label in self._loaded:
            del self._loaded[version.label]
            task = asyncio.get_running_loop().create_task(self._unload(version))
            self._unload_tasks.add(task)
            task.add_done_callback(self._unload_tasks.discard)

    async def wait_for_unloads(self) -> None:
        """Wait until the memory of retired, unused versions is free."""
        await asyncio.gather(*self._unload_tasks)

    async def verify_unchanged(self, label: str) -> None:
        """Check that the disk still has the files from which a version in memory was loaded.

        Raises:
            BundleError: the disk has other files.
        """
        if version := self._loaded.get(label):
            _check_unchanged(await asyncio.to_thread(read_manifest, version.bundle.folder), version)

    async def _load_first_usable(
        self, candidates: Iterable[FoundVersion], changes: Changes
    ) -> Version | None:
        """Return the first usable candidate, and load it if it is new or changed; None: none is usable.

        A candidate in service is usable even if its files have changed and cannot be loaded.
        """
        for found in candidates:
            current = await asyncio.to_thread(fingerprint, found.folder)
            loaded = self._loaded.get(found.label)
            if loaded is not None and loaded.fingerprint == current:
                self._refused.pop(found.label, None)  # it was damaged and has been restored
                return loaded  # possibly a retired one that is still in use
            if self._refused.get(found.label, (None,))[0] != current:
                try:
                    return await self._load(found, current, loaded, changes)
                except RescorerError as error:
                    self._refuse(found, current, error)
                except Exception as bug:  # damaged files can cause any exception
                    log.error("model failed to load", model=found.label, exc_info=bug)
                    self._refuse(found, current, BundleError(f"{found.folder}: {UNEXPECTED_ERROR}"))
            if loaded is not None and not loaded.retired:
                return loaded
        return None

    async def _load(
        self, found: FoundVersion, current: Fingerprint, loaded: Version | None, changes: Changes
    ) -> Version:
        """Load a version, or update the weights of a loaded one.

        Raises:
            RescorerError: the version is unusable.
        """
        bundle = await asyncio.to_thread(read_bundle, found.folder)
        if found.strict and bundle.label != found.label:
            raise BundleError(f"{found.folder}: the manifest says {bundle.label}; expected {found.label}")
        if loaded is not None:
            _check_unchanged(bundle.manifest, loaded)
            loaded.ranker = make_ranker(bundle, self._dictionary, self._language)
            loaded.fingerprint = current
            changes.changed.append(bundle.label)
            return loaded
        facts = await asyncio.to_thread(read_model_facts, bundle)
        version = Version(make_ranker(bundle, self._dictionary, self._language), facts, current)
        await self.wait_for_unloads()
        taken = sum(other.memory_bytes for other in self._loaded.values())
        if self._max_bytes and taken + version.memory_bytes > self._max_bytes:
            raise BundleError(
                f"{found.folder}: needs {version.memory_bytes:,} bytes; {taken:,} of the {self._max_bytes:,} "
                "of max_model_bytes are taken"
            )
        began = time.perf_counter()
        await self.host.load(bundle.label, found.folder)
        version.loaded_at = time.time()
        self._loaded[bundle.label] = version
        changes.loaded.append(bundle.label)
        log.info("model loaded", model=bundle.label, load_ms=round((time.perf_counter() - began) * 1e3))
        return version

    def _refuse(self, found: FoundVersion, current: Fingerprint, error: RescorerError) -> None:
        self._refused[found.label] = current, error
        unexpected = error if isinstance(error, ScoringError) else None
        log.error("model refused", model=found.label, error=str(error), exc_info=unexpected)

    def _switch(self, name: str, version: Version, changes: Changes) -> None:
        """Let a version serve a model, instead of the version that has served this model so far."""
        old = self._serving.get(name)
        if version.retired:  # but still in memory
            changes.loaded.append(version.label)
        version.retired = False
        self._serving[name] = version
        self._retire_if_unused(old, changes)

    def _retire_deselected(self, choice: Collection[str], changes: Changes) -> None:
        """Retire the models that the setting ``models`` no longer names, and put the others in its order.

        Nothing is retired if none of the named models is in service: a mistake in the setting must not end
        the service.
        """
        selected = {name: self._serving[name] for name in choice if name in self._serving}
        deselected = {name: version for name, version in self._serving.items() if name not in selected}
        if not self.models or not selected:
            self._serving = selected | deselected
            return
        self._serving = selected
        for version in deselected.values():
            self._retire_if_unused(version, changes)

    def _record_missing(self, found: Discovery, reason: str = "") -> None:
        """Find the versions in service that could not be loaded again from the disk, and log changes.

        Args:
            reason: why the whole folder cannot be read; empty: the folder can be read.
        """
        before, self.missing = self.missing, {}
        for version in self._serving.values():
            label = version.label
            why = self.refused.get(label) or self._hide_folder(reason or found.why_missing(label))
            if why:
                self.missing[label] = why
                if label not in before:
                    log.error("model is missing on disk and still served", model=label, reason=why)
            elif label in before:
                log.info("model is back on disk", model=label)

    def _retire_if_unused(self, old: Version | None, changes: Changes) -> None:
        """Retire a version that no longer serves any model."""
        if old is None or old in self._serving.values():
            return
        old.retired = True
        changes.retired.append(old.label)
        log.info("model retired", model=old.label, in_use=old.leases)
        self.unload_if_unused(old)

    async def _unload(self, version: Version) -> None:
        await self.host.unload(version.label)
        log.info("model unloaded", model=version.label)


def _check_unchanged(manifest: Mapping[str, Any], version: Version) -> None:
    """Raise BundleError if a manifest on disk names other files than those of the loaded version."""
    if _model_files(manifest) != _model_files(version.bundle.manifest):
        raise BundleError(f"{version.bundle.folder}: changed in place; publish it as a new version")


def _model_files(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the hashes of the files that may not change while a version is loaded, by name.

    These are all files but weights and phrases.
    """
    others = {*list_weights_files(manifest).values(), *list_phrase_files(manifest).values()}
    return {name: digest for name, digest in manifest["files"].items() if name not in others}
