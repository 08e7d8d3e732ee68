"""Score texts by networks that learn from the past of the text: neural cache and dynamic evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rescorer.errors import ConfigError
from rescorer.lm.base import LanguageModel
from rescorer.lm.mixture import mix
from rescorer.lm.neural import NeuralLanguageModel
from rescorer.trie import Words
from rescorer_training.evaluation.carried_state import TextReading, carries_state, read_text
from rescorer_training.evaluation.dynamic_evaluation import (
    fit_dynamic,
    measure_gradients,
    read_dynamically,
)
from rescorer_training.evaluation.em_weights import fit_mixture
from rescorer_training.evaluation.neural_cache import add_cache, fit_cache
from rescorer_training.evaluation.perplexity import perplexity
from rescorer_training.evaluation.token_scores import TokenScores

Texts = Mapping[str, Sequence[Words]]
"""Sentences of texts by name."""


@dataclass(frozen=True, slots=True)
class PastTextScores:
    """Scores of texts under a network that learns from their past."""

    network: str
    way: str
    """How the network learns from the past, such as ``cache of 500``."""
    settings: Mapping[str, Any]
    """What was fitted on the validation text."""
    log_probs: Mapping[str, np.ndarray]
    """(T,) float64 ln P of every word and every ``</s>`` by text; a word that the network does not know gets
    its share of ``<unk>``."""

    @property
    def name(self) -> str:
        """What is reported, such as ``neural, cache of 500``."""
        return f"{self.network}, {self.way}"

    def perplexities(self) -> dict[str, float]:
        """Perplexity by text."""
        return {text: perplexity(values) for text, values in self.log_probs.items()}

    def mix_with(self, others: Mapping[str, TokenScores], validation: str) -> dict[str, float]:
        """Perplexity by text of the mixture with the other forward models; empty if there are none.

        Args:
            others: scores of all models by text.
            validation: name of the text on which the interpolation weights λ are fitted.
        """
        columns = {
            text: {
                name: self.log_probs[text] if name == self.network else log_probs
                for name, log_probs in others[text].log_probs.items()
                if name not in others[text].backward
            }
            for text in self.log_probs
        }
        if len(columns[validation]) < 2:
            return {}
        shares = fit_mixture(columns[validation])
        return {
            text: perplexity(mix([values[name] for name in shares], list(shares.values())))
            for text, values in columns.items()
        }


def score_past_texts(
    models: Mapping[str, LanguageModel], texts: Texts, validation: str, *, cache_words: int, dynamic: bool
) -> list[PastTextScores]:
    """Score texts under each network that carries its state: with a cache, dynamically, and with both.

    Args:
        validation: name of the text on which settings are fitted.
        cache_words: number of past tokens in the cache; 0 for no cache.

    Raises:
        ConfigError: no network carries its state.
    """
    networks = {name: model for name, model in models.items() if carries_state(model)}
    if not networks:
        raise ConfigError(
            "--cache-words and --dynamic need a network that reads a text in order: train one with --carried"
        )
    return [
        scores
        for name, model in networks.items()
        for scores in _score(name, model, texts, validation, cache_words, dynamic=dynamic)
    ]


def _score(
    name: str, model: NeuralLanguageModel, texts: Texts, validation: str, cache_words: int, *, dynamic: bool
) -> Iterator[PastTextScores]:
    """Score texts under one network, in each way that is asked for."""
    log_shares = {text: _log_shares(model, sentences) for text, sentences in texts.items()}

    def make_scores(
        way: str, settings: Mapping[str, Any], log_probs: Mapping[str, np.ndarray]
    ) -> PastTextScores:
        shared = {text: values + log_shares[text] for text, values in log_probs.items()}
        return PastTextScores(name, way, settings, shared)

    def score_with_cache(
        way: str, settings: Mapping[str, Any], readings: Mapping[str, TextReading]
    ) -> PastTextScores:
        cache = fit_cache(readings[validation], cache_words)
        log_probs = {text: add_cache(reading, cache) for text, reading in readings.items()}
        return make_scores(f"{way}cache of {cache_words:,}", {**settings, **asdict(cache)}, log_probs)

    if cache_words:
        readings = {text: read_text(model, sentences) for text, sentences in texts.items()}
        yield score_with_cache("", {}, readings)
    if dynamic:
        root_mean_squares = measure_gradients(model, texts[validation])
        chosen = fit_dynamic(model, texts[validation], root_mean_squares)
        readings = {
            text: read_dynamically(
                model, sentences, chosen, root_mean_squares, f"dynamic evaluation of {Path(text).name}"
            )
            for text, sentences in texts.items()
        }
        yield make_scores(
            "dynamic", asdict(chosen), {text: part.log_probs for text, part in readings.items()}
        )
        if cache_words:
            yield score_with_cache("dynamic, ", asdict(chosen), readings)


def _log_shares(model: NeuralLanguageModel, sentences: Sequence[Words]) -> np.ndarray:
    """ln of the share of P(``<unk>``) that each token gets, (T,); 0 where the network knows the word."""
    return np.array([share for words in sentences for share in (*map(model.log_share, words), 0.0)])
