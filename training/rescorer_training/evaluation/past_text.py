"""Score texts by networks that learn from the past of the text: neural cache and dynamic evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from rescorer.errors import ConfigError
from rescorer.lm.base import LanguageModel
from rescorer.lm.neural import NeuralLanguageModel
from rescorer.trie import Words
from rescorer_training.evaluation.carried_state import carries_state, read_stream
from rescorer_training.evaluation.dynamic_evaluation import (
    DynamicSettings,
    fit_dynamic,
    measure_gradients,
    score_dynamically,
)
from rescorer_training.evaluation.neural_cache import (
    CacheSettings,
    cache_log_probs,
    fit_cache,
    mix_with_cache,
)


@dataclass(frozen=True, slots=True)
class PastTextScorer:
    """A network with the settings that were fitted for it on a validation text."""

    name: str
    """What is reported, such as ``neural, cache of 500``."""
    model: NeuralLanguageModel
    settings: CacheSettings | DynamicSettings
    root_mean_squares: Sequence[torch.Tensor] = ()

    def score(self, sentences: Sequence[Words]) -> np.ndarray:
        """ln P of every word and every ``</s>``, (T,); unknown words get the whole of ``<unk>``."""
        if isinstance(self.settings, DynamicSettings):
            return score_dynamically(self.model, sentences, self.settings, self.root_mean_squares)
        vectors, words, log_probs = _read(self.model, sentences)
        cached = cache_log_probs(vectors, words, self.settings.n_words, self.settings.flatness)
        return mix_with_cache(log_probs, cached, self.settings.share)

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain data."""
        return asdict(self.settings)


def fit_past_text_scorers(
    models: Mapping[str, LanguageModel], validation: Sequence[Words], *, cache_words: int, dynamic: bool
) -> list[PastTextScorer]:
    """Fit caches and dynamic evaluation of all networks that carry their state, on a validation text.

    Args:
        cache_words: number of past tokens in the cache; 0 for no cache.

    Raises:
        ConfigError: no network carries its state.
    """
    networks = {name: model for name, model in models.items() if carries_state(model)}
    if not networks:
        raise ConfigError(
            "--cache-words and --dynamic need a network that reads a text in order: train one with --carried"
        )
    scorers = []
    for name, model in networks.items():
        if cache_words:
            settings = fit_cache(*_read(model, validation), cache_words)
            scorers.append(PastTextScorer(f"{name}, cache of {cache_words:,}", model, settings))
        if dynamic:
            root_mean_squares = measure_gradients(model, validation)
            chosen = fit_dynamic(model, validation, root_mean_squares)
            scorers.append(PastTextScorer(f"{name}, dynamic", model, chosen, root_mean_squares))
    return scorers


def _read(
    model: NeuralLanguageModel, sentences: Sequence[Words]
) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Context vectors (T, D), tokens (T,) and ln P (T,) of a whole text."""
    vectors, words, log_probs = zip(*read_stream(model, sentences), strict=True)
    return torch.cat(vectors), torch.cat(words), np.concatenate(log_probs)
