"""Owns the benchmark of training: words a second of our models beside a plain PyTorch loop, on one machine in
one run, and how far each is from the time of its matrix products alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from rescorer.bench.baselines import BATCH_SENTENCES, PlainLstm
from rescorer.bench.matrix_products import Product, flops, measure_products
from rescorer.errors import ConfigError
from rescorer.lm.networks import NetworkConfig, NeuralModel
from rescorer.lm.networks.config import WINDOWED_KINDS
from rescorer.text import Normaliser
from rescorer_training.bench.baseline import plain_optimiser, plain_step
from rescorer_training.bench.gemm_floor import PASSES, network_products, output_products
from rescorer_training.classes.partition import bin_by_frequency, order_vocabulary
from rescorer_training.data.corpus import count_words, encode_text
from rescorer_training.data.sentence_batches import Sentences, plan_batches
from rescorer_training.neural.objectives import MaximumLikelihood, Noise, NoiseContrastive, Objective

BASELINE = "plain PyTorch, LSTM, full softmax"
MODELS = {
    "lstm": ("lstm", "classes"),
    "elman": ("elman", "classes"),
    "gru": ("gru", "classes"),
    "lbl": ("lbl", "classes"),
    "feedforward": ("feedforward", "classes"),
    "lstm-full": ("lstm", "full"),
    "lstm-nce": ("lstm", "full"),
}
"""Name → network and output layer; ``-nce`` trains the full softmax by noise-contrastive estimation."""
LONGEST = 200
ZIPF_SENTENCES, ZIPF_MEAN_WORDS = 20_000, 21


@dataclass(frozen=True, slots=True)
class BenchmarkOptions:
    """What is measured, and how long."""

    models: tuple[str, ...] = tuple(MODELS)
    size: int = 200
    """Of embeddings and hidden states."""
    n_classes: int = 100
    window: int = 4
    """Words seen by the models that are not recurrent: n - 1 of their n-gram."""
    noise_samples: int = 512
    batch_words: int = 4096
    seconds: float = 5.0
    """For each model in each round."""
    rounds: int = 3
    """All models take turns, so that what else the machine does hits all of them; the median round counts."""
    processor_time: bool = False
    """Count seconds of the processor, not of the wall clock: figures of one thread that hold on a machine
    that does other work too."""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.models) - set(MODELS))
        if unknown:
            raise ConfigError(
                f"no such model in the benchmark: {', '.join(unknown)}; there are {', '.join(MODELS)}"
            )
        for name in ("size", "n_classes", "window", "noise_samples", "batch_words", "rounds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected at least 1")
        if self.processor_time and torch.get_num_threads() > 1:
            raise ConfigError(f"processor time is of one thread; torch has {torch.get_num_threads()}")

    @property
    def clock(self) -> Callable[[], float]:
        return time.process_time if self.processor_time else time.perf_counter


@dataclass(frozen=True, slots=True)
class Speed:
    """One line of the benchmark."""

    name: str
    words_per_second: float
    """Targets trained on, ``</s>`` counted, padding not."""
    ratio: float
    """To the baseline's words/s. This and what follows: median of the rounds."""
    floor_words_per_second: float
    """If a step were its matrix products alone: PASSES × the time of the forward ones, measured."""
    floor_gflops_per_second: float
    """Rate of those products."""
    floor_multiple: float
    """Time taken ÷ time of the products."""


def zipf_text(vocabulary_size: int, seed: int = 1) -> tuple[Sentences, int]:
    """Random sentences whose words follow Zipf's law, ids by falling frequency, and the vocabulary's size."""
    random = np.random.default_rng(seed)
    n_words = vocabulary_size - 1  # all but <s>
    ranks = np.arange(2, n_words)
    lengths = 1 + random.poisson(ZIPF_MEAN_WORDS, ZIPF_SENTENCES)
    ids = random.choice(ranks, size=int(lengths.sum()), p=(1 / ranks) / (1 / ranks).sum()).astype(np.int32)
    ids[np.cumsum(lengths) - 1] = 0  # </s>
    return Sentences.from_ids(ids, start_id=n_words, end_id=0, max_words=LONGEST), vocabulary_size


def file_text(path: Path, normaliser: Normaliser, vocabulary_size: int) -> tuple[Sentences, int]:
    """A text file as ids of its most frequent words, and the size of its vocabulary."""
    counts = count_words([path], normaliser)
    words = order_vocabulary(counts, (word for word, _ in counts.most_common(vocabulary_size)))
    known = {word: i for word, i in words.ids.items() if words.knows(word)}
    ids = encode_text([path], normaliser, known, unknown_id=words.unknown, end_id=words.end)
    return Sentences.from_ids(ids, start_id=words.start, end_id=words.end, max_words=LONGEST), len(words)


@dataclass
class Contestant:
    """A model with its step: trains on some sentences and returns the words it predicted."""

    name: str
    step: Callable[[np.ndarray], int]
    order: list[np.ndarray]
    """Sentence numbers of each batch."""
    products: list[Product]
    """Forward matrix products of ``typical`` batches."""
    product_words: int
    """Words of these batches."""
    clock: Callable[[], float]
    words_per_second: list[float] = field(default_factory=list)
    """Of each round."""
    product_seconds: list[float] = field(default_factory=list)
    """Time of the products in each round."""
    done: int = 0

    def run(self, seconds: float) -> None:
        """One round: trains for a while, one batch at least, going on where the round before ended; then the
        products alone, for the machine may be busier in the next round."""
        words, began = 0, self.clock()
        while (spent := self.clock() - began) < seconds or not words:
            words += self.step(self.order[self.done % len(self.order)])
            self.done += 1
        self.words_per_second.append(words / spent)
        self.product_seconds.append(measure_products(self.products, self.clock))

    def speed(self, base: Contestant) -> Speed:
        """What the rounds come to."""
        floors = [self.product_words / (PASSES * seconds) for seconds in self.product_seconds]
        rounds = list(zip(self.words_per_second, base.words_per_second, floors, strict=True))
        return Speed(
            self.name,
            words_per_second=statistics.median(self.words_per_second),
            ratio=statistics.median(ours / theirs for ours, theirs, _ in rounds),
            floor_words_per_second=statistics.median(floors),
            floor_multiple=statistics.median(floor / ours for ours, _, floor in rounds),
            floor_gflops_per_second=flops(self.products) / statistics.median(self.product_seconds) / 1e9,
        )


def run_benchmark(text: Sentences, vocabulary_size: int, options: BenchmarkOptions) -> list[Speed]:
    """Measures the baseline and every model asked for; the baseline comes first."""
    torch.manual_seed(1)
    contestants = [baseline(text, vocabulary_size, options)]
    contestants += [contestant(name, text, vocabulary_size, options) for name in options.models]
    for each in contestants:
        each.step(each.order[0])  # what the first step alone allocates and imports
    for _ in range(options.rounds):
        for each in contestants:
            each.run(options.seconds)
    return [each.speed(contestants[0]) for each in contestants]


def baseline(text: Sentences, vocabulary_size: int, options: BenchmarkOptions) -> Contestant:
    """The plain loop, its sentences in random order."""
    model = PlainLstm(vocabulary_size, options.size)
    optimiser = plain_optimiser(model)
    order = np.random.default_rng(1).permutation(len(text.starts))
    config = NetworkConfig(
        vocabulary_size, embedding_size=options.size, hidden_size=options.size, output="full", tied=False
    )

    def step(chosen: np.ndarray) -> int:
        inputs, targets = text.pad_rows(chosen)
        plain_step(model, optimiser, torch.from_numpy(inputs), torch.from_numpy(targets))
        return int((targets >= 0).sum())

    parts = np.array_split(order, -(-len(order) // BATCH_SENTENCES))
    return make_contestant(config, BASELINE, step, text, parts, options.clock)


def contestant(name: str, text: Sentences, vocabulary_size: int, options: BenchmarkOptions) -> Contestant:
    """A model of ours, its sentences sorted into batches by length."""
    counts = np.bincount(text.ids, minlength=vocabulary_size)[: vocabulary_size - 1]
    config = network_config(name, counts, options)
    model = NeuralModel(config)
    model.output.start_from_unigrams(torch.from_numpy(counts))
    samples = options.noise_samples if name.endswith("-nce") else None
    objective: Objective = MaximumLikelihood()
    if samples:
        objective = NoiseContrastive(Noise(torch.from_numpy(counts)), samples)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0, fused=True)

    def step(chosen: np.ndarray) -> int:
        inputs, targets = (torch.from_numpy(rows) for rows in text.pad_rows(chosen))
        real = targets >= 0
        words = targets[real]
        optimiser.zero_grad()
        hidden, _ = model.context_vectors(inputs)
        (objective.loss(model.output, hidden[real], words) / len(words)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        return len(words)

    order = plan_batches(text, options.batch_words, seed=1, epoch=0)
    return make_contestant(config, name, step, text, order, options.clock, samples)


def network_config(name: str, counts: np.ndarray, options: BenchmarkOptions) -> NetworkConfig:
    """The model of that name at the sizes asked for."""
    kind, output = MODELS[name]
    return NetworkConfig(
        len(counts) + 1,
        bin_by_frequency(counts, options.n_classes) if output == "classes" else (),
        kind,
        embedding_size=options.size,
        hidden_size=options.size,
        output=output,
        activation="linear" if kind == "lbl" else "tanh",
        window=options.window if kind in WINDOWED_KINDS else 0,
    )


def make_contestant(
    config: NetworkConfig,
    name: str,
    step: Callable[[np.ndarray], int],
    text: Sentences,
    order: list[np.ndarray],
    clock: Callable[[], float],
    samples: int | None = None,
) -> Contestant:
    """With the products of a short, a medium and a long batch."""
    by_length = sorted(order, key=lambda chosen: int(text.lengths[chosen].max()))
    products, n_words = list[Product](), 0
    for quarter in (1, 2, 3):
        _, targets = text.pad_rows(by_length[len(by_length) * quarter // 4])
        words = torch.from_numpy(targets[targets >= 0])
        products += network_products(config, *targets.shape) + output_products(config, words, samples)
        n_words += len(words)
    return Contestant(name, step, order, products, n_words, clock)
