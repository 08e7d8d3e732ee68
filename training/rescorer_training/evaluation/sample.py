"""Sample sentences word by word from one model, or from a mixture over the union of vocabularies.

Temperature, top-k (Fan et al. 2018, "Hierarchical neural story generation") and nucleus sampling with
probability p (Holtzman et al. 2020, "The curious case of neural text degeneration") can be combined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rescorer.errors import ConfigError
from rescorer.models.language_model import LanguageModel, mix
from rescorer.models.network_files import END, UNKNOWN
from rescorer.models.neural import NeuralLanguageModel
from rescorer.models.ngrams import NgramModel
from rescorer.trie import Words
from rescorer_training.progress import option


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Settings by which the next word and the end of a sentence are chosen.

    If ``<unk>`` is not allowed, its probability goes to the other words.
    """

    temperature: float = option(
        1.0,
        "Sampling temperature: below 1 favours likely words, above 1 unlikely ones; 0 always takes "
        "the likeliest word.",
    )
    top_k: int = option(0, "Number of likeliest words to choose from; 0 for all words.")
    top_p: float = option(1.0, "Total probability of the likeliest words to choose from.")
    longest: int = option(50, "Maximum number of words per sentence.")
    unknown: bool = option(False, "Allow <unk> in sentences.", "--unknown")

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"temperature is {self.temperature}; expected 0 or more")
        if self.top_k < 0:
            raise ConfigError(f"top-k is {self.top_k}; expected 0 or more")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top-p is {self.top_p}; expected 0 < top-p ≤ 1")
        if self.longest < 1:
            raise ConfigError(f"longest is {self.longest}; expected at least 1")


class Sampler:
    """Sample sentences from a model or a mixture of models.

    Args:
        shares: interpolation weight λ by model name; empty for a single model.

    Raises:
        ConfigError: a model is a backward one, which cannot continue a sentence.
    """

    def __init__(
        self, models: Mapping[str, LanguageModel], shares: Mapping[str, float], options: SamplingOptions
    ) -> None:
        vocabulary = frozenset().union(*(model.vocabulary() for model in models.values()))
        self.words = (*sorted(vocabulary), END, UNKNOWN)
        self.ids = {word: i for i, word in enumerate(self.words)}
        self.options = options
        used = {name: share for name, share in (shares or dict.fromkeys(models, 1.0)).items() if share > 0}
        self.shares = list(used.values())
        if backward := [name for name in used if models[name].backward]:
            raise ConfigError(
                f"cannot sample from the backward model {backward[0]!r}, which predicts a word from those "
                "after it; give forward models only"
            )
        self.predictors = [_make_predictor(models[name], self.words) for name in used]

    def sample_sentence(self, random: np.random.Generator, prompt: Words = ()) -> Words:
        """Sample the words that continue ``prompt``, up to the end of the sentence."""
        states = [predictor.start() for predictor in self.predictors]
        for word in prompt:
            states = self._advance(states, self.ids.get(word, self.ids[UNKNOWN]))
        sampled: list[str] = []
        while len(sampled) < self.options.longest:
            pairs = zip(self.predictors, states, strict=True)
            log_probs = mix([predictor.log_probs(state) for predictor, state in pairs], self.shares)  # (V,)
            if not self.options.unknown:
                log_probs[self.ids[UNKNOWN]] = -np.inf
            chosen = choose_word(log_probs, self.options, random)
            if self.words[chosen] == END:
                break
            sampled.append(self.words[chosen])
            states = self._advance(states, chosen)
        return tuple(sampled)

    def _advance(self, states: Sequence[Any], word: int) -> list[Any]:
        pairs = zip(self.predictors, states, strict=True)
        return [predictor.advance(state, word) for predictor, state in pairs]


def choose_word(log_probs: np.ndarray, options: SamplingOptions, random: np.random.Generator) -> int:
    """Choose a word at random; return its index. ``log_probs``, (V,), need not be normalised."""
    if options.temperature == 0:
        return int(log_probs.argmax())
    order = np.argsort(-log_probs, kind="stable")
    if options.top_k:
        order = order[: options.top_k]
    scaled = (log_probs[order] - log_probs[order[0]]) / options.temperature
    probs = np.exp(scaled) / np.exp(scaled).sum()
    if options.top_p < 1:
        # The nucleus includes the word whose cumulative probability reaches p.
        n_kept = int(np.searchsorted(np.cumsum(probs), options.top_p)) + 1
        order, probs = order[:n_kept], probs[:n_kept] / probs[:n_kept].sum()
    return int(random.choice(order, p=probs))


def _make_predictor(model: LanguageModel, words: Sequence[str]) -> _NGramPredictor | _NeuralPredictor:
    """Make an object that computes ln P of each next word, (V,), from a state: that of the words so far."""
    if isinstance(model, NgramModel):
        return _NGramPredictor(model, words)
    if isinstance(model, NeuralLanguageModel):
        return _NeuralPredictor(model, words)
    raise TypeError(f"cannot sample from a {type(model).__name__}")


def _log_shares(model: LanguageModel, words: Sequence[str]) -> np.ndarray:
    """Return the ln of each word's share of P(``<unk>``), (V,); 0 for known words and ``</s>``."""
    return np.array([0.0 if word == END else model.log_share(word) for word in words])


class _NGramPredictor:
    """An n-gram model. Its state is the words of the sentence so far."""

    def __init__(self, model: NgramModel, words: Sequence[str]) -> None:
        self.model, self.words, self.log_shares = model, words, _log_shares(model, words)

    def start(self) -> Words:
        return ()

    def log_probs(self, state: Words) -> np.ndarray:
        return self.model.next_log_probs(state, self.words) + self.log_shares

    def advance(self, state: Words, word: int) -> Words:
        return (*state, self.words[word])


class _NeuralPredictor:
    """A network. Its state is a pair: the context vector for the output layer, and the recurrent state."""

    def __init__(self, model: NeuralLanguageModel, words: Sequence[str]) -> None:
        self.model, self.network, self.log_shares = model, model.model.network, _log_shares(model, words)
        self.ids = np.array(
            [model.words.end if word == END else model.words.encode([word])[0] for word in words]
        )

    def start(self) -> Any:
        tagged = self.model.model.tags is not None
        return self._step(self.model.start_word, None if tagged else self.network.initial_state(1))

    @torch.inference_mode()
    def log_probs(self, state: Any) -> np.ndarray:
        distribution = self.model.model.output.distribution(state[0])[0]
        return distribution.double().cpu().numpy()[self.ids] + self.log_shares

    def advance(self, state: Any, word: int) -> Any:
        return self._step(int(self.ids[word]), state[1])

    @torch.inference_mode()
    def _step(self, word: int, state: Any) -> Any:
        if self.model.model.tags is not None:
            hidden, state = self.model.model.context_vectors(
                torch.tensor([[word]], device=self.model.device), state
            )
            return hidden[:, 0], state
        inputs = self.network.inputs(torch.tensor([word], device=self.model.device))
        return self.network.step(inputs, state)
