"""Owns the benchmark of scoring: the file command's own run over the lists with a stopwatch in it, and the
machine's matrix products, a plain PyTorch scorer and KenLM's sentence call in the same run."""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import torch

from rescorer.bench.peers import kenlm_words_per_second, plain_words_per_second
from rescorer.bench.products import flops, gemm_rate
from rescorer.bench.work import Work, count_work
from rescorer.cpu_count import cores
from rescorer.errors import ConfigError, InputError
from rescorer.file_rescoring import Rescoring, rescore_lists
from rescorer.formats.rescored import JSON_LINES, rescored_writer
from rescorer.lm.neural import NeuralLanguageModel
from rescorer.lm.ngram import NgramModel
from rescorer.parallel_rescoring import RescoringProcesses
from rescorer.pipeline import Rescorer
from rescorer.profiling import Phase, Stopwatch
from rescorer.types import NBestList

NEURAL = (Phase.NETWORK, Phase.OUTPUT)
FILES = (Phase.PARSE, Phase.WRITE, Phase.OTHER)
"""What the library does not do."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """How it is measured."""

    warm_up: int = 1
    """Runs that do not count."""
    repetitions: int = 3
    """Runs that do; the median of each phase counts."""
    single_lists: int = 50
    """Lists also scored alone, for the time that one takes."""
    peer_seconds: float = 5.0
    """After so long the plain scorer takes no new batch; 0: leave it out."""
    processor_time: bool = False
    """Count seconds of the processor, not of the wall clock: figures of one thread that hold on a machine
    that does other work too."""

    def __post_init__(self) -> None:
        for name, least in (("warm_up", 0), ("repetitions", 1), ("single_lists", 0), ("peer_seconds", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected at least {least}")
        if self.processor_time and torch.get_num_threads() > 1:
            raise ConfigError(f"processor time is of one thread; torch has {torch.get_num_threads()}")

    @property
    def clock(self) -> Callable[[], float]:
        return time.process_time if self.processor_time else time.perf_counter


@dataclass(frozen=True, slots=True)
class Speed:
    """One line of the benchmark."""

    name: str
    seconds: float
    words_per_second: float
    """Canonical words of all hypotheses, and an ``</s>`` each."""
    prefixes_per_second: float
    """Distinct ones, edges of the tries."""
    floor_multiple: float | None = None
    """Time ÷ the time that the line's matrix products would take at the machine's own rate."""


@dataclass(frozen=True, slots=True)
class BenchReport:
    """What was measured."""

    lists: int
    hypotheses: int
    words: int
    prefixes: int
    speeds: tuple[Speed, ...]
    """A line a phase, then ``neural``, ``the rest of the library``, ``library`` and ``end to end``."""
    floor_gflops: float | None
    """10⁹ flops of the networks' products."""
    gemm_gflops_per_second: float | None
    """The machine's rate for a typical one of these products."""
    plain_words_per_second: float | None
    kenlm_words_per_second: float | None
    single_list_ms: float | None
    """Median time in the library of one list alone."""
    processes: int = 1
    """Of the file command run besides, each with its share of the cores."""
    in_processes: Speed | None = None
    """End to end in so many."""
    machine: dict[str, object] = field(default_factory=dict)

    def speed(self, name: str) -> Speed:
        return next(each for each in self.speeds if each.name == name)


def run_benchmark(
    rescorer: Rescorer,
    read: Callable[[], Iterable[NBestList | InputError]],
    folder: Path,
    options: BenchOptions,
    processes: Callable[[], RescoringProcesses] | None = None,
) -> BenchReport:
    """Measures it all.

    Args:
        read: reads the lists anew, as often as asked.
        folder: for the answers that the runs write.
        processes: that do the same work; None: only this process does it.

    Raises:
        ConfigError: there is no list that could be scored.
    """
    rescorer = without_streams(rescorer)
    lists = [item for item in read() if isinstance(item, NBestList)]
    if not lists:
        raise ConfigError("no list to measure with")
    networks = [each for each in rescorer.models.values() if isinstance(each, NeuralLanguageModel)]
    work = count_work(lists, rescorer)
    for _ in range(options.warm_up):
        one_run(rescorer, read, folder, options)
    runs = [one_run(rescorer, read, folder, options) for _ in range(options.repetitions)]
    rate = None
    if networks:
        weight = networks[0].model.output.word_weight
        rate = gemm_rate(work.network + work.output, options.clock, weight.dtype, weight.device)
    plain, kenlm = peers(rescorer, lists, networks, options)
    single_ms = single_list_ms(rescorer, lists, options)
    count, seconds = seconds_in_processes(processes, read, folder, options) if processes else (1, 0.0)
    return BenchReport(
        lists=work.lists,
        hypotheses=work.hypotheses,
        words=work.words,
        prefixes=work.prefixes,
        speeds=tuple(speeds(runs, work, rate)),
        floor_gflops=flops(work.network + work.output) / 1e9 if rate else None,
        gemm_gflops_per_second=rate / 1e9 if rate else None,
        plain_words_per_second=plain,
        kenlm_words_per_second=kenlm,
        single_list_ms=single_ms,
        processes=count,
        in_processes=speed_of(f"in {count} processes", seconds, work, rate) if processes else None,
        machine={
            "threads": torch.get_num_threads(),
            "cores": cores(),
            "torch": torch.__version__,
            "clock": "processor" if options.processor_time else "wall",
        },
    )


def without_streams(rescorer: Rescorer) -> Rescorer:
    """The same with weights that any list suits, whatever its streams."""
    default = replace(rescorer.bundle.weights["default"], streams={})
    bundle = replace(rescorer.bundle, weights={"default": default})
    return Rescorer(bundle, rescorer.models, rescorer.max_batch_words)


def measured(load: Callable[[], Rescorer]) -> Rescoring:
    """What a process besides does."""
    return Rescoring(without_streams(load()))


def one_run(
    rescorer: Rescorer,
    read: Callable[[], Iterable[NBestList | InputError]],
    folder: Path,
    options: BenchOptions,
) -> dict[Phase, float]:
    """Seconds by phase of the file command over all lists."""
    watch = Stopwatch(options.clock, torch.cuda.synchronize if on_gpu(rescorer) else lambda: None)
    with rescored_writer(JSON_LINES, folder / "answers.jsonl") as write, watch.running():
        rescore_lists(Rescoring(rescorer), read(), write, io.StringIO())
    return watch.seconds


def on_gpu(rescorer: Rescorer) -> bool:
    models = rescorer.models.values()
    return any(isinstance(each, NeuralLanguageModel) and each.device.type == "cuda" for each in models)


def speeds(runs: list[dict[Phase, float]], work: Work, rate: float | None) -> list[Speed]:
    """Medians of the runs, phase by phase and in sums."""

    def line(name: str, phases: Iterable[Phase], floor_flops: int = 0) -> Speed:
        seconds = statistics.median(sum(run[phase] for phase in phases) for run in runs)
        return speed_of(name, seconds, work, rate, floor_flops)

    floors = {Phase.NETWORK: flops(work.network), Phase.OUTPUT: flops(work.output)}
    both = sum(floors.values())
    return [
        *(line(phase.value, [phase], floors.get(phase, 0)) for phase in Phase),
        line("neural", NEURAL, both),
        line("the rest of the library", [phase for phase in Phase if phase not in (*NEURAL, *FILES)]),
        line("library", [phase for phase in Phase if phase not in FILES], both),
        line("end to end", list(Phase), both),
    ]


def speed_of(name: str, seconds: float, work: Work, rate: float | None, floor_flops: int = 0) -> Speed:
    rates = [count / seconds if seconds else 0.0 for count in (work.words, work.prefixes)]
    multiple = seconds * rate / floor_flops if rate and floor_flops else None
    return Speed(name, seconds, rates[0], rates[1], multiple)


def seconds_in_processes(
    start: Callable[[], RescoringProcesses],
    read: Callable[[], Iterable[NBestList | InputError]],
    folder: Path,
    options: BenchOptions,
) -> tuple[int, float]:
    """How many processes there are, and the median time of the file command in them, once they are warm."""
    times = []
    with start() as processes:
        for _ in range(options.warm_up + options.repetitions):
            began = time.perf_counter()
            with rescored_writer(JSON_LINES, folder / "answers.jsonl") as write:
                rescore_lists(processes, read(), write, io.StringIO())
            times.append(time.perf_counter() - began)
    return processes.count, statistics.median(times[options.warm_up :])


def peers(
    rescorer: Rescorer,
    lists: list[NBestList],
    networks: list[NeuralLanguageModel],
    options: BenchOptions,
) -> tuple[float | None, float | None]:
    """Words/s of the plain scorer at the first network's sizes, and of KenLM's call with the first n-gram."""
    normaliser, clock = rescorer.bundle.normaliser, options.clock
    sentences = [normaliser.words(each.text) for nbest in lists for each in nbest.hypotheses]
    ngrams = [each for each in rescorer.models.values() if isinstance(each, NgramModel)]
    kenlm = kenlm_words_per_second(sentences, ngrams[0], clock) if ngrams else None
    if not networks or not options.peer_seconds:
        return None, kenlm
    network, size = networks[0], networks[0].model.config.hidden_size
    plain = plain_words_per_second(
        sentences, network.words, size, network.device, options.peer_seconds, clock
    )
    return plain, kenlm


def single_list_ms(rescorer: Rescorer, lists: list[NBestList], options: BenchOptions) -> float | None:
    """Median time of one list, from list to answer."""
    times = []
    for nbest in islice(lists, options.single_lists):
        began = options.clock()
        rescorer.rescore([nbest])
        times.append(options.clock() - began)
    return 1000 * statistics.median(times) if times else None
