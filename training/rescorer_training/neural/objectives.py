"""Owns the training objectives: maximum likelihood, and three that look at a sample of the words only.

A sampled objective costs k + 1 scores a word in place of V, in training only. It works on a full softmax,
the one layer in which every word has a score of its own. Sampling by default draws k words for the whole
batch, so that their scores are one GEMM (N, D) × (D, k).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from rescorer.errors import ConfigError
from rescorer.lm.networks import NeuralModel
from rescorer.lm.output import FullSoftmax, OutputLayer
from rescorer_training.data.sentence_batches import Sentences
from rescorer_training.neural.validation import contexts

LOGITS_A_CHUNK = 1 << 24
"""Scores held at once where all words are scored: 64 MB."""


class Objective(Protocol):
    """What training minimises."""

    def loss(self, output: OutputLayer, hidden: Tensor, words: Tensor) -> Tensor:
        """Σ over the batch; hidden: (N, D) context vectors, words: (N,) targets.

        Raises:
            ConfigError: the objective does not work with this output layer.
        """


class MaximumLikelihood:
    """Σ −ln P(w | h), exactly. Every output layer has it, its scores are log-probabilities, and its mean is
    the logarithm of the perplexity: the objective of choice wherever the output layer is affordable."""

    def loss(self, output: OutputLayer, hidden: Tensor, words: Tensor) -> Tensor:
        return output.loss(hidden, words)


@dataclass(frozen=True, slots=True)
class _Scores:
    """Scores s(w, h) = h · w + b of the targets and of the noise words, and ln q of both."""

    target: Tensor  # (N,)
    noise: Tensor  # (N, k)
    target_log_q: Tensor  # (N,)
    noise_log_q: Tensor  # (k,) or (N, k)
    hits: Tensor
    """(N, k) where a noise word is the target itself."""


@dataclass(frozen=True)
class _Sampled:
    """What the sampled objectives share: k noise words, their scores, and the check of the output layer."""

    noise: Noise
    samples: int = 512
    """k. Words drawn for a batch do for all its positions, so k is cheap; 20 is usual for draws a word."""
    per_word: bool = False
    """Draw k words for every position instead of for the whole batch: less correlated, far slower."""

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ConfigError(f"{self.samples} noise samples; expected at least 1")

    def _scores(self, output: OutputLayer, hidden: Tensor, words: Tensor) -> _Scores:
        layer = _full(output)
        if layer.n_words != self.noise.n_words:
            raise ConfigError(f"noise over {self.noise.n_words} words; the model predicts {layer.n_words}")
        noise = self.noise.draw(*((len(words), self.samples) if self.per_word else (self.samples,)))
        # One look-up for both, and so one gradient of the size of the matrix; index_select's takes half the
        # time of an embedding's.
        ids = torch.cat([words, noise.flatten()])
        rows, bias = layer.word_weight.index_select(0, ids), layer.word_bias.index_select(0, ids)
        n = len(words)
        target = (hidden * rows[:n]).sum(1) + bias[:n]  # (N,)
        if self.per_word:
            own = rows[n:].view(n, self.samples, -1)  # (N, k, D)
            scores = torch.bmm(own, hidden.unsqueeze(2)).squeeze(2) + bias[n:].view(n, -1)
        else:
            scores = torch.addmm(bias[n:], hidden, rows[n:].t())  # (N, k)
        log_q = self.noise.log_probs
        return _Scores(target, scores, log_q[words], log_q[noise], noise == words.unsqueeze(1))


@dataclass(frozen=True)
class NoiseContrastive(_Sampled):
    """Noise-contrastive estimation (Gutmann & Hyvärinen 2010; for language models Mnih & Teh 2012).

    Tells the word that came from k words drawn from q, taking exp(s − ``log_normaliser``) for the model's
    probability: Σ −ln σ(s − ln kq) of the word − Σ ln σ(ln kq − s) of the noise. Its gradient tends to
    maximum likelihood's as k grows, and the normaliser is learnt to be near the constant. A noise word that
    happens to be the target stays: the theory wants noise that does not look at the data.

    Its importance: the cost of training does not grow with V, and scores that are close to normalised can be
    used without a sum over V. They are not log-probabilities: by how much they miss is what
    ``normaliser_error`` measures, and perplexities are those of the layer's own, normalised ``log_probs``.
    """

    log_normaliser: float = 0.0
    """ln Z held constant for every context. 0 suits a layer that starts from the unigram distribution, which
    is normalised; ln V one whose weights and biases start from zero."""

    def loss(self, output: OutputLayer, hidden: Tensor, words: Tensor) -> Tensor:
        scores = self._scores(output, hidden, words)
        shift = self.log_normaliser + math.log(self.samples)
        of_target = functional.softplus(shift + scores.target_log_q - scores.target)
        of_noise = functional.softplus(scores.noise - scores.noise_log_q - shift)
        return of_target.sum() + of_noise.sum()


@dataclass(frozen=True)
class NegativeSampling(_Sampled):
    """Negative sampling (Mikolov et al. 2013b): Σ −ln σ(s) of the word − Σ ln σ(−s) of k words drawn.

    Not a language model: the optimum of s is ln P(w | h) − ln kq(w), so that the scores leave out how
    frequent a word is, and no perplexity is claimed. Its importance is the vectors, which it trains quickly
    and well, with noise of power 0.75. As in word2vec a draw that is the target itself is left out.
    """

    def loss(self, output: OutputLayer, hidden: Tensor, words: Tensor) -> Tensor:
        scores = self._scores(output, hidden, words)
        of_noise = functional.softplus(scores.noise.masked_fill(scores.hits, -math.inf))
        return functional.softplus(-scores.target).sum() + of_noise.sum()


@dataclass(frozen=True)
class SampledSoftmax(_Sampled):
    """Softmax over the target and k words drawn (Bengio & Senécal 2008; Jean et al. 2015).

    A draw weighs 1 / kq(w), which is subtracting ln kq from its score; the target weighs 1 and draws that
    are the target (accidental hits) are removed, so that the expected sum is the exact normaliser Σ exp s.
    The loss is then a lower bound of −ln P in expectation (Jensen), exact as k grows.

    Its importance: a few hundred words drawn stand for a vocabulary of any size. The scores are those of a
    softmax up to a constant a context that nothing holds near 0: normalise them to use them, which the
    layer's ``log_probs`` do. Its loss is no perplexity.
    """

    def loss(self, output: OutputLayer, hidden: Tensor, words: Tensor) -> Tensor:
        scores = self._scores(output, hidden, words)
        corrected = scores.noise - scores.noise_log_q - math.log(self.samples)
        corrected = corrected.masked_fill(scores.hits, -math.inf)
        candidates = torch.cat([scores.target.unsqueeze(1), corrected], dim=1)  # (N, k + 1)
        return (candidates.logsumexp(dim=1) - scores.target).sum()


@dataclass(frozen=True, slots=True)
class NormaliserError:
    """By how much unnormalised scores miss being log-probabilities, in nats a word."""

    mean: float
    """Mean of ln Σ exp(s) − log_normaliser; above 0: the scores claim too much."""
    deviation: float
    """Standard deviation over the contexts, which no constant can mend."""
    n_words: int


@torch.no_grad()
def normaliser_error(model: NeuralModel, text: Sentences, log_normaliser: float = 0.0) -> NormaliserError:
    """Mean and spread of ln Z − ``log_normaliser`` before every word of a text, all V words summed.

    Raises:
        ConfigError: the model's output layer is not a full softmax.
    """
    layer = _full(model.output)
    weight = layer.word_weight[: layer.n_words]
    n, total, squares = 0, 0.0, 0.0
    for hidden, _ in contexts(model, text):
        for part in hidden.split(max(1, LOGITS_A_CHUNK // layer.n_words)):
            log_z = functional.linear(part, weight, layer.word_bias).logsumexp(1).double() - log_normaliser
            n += len(part)
            total += float(log_z.sum())
            squares += float(log_z.square().sum())
    mean = total / n
    return NormaliserError(mean, math.sqrt(max(0.0, squares / n - mean * mean)), n)


def _full(output: OutputLayer) -> FullSoftmax:
    """The layer, which must have one score a word for all words alike."""
    if not isinstance(output, FullSoftmax):
        raise ConfigError(f"sampled objectives need a full softmax; the model has {type(output).__name__}")
    return output


UNSEEN = 0.5
"""What a word counts that never occurs, so that every word can be drawn and has a finite ln q."""


class Noise:
    """q(w) ∝ count(w)^power over the words that can be predicted.

    Power 1 is the unigram distribution (Mnih & Teh 2012), 0.75 word2vec's (Mikolov et al. 2013b), 0 the
    uniform one. Draws are with replacement and come from torch's global generator of the device, whose state
    a checkpoint holds: a resumed run draws what the run left alone would have drawn.

    Args:
        counts: (n_words,) in the vocabulary's order; words that never occur count one half.
        device: where draws are made; the model's.

    Raises:
        ConfigError: the counts are not one finite number ≥ 0 a word, or the power is not in 0 … 1.
    """

    def __init__(self, counts: Tensor, power: float = 1.0, device: torch.device | str = "cpu") -> None:
        counts = counts.to("cpu", torch.float64)
        if counts.ndim != 1 or not len(counts) or not torch.isfinite(counts).all() or counts.min() < 0:
            raise ConfigError("noise needs the count of every word: finite numbers, none below 0")
        if not 0 <= power <= 1:
            raise ConfigError(f"the power of the noise is {power}; expected 0 (uniform) to 1 (unigram)")
        mass = counts.clamp(min=UNSEEN) ** power
        self.log_probs = (mass / mass.sum()).log().to(device, torch.float32)  # (n_words,)
        self._cumulative = (mass.cumsum(0) / mass.sum()).to(device)  # float64: 1/q may exceed float32's 2²⁴

    @property
    def n_words(self) -> int:
        return len(self.log_probs)

    def draw(self, *shape: int) -> Tensor:
        """Word ids of the given shape, independent of one another."""
        places = torch.rand(shape, dtype=torch.float64, device=self._cumulative.device)
        return torch.searchsorted(self._cumulative, places, right=True).clamp_(max=self.n_words - 1)
