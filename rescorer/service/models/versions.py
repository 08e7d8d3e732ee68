"""The versions in memory, the leases that keep them there, and what a reload changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rescorer.bundle import Bundle
from rescorer.scoring.ranker import ListRanker
from rescorer.service.models.discovery import Fingerprint
from rescorer.service.models.metadata import ModelFacts


@dataclass(eq=False)
class Version:
    """One version of a bundle, loaded."""

    ranker: ListRanker
    """The parts of the bundle other than the models themselves: normaliser, weights, names of models."""
    facts: list[ModelFacts]
    fingerprint: Fingerprint
    """Fingerprint of its folder when it was read."""
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


class Lease:
    """Keep a version loaded while it is in use: ``with repository.lease("name") as ranker: …``.

    Used in the event loop only.

    Args:
        on_end: called with the version when this lease ends.
    """

    def __init__(self, version: Version, on_end: Callable[[Version], None]) -> None:
        self._version, self._on_end = version, on_end
        self.ranker = version.ranker
        version.leases += 1

    def __enter__(self) -> ListRanker:
        return self.ranker

    def __exit__(self, *exc_info: object) -> None:
        self._version.leases -= 1
        self._on_end(self._version)


@dataclass
class Changes:
    """The labels of versions that a reload loaded, changed, retired or refused."""

    loaded: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    """Versions of which only the weights changed."""
    retired: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    """Reasons for refusals by label, including versions that an earlier reload refused and that still
    exist."""

    def __bool__(self) -> bool:
        return bool(self.loaded or self.changed or self.retired)
