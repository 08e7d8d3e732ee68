"""Score a trie with every language model of a bundle: the heavy half of a ``Rescorer``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rescorer.bundle import Bundle, read_bundle
from rescorer.errors import ConfigError, ScoringError, quote
from rescorer.lm import CONTEXT_CACHE_BYTES
from rescorer.lm.base import EdgeScores, LanguageModel, VectorModel
from rescorer.model_loading import load_bundle_models
from rescorer.trie import HypothesisTrie
from rescorer.word_encoder import WordEncoder

Encoders = Mapping[str, WordEncoder]


class TrieScorer:
    """The language models of one bundle, by name.

    Args:
        label: the bundle's name and version, for error messages.
        encoders: encoders of words by the name of the reranker that has them.
    """

    def __init__(
        self, models: Mapping[str, LanguageModel], label: str, encoders: Encoders | None = None
    ) -> None:
        self.models, self.label = models, label
        self.encoders: Encoders = encoders or {}

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
        models = load_bundle_models(bundle, device, dtype, context_cache_bytes)
        return cls(models, bundle.label, find_encoders(bundle))

    def score(
        self, trie: HypothesisTrie, only: Sequence[str] = (), encoders: Encoders | None = None
    ) -> dict[str, EdgeScores]:
        """Score every edge of a trie with each model.

        Args:
            only: names of the models to use; empty for all.
            encoders: encoders of words, by the names that their results get.

        Raises:
            ConfigError: an encoder's model has no context vectors of the length that it projects.
            ScoringError: a score is not finite.
        """
        scores = {name: self._score(name, trie, encoders or {}) for name in only or self.models}
        for name, edge_scores in scores.items():
            values = [edge_scores.log_probs, *edge_scores.encodings.values()]
            values += [] if edge_scores.cached is None else [edge_scores.cached]
            if not all(np.isfinite(array).all() for array in values):
                raise ScoringError(f"model {name!r} of {self.label} returned a score that is not finite")
        return scores

    def _score(self, name: str, trie: HypothesisTrie, encoders: Encoders) -> EdgeScores:
        model = self.models[name]
        projections = {key: one.projection for key, one in encoders.items() if one.model == name}
        if not projections:
            return model.score(trie)
        if not isinstance(model, VectorModel):
            raise ConfigError(
                f"words are to be encoded by model {quote(name)}, an n-gram, which has no context vectors"
            )
        for projection in projections.values():
            if len(projection) != model.vector_size:
                raise ConfigError(
                    f"words are to be encoded by context vectors of length {len(projection)}, but those of "
                    f"model {quote(name)} have the length {model.vector_size}"
                )
        return model.score(trie, projections)


def find_encoders(bundle: Bundle) -> dict[str, WordEncoder]:
    """The encoders of words of a bundle, by the name of the reranker that has them."""
    rerankers = bundle.rerankers.items()
    return {name: reranker.encoder for name, reranker in rerankers if reranker.encoder is not None}
