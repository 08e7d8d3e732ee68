"""Hold the models of a worker in memory: load and warm bundles, score tries with them, unload them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rescorer.errors import BundleError, Unavailable
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
"""Loads a bundle's models; takes the arguments of ``TrieScorer.load``."""

WARM_UP = build_trie([("warm", "up"), ()])


class ModelHost:
    """Models of several bundles on one device.

    Args:
        device: torch device, such as "cpu" or "cuda:0".
        threads: number of threads of the neural models; 0: the default of torch.
        load: loads a bundle's models.
    """

    def __init__(self, device: str, threads: int, load: LoadScorer = TrieScorer.load) -> None:
        self._device, self._threads = device, threads
        self._load = load
        self._scorers: dict[str, TrieScorer] = {}

    def load(self, label: str, folder: Path) -> None:
        """Load and warm a bundle, and make it available under its label.

        Raises:
            BundleError: If the bundle cannot be used.
            ConfigError: If this machine does not have the device.
            ScoringError: If the models give scores that are not finite.
        """
        try:
            scorer = self._load(folder, self._device)
        except OSError as error:  # such as EIO; the disk may recover
            raise BundleError(f"{folder}: cannot be read: {error.strerror}") from None
        if not all(isinstance(model, NgramModel) for model in scorer.models.values()):
            from rescorer.lm.device import use_threads  # imports torch, which n-gram models do not need

            use_threads(self._threads)
        scorer.score(WARM_UP)
        self._scorers[label] = scorer
        release_freed_memory()

    def unload(self, label: str) -> None:
        self._scorers.pop(label, None)
        release_freed_memory()

    def score_and_measure(self, label: str, trie: HypothesisTrie, only: Sequence[str] = ()) -> WorkerScores:
        """Score a trie like ``score``, and measure the time and memory that this took."""
        stopwatch, context_words = Stopwatch(), ContextWords()
        with stopwatch.running(), context_words.counting():
            scores = self.score(label, trie, only)
        return WorkerScores(scores, seconds_of(stopwatch), context_words, self.device_bytes())

    def device_bytes(self) -> dict[str, int]:
        """Memory on a GPU in bytes, by kind; empty on a CPU."""
        if self._device == "cpu":
            return {}
        from rescorer.lm.device import memory_bytes

        return memory_bytes(self._device)

    def score(self, label: str, trie: HypothesisTrie, only: Sequence[str] = ()) -> dict[str, EdgeScores]:
        """Score the edges of a trie with the models of a bundle.

        Args:
            only: names of the models to score with; empty: all models.

        Raises:
            ScoringError: If a score is not finite.
            Unavailable: If the bundle is not loaded.
        """
        scorer = self._scorers.get(label)
        if scorer is None:
            raise Unavailable(f"{label} is not loaded")
        return scorer.score(trie, only)

    def probe(self) -> None:
        """Score a tiny trie with every model; raises the error of a device that no longer works."""
        for scorer in list(self._scorers.values()):
            scorer.score(WARM_UP)


class SharedModelHost:
    """A host for several tenants, whose requests are served in the order of their arrival.

    A bundle is in memory once, and stays there while any tenant has it loaded.

    Args:
        on_first_score: called once, after the first scored trie.
    """

    def __init__(self, host: ModelHost, on_first_score: Callable[[], None] = lambda: None) -> None:
        self._host, self._on_first_score = host, on_first_score
        self._has_scored = False
        self._tenants: dict[str, set[Tenant]] = {}  # the tenants that have a bundle loaded, by label
        self._changing = threading.Lock()
        self._scoring = ThreadPoolExecutor(1, "scoring")  # the only thread that uses the models

    @property
    def labels(self) -> set[str]:
        """Labels of the bundles in memory."""
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
                self._scoring.submit(self._host.unload, label).result()

    def score_and_measure(self, label: str, trie: HypothesisTrie, only: Sequence[str]) -> WorkerScores:
        result = self._scoring.submit(self._host.score_and_measure, label, trie, only).result()
        if not self._has_scored:
            self._has_scored = True
            self._on_first_score()
        return result

    def probe(self) -> None:
        self._scoring.submit(self._host.probe).result()


class Tenant:
    """One front end's view of a shared host: the methods of a ``ModelHost``, with its own set of bundles."""

    def __init__(self, shared: SharedModelHost) -> None:
        self._shared = shared

    def load(self, label: str, folder: Path) -> None:
        """Load a bundle like ``ModelHost.load``; return at once if another tenant has it loaded."""
        self._shared.load(self, label, folder)

    def unload(self, label: str) -> None:
        self._shared.unload(self, label)

    def score_and_measure(self, label: str, trie: HypothesisTrie, only: Sequence[str] = ()) -> WorkerScores:
        return self._shared.score_and_measure(label, trie, only)

    def probe(self) -> None:
        self._shared.probe()

    def unload_all(self) -> None:
        """Unload all bundles of this tenant."""
        for label in self._shared.labels:
            self.unload(label)
