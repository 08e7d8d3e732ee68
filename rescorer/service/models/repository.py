"""Owns which versions of which bundles serve: finds them on disk, has them loaded, switches, drains, drops.

A version is loaded beside the one that serves; requests go to it from one moment to the next; the old one is
dropped when the last request that began with it is answered. What cannot be used is refused with its reason,
and what served goes on serving. Everything here runs in the event loop, only reading and loading does not.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import structlog

from rescorer.bundle import Bundle, read_bundle
from rescorer.errors import BundleError, ModelNotFound, RescorerError, Unavailable
from rescorer.list_ranker import ListRanker
from rescorer.service.models.discovery import NO_BUNDLES, Found, Print, find, fingerprint, wanted
from rescorer.service.models.metadata import ModelFacts, model_facts

log = structlog.get_logger()


class Host(Protocol):
    """Whoever has the models in memory."""

    async def load(self, label: str, folder: Path) -> None:
        """Loads and warms a bundle, to be asked under its label; raises where that is not possible."""

    async def unload(self, label: str) -> None:
        """Frees its memory."""


@dataclass(eq=False)
class Version:
    """One version of a bundle, loaded."""

    ranker: ListRanker
    """Stands for the bundle where it is not in memory: normaliser, weights, names of models."""
    facts: list[ModelFacts]
    printed: Print
    """What its folder looked like when it was read."""
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
        return sum(each.memory_bytes for each in self.facts)


class Lease:
    """Keeps a version loaded while it is in use: ``with repository.lease("name") as ranker: …``.

    Taken and released in the event loop.
    """

    def __init__(self, repository: ModelRepository, version: Version) -> None:
        self._repository, self._version = repository, version
        self.ranker = version.ranker
        version.leases += 1

    def __enter__(self) -> ListRanker:
        return self.ranker

    def __exit__(self, *exc_info: object) -> None:
        self._version.leases -= 1
        self._repository.dropped(self._version)


@dataclass
class Changes:
    """What a look at the disk has led to; labels."""

    loaded: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    """Their weights only."""
    retired: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    """Why, by label; also what an earlier look refused and is still there."""

    def __bool__(self) -> bool:
        return bool(self.loaded or self.changed or self.retired)


class ModelRepository:
    """Bundles on disk, and those of their versions that serve.

    Args:
        folder: of several bundles, name/version/; or where ``single``, of one bundle or its versions.
        models: what to serve, ``name`` or ``name/version``, the default first; empty: every name.
        max_bytes: memory for all of them, as estimated; 0: no bound.
    """

    def __init__(
        self, host: Host, folder: Path, *, single: bool, models: tuple[str, ...] = (), max_bytes: int = 0
    ) -> None:
        self._host = host
        self._folder, self._single = folder, single
        self.models = models
        self._max_bytes = max_bytes
        self._serving: dict[str, Version] = {}  # by what is wanted, the default first
        self._loaded: dict[str, Version] = {}  # by label, retired ones among them
        self._refused: dict[str, tuple[Print, RescorerError]] = {}  # by label
        self._looking = asyncio.Lock()
        self._dropping: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Loads what is to be served, all of it; raises BundleError, or whatever else is the one reason."""
        await self.reload()
        faults = {label: fault for label, (_, fault) in self._refused.items()}
        if self._serving and set(self.models) <= set(self._serving):
            return
        names = {*faults, *(label.split("/")[0] for label in faults)}
        absent = [each for each in self.models if each not in (*self._serving, *names)]
        if len(faults) == 1 and not absent:
            raise next(iter(faults.values()))
        reasons = [str(fault) for fault in faults.values()]
        reasons += [f"{self._folder}: has no bundle {each}" for each in absent]
        raise BundleError("; ".join(reasons) or f"{self._folder}: {NO_BUNDLES}")

    async def reload(self, *, again: bool = True) -> Changes:
        """Serves what the disk has now.

        Args:
            again: also tries what was refused and has not changed since.
        """
        async with self._looking:
            changes = Changes()
            try:
                found = await asyncio.to_thread(find, self._folder, self._single)
            except BundleError as fault:
                if not self._serving:
                    raise
                changes.refused[""] = self.reason(fault)
                return changes
            if again:
                self._refused.clear()
            choice = wanted(found, self.models)
            for name in [each for each in self._serving if each not in choice]:
                self._switch(name, None, changes)
            for name, candidates in choice.items():
                version = await self._best(candidates, changes)
                if version is not None:
                    self._switch(name, version, changes)
            self._serving = {name: self._serving[name] for name in choice if name in self._serving}
            labels = {each.label for each in found}
            self._refused = {label: each for label, each in self._refused.items() if label in labels}
            changes.refused |= {label: self.reason(fault) for label, (_, fault) in self._refused.items()}
            return changes

    def lease(self, model: str = "") -> Lease:
        """The version that serves a request.

        Args:
            model: ``name``, ``name/version``, or empty for the default.

        Raises:
            ModelNotFound: it is not served, or none was named and there is no default.
            Unavailable: nothing is loaded yet.
        """
        return Lease(self, self.version(model))

    def version(self, model: str = "") -> Version:
        """As ``lease``, to look at and not to keep."""
        if not self._serving:
            raise Unavailable("the models are being loaded")
        if model in self._serving:
            return self._serving[model]
        if not model and (self.models or len(self._serving) == 1):
            return next(iter(self._serving.values()))
        for each in self._serving.values():
            if model in (each.label, each.bundle.name):
                return each
        served = ", ".join(repr(each.label) for each in self._serving.values())
        verb = "is" if len(self._serving) == 1 else "are"
        told = f"model {model!r} is not served" if model else "no model is named, and there is no default"
        raise ModelNotFound(f"{told}; {served} {verb}")

    @property
    def versions(self) -> list[Version]:
        """What is in memory, retired versions that are still in use among them."""
        return list(self._loaded.values())

    @property
    def refused(self) -> dict[str, str]:
        """Why, by label."""
        return {label: self.reason(fault) for label, (_, fault) in self._refused.items()}

    def is_default(self, version: Version) -> bool:
        return bool(self.models or len(self._serving) == 1) and next(iter(self._serving.values())) is version

    def reason(self, fault: RescorerError) -> str:
        """What is wrong, without where on this machine the bundles are."""
        return str(fault).replace(f"{self._folder}/", "").replace(str(self._folder), self._folder.name)

    def dropped(self, version: Version) -> None:
        """Somebody no longer uses a version."""
        if version.retired and not version.leases and version.label in self._loaded:
            del self._loaded[version.label]
            task = asyncio.get_running_loop().create_task(self._drop(version))
            self._dropping.add(task)
            task.add_done_callback(self._dropping.discard)

    async def _best(self, candidates: Iterable[Found], changes: Changes) -> Version | None:
        """The first that can be used, loaded; None where none can be, or its name has nothing new."""
        for found in candidates:
            printed = await asyncio.to_thread(fingerprint, found.folder)
            have = self._loaded.get(found.label)
            if have is not None and have.printed == printed:
                return have  # also one that was retired and is still in use
            if self._refused.get(found.label, (None,))[0] != printed:
                try:
                    return await self._usable(found, printed, have, changes)
                except RescorerError as fault:
                    self._refuse(found, printed, fault)
                except Exception as bug:  # whatever a damaged file leads to
                    log.error("model failed to load", model=found.label, exc_info=bug)
                    self._refuse(found, printed, BundleError(f"{found.folder}: {type(bug).__name__}: {bug}"))
            if have is not None and not have.retired:
                return have
        return None

    async def _usable(self, found: Found, printed: Print, have: Version | None, changes: Changes) -> Version:
        bundle = await asyncio.to_thread(read_bundle, found.folder)
        if found.strict and bundle.label != found.label:
            raise BundleError(f"{found.folder}: the manifest says {bundle.label}; expected {found.label}")
        if have is not None:
            if bundle.manifest["files"] != have.bundle.manifest["files"]:
                raise BundleError(f"{found.folder}: changed in place; publish it as a new version")
            have.ranker, have.printed = ListRanker(bundle), printed
            changes.changed.append(bundle.label)
            return have
        facts = await asyncio.to_thread(model_facts, found.folder, bundle.manifest)
        version = Version(ListRanker(bundle), facts, printed)
        await asyncio.gather(*self._dropping)  # their memory is free then
        self._check_room(version, found)
        began = time.perf_counter()
        await self._host.load(bundle.label, found.folder)
        version.loaded_at = time.time()
        self._loaded[bundle.label] = version
        changes.loaded.append(bundle.label)
        log.info("model loaded", model=bundle.label, load_ms=round((time.perf_counter() - began) * 1e3))
        return version

    def _check_room(self, version: Version, found: Found) -> None:
        taken = sum(each.memory_bytes for each in self._loaded.values())
        if self._max_bytes and taken + version.memory_bytes > self._max_bytes:
            raise BundleError(
                f"{found.folder}: needs {version.memory_bytes:,} bytes; {taken:,} of the {self._max_bytes:,} "
                "of max_model_bytes are taken"
            )

    def _refuse(self, found: Found, printed: Print, fault: RescorerError) -> None:
        self._refused[found.label] = printed, fault
        log.error("model refused", model=found.label, fault=str(fault))

    def _switch(self, name: str, version: Version | None, changes: Changes) -> None:
        old = self._serving.pop(name, None)
        if version is not None:
            if version.retired:  # and still in memory
                changes.loaded.append(version.label)
            version.retired = False
            self._serving[name] = version
        if old is None or old in self._serving.values():
            return
        old.retired = True
        changes.retired.append(old.label)
        log.info("model retired", model=old.label, in_use=old.leases)
        self.dropped(old)

    async def _drop(self, version: Version) -> None:
        await self._host.unload(version.label)
        log.info("model dropped", model=version.label)
