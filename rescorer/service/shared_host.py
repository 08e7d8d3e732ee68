"""Owns the models of a process that scores for several fronts: loaded once, asked in turn, dropped at last.

What each front has loaded is counted: a bundle that any of them has is there for the next one at once, and is
dropped when the last one has unloaded it or is gone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rescorer.service.model_host import ModelHost, Scored
from rescorer.trie import HypothesisTrie


class SharedHost:
    """A host for several tenants; who asks first is answered first, whoever it is.

    Args:
        works: called once, when it has scored something.
    """

    def __init__(self, host: ModelHost, works: Callable[[], None] = lambda: None) -> None:
        self._host, self._works = host, works
        self._has_worked = False
        self._tenants: dict[str, set[Tenant]] = {}  # by label, those that have it loaded
        self._changing = threading.Lock()
        self.turn = ThreadPoolExecutor(1, "scoring")
        """Of whatever asks the models."""

    @property
    def labels(self) -> set[str]:
        """Of bundles in memory."""
        return set(self._tenants)

    def load(self, tenant: Tenant, label: str, folder: Path) -> None:
        with self._changing:
            if label not in self._tenants:
                self._host.load(label, folder)
            self._tenants.setdefault(label, set()).add(tenant)

    def unload(self, tenant: Tenant, label: str) -> None:
        with self._changing:
            tenants = self._tenants.get(label, set())
            tenants.discard(tenant)
            if not tenants and self._tenants.pop(label, None) is not None:
                self.turn.submit(self._host.unload, label).result()

    def measured(self, label: str, trie: HypothesisTrie, only: Sequence[str]) -> Scored:
        scored = self.turn.submit(self._host.measured, label, trie, only).result()
        if not self._has_worked:
            self._has_worked = True
            self._works()
        return scored

    def probe(self) -> None:
        self.turn.submit(self._host.probe).result()


class Tenant:
    """What one front sees of a shared host: the methods of a ``ModelHost``, with bundles of its own."""

    def __init__(self, shared: SharedHost) -> None:
        self._shared = shared

    def load(self, label: str, folder: Path) -> None:
        """As ``ModelHost.load``; a bundle that another tenant has is there at once."""
        self._shared.load(self, label, folder)

    def unload(self, label: str) -> None:
        self._shared.unload(self, label)

    def measured(self, label: str, trie: HypothesisTrie, only: Sequence[str] = ()) -> Scored:
        return self._shared.measured(label, trie, only)

    def probe(self) -> None:
        self._shared.probe()

    def leave(self) -> None:
        """Unloads all that it has."""
        for label in self._shared.labels:
            self.unload(label)
