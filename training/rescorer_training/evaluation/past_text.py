"""Score texts by models that learn from the past of the text: carried state, caches and dynamic evaluation.

- Neural cache (Grave et al. 2016, "Improving Neural Language Models with a Continuous Cache"): a past word
  becomes likely again if the network is in a similar state as when the word occurred.
- Dynamic evaluation (Krause et al. 2018, "Dynamic Evaluation of Neural Sequence Models"): after predicting a
  piece of text, a network learns from it before it predicts the next piece.
- Session cache: the lines before a line are taken as its session. As a control, another cache has the lines
  half the text away. The gain of that cache does not come from the conversation.

Since these models learn from the text that they predict, their perplexities are reported apart from others.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

from rescorer.errors import ConfigError
from rescorer.list_checks import MAX_PREVIOUS_WORDS, join_history
from rescorer.models.language_model import LanguageModel, SessionCache, mix, read_sessions
from rescorer.models.neural import NeuralLanguageModel, NeuralModel
from rescorer.progress import track
from rescorer.trie import SENTENCE_END, Words, build_trie
from rescorer.types import MAX_CACHE_SHARE
from rescorer_training.evaluation.perplexity import TokenScores, fit_mixture, perplexity

CHUNK_SENTENCES = 64
"""Number of sentences whose topics are inferred together."""


def find_topical_histories(model: LanguageModel, sentences: Sequence[Words]) -> list[Words]:
    """Return a short history for each sentence. From it, a model infers the topics of all text before.

    A history consists of the last topical words and an end of sentence. It is empty before the first topical
    word of the text, and for models without topics.
    """
    if not isinstance(model, NeuralLanguageModel) or model.topics is None:
        return [()] * len(sentences)
    histories: list[Words] = []
    last: Words = ()
    for words in sentences:
        histories.append((*last, SENTENCE_END) if last else ())
        is_topical = model.topics.topical(model.words.encode(words))
        topical = (word for word, kept in zip(words, is_topical, strict=True) if kept)
        last = (*last, *topical)[-model.topics.n_read :]
    return histories


def infer_token_topics(model: NeuralLanguageModel, sentences: Sequence[Words]) -> Tensor | None:
    """Infer the topics with which each token is predicted, (T, K); None if the network reads no topics.

    They are the topics of the text before the token's sentence. Tokens are all words, and one ``</s>`` for
    each sentence.
    """
    if model.topics is None:
        return None
    histories = [model.words.encode(history[:-1]) for history in find_topical_histories(model, sentences)]
    chunks = range(0, len(histories), CHUNK_SENTENCES)
    features = torch.cat([model.topics.features(histories[i : i + CHUNK_SENTENCES]) for i in chunks])
    lengths = torch.from_numpy(np.array([len(words) + 1 for words in sentences]))
    return features.repeat_interleave(lengths, dim=0).to(model.device)


def part_of(topics: Tensor | None, part: slice) -> Tensor | None:
    """Return the topics of the tokens in a slice as one row of a batch, (1, n, K)."""
    return None if topics is None else topics[None, part]


MAX_CARRIED_TOKENS = 4096
"""Maximum number of tokens whose context vectors are in memory at the same time."""


@dataclass(frozen=True, slots=True)
class TextReading:
    """Results of a network that has read a text of T tokens in order."""

    vectors: Tensor
    """(T, D) context vector from which each token was predicted."""
    words: Tensor
    """(T,) the tokens."""
    log_probs: np.ndarray
    """(T,) float64 ln P of each token; unknown words get the whole probability of ``<unk>``."""


def carries_state(model: LanguageModel) -> TypeGuard[NeuralLanguageModel]:
    """Whether the model is a network that was trained with its state carried across sentence boundaries."""
    return isinstance(model, NeuralLanguageModel) and model.model.config.carried


def encode_stream(model: NeuralLanguageModel, sentences: Sequence[Words]) -> tuple[Tensor, Tensor]:
    """Encode a text that is read in order: inputs and targets, (T,) each, with ``</s>`` after sentences.

    The first sentence also comes after an ``</s>``, like all others.
    """
    parts = [np.append(model.words.encode(words), model.words.end) for words in sentences]
    targets = torch.from_numpy(np.concatenate(parts)).to(model.device)
    return torch.cat([targets.new_tensor([model.start_word]), targets[:-1]]), targets


@torch.inference_mode()
def read_stream(
    model: NeuralLanguageModel, sentences: Sequence[Words]
) -> Iterator[tuple[Tensor, Tensor, np.ndarray]]:
    """Read a text in order, from the zero state.

    Yields:
        Context vectors of some tokens, (n, D), these tokens, (n,), and ln P of each, (n,) float64.
    """
    inputs, targets = encode_stream(model, sentences)
    topics, state = infer_token_topics(model, sentences), None
    for begin in range(0, len(targets), MAX_CARRIED_TOKENS):
        chunk = slice(begin, begin + MAX_CARRIED_TOKENS)
        vectors, state = model.model.context_vectors(  # (1, n, D)
            inputs[None, chunk], state, part_of(topics, chunk)
        )
        rows = torch.arange(vectors.shape[1], device=model.device)
        log_probs = model.model.output.log_probs(vectors[0], rows, targets[chunk])
        yield vectors[0], targets[chunk], log_probs.double().cpu().numpy()


def score_with_carried_state(model: NeuralLanguageModel, sentences: Sequence[Words]) -> np.ndarray:
    """Return ln P of every word and every ``</s>``, (T,) float64.

    Unknown words get the whole probability of ``<unk>``, not a share of it.
    """
    return np.concatenate([log_probs for _, _, log_probs in read_stream(model, sentences)])


def read_text(model: NeuralLanguageModel, sentences: Sequence[Words]) -> TextReading:
    """Read a whole text in order, from the zero state."""
    vectors, words, log_probs = zip(*read_stream(model, sentences), strict=True)
    return TextReading(torch.cat(vectors), torch.cat(words), np.concatenate(log_probs))


MAX_CHUNK_TOKENS = 512
"""Maximum number of tokens that are compared with their past at the same time."""
FLATNESS_GRID = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
SHARE_GRID = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Settings of a neural cache."""

    n_words: int
    """Number of past tokens in the cache."""
    flatness: float
    """Scale θ of the similarity of states. If θ is large, only very similar past states count."""
    share: float
    """Interpolation weight of the cache."""


@torch.inference_mode()
def cache_log_probs(vectors: Tensor, words: Tensor, n_words: int, flatness: float) -> np.ndarray:
    """Compute ln of the cache's probability of each token, (T,) float64; -inf if no past token equals it.

    P(w_t) is the sum over the last ``n_words`` tokens i of softmax_i(θ h_t · h_i), where w_i = w_t.

    Args:
        vectors: (T, D) context vector from which each token is predicted.
        words: (T,) the tokens.
        flatness: θ.
    """
    parts = []
    for begin in range(0, len(words), MAX_CHUNK_TOKENS):
        end, first = min(begin + MAX_CHUNK_TOKENS, len(words)), max(0, begin - n_words)
        scores = (vectors[begin:end] @ vectors[first:end].t()).double().mul_(flatness)  # (n, m)
        now = torch.arange(begin, end, device=words.device).unsqueeze(1)
        past = torch.arange(first, end, device=words.device)
        scores.masked_fill_((past >= now) | (past < now - n_words), -math.inf)
        total = torch.logsumexp(scores, dim=1)
        scores.masked_fill_(words[first:end] != words[begin:end].unsqueeze(1), -math.inf)
        equal = torch.logsumexp(scores, dim=1)
        parts.append(torch.where(equal.isfinite(), equal - total, -math.inf).cpu().numpy())
    return np.concatenate(parts)


def mix_with_cache(log_probs: np.ndarray, cached: np.ndarray, share: float) -> np.ndarray:
    """Compute ln of (1 − share) · P + share · P_cache, (T,). The first token has no past, so it gets ln P."""
    mixed: np.ndarray = np.logaddexp(math.log1p(-share) + log_probs, math.log(share) + cached)
    mixed[0] = log_probs[0]
    return mixed


def add_cache(reading: TextReading, settings: CacheSettings) -> np.ndarray:
    """Compute ln P of each token of a text under the network and its cache, (T,) float64."""
    cached = cache_log_probs(reading.vectors, reading.words, settings.n_words, settings.flatness)
    return mix_with_cache(reading.log_probs, cached, settings.share)


def fit_cache(reading: TextReading, n_words: int) -> CacheSettings:
    """Try a grid of θ and shares; return those with the lowest perplexity on a validation text."""
    best, best_sum = CacheSettings(n_words, FLATNESS_GRID[0], SHARE_GRID[0]), -math.inf
    for flatness in FLATNESS_GRID:
        cached = cache_log_probs(reading.vectors, reading.words, n_words, flatness)
        for share in SHARE_GRID:
            total = float(mix_with_cache(reading.log_probs, cached, share).sum())
            if total > best_sum:
                best, best_sum = CacheSettings(n_words, flatness, share), total
    return best


STATISTICS_TOKENS = 100_000
"""Number of tokens on which the mean squares of gradients are estimated."""
SEGMENT_WORDS = 5
FIT_TOKENS = 20_000
"""Number of validation tokens on which settings are compared."""
RATES = (3e-5, 1e-4, 3e-4, 1e-3)
DECAYS = (0.002, 0.02)


@dataclass(frozen=True, slots=True)
class DynamicSettings:
    """Settings of dynamic evaluation."""

    rate: float
    """Learning rate η, relative to the root mean square of each parameter's gradient."""
    decay: float = 0.0
    """Share of the way back to its trained value that each parameter moves per step, if its gradients have
    the mean size. With smaller gradients, the share is smaller in proportion.
    """
    segment_words: int = SEGMENT_WORDS
    """Number of tokens that are scored between two steps."""


def measure_gradients(model: NeuralLanguageModel, sentences: Sequence[Words]) -> list[Tensor]:
    """Compute the root mean square of the gradient of each parameter over the segments of a text.

    Args:
        sentences: text on which the network was trained, or a similar text.
    """
    network = _copy(model)
    squares = [torch.zeros_like(parameter) for parameter in network.parameters()]
    n_segments = 0
    inputs, targets = (part[:STATISTICS_TOKENS] for part in encode_stream(model, sentences))
    topics = infer_token_topics(model, sentences[:STATISTICS_TOKENS])  # at least as many tokens
    description = "dynamic evaluation, measuring gradients"
    for _, _, loss in _segments(network, inputs, targets, topics, SEGMENT_WORDS, description):
        for total, gradient in zip(squares, _gradients(network, loss), strict=True):
            total.addcmul_(gradient, gradient)
        n_segments += 1
    return [(total / n_segments).sqrt() for total in squares]


def fit_dynamic(
    model: NeuralLanguageModel, sentences: Sequence[Words], root_mean_squares: Sequence[Tensor]
) -> DynamicSettings:
    """Find the rate and then the decay that give the lowest perplexity at the beginning of a validation text.

    Raises:
        ConfigError: the network diverges with all rates.
    """
    text, n_tokens = [], 0
    for words in sentences:
        if n_tokens < FIT_TOKENS:
            text.append(words)
            n_tokens += len(words) + 1

    def measure(settings: DynamicSettings) -> float:
        trial = f"dynamic evaluation, trying rate {settings.rate:g} and decay {settings.decay:g}"
        total = read_dynamically(model, text, settings, root_mean_squares, trial).log_probs.sum()
        return float(total) if np.isfinite(total) else -math.inf  # a high rate may diverge

    totals = {(rate, DECAYS[0]): measure(DynamicSettings(rate, DECAYS[0])) for rate in RATES}
    if max(totals.values()) == -math.inf:
        raise ConfigError(
            "dynamic evaluation diverges with every learning rate; give a longer --validation text, "
            "from which the sizes of its steps are estimated"
        )
    rate, _ = max(totals, key=totals.__getitem__)
    totals |= {(rate, decay): measure(DynamicSettings(rate, decay)) for decay in DECAYS[1:]}
    return DynamicSettings(*max(totals, key=totals.__getitem__))


def read_dynamically(
    model: NeuralLanguageModel,
    sentences: Sequence[Words],
    settings: DynamicSettings,
    root_mean_squares: Sequence[Tensor],
    description: str = "",
) -> TextReading:
    """Read a text with a copy of the network that continues to learn. The model itself does not change.

    After each segment, each parameter moves by −η g / (RMS + ε), where g is its gradient and RMS the root
    mean square of past gradients. It then moves back towards its trained value by the share ``decay``, or
    less if its RMS is small. ε is the mean RMS of all parameters. With a much smaller ε, words whose RMS is
    nearly 0, because they were not in the text of ``measure_gradients``, would move without bounds.

    Args:
        root_mean_squares: result of ``measure_gradients``.
        description: text of the progress bar; empty for no bar.
    """
    network = _copy(model)
    trained = [parameter.detach().clone() for parameter in network.parameters()]
    mean = float(torch.cat([rms.flatten() for rms in root_mean_squares]).mean(dtype=torch.float64))
    mean = max(mean, torch.finfo(torch.float32).tiny)  # statistics of no words at all
    returns = [(settings.decay * rms / mean).clamp_(max=1.0) for rms in root_mean_squares]
    steps = [settings.rate / (rms + mean) for rms in root_mean_squares]
    inputs, targets = encode_stream(model, sentences)
    topics = infer_token_topics(model, sentences)
    vectors, log_probs = [], []
    segments = _segments(network, inputs, targets, topics, settings.segment_words, description)
    for hidden, values, loss in segments:
        vectors.append(hidden)
        log_probs.append(values.double().cpu().numpy())
        gradients = _gradients(network, loss)
        with torch.no_grad():
            for parameter, start, gradient, step, back in zip(
                network.parameters(), trained, gradients, steps, returns, strict=True
            ):
                parameter.addcmul_(gradient, step, value=-1.0).lerp_(start, back)
    return TextReading(torch.cat(vectors), targets, np.concatenate(log_probs))


def _copy(model: NeuralLanguageModel) -> NeuralModel:
    """Copy a network so that its parameters can be trained, without dropout."""
    return copy.deepcopy(model.model).eval().requires_grad_(True)


def _gradients(network: NeuralModel, loss: Tensor) -> list[Tensor]:
    """Return the gradient of the loss for each parameter."""
    parameters = list(network.parameters())
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return list(gradients)


def _segments(
    network: NeuralModel,
    inputs: Tensor,
    targets: Tensor,
    topics: Tensor | None,
    segment_words: int,
    description: str,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Read a text segment by segment; yield context vectors (n, D), ln P of the tokens, and the mean loss.

    The network may change between two segments. The recurrent state is carried from one to the next.
    """
    state = None
    with track(description, "words", len(targets)) as progress:
        for begin in range(0, len(targets), segment_words):
            segment = slice(begin, begin + segment_words)
            hidden, state = network.context_vectors(inputs[None, segment], state, part_of(topics, segment))
            rows = torch.arange(len(targets[segment]), device=targets.device)
            with torch.no_grad():
                values = network.output.log_probs(hidden[0].detach(), rows, targets[segment])
            yield hidden[0].detach(), values, network.output.loss(hidden[0], targets[segment]) / len(rows)
            state = tuple(part.detach() for part in state)
            progress.advance(len(rows))


Texts = Mapping[str, Sequence[Words]]
"""Sentences of texts by name."""


@dataclass(frozen=True, slots=True)
class PastTextScores:
    """Scores of texts under a network that learns from their past."""

    network: str
    way: str
    """Way in which the network learns from the past, such as ``cache of 500``."""
    settings: Mapping[str, Any]
    """Settings that were fitted on the validation text."""
    log_probs: Mapping[str, np.ndarray]
    """For each text, (T,) float64 ln P of every word and every ``</s>``.

    A word that the network does not know gets its share of P(``<unk>``)."""

    @property
    def name(self) -> str:
        """Name for reports, such as ``neural, cache of 500``."""
        return f"{self.network}, {self.way}"

    def perplexities(self) -> dict[str, float]:
        """Perplexity by text."""
        return {text: perplexity(values) for text, values in self.log_probs.items()}

    def mix_with(self, others: Mapping[str, TokenScores], validation: str) -> dict[str, float]:
        """Mix these scores with those of the other forward models; return the perplexity of each text.

        The result is empty if there are no such models.

        Args:
            others: scores of all models, by text.
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

    def figures(self, others: Mapping[str, TokenScores], validation: str) -> dict[str, Any]:
        """The settings and perplexities as plain data; arguments as for ``mix_with``."""
        mixture = self.mix_with(others, validation)
        return {"settings": dict(self.settings), "perplexity": self.perplexities(), "mixture": mixture}


def score_past_texts(
    models: Mapping[str, LanguageModel], texts: Texts, validation: str, *, cache_words: int, dynamic: bool
) -> list[PastTextScores]:
    """Score texts under each network that carries its state: with a cache, by dynamic evaluation, by both.

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
    """Score texts under one network: with a cache, by dynamic evaluation, or by both, as requested."""
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
    """Return ln of the share of P(``<unk>``) that each token gets, (T,); 0 for known words."""
    return np.array([share for words in sentences for share in (*map(model.log_share, words), 0.0)])


SHARES = tuple(round(0.01 * step, 2) for step in range(1, int(100 * MAX_CACHE_SHARE) + 1))
"""Values from which the λ of a session cache is chosen."""
BATCH_SENTENCES = 64
"""Number of sentences whose sessions are counted together."""


@dataclass(frozen=True, slots=True)
class SessionPerplexity:
    """Perplexities of one text under a mixture, with and without a cache."""

    without: float
    with_session: float
    """Perplexity with the cache of the lines before each line."""
    wrong_session: float
    """Perplexity with a wrong cache, that of lines half the text away, as a control."""


@dataclass(frozen=True, slots=True)
class SessionReport:
    """Perplexities of several texts under a mixture with a cache."""

    share: float
    """λ of the cache, fitted on another text."""
    texts: Mapping[str, SessionPerplexity]
    """Perplexities by path of the text."""


def fit_share(cache: SessionCache, log_probs: np.ndarray) -> float:
    """Find the λ with the lowest perplexity.

    Args:
        cache: session cache with λ = 1, from ``read_text_sessions``.
        log_probs: (T,) ln P of each token under the mixture.
    """
    return min(SHARES, key=lambda share: _measure(cache, log_probs, share))


def measure_sessions(sentences: Sequence[Words], log_probs: np.ndarray, share: float) -> SessionPerplexity:
    """Compute the perplexities of a text with and without session caches.

    Args:
        log_probs: (T,) ln P of each token under the mixture.
        share: λ of the cache.
    """
    right, wrong = (
        _measure(read_text_sessions(sentences, away), log_probs, share) for away in (0, len(sentences) // 2)
    )
    return SessionPerplexity(perplexity(log_probs), right, wrong)


def _measure(cache: SessionCache, log_probs: np.ndarray, share: float) -> float:
    """Compute the perplexity with a cache whose λ is ``share``."""
    return perplexity(replace(cache, shares=share * cache.shares).interpolate(log_probs))


def read_text_sessions(sentences: Sequence[Words], away: int = 0) -> SessionCache:
    """Make a session cache, with λ = 1, in which the session of each sentence is the sentences before it.

    Args:
        away: as a control, take a wrong session: the sentences before the one that is ``away`` sentences
            later. After the end of the text, counting continues at its beginning.
    """
    probs, shares = [], []
    for begin in range(0, len(sentences), BATCH_SENTENCES):
        batch = range(begin, min(begin + BATCH_SENTENCES, len(sentences)))
        histories = [_history(sentences, (i + away) % len(sentences)) for i in batch]
        trie = build_trie([sentences[i] for i in batch], histories)
        cache = read_sessions(trie, 1.0)
        assert cache is not None
        for row in range(len(batch)):
            edges = trie.path_edges(row)
            probs.append(cache.probs[edges])
            shares.append(cache.shares[edges])
    return SessionCache(np.concatenate(probs), np.concatenate(shares))


def _history(sentences: Sequence[Words], index: int) -> Words:
    """Return the words of the last sentences before a sentence, as many as a cache reads."""

    def newest() -> Iterator[Words]:
        n_words = 0
        for words in reversed(sentences[max(0, index - MAX_PREVIOUS_WORDS) : index]):
            n_words += len(words)
            if n_words > MAX_PREVIOUS_WORDS:
                return
            yield words

    return join_history(reversed(list(newest())), ())
