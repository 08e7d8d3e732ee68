"""Measure training speed, compared with a plain PyTorch loop and with the matrix products alone.

The baseline is an LSTM language model as a typical PyTorch user would write it, without code of this project:
a plain model, cross_entropy, Adam, and padded batches of 64 sentences in random order. The floor of a model
is the time that its matrix products alone take.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rescorer.bench.models import BATCH_SENTENCES, GATE_COUNTS, PlainLstm, Product, flops, measure_products
from rescorer.bench.scoring import transformer_products
from rescorer.errors import ConfigError
from rescorer.models.network_files import WINDOWED_KINDS, NetworkConfig
from rescorer.models.neural import NeuralModel
from rescorer.text import Normaliser
from rescorer_training.batches import Sentences, plan_batches
from rescorer_training.classes.partition import bin_by_frequency, order_vocabulary
from rescorer_training.corpus import count_words, encode_text
from rescorer_training.neural.optimisation import MaximumLikelihood, Noise, NoiseContrastive, Objective
from rescorer_training.progress import option


def train_plain_step(
    model: PlainLstm, optimiser: torch.optim.Optimizer, inputs: Tensor, targets: Tensor
) -> float:
    """Update the model once and return the mean loss.

    Args:
        inputs: (B, T) word ids.
        targets: (B, T) word ids, -1 where padded.
    """
    optimiser.zero_grad()
    logits = model(inputs)
    loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    return loss.item()


N_PASSES = 3
"""A step costs as much as this many forward passes: forward, gradients of inputs, gradients of weights."""


def list_network_products(config: NetworkConfig, n_rows: int, n_columns: int) -> list[Product]:
    """List the matrix products of a network's forward pass over (B, T) words, without the output layer."""
    n, hidden, size = n_rows * n_columns, config.hidden_size, config.embedding_size
    if config.kind == "transformer":
        return transformer_products(config, n)
    products: list[Product] = []
    if config.window:
        products += [(n, config.window * size, hidden)] + [(n, hidden, hidden)] * (config.layers - 1)
    else:
        gates, input_size = GATE_COUNTS[config.kind] * hidden, size
        for _ in range(config.layers):
            products += [(n, input_size, gates)] + [(n_rows, hidden, gates)] * n_columns
            input_size = hidden
    if hidden != size:
        products.append((n, hidden, size))
    return products


def list_output_products(config: NetworkConfig, words: Tensor, samples: int | None = None) -> list[Product]:
    """List the matrix products of an output layer's forward pass.

    Args:
        words: (N,) targets.
        samples: number of words that a sampled objective scores; None if all words are scored.
    """
    n, size = len(words), config.embedding_size
    if config.output == "full":
        return [(n, size, samples or config.n_words)]
    sizes = torch.tensor(config.class_sizes)
    class_of = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    occurrences = torch.bincount(class_of[words], minlength=len(sizes))
    within = zip(occurrences.tolist(), config.class_sizes, strict=True)
    return [(n, size, len(sizes))] + [(rows, size, width) for rows, width in within if rows and width > 1]


BASELINE = "plain PyTorch, LSTM, full softmax"
MODELS = {
    **{kind: (kind, "classes") for kind in ("lstm", "elman", "gru", "lbl", "feedforward", "transformer")},
    "lstm-full": ("lstm", "full"),
    "lstm-nce": ("lstm", "full"),
}
"""Network and output layer of each model. ``-nce`` means training by noise-contrastive estimation."""
TRANSFORMER_LAYERS, TRANSFORMER_HEADS, TRANSFORMER_WINDOW = 4, 4, 128
"""The number of heads is a maximum: each needs an even share of the size."""
MAX_SENTENCE_WORDS = 200
N_ZIPF_SENTENCES, MEAN_ZIPF_WORDS = 20_000, 21


@dataclass(frozen=True, slots=True)
class BenchmarkOptions:
    """Models to measure, their sizes and training steps, and how speed is measured.

    In every round all models take turns, so that other load on the machine affects all of them.

    Raises:
        ConfigError: a model is unknown, or a value is out of range.
    """

    models: list[str] | None = option(None, "Model to measure; repeat for more. Default: all.", "--model")
    vocabulary_size: int = option(10_000, "Number of words in the vocabulary, the most frequent ones.")
    size: int = option(200, "Size of word vectors and hidden states; a transformer needs an even one.")
    n_classes: int = option(100, "Number of output classes.", "--classes")
    window: int = option(4, "Number of context words of feed-forward and log-bilinear models.")
    noise_samples: int = option(512, "Noise words per batch for noise-contrastive estimation.")
    batch_words: int = option(4096, "Words per batch, including padding; the plain PyTorch loop ignores it.")
    seconds: float = option(5.0, "Seconds to measure each model in each round.")
    rounds: int = option(3, "Number of rounds; each measures every model, and the median is reported.")
    threads: int | None = option(None, "Number of CPU threads. Default: all.", min=1)
    processor_time: bool = option(
        False,
        "Measure processor time instead of elapsed time, for busy machines; needs --threads 1.",
        "--processor-time",
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "models", list(self.models or MODELS))
        unknown = sorted(set(self.models or ()) - set(MODELS))
        if unknown:
            raise ConfigError(f"unknown model {', '.join(unknown)}; expected some of {', '.join(MODELS)}")
        for name in ("size", "n_classes", "window", "noise_samples", "batch_words", "rounds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected at least 1")
        if self.size % 2 and "transformer" in (self.models or ()):
            raise ConfigError(
                f"--size is {self.size}; expected an even number for the transformer, or another --model"
            )
        n_threads = self.threads or torch.get_num_threads()
        if self.processor_time and n_threads > 1:
            raise ConfigError(f"processor time needs a single thread, got {n_threads}; add --threads 1")

    @property
    def clock(self) -> Callable[[], float]:
        """Function that returns the current time in seconds."""
        return time.process_time if self.processor_time else time.perf_counter


@dataclass(frozen=True, slots=True)
class Speed:
    """Training speed of one model. All figures are medians over the rounds."""

    name: str
    words_per_second: float
    """Target words per second, including ``</s>`` but not padding."""
    ratio: float
    """Words per second divided by those of the baseline."""
    floor_words_per_second: float
    """Words per second if a step took only ``N_PASSES`` times as long as its forward products."""
    floor_gflops_per_second: float
    """Billions of floating-point operations per second in the forward products alone."""
    floor_multiple: float
    """Time of a step, as a multiple of its floor."""


def make_zipf_text(vocabulary_size: int) -> tuple[Sentences, int]:
    """Generate sentences whose words follow Zipf's law, with ids in order of falling frequency.

    Returns:
        The sentences and the size of the vocabulary.
    """
    random = np.random.default_rng(1)
    n_words = vocabulary_size - 1  # all except <s>
    ranks = np.arange(2, n_words)
    lengths = 1 + random.poisson(MEAN_ZIPF_WORDS, N_ZIPF_SENTENCES)
    ids = random.choice(ranks, size=int(lengths.sum()), p=(1 / ranks) / (1 / ranks).sum()).astype(np.int32)
    ids[np.cumsum(lengths) - 1] = 0  # </s>
    return Sentences.from_ids(ids, start_id=n_words, end_id=0, max_words=MAX_SENTENCE_WORDS), vocabulary_size


def read_text(path: Path, normaliser: Normaliser, vocabulary_size: int) -> tuple[Sentences, int]:
    """Read a text file as ids of its most frequent words.

    Returns:
        The sentences and the size of the vocabulary.
    """
    counts = count_words([path], normaliser)
    words = order_vocabulary(counts, (word for word, _ in counts.most_common(vocabulary_size)))
    known = {word: i for word, i in words.ids.items() if words.is_known(word)}
    ids = encode_text([path], normaliser, known, unknown_id=words.unknown, end_id=words.end)
    text = Sentences.from_ids(ids, start_id=words.start, end_id=words.end, max_words=MAX_SENTENCE_WORDS)
    return text, len(words)


@dataclass
class Candidate:
    """A model to measure, with its measurements so far."""

    name: str
    train_step: Callable[[np.ndarray], int]
    """Function that trains on the sentences of the given numbers, and returns the number of target words."""
    batches: list[np.ndarray]
    """Sentence numbers of each batch."""
    products: list[Product]
    """Forward matrix products of three typical batches, to measure the floor."""
    product_words: int
    """Number of target words in the batches of ``products``."""
    clock: Callable[[], float]
    words_per_second: list[float] = field(default_factory=list)
    """Training speed in each round."""
    product_seconds: list[float] = field(default_factory=list)
    """Time of the products in each round."""
    n_batches_done: int = 0

    def run(self, seconds: float) -> None:
        """Measure one round: train on at least one batch, then time the matrix products alone.

        Training continues where the previous round ended. The products are timed in every round, because the
        load of the machine may change between rounds.
        """
        n_words, started = 0, self.clock()
        while (elapsed := self.clock() - started) < seconds or not n_words:
            n_words += self.train_step(self.batches[self.n_batches_done % len(self.batches)])
            self.n_batches_done += 1
        self.words_per_second.append(n_words / elapsed)
        self.product_seconds.append(measure_products(self.products, self.clock))

    def summarise(self, baseline: Candidate) -> Speed:
        """Return the medians over all rounds."""
        floors = [self.product_words / (N_PASSES * seconds) for seconds in self.product_seconds]
        rounds = list(zip(self.words_per_second, baseline.words_per_second, floors, strict=True))
        return Speed(
            self.name,
            words_per_second=statistics.median(self.words_per_second),
            ratio=statistics.median(speed / baseline_speed for speed, baseline_speed, _ in rounds),
            floor_words_per_second=statistics.median(floors),
            floor_multiple=statistics.median(floor / speed for speed, _, floor in rounds),
            floor_gflops_per_second=flops(self.products) / statistics.median(self.product_seconds) / 1e9,
        )


def run_benchmark(text: Sentences, vocabulary_size: int, options: BenchmarkOptions) -> list[Speed]:
    """Measure the baseline and the chosen models. The first result is that of the baseline."""
    torch.manual_seed(1)
    candidates = [make_baseline(text, vocabulary_size, options)]
    candidates += [make_candidate(name, text, vocabulary_size, options) for name in options.models or ()]
    for candidate in candidates:
        candidate.train_step(candidate.batches[0])  # the first step also allocates memory and imports modules
    for _ in range(options.rounds):
        for candidate in candidates:
            candidate.run(options.seconds)
    return [candidate.summarise(candidates[0]) for candidate in candidates]


def make_baseline(text: Sentences, vocabulary_size: int, options: BenchmarkOptions) -> Candidate:
    """Make the plain PyTorch loop, with sentences in random order."""
    model = PlainLstm(vocabulary_size, options.size)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    order = np.random.default_rng(1).permutation(len(text.starts))
    config = NetworkConfig(
        vocabulary_size, embedding_size=options.size, hidden_size=options.size, output="full", tied=False
    )

    def train_step(chosen: np.ndarray) -> int:
        inputs, targets = text.pad_rows(chosen)
        train_plain_step(model, optimiser, torch.from_numpy(inputs), torch.from_numpy(targets))
        return int((targets >= 0).sum())

    plain_batches = np.array_split(order, -(-len(order) // BATCH_SENTENCES))
    return _make_candidate(config, BASELINE, train_step, text, plain_batches, options.clock)


def make_candidate(name: str, text: Sentences, vocabulary_size: int, options: BenchmarkOptions) -> Candidate:
    """Make one of the project's models, with sentences batched by length."""
    counts = np.bincount(text.ids, minlength=vocabulary_size)[: vocabulary_size - 1]
    config = make_config(name, counts, options)
    model = NeuralModel(config)
    model.output.start_from_unigrams(torch.from_numpy(counts))
    samples = options.noise_samples if name.endswith("-nce") else None
    objective: Objective = MaximumLikelihood()
    if samples:
        objective = NoiseContrastive(Noise(torch.from_numpy(counts)), samples)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0, fused=True)

    def train_step(chosen: np.ndarray) -> int:
        inputs, targets = (torch.from_numpy(rows) for rows in text.pad_rows(chosen))
        is_word = targets >= 0  # padding has the target -1
        words = targets[is_word]
        optimiser.zero_grad()
        hidden, _ = model.context_vectors(inputs)
        (objective.loss(model.output, hidden[is_word], words) / len(words)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        return len(words)

    text_batches = plan_batches(text, options.batch_words, seed=1, epoch=0)
    return _make_candidate(config, name, train_step, text, text_batches, options.clock, samples)


def make_config(name: str, counts: np.ndarray, options: BenchmarkOptions) -> NetworkConfig:
    """Make the configuration of a model by its name in ``MODELS``, for (V - 1,) word counts."""
    kind, output = MODELS[name]
    windows = {"transformer": TRANSFORMER_WINDOW, **dict.fromkeys(WINDOWED_KINDS, options.window)}
    return NetworkConfig(
        len(counts) + 1,
        bin_by_frequency(counts, options.n_classes) if output == "classes" else (),
        kind,
        embedding_size=options.size,
        hidden_size=options.size,
        output=output,
        activation="linear" if kind == "lbl" else "tanh",
        window=windows.get(kind, 0),
        layers=TRANSFORMER_LAYERS if kind == "transformer" else 1,
        heads=math.gcd(TRANSFORMER_HEADS, options.size // 2) if kind == "transformer" else 1,
    )


def _make_candidate(
    config: NetworkConfig,
    name: str,
    train_step: Callable[[np.ndarray], int],
    text: Sentences,
    text_batches: list[np.ndarray],
    clock: Callable[[], float],
    samples: int | None = None,
) -> Candidate:
    """Make a candidate, and list the matrix products of a short, a medium and a long batch for its floor."""
    by_length = sorted(text_batches, key=lambda chosen: int(text.lengths[chosen].max()))
    products, n_words = list[Product](), 0
    for quarter in (1, 2, 3):
        _, targets = text.pad_rows(by_length[len(by_length) * quarter // 4])
        words = torch.from_numpy(targets[targets >= 0])
        products += list_network_products(config, *targets.shape)
        products += list_output_products(config, words, samples)
        n_words += len(words)
    return Candidate(name, train_step, text_batches, products, n_words, clock)
