"""Hold the models of a worker in memory: load and warm bundles, score tries with them, unload them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from rescorer.errors import BundleError, Unavailable
from rescorer.lm.base import EdgeScores
from rescorer.lm.contexts.context_stats import ContextWords
from rescorer.lm.malloc import release_freed_memory
from rescorer.lm.threads import use_threads
from rescorer.runtime.profiling import Stopwatch
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

    def load(self, label: str, folder: Path) -> int:
        """Load and warm a bundle, make it available under its label, and return the id of the process.

        Raises:
            BundleError: If the bundle cannot be used.
            ConfigError: If this machine does not have the device.
            ScoringError: If the models give scores that are not finite.
        """
        use_threads(self._threads)
        try:
            scorer = self._load(folder, self._device)
        except OSError as error:  # such as EIO; the disk may recover
            reason = os.strerror(error.errno) if error.errno else "input/output error"
            raise BundleError(f"{folder}: cannot be read: {reason}") from None
        scorer.score(WARM_UP)
        self._scorers[label] = scorer
        release_freed_memory()
        return os.getpid()

    def unload(self, label: str) -> None:
        self._scorers.pop(label, None)
        release_freed_memory()

    def score_and_measure(
        self, label: str, trie: HypothesisTrie, only: Sequence[str] = (), encode: Sequence[str] = ()
    ) -> WorkerScores:
        """Score a trie like ``score``, and measure the time and memory that this took."""
        stopwatch, context_words = Stopwatch(), ContextWords()
        with stopwatch.running(), context_words.counting():
            scores = self.score(label, trie, only, encode)
        return WorkerScores(scores, seconds_of(stopwatch), context_words, self.device_bytes())

    def device_bytes(self) -> dict[str, int]:
        """Memory on a GPU in bytes, by kind; empty on a CPU."""
        if self._device == "cpu":
            return {}
        from rescorer.lm.device import memory_bytes

        return memory_bytes(self._device)

    def score(
        self, label: str, trie: HypothesisTrie, only: Sequence[str] = (), encode: Sequence[str] = ()
    ) -> dict[str, EdgeScores]:
        """Score the edges of a trie with the models of a bundle.

        Args:
            only: names of the models to score with; empty: all models.
            encode: names of the rerankers of the bundle for which words are encoded.

        Raises:
            ScoringError: If a score is not finite.
            Unavailable: If the bundle is not loaded.
        """
        scorer = self._scorers.get(label)
        if scorer is None:
            raise Unavailable(f"{label} is not loaded")
        return scorer.score(trie, only, {name: scorer.encoders[name] for name in encode})

    def probe(self) -> None:
        """Score a tiny trie with every model; raises the error of a device that no longer works."""
        for scorer in list(self._scorers.values()):
            scorer.score(WARM_UP)
