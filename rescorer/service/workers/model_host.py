"""Owns the models in the memory of a process that scores: by label, loaded, warmed, asked and dropped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rescorer.errors import Unavailable
from rescorer.lm.base import EdgeScores
from rescorer.lm.context_stats import ContextWords
from rescorer.lm.malloc import release_freed_memory
from rescorer.lm.ngram import NgramModel
from rescorer.profiling import Stopwatch
from rescorer.service.observability.timings import seconds_of
from rescorer.service.workers.worker import WorkerScores
from rescorer.trie import HypothesisTrie, build_trie
from rescorer.trie_scorer import TrieScorer

LoadScorer = Callable[..., TrieScorer]
"""Load a bundle's models: takes the arguments of ``TrieScorer.load``."""

WARM_UP = build_trie([("warm", "up"), ()])


class ModelHost:
    """Models of several bundles on one device.

    Args:
        device: as torch calls it.
        threads: of the neural models; 0: torch's own choice.
        load: loads a bundle's models.
    """

    def __init__(self, device: str, threads: int, load: LoadScorer = TrieScorer.load) -> None:
        self._device, self._threads = device, threads
        self._load = load
        self._scorers: dict[str, TrieScorer] = {}

    def load(self, label: str, folder: Path) -> None:
        """Loads and warms a bundle; from then on it can be asked under its label.

        Raises:
            BundleError: it is unusable.
            ConfigError: the device is not here.
            ScoringError: it gives scores that are not finite.
        """
        scorer = self._load(folder, self._device)
        if not all(isinstance(model, NgramModel) for model in scorer.models.values()):
            from rescorer.lm.device import use_threads  # torch, which n-grams do not wait for

            use_threads(self._threads)
        scorer.score(WARM_UP)
        self._scorers[label] = scorer
        release_freed_memory()

    def unload(self, label: str) -> None:
        self._scorers.pop(label, None)
        release_freed_memory()

    def measured(self, label: str, trie: HypothesisTrie, only: Sequence[str] = ()) -> WorkerScores:
        """As ``score``, with what it took."""
        stopwatch, context_words = Stopwatch(), ContextWords()
        with stopwatch.running(), context_words.counting():
            scores = self.score(label, trie, only)
        return WorkerScores(scores, seconds_of(stopwatch), context_words, self.device_bytes())

    def device_bytes(self) -> dict[str, int]:
        """As of ``WorkerScores``."""
        if self._device == "cpu":
            return {}
        from rescorer.lm.device import memory_bytes

        return memory_bytes(self._device)

    def score(self, label: str, trie: HypothesisTrie, only: Sequence[str] = ()) -> dict[str, EdgeScores]:
        """Scores of a trie's edges by the models of a bundle, or by some of them.

        Raises:
            ScoringError: a score is not finite.
            Unavailable: the bundle is not loaded.
        """
        scorer = self._scorers.get(label)
        if scorer is None:
            raise Unavailable(f"{label} is not loaded")
        return scorer.score(trie, only)

    def probe(self) -> None:
        """Raises whatever is raised where the device no longer works."""
        for scorer in list(self._scorers.values()):
            scorer.score(WARM_UP)


class SharedModelHost:
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

    def measured(self, label: str, trie: HypothesisTrie, only: Sequence[str]) -> WorkerScores:
        scored = self.turn.submit(self._host.measured, label, trie, only).result()
        if not self._has_worked:
            self._has_worked = True
            self._works()
        return scored

    def probe(self) -> None:
        self.turn.submit(self._host.probe).result()


class Tenant:
    """What one front sees of a shared host: the methods of a ``ModelHost``, with bundles of its own."""

    def __init__(self, shared: SharedModelHost) -> None:
        self._shared = shared

    def load(self, label: str, folder: Path) -> None:
        """As ``ModelHost.load``; a bundle that another tenant has is there at once."""
        self._shared.load(self, label, folder)

    def unload(self, label: str) -> None:
        self._shared.unload(self, label)

    def measured(self, label: str, trie: HypothesisTrie, only: Sequence[str] = ()) -> WorkerScores:
        return self._shared.measured(label, trie, only)

    def probe(self) -> None:
        self._shared.probe()

    def leave(self) -> None:
        """Unloads all that it has."""
        for label in self._shared.labels:
            self.unload(label)
