"""Optimise a network: losses, penalties, learning rates, averages of the weights and signs of divergence.

The default objective is maximum likelihood. In training, three further objectives score only a sample
of the words: k + 1 scores per target word instead of V. They need a full softmax, the only output layer in
which every word has its own score. By default a whole batch shares one sample of k words, so that the scores
of the batch are a single matrix product (N, D) × (D, k). The learning rate warms up; afterwards it decays by
a cosine, is reduced at plateaus, or is constant.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rescorer.errors import ConfigError, ScoringError
from rescorer.models.neural import NeuralModel, SequenceConfig
from rescorer.models.outputs import FullSoftmax, OutputLayer
from rescorer_training.batches import Sentences
from rescorer_training.neural.options import TrainingOptions
from rescorer_training.neural.prepare import iterate_contexts

STALL_VALIDATIONS = 5
"""Number of consecutive validations without a new best perplexity after which the uniform average starts."""


class WeightAverage:
    """Averages of the weights, with which a model is validated and saved. Training updates the raw weights.

    ``ema`` is Polyak's exponential moving average. Its decay rises as (1 + n) / (10 + n), so that the random
    initial weights are soon forgotten. ``uniform`` is the mean over steps (Polyak & Juditsky 1992). It starts
    after a given epoch (SWA, Izmailov et al. 2018) or when validation stops improving (NT-ASGD, Merity et
    al. 2018). ``none`` means the raw weights.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], options: TrainingOptions) -> None:
        self.parameters = list(parameters)
        self.options = options
        self.values: list[Tensor] = []
        """Average of each parameter; empty before the average starts."""
        self.n_steps = 0
        if options.average == "ema":
            self.start()

    def start(self) -> None:
        """Start averaging, from the current weights."""
        self.values = [parameter.detach().clone() for parameter in self.parameters]

    @torch.no_grad()
    def update(self) -> None:
        """Add the current weights to the average, if the average has started."""
        if not self.values:
            return
        self.n_steps += 1
        decay = 1 - 1 / self.n_steps
        if self.options.average == "ema":
            decay = min(self.options.average_decay, (1 + self.n_steps) / (10 + self.n_steps))
        torch._foreach_lerp_(self.values, [parameter.detach() for parameter in self.parameters], 1 - decay)

    def start_if_due(self, epoch: int, perplexities: list[float]) -> None:
        """Start the uniform average after the configured epoch, or once validation has stalled.

        Args:
            perplexities: validation perplexities of the run so far.
        """
        if self.options.average != "uniform" or self.values:
            return
        if self.options.average_from:
            is_due = epoch >= self.options.average_from
        else:
            earlier = perplexities[:-STALL_VALIDATIONS]
            is_due = bool(earlier) and min(perplexities[-STALL_VALIDATIONS:]) >= min(earlier)
        if is_due:
            self.start()

    @contextmanager
    def swap_in(self) -> Iterator[None]:
        """Put the averaged weights into the model until the end of the context."""
        if not self.n_steps:
            yield
            return
        raw = [parameter.detach().clone() for parameter in self.parameters]
        self._assign(self.values)
        try:
            yield
        finally:
            self._assign(raw)

    @torch.no_grad()
    def _assign(self, values: list[Tensor]) -> None:
        torch._foreach_copy_([*self.parameters], values)


RECURRENT_NAME = re.compile(r"(weight|bias)_(?P<step>ih|hh)_l(?P<layer>\d+)$")
STEPS = {"ih": "input", "hh": "recurrent"}
FIRST_LAYER = ("positions", "bias")
"""Parameters of a windowed network's first layer."""
DEEPER_LAYERS = {"deeper": 2, "layers": 1}
"""Number of the first layer in a list of a windowed network, and of a transformer."""


def name_part(parameter: str) -> str:
    """Name the part of a network to which a parameter belongs, such as ``layer 1, recurrent``.

    The weights and biases of a recurrent layer are two parts, ``input`` and ``recurrent``. All else is named
    by the module of the network that has it, or is ``output``.
    """
    if found := RECURRENT_NAME.search(parameter):
        return f"layer {int(found['layer']) + 1}, {STEPS[found['step']]}"
    owner, *names = parameter.split(".")
    if owner == "output" or not names:
        return owner
    if names[0] in FIRST_LAYER:
        return "layer 1"
    if names[0] in DEEPER_LAYERS:
        return f"layer {DEEPER_LAYERS[names[0]] + int(names[1])}"
    return names[0].replace("_", " ")


class GradientClipper:
    """Clip the gradients of all parameters to one norm, and keep the norms that they had before.

    Args:
        named: the parameters that are trained, with their names.
        limit: maximum norm of all gradients together.
    """

    def __init__(self, named: Iterable[tuple[str, torch.nn.Parameter]], limit: float) -> None:
        names, self.parameters = zip(*named, strict=True)
        parts = [name_part(name) for name in names]
        self.columns = ("all", *dict.fromkeys(parts), "clipped")
        """Names of the values of a step: norms of all and of each part, and 1 if they were clipped or 0."""
        self.limit = limit
        device = self.parameters[0].device
        self._places = torch.tensor([self.columns.index(part) for part in parts], device=device)
        self._steps: list[Tensor] = []

    def clip(self) -> None:
        """Clip the gradients of one step."""
        norms = torch.stack([
            parameter.new_zeros(()) if parameter.grad is None else torch.linalg.vector_norm(parameter.grad)
            for parameter in self.parameters
        ])  # fmt: skip
        total = torch.linalg.vector_norm(norms)
        torch.nn.utils.clip_grads_with_norm_(self.parameters, self.limit, total)
        squares = norms.new_zeros(len(self.columns)).index_add_(0, self._places, norms.square())
        values = squares.sqrt_()
        values[0], values[-1] = total, total > self.limit
        self._steps.append(values)

    def take_sums(self) -> tuple[dict[str, float], int]:
        """Return the sums of each column's values over the steps since the last call, and their number."""
        if not self._steps:
            return {}, 0
        sums = torch.stack(self._steps).double().sum(0).tolist()
        n_steps = len(self._steps)
        self._steps.clear()
        return dict(zip(self.columns, sums, strict=True)), n_steps


MARGIN_NATS = math.log(10.0)
"""Training has diverged if the mean loss per word exceeds the unigram entropy by more than this."""
GRACE_STEPS = 100
"""Number of steps at the start of a run in which a high loss does not count as divergence."""


def compute_loss_limit(ids: np.ndarray) -> float:
    """Return the limit on the mean loss per word, in nats, for training on the word ids of a text, (T,)."""
    counts = np.bincount(ids)
    probs = counts[counts > 0] / len(ids)
    unigram_entropy = float(-(probs * np.log(probs)).sum())
    return unigram_entropy + MARGIN_NATS


def check_loss(
    mean_loss: float, step: int, options: TrainingOptions, limit: float = math.inf, of: str = "the loss"
) -> None:
    """Check the mean loss per word of the last steps, or of a text.

    Args:
        limit: maximum mean loss; not applied in the first ``GRACE_STEPS`` steps.
        of: what ``mean_loss`` is, for the error.

    Raises:
        ScoringError: the loss is not finite or above the limit.
    """
    if step <= GRACE_STEPS:
        limit = math.inf
    if not math.isfinite(mean_loss) or mean_loss > limit:
        raise ScoringError(
            f"training diverged: {of} is {mean_loss:.4g} nats per word at step {step}, worse than word "
            f"frequencies alone. Start again with a lower --learning-rate (now {options.learning_rate:g}), a "
            f"lower --gradient-clip (now {options.gradient_clip:g}) or more --warmup-steps (now "
            f"{options.warmup_steps})"
        )


MAX_CHUNK_SCORES = 1 << 24
"""Maximum number of scores in memory at once, where all words are scored (64 MB)."""
UNSEEN_COUNT = 0.5
"""Count that a word without occurrences gets, so that it can be drawn and has a finite ln q."""


class Objective(Protocol):
    """A loss function for training."""

    def loss(self, output: OutputLayer, hidden: Tensor, words: Tensor) -> Tensor:
        """Return the loss, summed over the batch.

        Args:
            hidden: (N, D) context vectors.
            words: (N,) target words.

        Raises:
            ConfigError: the objective does not work with this output layer.
        """


@dataclass(frozen=True)
class MaximumLikelihood:
    """Exact Σ −ln P(w | h), the default objective.

    It works with every output layer. Scores are log-probabilities, and the mean loss is the logarithm of the
    perplexity.
    """

    bfloat16: bool = False
    """Compute the products of a full softmax in bfloat16. Other output layers have only small products."""

    def loss(self, output: OutputLayer, hidden: Tensor, words: Tensor) -> Tensor:
        if self.bfloat16 and isinstance(output, FullSoftmax):
            hidden = hidden.to(torch.bfloat16)
        return output.loss(hidden, words)


class Noise:
    """Noise distribution q(w) ∝ count(w)^power over the words that can be predicted.

    Power 1 gives the unigram distribution (Mnih & Teh 2012), 0.75 the distribution of word2vec (Mikolov et
    al. 2013b), and 0 the uniform distribution. Words are drawn with replacement by torch's global generator
    for the device. Checkpoints contain its state, so that a resumed run draws the same words as an
    uninterrupted one.

    Args:
        counts: (n_words,) in vocabulary order; words that never occur count as one half.
        device: device for the drawn words, the same as that of the model.

    Raises:
        ConfigError: ``counts`` is not one finite number ≥ 0 per word, or ``power`` is outside 0 … 1.
    """

    def __init__(self, counts: Tensor, power: float = 1.0, device: torch.device | str = "cpu") -> None:
        counts = counts.to("cpu", torch.float64)
        if counts.ndim != 1 or not len(counts) or not torch.isfinite(counts).all() or counts.min() < 0:
            raise ConfigError("noise needs the count of every word: one finite number ≥ 0 per word")
        if not 0 <= power <= 1:
            raise ConfigError(f"noise_power is {power}; expected 0 (uniform) to 1 (unigram)")
        mass = counts.clamp(min=UNSEEN_COUNT) ** power
        self.log_probs = (mass / mass.sum()).log().to(device, torch.float32)  # (n_words,)
        # float64, because 1 / q may exceed the 2²⁴ that float32 resolves
        self._cumulative = (mass.cumsum(0) / mass.sum()).to(device)

    @property
    def n_words(self) -> int:
        return len(self.log_probs)

    def draw(self, *shape: int) -> Tensor:
        """Draw independent word ids in the given shape."""
        positions = torch.rand(shape, dtype=torch.float64, device=self._cumulative.device)
        return torch.searchsorted(self._cumulative, positions, right=True).clamp_(max=self.n_words - 1)


@dataclass(frozen=True, slots=True)
class _Scores:
    """Scores s(w, h) = h · w + b, and log-probabilities ln q, of target words and noise words."""

    target: Tensor  # (N,)
    noise: Tensor  # (N, k)
    target_log_q: Tensor  # (N,)
    noise_log_q: Tensor  # (k,) or (N, k)
    hits: Tensor
    """(N, k) bool: True if a noise word equals the target."""


@dataclass(frozen=True)
class _SampledObjective:
    """Draw and score the k noise words of a sampled objective."""

    noise: Noise
    samples: int = 512
    """Number k of noise words. Many are cheap if a batch shares them; 20 are usual if drawn per word."""
    per_word: bool = False
    """Draw k words for every position instead of k per batch: less correlated samples, but far slower."""

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ConfigError(f"noise_samples is {self.samples}; expected at least 1")

    def _score(self, output: OutputLayer, hidden: Tensor, words: Tensor) -> _Scores:
        layer = _require_full_softmax(output)
        if layer.n_words != self.noise.n_words:
            raise ConfigError(
                f"the noise has {self.noise.n_words} words, but the model predicts {layer.n_words}"
            )
        noise = self.noise.draw(*((len(words), self.samples) if self.per_word else (self.samples,)))
        # Looking up targets and noise together creates only one gradient of the matrix's size; index_select
        # takes half the time of an embedding.
        ids = torch.cat([words, noise.flatten()])
        rows, bias = layer.word_weight.index_select(0, ids), layer.word_bias.index_select(0, ids)
        n = len(words)
        target = (hidden * rows[:n]).sum(1) + bias[:n]  # (N,)
        if self.per_word:
            noise_rows = rows[n:].view(n, self.samples, -1)  # (N, k, D)
            scores = torch.bmm(noise_rows, hidden.unsqueeze(2)).squeeze(2) + bias[n:].view(n, -1)
        else:
            scores = torch.addmm(bias[n:], hidden, rows[n:].t())  # (N, k)
        log_q = self.noise.log_probs
        return _Scores(target, scores, log_q[words], log_q[noise], noise == words.unsqueeze(1))


@dataclass(frozen=True)
class NoiseContrastive(_SampledObjective):
    """Noise-contrastive estimation (Gutmann & Hyvärinen 2010; for language models Mnih & Teh 2012).

    The model is trained as a classifier that separates the target from k words drawn from q, where
    exp(s − ``log_normaliser``) is the probability of a word. The loss is Σ −ln σ(s − ln kq) for targets plus
    Σ −ln σ(ln kq − s) for noise words. As k grows, the gradient approaches that of maximum likelihood, and
    the normaliser that the model learns approaches the constant. Noise words that equal the target are kept,
    because the theory requires noise that is independent of the data.

    The cost of training does not grow with V. The scores are nearly normalised, so they can be used without a
    sum over V, but they are not log-probabilities: ``measure_normaliser_error`` measures the difference.
    Perplexities use the normalised ``log_probs`` of the layer.
    """

    log_normaliser: float = 0.0
    """Constant ln Z that is assumed for every context.

    0 suits a layer that starts from the unigram distribution, which is normalised. ln V suits weights and
    biases that start from zero."""

    def loss(self, output: OutputLayer, hidden: Tensor, words: Tensor) -> Tensor:
        scores = self._score(output, hidden, words)
        shift = self.log_normaliser + math.log(self.samples)
        target_loss = functional.softplus(shift + scores.target_log_q - scores.target)
        noise_loss = functional.softplus(scores.noise - scores.noise_log_q - shift)
        return target_loss.sum() + noise_loss.sum()


@dataclass(frozen=True)
class NegativeSampling(_SampledObjective):
    """Negative sampling (Mikolov et al. 2013b): Σ −ln σ(s) for targets, Σ −ln σ(−s) for k noise words.

    The result is not a language model: the best score s is ln P(w | h) − ln kq(w), so that scores ignore word
    frequency and have no perplexity. The objective serves to train good word vectors quickly, with noise of
    power 0.75. As in word2vec, noise words that equal the target are ignored.
    """

    def loss(self, output: OutputLayer, hidden: Tensor, words: Tensor) -> Tensor:
        scores = self._score(output, hidden, words)
        noise_loss = functional.softplus(scores.noise.masked_fill(scores.hits, -math.inf))
        return functional.softplus(-scores.target).sum() + noise_loss.sum()


@dataclass(frozen=True)
class SampledSoftmax(_SampledObjective):
    """Softmax over the target and k noise words (Bengio & Senécal 2008; Jean et al. 2015).

    Each noise word is weighted by 1 / kq(w): ln kq is subtracted from its score. The target has weight 1, and
    noise words that equal the target (accidental hits) are removed. The expected sum is then the exact
    normaliser Σ exp s. In expectation, the loss is a lower bound of −ln P (Jensen), which becomes exact as k
    grows.

    A few hundred noise words suffice for a vocabulary of any size. The scores are those of a softmax up to a
    constant per context. Training does not keep this constant near 0, so that scores must be normalised
    before use, as the layer's ``log_probs`` does. The exponential of the mean loss is not a perplexity.
    """

    def loss(self, output: OutputLayer, hidden: Tensor, words: Tensor) -> Tensor:
        scores = self._score(output, hidden, words)
        corrected = scores.noise - scores.noise_log_q - math.log(self.samples)
        corrected = corrected.masked_fill(scores.hits, -math.inf)
        candidates = torch.cat([scores.target.unsqueeze(1), corrected], dim=1)  # (N, k + 1)
        return (candidates.logsumexp(dim=1) - scores.target).sum()


@dataclass(frozen=True, slots=True)
class NormaliserError:
    """Difference between unnormalised scores and log-probabilities, in nats per word."""

    mean: float
    """Mean of ln Σ exp(s) − log_normaliser; positive if the scores are too high."""
    deviation: float
    """Standard deviation over contexts. No constant can correct it."""
    n_words: int


@torch.no_grad()
def measure_normaliser_error(
    model: NeuralModel, text: Sentences, log_normaliser: float = 0.0
) -> NormaliserError:
    """Compute mean and standard deviation over a text of ln Z − ``log_normaliser``, for Z = Σ exp(s).

    Raises:
        ConfigError: the model's output layer is not a full softmax.
    """
    layer = _require_full_softmax(model.output)
    weight = layer.word_weight[: layer.n_words]
    n, total, squares = 0, 0.0, 0.0
    for hidden, _ in iterate_contexts(model, text):
        for chunk in hidden.split(max(1, MAX_CHUNK_SCORES // layer.n_words)):
            log_z = functional.linear(chunk, weight, layer.word_bias).logsumexp(1).double() - log_normaliser
            n += len(chunk)
            total += float(log_z.sum())
            squares += float(log_z.square().sum())
    mean = total / n
    return NormaliserError(mean, math.sqrt(max(0.0, squares / n - mean * mean)), n)


def _require_full_softmax(output: OutputLayer) -> FullSoftmax:
    if not isinstance(output, FullSoftmax):
        raise ConfigError(f"sampled objectives need a full softmax; the model has {type(output).__name__}")
    return output


def check_penalties(options: TrainingOptions, config: SequenceConfig) -> None:
    """Raise ConfigError if the penalty of changes would also count the changes that dropout causes."""
    if options.change_penalty and config.dropout and not config.locked_dropout:
        raise ConfigError(
            "--change-penalty needs --locked-dropout: with a mask per word, the vectors change from word to "
            "word because of dropout"
        )


def penalise_activations(hidden: Tensor, is_word: Tensor, options: TrainingOptions) -> Tensor | None:
    """Compute the penalties of activation regularisation (AR) and temporal activation regularisation (TAR).

    The penalty of a word is α times the mean square of its context vector, plus β times the mean square of
    the change from the context vector before (Merity et al. 2017, "Revisiting Activation Regularization for
    Language RNNs"). Merity et al. take the changes before dropout. Here they are taken after locked dropout,
    which uses one mask for a whole sequence and so causes no changes.

    Args:
        hidden: (B, T, D) context vectors after dropout.
        is_word: (B, T) bool, False where a row is padded.

    Returns:
        The sum over words, or None if both penalties are 0.
    """
    alpha, beta = options.activation_penalty, options.change_penalty
    if not alpha and not beta:
        return None
    size = hidden.shape[-1]
    squares = hidden.square().sum(-1)[is_word].sum()
    changes = (hidden[:, 1:] - hidden[:, :-1]).square().sum(-1)[is_word[:, 1:] & is_word[:, :-1]].sum()
    return torch.add(squares * (alpha / size), changes, alpha=beta / size)


def make_optimiser(
    options: TrainingOptions, parameters: Iterable[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    """Make AdamW (Loshchilov & Hutter 2019), or stochastic gradient descent with optional momentum."""
    rate, decay = options.learning_rate, options.weight_decay
    if options.optimiser == "sgd":
        return torch.optim.SGD(parameters, lr=rate, momentum=options.momentum, weight_decay=decay, fused=True)
    return torch.optim.AdamW(parameters, lr=rate, weight_decay=decay, fused=True)


def compute_learning_rate(
    options: TrainingOptions, step: int, total_steps: int, reductions: int = 0
) -> float:
    """Compute the learning rate of a step.

    A linear warm-up is followed by a cosine decay to zero at ``total_steps`` (Loshchilov & Hutter 2017), or
    by the peak rate times ``plateau_factor`` for each reduction so far (Mikolov et al. 2010 halve it).
    """
    rate = options.learning_rate * min(1.0, (step + 1) / max(1, options.warmup_steps))
    if options.schedule == "cosine":
        return rate * 0.5 * (1 + math.cos(math.pi * min(1.0, step / total_steps)))
    return rate * options.plateau_factor**reductions


def has_stalled(options: TrainingOptions, perplexity: float, best_perplexity: float) -> bool:
    """Whether the perplexity improved so little that the plateau schedule must reduce the learning rate."""
    return options.schedule == "plateau" and perplexity > best_perplexity * (1 - options.plateau_gain)
