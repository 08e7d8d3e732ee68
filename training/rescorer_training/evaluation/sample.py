"""Owns sampling: sentences said by any models, word by word, from their mixture over the union of
vocabularies.

Temperature; the k likeliest (Fan et al. 2018, "Hierarchical neural story generation"); the nucleus of
probability p (Holtzman et al. 2020, "The curious case of neural text degeneration"). All of them, or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import kenlm
import numpy as np
import torch

from rescorer.errors import ConfigError
from rescorer.lm.base import LanguageModel
from rescorer.lm.mixture import mix
from rescorer.lm.neural import NeuralLanguageModel
from rescorer.lm.ngram import LN_10, NgramModel
from rescorer.trie import Words
from rescorer.vocabulary import END, UNKNOWN


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How a word is chosen."""

    temperature: float = 1.0
    """Divides the log-probabilities; 0 always takes the likeliest word."""
    top_k: int = 0
    """Choose among the k likeliest words; 0: among all."""
    top_p: float = 1.0
    """Choose among the likeliest words that together have this probability."""
    longest: int = 50
    """Words after which a sentence is cut."""
    unknown: bool = False
    """``<unk>`` may be said; else its probability goes to the other words."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"temperature is {self.temperature}; expected 0 or more")
        if self.top_k < 0:
            raise ConfigError(f"top-k is {self.top_k}; expected 0 or more")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top-p is {self.top_p}; expected 0 < top-p ≤ 1")
        if self.longest < 1:
            raise ConfigError(f"the longest sentence has {self.longest} words; expected at least 1")


class _Speaker(Protocol):
    """One model and its state, as a source of next words."""

    def start(self) -> Any: ...

    def log_probs(self, state: Any) -> np.ndarray:
        """ln P of each word of the union, (V,)."""

    def advance(self, state: Any, word: int) -> Any: ...


class Sampler:
    """Says sentences.

    Args:
        shares: λ of the mixture, by the model's name; empty for one model.
    """

    def __init__(
        self, models: Mapping[str, LanguageModel], shares: Mapping[str, float], options: SamplingOptions
    ) -> None:
        vocabulary = frozenset().union(*(model.vocabulary() for model in models.values()))
        self.words = (*sorted(vocabulary), END, UNKNOWN)
        self.ids = {word: i for i, word in enumerate(self.words)}
        self.options = options
        heard = {name: share for name, share in (shares or dict.fromkeys(models, 1.0)).items() if share > 0}
        self.shares = list(heard.values())
        self.speakers = [_speaker(models[name], self.words) for name in heard]

    def sentence(self, random: np.random.Generator, prompt: Words = ()) -> Words:
        """One sentence, without the prompt that it continues."""
        states = [speaker.start() for speaker in self.speakers]
        for word in prompt:
            states = self._advance(states, self.ids.get(word, self.ids[UNKNOWN]))
        said: list[str] = []
        while len(said) < self.options.longest:
            parts = (speaker.log_probs(state) for speaker, state in zip(self.speakers, states, strict=True))
            log_probs = mix(list(parts), self.shares)  # (V,)
            if not self.options.unknown:
                log_probs[self.ids[UNKNOWN]] = -np.inf
            chosen = choose(log_probs, self.options, random)
            if self.words[chosen] == END:
                break
            said.append(self.words[chosen])
            states = self._advance(states, chosen)
        return tuple(said)

    def _advance(self, states: Sequence[Any], word: int) -> list[Any]:
        return [speaker.advance(state, word) for speaker, state in zip(self.speakers, states, strict=True)]


def choose(log_probs: np.ndarray, options: SamplingOptions, random: np.random.Generator) -> int:
    """The place of one word, by its (V,) log-probabilities, which need not be normalised."""
    if options.temperature == 0:
        return int(log_probs.argmax())
    order = np.argsort(-log_probs, kind="stable")
    if options.top_k:
        order = order[: options.top_k]
    scaled = (log_probs[order] - log_probs[order[0]]) / options.temperature
    probs = np.exp(scaled) / np.exp(scaled).sum()
    if options.top_p < 1:
        # The word that reaches p is the nucleus's last one.
        n_kept = int(np.searchsorted(np.cumsum(probs), options.top_p)) + 1
        order, probs = order[:n_kept], probs[:n_kept] / probs[:n_kept].sum()
    return int(random.choice(order, p=probs))


def _speaker(model: LanguageModel, words: Sequence[str]) -> _Speaker:
    if isinstance(model, NgramModel):
        return _NGramSpeaker(model, words)
    if isinstance(model, NeuralLanguageModel):
        return _NeuralSpeaker(model, words)
    raise TypeError(f"no next words from {type(model).__name__}")


def _log_shares(model: LanguageModel, words: Sequence[str]) -> np.ndarray:
    """ln of the part of ``<unk>`` that each word has, 0 for known ones and ``</s>``: (V,)."""
    return np.array([0.0 if word == END else model.log_share(word) for word in words])


class _NGramSpeaker:
    def __init__(self, model: NgramModel, words: Sequence[str]) -> None:
        self.kenlm, self.words, self.log_shares = model.kenlm, words, _log_shares(model, words)

    def start(self) -> kenlm.State:
        state = kenlm.State()
        self.kenlm.BeginSentenceWrite(state)
        return state

    def log_probs(self, state: kenlm.State) -> np.ndarray:
        ignored, score = kenlm.State(), self.kenlm.BaseScore
        return np.array([score(state, word, ignored) for word in self.words]) * LN_10 + self.log_shares

    def advance(self, state: kenlm.State, word: int) -> kenlm.State:
        after = kenlm.State()
        self.kenlm.BaseScore(state, self.words[word], after)
        return after


class _NeuralSpeaker:
    """Its state is the vector that the output layer sees, and the network's own state."""

    def __init__(self, model: NeuralLanguageModel, words: Sequence[str]) -> None:
        self.model, self.network, self.log_shares = model, model.model.network, _log_shares(model, words)
        self.ids = np.array([model.words.end if w == END else model.words.encode([w])[0] for w in words])

    def start(self) -> Any:
        return self._step(self.model.start_word, self.network.start(1))

    @torch.inference_mode()
    def log_probs(self, state: Any) -> np.ndarray:
        distribution = self.model.model.output.distribution(state[0])[0]
        return distribution.double().cpu().numpy()[self.ids] + self.log_shares

    def advance(self, state: Any, word: int) -> Any:
        return self._step(int(self.ids[word]), state[1])

    @torch.inference_mode()
    def _step(self, word: int, state: Any) -> Any:
        inputs = self.network.inputs(torch.tensor([word], device=self.model.device))
        return self.network.step(inputs, state)
