"""Score a trie with every language model of a bundle: the heavy half of a ``Rescorer``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rescorer.bundle import read_bundle
from rescorer.errors import ScoringError
from rescorer.lm import CONTEXT_CACHE_BYTES
from rescorer.lm.base import EdgeScores, LanguageModel
from rescorer.model_loading import load_bundle_models
from rescorer.trie import HypothesisTrie


class TrieScorer:
    """The language models of one bundle, by name.

    Args:
        label: the bundle's name and version, for error messages.
    """

    def __init__(self, models: Mapping[str, LanguageModel], label: str) -> None:
        self.models, self.label = models, label

    @classmethod
    def load(
        cls,
        folder: Path | str,
        device: str = "cpu",
        dtype: str = "float32",
        context_cache_bytes: int = CONTEXT_CACHE_BYTES,
    ) -> TrieScorer:
        """Verify a bundle and load its models; arguments are those of ``load_bundle_models``.

        Raises:
            BundleError: the bundle cannot be used.
            ConfigError: torch does not have the device, or the dtype is unknown.
        """
        bundle = read_bundle(folder)
        return cls(load_bundle_models(bundle, device, dtype, context_cache_bytes), bundle.label)

    def score(self, trie: HypothesisTrie, only: Sequence[str] = ()) -> dict[str, EdgeScores]:
        """Score every edge of a trie with each model.

        Args:
            only: names of the models to use; empty for all.

        Raises:
            ScoringError: a score is not finite.
        """
        scores = {name: self.models[name].score(trie) for name in only or self.models}
        for name, edge_scores in scores.items():
            if not np.isfinite(edge_scores.log_probs).all():
                raise ScoringError(f"model {name!r} of {self.label} returned a score that is not finite")
        return scores
