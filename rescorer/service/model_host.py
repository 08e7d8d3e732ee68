"""Owns the models in the memory of a process that scores: by label, loaded, warmed, asked and dropped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rescorer.bundle import is_ngram
from rescorer.errors import Unavailable
from rescorer.lm.base import EdgeScores
from rescorer.lm.context_stats import ContextWords
from rescorer.lm.malloc import give_back_freed_memory
from rescorer.pipeline import Rescorer
from rescorer.profiling import Stopwatch
from rescorer.service.laps import seconds_of
from rescorer.trie import HypothesisTrie, build_trie

Load = Callable[..., Rescorer]
"""Of a bundle's folder, a device, and by name the dtype and the memory for contexts; as ``Rescorer.load``."""

WARM_UP = build_trie([("warm", "up"), ()])


class Scored(NamedTuple):
    """A model's edge scores by name, and what they took."""

    scores: Mapping[str, EdgeScores]
    seconds: Mapping[str, float]
    """By phase. A GPU's work is counted where it is waited for."""
    context_words: ContextWords
    device_bytes: Mapping[str, int]
    """Memory of a GPU, by kind; empty on a CPU."""


class ModelHost:
    """Models of several bundles on one device.

    Args:
        device: as torch calls it.
        threads: of the neural models; 0: torch's own choice.
        load: makes a rescorer.
    """

    def __init__(self, device: str, threads: int, load: Load = Rescorer.load) -> None:
        self._device, self._threads = device, threads
        self._load = load
        self._rescorers: dict[str, Rescorer] = {}

    def load(self, label: str, folder: Path) -> None:
        """Loads and warms a bundle; from then on it can be asked under its label.

        Raises:
            BundleError: it is unusable.
            ConfigError: the device is not here.
            ScoringError: it gives scores that are not finite.
        """
        rescorer = self._load(folder, self._device)
        if not all(is_ngram(model) for model in rescorer.bundle.models.values()):
            from rescorer.lm.device import use_threads  # torch, which n-grams do not wait for

            use_threads(self._threads)
        rescorer.edge_scores(WARM_UP)
        self._rescorers[label] = rescorer
        give_back_freed_memory()

    def unload(self, label: str) -> None:
        self._rescorers.pop(label, None)
        give_back_freed_memory()

    def measured(self, label: str, trie: HypothesisTrie, only: Sequence[str] = ()) -> Scored:
        """As ``score``, with what it took."""
        stopwatch, context_words = Stopwatch(), ContextWords()
        with stopwatch.running(), context_words.counting():
            scores = self.score(label, trie, only)
        return Scored(scores, seconds_of(stopwatch), context_words, self.device_bytes())

    def device_bytes(self) -> dict[str, int]:
        """As of ``Scored``."""
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
        rescorer = self._rescorers.get(label)
        if rescorer is None:
            raise Unavailable(f"{label} is not loaded")
        return rescorer.edge_scores(trie, only)

    def probe(self) -> None:
        """Raises whatever is raised where the device no longer works."""
        for rescorer in list(self._rescorers.values()):
            rescorer.edge_scores(WARM_UP)
