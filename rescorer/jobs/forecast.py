"""Forecast the cost of rescoring: read many of the lists, or all, and score a few.

Reading counts lists, hypotheses and words, and draws a sample of lists. Scoring the sample measures the
processor time per word. Both use the code of a real run, so that the figures include parsing and writing.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from rescorer.errors import InputError, InvalidList
from rescorer.formats.registry import is_pipe
from rescorer.formats.rescored import rescored_writer
from rescorer.jobs.files import FileSummary, LocalRescorer, RescorerLoader, count_words, rescore_lists
from rescorer.jobs.plan import Lists, ListSource, draw_extract, find_files
from rescorer.jobs.processes import open_rescorer
from rescorer.trie import build_trie
from rescorer.types import NBestList

QUANTILES_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""The 97.5 % quantiles of Student's t distribution with 1 to 15 degrees of freedom. For more,
``1.96 + 2.5 / degrees`` is as exact."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate with its 95 % interval, whose upper end is infinite if the sample is too small for one."""

    value: float
    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Estimate:
        return cls(value, value, value)

    def times(self, factor: float, plus: float = 0.0) -> Estimate:
        return Estimate(*(factor * bound + plus for bound in (self.value, self.low, self.high)))

    def to_dict(self) -> dict[str, float | None]:
        """The estimate and both ends of its interval by name; None in place of infinity, which JSON lacks."""
        return {name: bound if math.isfinite(bound) else None for name, bound in asdict(self).items()}

    def product(self, other: Estimate) -> Estimate:
        """The product of two independent estimates; its squared relative error is the sum of theirs."""
        value = self.value * other.value
        errors = other.value * (self.high - self.value), self.value * (other.high - other.value)
        error = math.hypot(*errors)
        return Estimate(value, max(0.0, value - error), value + error)

    def inverse(self) -> Estimate:
        return Estimate(*(1 / bound if bound else math.inf for bound in (self.value, self.high, self.low)))


def estimate_speed(words: Sequence[int], times_s: Sequence[Sequence[float]]) -> Estimate:
    """Estimate the seconds per word of a run over other lists, at another time.

    The interval covers the variation between lists, and that of the machine's speed from run to run.

    Args:
        words: number of words of each batch.
        times_s: for each batch, its time in each pass over the sample.
    """
    of_batches = estimate_rate(words, [statistics.fmean(passes) for passes in times_s])
    return of_batches.product(estimate_repeat([sum(batches) for batches in zip(*times_s, strict=True)]))


def estimate_repeat(amounts: Sequence[float]) -> Estimate:
    """Predict what one more repetition would measure, as a multiple of the mean of the given repetitions.

    The interval combines the spread of single repetitions with the error of the mean.
    """
    n, mean = len(amounts), statistics.fmean(amounts)
    if n < 2 or not mean:
        return Estimate(1.0, 0.0, math.inf)
    error = quantile_95(n - 1) * statistics.stdev(amounts) * math.sqrt(1 + 1 / n) / mean
    return Estimate(1.0, max(0.0, 1.0 - error), 1.0 + error)


def quantile_95(degrees: int) -> float:
    """The 97.5 % quantile of Student's t distribution."""
    return QUANTILES_95[degrees - 1] if degrees <= len(QUANTILES_95) else 1.96 + 2.5 / degrees


def estimate_rate(words: Sequence[int], amounts: Sequence[float]) -> Estimate:
    """Estimate an amount per word from parts of the input: sum of ``amounts`` / sum of ``words``.

    The interval treats the parts as a random sample (Cochran, Sampling Techniques, 1977, chapter 6). A single
    part has no spread, and its interval is infinite.
    """
    n_parts, total = len(words), sum(words)
    ratio = sum(amounts) / total
    if n_parts < 2:
        return Estimate(ratio, 0.0, math.inf)
    degrees = n_parts - 1
    squares = sum((amount - ratio * count) ** 2 for count, amount in zip(words, amounts, strict=True))
    error = math.sqrt(n_parts * squares / degrees) / total
    margin = quantile_95(degrees) * error
    return Estimate(ratio, max(0.0, ratio - margin), ratio + margin)


N_PASSES = 3
"""Number of times that the sample is scored, which shows how much the speed of the machine varies."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Some lists of the input, and the size of the whole input, estimated if only a part was read."""

    lists: Sequence[NBestList]
    """Lists that were drawn at random without replacement, in random order."""
    n_lists: int
    """Number of lists. This and the following figures are for the whole input."""
    hypotheses: int
    words: Estimate
    """Number of words and sentence ends, before prefixes are shared."""
    unreadable: int
    """Number of lists that cannot be read."""
    read_s: float
    """Processor time to read the whole input."""
    read_share: float = 1.0
    """The share of the input's bytes that was read; 1: all was read, so that the figures are exact."""


@dataclass(frozen=True, slots=True)
class BatchCost:
    """The work in a batch of the sample, and the time that scoring it takes."""

    words: int
    """Number of words and sentence ends."""
    edges: int
    """Number of distinct prefixes and sentence ends: the edges of the batch's trie."""
    processor_s: tuple[float, ...]
    """Processor time in each pass over the sample."""
    elapsed_s: tuple[float, ...]
    """Elapsed time in each pass over the sample."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The cost of rescoring all lists."""

    sample: Sample
    rejected: int
    """Number of lists of the sample that cannot be scored."""
    prefix_share: float
    """Number of distinct prefixes and sentence ends of a batch, divided by its number of words and sentence
    ends: the share of the words that must be scored."""
    words_per_core_s: Estimate
    """Words that are scored per second of processor time; reading is not included."""
    core_s: Estimate
    """Processor time of the run, including reading, but not the start of processes."""
    gpu_s: Estimate | None
    """Time for which a GPU is used; None if no GPU is used."""
    start_s: float
    """Processor time to start a process: libraries and models."""

    def to_dict(self) -> dict[str, Any]:
        """The figures in the form that ``--json`` prints, with times in hours."""
        counts = ("n_lists", "hypotheses", "unreadable")
        hours = {
            f"{name}_hours": None if estimate is None else estimate.times(1 / 3600).to_dict()
            for name, estimate in (("core", self.core_s), ("gpu", self.gpu_s))
        }
        return {
            **{name.removeprefix("n_"): getattr(self.sample, name) for name in counts},
            "words": self.sample.words.to_dict(),
            "read_share": self.sample.read_share,
            "sampled_lists": len(self.sample.lists),
            "sample_rejected": self.rejected,
            "prefix_share": self.prefix_share,
            "words_per_core_second": self.words_per_core_s.to_dict(),
            **hours,
            "read_core_hours": self.sample.read_s / 3600,
            "start_core_seconds": self.start_s,
        }


def forecast(
    sample: Sample, costs: Sequence[BatchCost], rejected: int, start_s: float, *, on_gpu: bool
) -> Forecast:
    """Extrapolate the cost of the sample to all lists."""
    words = [cost.words for cost in costs]
    core = estimate_speed(words, [cost.processor_s for cost in costs])
    elapsed = estimate_speed(words, [cost.elapsed_s for cost in costs])
    return Forecast(
        sample,
        rejected,
        sum(cost.edges for cost in costs) / sum(words),
        core.inverse(),
        core.product(sample.words).times(1, plus=sample.read_s),
        elapsed.product(sample.words) if on_gpu else None,
        start_s,
    )


def sample_input(
    sources: Sequence[str],
    source: ListSource,
    check: Callable[[Lists, str], Lists],
    *,
    n_lists: int,
    max_bytes: int,
    seed: int,
) -> Sample:
    """Draw a sample of lists, from about ``max_bytes`` of files, or from the whole of a pipe.

    Args:
        check: takes lists and the name of their file, checks the first few, and returns all lists.

    Raises:
        ConfigError: the first lists do not fit the weights or the output format.
        InputError: an input cannot be read, or has no lists.
    """
    if len(sources) == 1 and is_pipe(sources[0]):
        lists = check(source.read_file(sources[0]), sources[0])
        return draw_sample([(1, lists)], 1, n_lists, seed)
    if names := find_files(sources, source):
        check(source.read_file(names[0]), names[0])
    n_bytes, parts = draw_extract(names, source, max_bytes, seed)
    return draw_sample(parts, max(1, n_bytes), n_lists, seed)


def forecast_run(load: RescorerLoader, sample: Sample, threads: int, *, compress: bool) -> Forecast:
    """Score a sample in this process, and forecast the cost of all lists.

    Answers are written to a temporary file, so that the figures include the time to write them.

    Args:
        threads: CPU threads; 0 means one thread, because the forecast is of processor time.
        compress: whether the output will be compressed.
    """
    with open_rescorer(load, 1, threads or 1, load.batch_words) as rescorer, TemporaryDirectory() as folder:
        assert isinstance(rescorer, LocalRescorer)  # as with one process
        start_s = time.process_time() - sample.read_s * sample.read_share
        with rescored_writer(load.to, str(Path(folder) / ("out.gz" if compress else "out"))) as write:
            costs, summary = measure_sample(rescorer, sample, write)
    return forecast(sample, costs, summary.rejected, start_s, on_gpu=load.device != "cpu")


def draw_sample(
    parts: Iterable[tuple[int, Iterable[NBestList | InputError]]], n_bytes: int, size: int, seed: int
) -> Sample:
    """Read parts of the input, and draw ``size`` of their lists (Vitter, Sampling with a Reservoir, 1985).

    Args:
        parts: for each part, its number of bytes and its lists. Parts must be drawn with equal probability.
        n_bytes: number of bytes of the whole input.

    Raises:
        InputError: there is not a single list that can be read and has hypotheses.
    """
    generator, reservoir = random.Random(seed), list[NBestList]()
    n_lists = hypotheses = unreadable = 0
    first_error = ""
    sizes, words = list[int](), list[int]()
    start_s = time.process_time()
    for part_bytes, lists in parts:
        sizes.append(part_bytes)
        words.append(0)
        for item in lists:
            if isinstance(item, InputError):
                unreadable += 1
                first_error = first_error or f"; the first error: {item}"
                continue
            n_lists += 1
            hypotheses += len(item.hypotheses)
            words[-1] += count_words(item)
            if n_lists <= size:
                reservoir.append(item)
            elif (place := generator.randrange(n_lists)) < size:
                reservoir[place] = item
    read_s = time.process_time() - start_s
    if not any(map(count_words, reservoir)):
        wanted = "a plan needs at least one list that can be read and has hypotheses"
        raise InputError(f"{wanted}; found none{first_error}")
    generator.shuffle(reservoir)
    share = min(1.0, sum(sizes) / n_bytes)
    return Sample(
        reservoir,
        round(n_lists / share),
        round(hypotheses / share),
        Estimate.exact(sum(words)) if share == 1 else estimate_rate(sizes, words).times(n_bytes),
        round(unreadable / share),
        read_s / share,
        share,
    )


def measure_sample(
    rescorer: LocalRescorer, sample: Sample, write: Callable[[Any], object]
) -> tuple[list[BatchCost], FileSummary]:
    """Rescore a sample several times; return the cost of each batch, and the counts of one pass.

    The first batch is rescored once before the measurement, because memory and caches are cold at first.
    """
    lists = list(sample.lists)
    warm_up, words = [], 0
    for nbest in lists:
        warm_up.append(nbest)
        words += count_words(nbest)
        if words >= rescorer.batch_words:
            break
    rescore_lists(rescorer, warm_up, lambda content: None)
    passes = [_measure_pass(rescorer, lists, write) for _ in range(N_PASSES)]
    ends, _, summary = passes[0]
    times = np.diff([clocks for _, clocks, _ in passes], axis=1)  # (passes, batches, 2)
    costs = [
        BatchCost(
            sum(map(count_words, lists[begin:end])),
            count_edges(rescorer, lists[begin:end]),
            *map(tuple, times[:, batch].T.tolist()),
        )
        for batch, (begin, end) in enumerate(pairwise(ends))
    ]
    return costs, summary


def _measure_pass(
    rescorer: LocalRescorer, lists: Sequence[NBestList], write: Callable[[Any], object]
) -> tuple[list[int], list[tuple[float, float]], FileSummary]:
    """Rescore a sample once.

    Returns:
        The numbers of lists after which batches begin and end; processor time and elapsed time at each of
        these; and the counts of the pass.
    """
    ends, clocks = [0], [(time.process_time(), time.perf_counter())]

    def note_end(n_items: int, summary: FileSummary) -> None:
        ends.append(ends[-1] + n_items)
        clocks.append((time.process_time(), time.perf_counter()))

    summary = rescore_lists(rescorer, lists, write, on_batch=note_end)
    return ends, clocks, summary


def count_edges(rescorer: LocalRescorer, lists: Sequence[NBestList]) -> int:
    """Count the distinct prefixes and sentence ends of lists that are scored together."""
    ranker, prepared = rescorer.rescorer.ranker, []
    bound = ranker.bind(rescorer.options)
    for nbest in lists:
        try:
            prepared.append(ranker.prepare(nbest, bound))
        except InvalidList:
            continue
    words = [hypothesis for each in prepared for hypothesis in each.words]
    return build_trie(words, [each.history for each in prepared for _ in each.words]).n_edges if words else 0
